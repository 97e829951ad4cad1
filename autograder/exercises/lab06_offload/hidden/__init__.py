"""What decides lab 06; never released."""
