"""An answer there twice with lines that IPython's transformer takes minutes for."""

from tests.submissions.corpus import Place, released, save

KIND = "smuggling"
STATE = ("graded", "student error", "resource limit")
SEEN_BY = "neighbours"


def hand_in(place: Place) -> None:
    notebook = released()
    for cell in [*notebook["cells"]]:
        if cell["id"] == "chunk_bounds":
            cell["source"] = "x = !true\n" * 500
            notebook["cells"].append({**cell, "id": "again", "source": cell["source"] + "x"})
    save(notebook, place.folder)
