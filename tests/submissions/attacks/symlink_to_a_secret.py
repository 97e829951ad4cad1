"""The notebook is a link to a file in the grader's home."""

from tests.submissions.corpus import NAME, Place

KIND = "smuggling"
STATE = "unreadable file"
SEEN_BY = "loot"


def submit(place: Place) -> None:
    (place.folder / NAME).symlink_to(place.home / ".canary")
