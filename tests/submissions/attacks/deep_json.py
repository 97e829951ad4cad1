"""JSON nested deeper than a parser's stack."""

from tests.submissions.corpus import NAME, Place

KIND = "smuggling"
STATE = "unreadable file"
SEEN_BY = "neighbors"


def submit(place: Place) -> None:
    text = '{"cells": ' + "[" * 300_000 + "]" * 300_000 + "}"
    (place.folder / NAME).write_text(text)
