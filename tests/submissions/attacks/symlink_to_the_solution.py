"""The notebook is a link to the solution."""

from tests.submissions.corpus import NAME, Place

KIND = "smuggling"
STATE = "unreadable file"
SEEN_BY = "points"


def submit(place: Place) -> None:
    (place.folder / NAME).symlink_to(place.course / "solutions" / NAME.removesuffix(".ipynb") / NAME)
