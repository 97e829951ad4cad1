"""Lab 09's references and hidden cases; never released."""
