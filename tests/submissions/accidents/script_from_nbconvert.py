"""`Save and export as executable script`."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, save, text_of

SAYS = "You submitted a Python script"
LOST = ("from_8_to_64_ranks",)


def submit(notebook: Notebook, folder: Path) -> None:
    cells = [one for one in notebook["cells"] if one["cell_type"] == "code"]
    blocks = [f"# In[{n}]:\n\n\n{text_of(one)}\n\n\n" for n, one in enumerate(cells)]
    save("#!/usr/bin/env python\n# coding: utf-8\n\n" + "".join(blocks), folder, "03_ring_all_reduce.py")
