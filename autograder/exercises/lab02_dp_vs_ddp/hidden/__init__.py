"""What decides lab 02; never released."""
