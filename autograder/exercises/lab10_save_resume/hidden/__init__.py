"""What decides lab 10; never released."""
