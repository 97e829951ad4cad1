"""The folder of the submission is a link to another student's."""

from tests.submissions.corpus import Place

KIND = "smuggling"
STATE = "unreadable file"
SEEN_BY = "points"


def submit(place: Place) -> None:
    place.folder.rmdir()
    place.folder.symlink_to(place.neighbor, target_is_directory=True)
