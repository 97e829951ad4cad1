"""References, mistakes and hidden cases of lab 07; never released."""
