"""What decides lab 09; never released."""
