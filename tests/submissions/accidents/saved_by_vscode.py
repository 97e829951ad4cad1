"""VS Code adds languages and new ids to cells, and no kernel name."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = ""


def submit(notebook: Notebook, folder: Path) -> None:
    for number, one in enumerate(notebook["cells"]):
        one["id"] = f"{number:08x}"
        one["metadata"]["vscode"] = {"languageId": "python"}
    notebook["metadata"] = {"language_info": {"name": "python"}, "orig_nbformat": 4}
    save(notebook, folder)
