"""References, mistakes and hidden cases of lab 06; never released."""
