"""A notebook of 25 MB."""

from tests.submissions.corpus import Place, released, save

KIND = "smuggling"
STATE = "unreadable file"
SEEN_BY = "neighbors"


def submit(place: Place) -> None:
    notebook = released()
    notebook["cells"][0]["source"] = "x" * 25_000_000
    save(notebook, place.folder)
