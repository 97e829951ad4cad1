"""The hidden halves of lab 11."""
