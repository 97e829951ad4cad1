"""How numbers, lines of code and colors are shown to readers, in a notebook and elsewhere."""
