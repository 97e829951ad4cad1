"""The picture that each chapter opens with: a recorded run that plays before any code is run.

A recipe (recipes.py) runs real ranks and gives an `Opener`, which is data: rows over time with
blocks, messages and levels (marks.py). It is stored in ``recorded/`` and drawn as an animated SVG
(draw.py), which a markdown cell shows (cell.py). New data, or a new look:

    python -m tools.openers --record 03_ring_all_reduce
    python -m tools.openers
"""

from tools.openers.cell import cell
from tools.openers.draw import draw
from tools.openers.opener import Block, Level, Message, Opener, load, names, save

__all__ = ["Block", "Level", "Message", "Opener", "cell", "draw", "load", "names", "save"]
