"""One submission from bytes to a record of what was decided, on any machine."""
