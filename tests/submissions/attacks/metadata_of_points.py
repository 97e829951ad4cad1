"""Metadata that claims that cells are not graded, are worth 1000 points, are skipped or may fail."""

from tests.submissions.corpus import Place, released, save

KIND = "smuggling"
STATE = "graded"
SEEN_BY = "points"


def submit(place: Place) -> None:
    notebook = released()
    for cell in notebook["cells"]:
        cell["metadata"]["tags"] = ["skip-execution", "raises-exception", "remove-cell"]
        cell["metadata"]["deletable"] = True
        nbgrader = cell["metadata"].get("nbgrader")
        if nbgrader and nbgrader["grade"]:
            nbgrader |= {"points": 1000, "grade": nbgrader["points"] == 2, "locked": False}
            result = {"output_type": "execute_result", "data": {"text/plain": "1000"}}
            cell["outputs"] = [{**result, "execution_count": 1, "metadata": {}}]
    extra = {"grade_id": "bonus", "grade": True, "points": 1000, "solution": False, "locked": True}
    meta = {"nbgrader": {**extra, "schema_version": 3, "task": False}}
    bonus = {"cell_type": "code", "id": "bonus", "metadata": meta, "source": "1000", "outputs": []}
    notebook["cells"].append({**bonus, "execution_count": 1})
    notebook["metadata"]["shardlab"] = {"seed": 1}
    save(notebook, place.folder)
