"""Lab 11's references and hidden cases; never released."""
