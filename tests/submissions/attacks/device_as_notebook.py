"""The notebook is /dev/zero, or a link to it if the tests cannot create devices."""

import os
import stat

from tests.submissions.corpus import NAME, Place

KIND = "smuggling"
STATE = "unreadable file"
SEEN_BY = "neighbors"


def submit(place: Place) -> None:
    try:
        os.mknod(place.folder / NAME, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        (place.folder / NAME).symlink_to("/dev/zero")
