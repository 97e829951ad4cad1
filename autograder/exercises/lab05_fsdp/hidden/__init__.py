"""References, mistakes and hidden cases of lab 05; never released."""
