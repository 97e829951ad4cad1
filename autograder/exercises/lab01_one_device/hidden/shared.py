"""Boundaries that no exercise of this lab has."""

UNDIVIDED = dict.fromkeys(
    ("divides", "does not divide", "more ranks than elements"),
    "not asked: nothing is divided among ranks",
)
