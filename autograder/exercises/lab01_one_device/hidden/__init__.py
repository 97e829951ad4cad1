"""References, mistakes and hidden cases of lab 01; never released."""
