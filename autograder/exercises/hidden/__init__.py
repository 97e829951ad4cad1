"""Reads the solutions, which students do not get."""
