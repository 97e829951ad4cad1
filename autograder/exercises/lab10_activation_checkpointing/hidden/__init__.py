"""Lab 10's references and hidden cases; never released."""
