"""The course as a student walks through it: its notebooks, and the results of checks so far."""
