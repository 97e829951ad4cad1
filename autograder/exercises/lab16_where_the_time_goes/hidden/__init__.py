"""The hidden halves of lab 16."""
