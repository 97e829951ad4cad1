"""The front page's question, which is asked and answered without a kernel.

`record` runs real ranks and stores the bytes that they sent. `files` makes of these the modules and
states of two widgets, for the course's JupyterLab extension (page/), and a picture of the answer,
for readers elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path

from shardlab.widgets.comparison import Comparison
from shardlab.widgets.picture import Picture, asset, module
from shardlab.widgets.prediction import Prediction, predict

ROOT = Path(__file__).parents[2]
MEASURED = Path(__file__).with_name("measured") / "bytes_sent.json"
EXTENSION = ROOT / "jupyter/labextensions/shardlab/static"
PICTURE = ROOT / "course/chapters/openers/live/bytes_sent.svg"
PAGE = Path(__file__).with_name("page")
SCRIPTS = ("opener.js", "retry.js", "pages.js")  # joined in this order
STATE = ("scene", "value", "answered", "revealed")  # what the modules read of a widget
LENGTH, RANKS = 2**20, 4
NAME = "bytes_sent"


def record() -> None:
    """Runs the ring of chapter 03's opener and counts what each rank sends."""
    from shardlab.launch import launch  # imports torch
    from tools.openers.recipes import ring_steps

    run = launch(ring_steps, LENGTH, world_size=RANKS, device="cpu", quiet=True)
    MEASURED.write_text(
        json.dumps({"sent_bytes": run.traffic["ring"].sent_by_rank.tolist()}) + "\n"
    )


def widgets() -> dict[str, Picture]:
    sent_bytes = json.loads(MEASURED.read_text())["sent_bytes"]
    tensor = 4 * LENGTH
    question = predict(
        "Bytes that each rank sends", unit="B", labels=range(RANKS), over="rank", top=3 * tensor
    )
    hub = [(RANKS - 1) * tensor] + [tensor] * (RANKS - 1)
    named = {
        "the whole tensor once, as if one message were enough": tensor,
        "the whole tensor to every other rank": (RANKS - 1) * tensor,
        "a hub: all send to rank 0, which sends the sum back": hub,
        "half of the way: each rank then has a quarter of the sum": tensor * 3 / 4,
    }
    comparison = question.compare(sent_bytes, named)
    question.answered = False  # no cell to run again: the guess may be changed
    question.scene = {**question.scene, "next": "The answer is below."}
    return {"prediction": question, "comparison": comparison}


def files() -> dict[Path, str]:
    """{path: text} of all that is made here."""
    made = widgets()
    states = [
        {
            "id": name,
            "module": name,
            "state": {key: getattr(widget, key) for key in STATE if widget.has_trait(key)}
            | {"prediction": "prediction" if isinstance(widget, Comparison) else None},
        }
        for name, widget in made.items()
    ]
    own = [(PAGE / name).read_text(encoding="utf-8") for name in SCRIPTS]
    return {
        EXTENSION / "pages.js": "\n".join([module("player.js"), *own]),
        EXTENSION / "pages.css": asset("widgets.css") + asset("prediction.css"),
        EXTENSION / "prediction.js": Prediction._esm,
        EXTENSION / "comparison.js": Comparison._esm,
        EXTENSION / "live/bytes_sent.json": json.dumps(states, ensure_ascii=False) + "\n",
        PICTURE: made["comparison"].static_svg(),
    }
