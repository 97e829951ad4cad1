"""The notebook's kernel is Julia."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = ""


def submit(notebook: Notebook, folder: Path) -> None:
    notebook["metadata"] = {
        "kernelspec": {"name": "julia-1.9", "display_name": "Julia", "language": "julia"},
        "language_info": {"name": "julia"},
    }
    save(notebook, folder)
