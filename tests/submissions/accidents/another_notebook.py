"""Another notebook under the lab's name."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save

SAYS = "is it the right notebook?"
LOST = True


def submit(notebook: Notebook, folder: Path) -> None:
    other = [{"cell_type": "code", "metadata": {}, "source": "print('lab 2')", "outputs": []}]
    save({**notebook, "cells": other}, folder)
