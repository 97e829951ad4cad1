"""What decides lab 03; never released."""
