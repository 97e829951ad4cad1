"""Recorded runs that labs ask about, with the format they are stored in."""
