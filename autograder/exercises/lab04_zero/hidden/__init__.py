"""What decides lab 04; never released."""
