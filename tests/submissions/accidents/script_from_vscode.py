"""Exported as a script with `# %%` cells."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save, text_of

SAYS = "You submitted a Python script"


def submit(notebook: Notebook, folder: Path) -> None:
    blocks = []
    for one in notebook["cells"]:
        if one["cell_type"] == "code":
            blocks.append(f"# %%\n{text_of(one)}\n")
        else:
            lines = "\n".join(f"# {line}" for line in text_of(one).splitlines())
            blocks.append(f"# %% [markdown]\n{lines}\n")
    save("\n".join(blocks), folder, "lab3.py")
