"""Changes the solutions' code at each place it can, and lists the changes that earn full marks."""
