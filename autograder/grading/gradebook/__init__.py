"""Writes records to nbgrader's gradebook, and runs inside nbgrader's own commands."""
