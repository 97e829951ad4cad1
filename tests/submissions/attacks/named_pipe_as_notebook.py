"""The notebook is a named pipe: opening it blocks forever."""

import os

from tests.submissions.corpus import NAME, Place

KIND = "smuggling"
STATE = "unreadable file"
SEEN_BY = "neighbors"


def submit(place: Place) -> None:
    os.mkfifo(place.folder / NAME)
