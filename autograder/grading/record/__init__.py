"""Grades one submission, from its bytes to a record, on any machine."""
