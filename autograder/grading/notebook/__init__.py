"""Runs a notebook's cells in a sandbox, and keeps their outputs."""
