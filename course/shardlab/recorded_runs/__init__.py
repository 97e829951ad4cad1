"""Runs recorded once, which labs ask about, with the format they are stored in."""
