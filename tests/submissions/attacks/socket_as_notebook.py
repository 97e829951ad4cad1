"""The notebook is a socket."""

import os
import socket

from tests.submissions.corpus import NAME, Place

KIND = "smuggling"
STATE = "unreadable file"
SEEN_BY = "points"


def submit(place: Place) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        before = os.getcwd()
        os.chdir(place.folder)  # socket paths must be short
        try:
            sock.bind(NAME)
        finally:
            os.chdir(before)
