"""Boundaries that do not apply to this lab."""

NOT_SHARDED = dict.fromkeys(
    ("divides", "does not divide", "more ranks than elements"),
    "not tested: nothing is divided among ranks",
)
