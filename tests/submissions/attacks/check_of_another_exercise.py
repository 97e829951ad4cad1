"""Every check rewritten to check an easy exercise."""

from tests.submissions.corpus import Place, released, save

KIND = "smuggling"
STATE = "graded"
SEEN_BY = "points"


def submit(place: Place) -> None:
    notebook = released()
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["id"].startswith("check_"):
            cell["source"] = 'check("ring_all_reduce.bytes_per_rank", lambda n, b, w: 2 * (w - 1) * n * b / w)'
        elif cell["id"] == "bytes_per_rank":
            cell["source"] = text
    save(notebook, place.folder)
