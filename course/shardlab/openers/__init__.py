"""The picture that each chapter opens with: a recorded run that plays before any code is run.

A recipe (recipes.py) runs real ranks and gives an `Opener`, which is data: rows over time with
blocks, messages and levels (marks.py). It is stored in ``recorded/`` and drawn as an animated SVG
(draw.py), which a markdown cell shows (cell.py). New data, or a new look:

    python -m shardlab openers --record 03_ring_all_reduce
    python -m shardlab openers
"""

from shardlab.openers.cell import cell
from shardlab.openers.draw import draw
from shardlab.openers.opener import Block, Level, Message, Opener, load, names, save

__all__ = ["Block", "Level", "Message", "Opener", "cell", "draw", "load", "names", "save"]
