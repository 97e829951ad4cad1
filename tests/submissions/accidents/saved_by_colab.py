"""Colab writes nbformat 4.0, with its own ids in the metadata."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save, text_of

SAYS = ""


def submit(notebook: Notebook, folder: Path) -> None:
    for number, one in enumerate(notebook["cells"]):
        del one["id"]
        one["metadata"]["id"] = f"Xy{number}_zQ"
        one["source"] = text_of(one).splitlines(keepends=True)
    notebook["nbformat_minor"] = 0
    notebook["metadata"] = {"colab": {"provenance": []}, "kernelspec": {"name": "python3"}}
    save(notebook, folder)
