"""The hidden halves of lab 12."""
