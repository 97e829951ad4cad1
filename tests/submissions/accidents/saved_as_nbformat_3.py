"""IPython's notebooks of 2013: worksheets, `input` instead of `source`."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save, text_of

SAYS = ""


def submit(notebook: Notebook, folder: Path) -> None:
    cells = []
    for one in notebook["cells"]:
        kind = "input" if one["cell_type"] == "code" else "source"
        old = {"cell_type": one["cell_type"], "metadata": one["metadata"], kind: text_of(one)}
        if kind == "input":
            old |= {"language": "python", "collapsed": False, "outputs": [], "prompt_number": 1}
        cells.append(old)
    sheets = [{"cells": cells, "metadata": {}}]
    old_notebook = {"metadata": {"name": ""}, "nbformat": 3, "nbformat_minor": 0}
    save({**old_notebook, "worksheets": sheets}, folder)
