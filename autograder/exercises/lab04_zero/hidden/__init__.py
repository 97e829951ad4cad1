"""References, mistakes and hidden cases of lab 04; never released."""
