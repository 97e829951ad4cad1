"""An answer, copied twice, whose lines keep IPython's transformer busy for minutes."""

from tests.submissions.corpus import Place, released, save

KIND = "smuggling"
STATE = "resource limit"
SEEN_BY = "neighbors"


def submit(place: Place) -> None:
    notebook = released()
    for cell in [*notebook["cells"]]:
        if cell["id"] == "chunk_bounds":
            cell["source"] = "x = !true\n" * 400 + "y = [1, 2, 3, 4, 5, 6, 7, 8]\n" * 1500
            notebook["cells"].append({**cell, "id": "again", "source": cell["source"] + "x"})
    save(notebook, place.folder)
