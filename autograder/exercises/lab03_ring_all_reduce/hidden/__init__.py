"""References, mistakes and hidden cases of lab 03; never released."""
