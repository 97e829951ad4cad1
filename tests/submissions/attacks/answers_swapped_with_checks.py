"""Grade ids swapped: answers pretend to be checks, in unlocked cells."""

from tests.submissions.corpus import Place, released, save

KIND = "smuggling"
STATE = "student error"
SEEN_BY = "points"


def submit(place: Place) -> None:
    notebook = released()
    for cell in notebook["cells"]:
        nbgrader = cell["metadata"].get("nbgrader", {})
        name = nbgrader.get("grade_id", "")
        if name.startswith("check_"):
            nbgrader["grade_id"] = name.removeprefix("check_")
            cell["id"], cell["source"] = name.removeprefix("check_"), "2.0"
        elif name:
            nbgrader["grade_id"] = cell["id"] = f"check_{name}"
    save(notebook, place.folder)
