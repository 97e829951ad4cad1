"""Markdown with scripts, event handlers, frames and styles, in answers and other cells."""

from tests.submissions.corpus import Place, released, save

KIND = "smuggling"
STATE = "graded"
SEEN_BY = "points"


def submit(place: Place) -> None:
    notebook = released()
    evil = (
        "<script>document.title='LO'+'OT'</script><img src=x onerror=alert(1)>"
        "<iframe src=javascript:alert(1)></iframe><style>*{display:none}</style>"
        "[x](javascript:alert(1)) <svg onload=alert(1)></svg>"
    )
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = evil
    image = {"x.svg": {"image/svg+xml": "PHN2ZyBvbmxvYWQ9YWxlcnQoMSk+"}}
    note = {"cell_type": "markdown", "id": "n", "metadata": {}, "source": evil, "attachments": image}
    notebook["cells"].append(note)
    save(notebook, place.folder)
