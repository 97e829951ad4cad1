"""The hidden halves of lab 15."""
