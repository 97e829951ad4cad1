"""20 kB that unpack to 20 MB and more."""

import zipfile

from tests.submissions.corpus import NAME, Place

KIND = "smuggling"
STATE = "unreadable file"
SEEN_BY = "neighbors"


def submit(place: Place) -> None:
    with zipfile.ZipFile(place.folder / "lab.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(NAME, bytes(30_000_000))
