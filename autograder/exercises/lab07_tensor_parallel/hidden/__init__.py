"""What decides lab 07; never released."""
