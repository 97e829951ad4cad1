"""What decides lab 01; never released."""
