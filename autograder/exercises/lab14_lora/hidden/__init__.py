"""The hidden halves of lab 14."""
