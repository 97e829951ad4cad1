"""References, mistakes and hidden cases of lab 08; never released."""
