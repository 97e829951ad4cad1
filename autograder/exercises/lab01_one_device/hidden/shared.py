"""Boundaries of exercises that run on one rank."""

ALONE = dict.fromkeys(
    ("divides", "does not divide", "more ranks than elements"),
    "not asked: nothing is divided among ranks",
)
