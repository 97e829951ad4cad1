"""The hidden halves of lab 05."""
