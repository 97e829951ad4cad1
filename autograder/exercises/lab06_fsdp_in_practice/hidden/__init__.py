"""The hidden halves of lab 06."""
