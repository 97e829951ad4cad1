"""PyCharm writes `#%%` without a space, and text without comment signs."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save, text_of

SAYS = "You submitted a Python script"


def submit(notebook: Notebook, folder: Path) -> None:
    marks = {"code": "#%%", "markdown": "#%% md"}
    blocks = [f"{marks[one['cell_type']]}\n{text_of(one)}\n" for one in notebook["cells"]]
    save("".join(blocks), folder, "lab3.py")
