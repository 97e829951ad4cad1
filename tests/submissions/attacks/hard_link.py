"""The notebook is a hard link to the solution."""

import os

from tests.submissions.corpus import NAME, Place

KIND = "smuggling"
STATE = "unreadable file"
SEEN_BY = "points"


def submit(place: Place) -> None:
    os.link(place.course / "solutions" / NAME.removesuffix(".ipynb") / NAME, place.folder / NAME)
