"""Another notebook under the lab's name."""

from pathlib import Path

from tests.submissions.accidents.by_hand import Notebook, save

SAYS = "is it the right notebook?"
LOST = True


def hand_in(notebook: Notebook, folder: Path) -> None:
    other = [{"cell_type": "code", "metadata": {}, "source": "print('lab 2')", "outputs": []}]
    save({**notebook, "cells": other}, folder)
