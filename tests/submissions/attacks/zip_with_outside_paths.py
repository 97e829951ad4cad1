"""A zip whose paths lead outside its folder, and links."""

import zipfile

from tests.submissions.corpus import NAME, Place

KIND = "smuggling"
STATE = "unreadable file"
SEEN_BY = "canary"


def submit(place: Place) -> None:
    with zipfile.ZipFile(place.folder / "lab.zip", "w") as archive:
        for up in ("../../../../", "/", "../../../../../../../../"):
            archive.writestr(f"{up}{place.home}/climbed", "x")
            archive.writestr(f"{up}tmp/{place.mark}", "x")
        link = zipfile.ZipInfo(NAME)
        link.external_attr = 0o120777 << 16
        archive.writestr(link, str(place.home / ".canary"))
