"""The notebook is a folder of the same name, with a notebook in it."""

from tests.submissions.corpus import NAME, Place, released, save

KIND = "smuggling"
STATE = "unreadable file"
SEEN_BY = "points"


def submit(place: Place) -> None:
    (place.folder / NAME).mkdir()
    save(released(), place.folder / NAME)
