"""References, mistakes and hidden cases of lab 02; never released."""
