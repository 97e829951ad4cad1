"""The file name is capitalized, and there is a scratch notebook next to it."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = "`03_Ring_All_Reduce.IPYNB` was graded"


def submit(notebook: Notebook, folder: Path) -> None:
    save(notebook, folder, "03_Ring_All_Reduce.IPYNB")
    save({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, folder, "Untitled.ipynb")
