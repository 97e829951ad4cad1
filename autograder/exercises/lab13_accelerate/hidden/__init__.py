"""The hidden halves of lab 13."""
