"""Lab 08's references and hidden cases; never released."""
