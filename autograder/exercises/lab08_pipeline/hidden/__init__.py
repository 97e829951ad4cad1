"""What decides lab 08; never released."""
