"""What all output of a notebook shares: colors, tables, claims, and the names of its cells."""
