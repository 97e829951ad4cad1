"""The file's name contains markup and terminal escape codes."""

from tests.submissions.corpus import Place, released, save

KIND = "smuggling"
STATE = "graded"
SEEN_BY = "loot"


def submit(place: Place) -> None:
    save(released(), place.folder, "<script>alert(1)</script>\x1b[2J\u202e`.ipynb".replace("/", "%"))
