"""A thousand folders and notebooks instead of one notebook."""

from tests.submissions.corpus import Place

KIND = "smuggling"
STATE = "unreadable file"
SEEN_BY = "neighbors"


def submit(place: Place) -> None:
    for number in range(1000):
        (place.folder / f"folder{number}").mkdir()
        (place.folder / f"notebook{number}.ipynb").write_text("{}")
