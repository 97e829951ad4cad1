"""The README's picture: a ring all-reduce on four ranks, drawn from a real run.

python -m tools.readme_picture docs/traffic.png
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle

from shardlab.display.palette import MEASURED, PREDICTED, ink_on, rank_color
from shardlab.estimate import ring_sent_bytes
from shardlab.launch import launch
from shardlab.run import Run
from shardlab.widgets.units import format_bytes

WORLD_SIZE = 4
LENGTH = 2**20  # float32 elements
TENSOR_BYTES = 4 * LENGTH
FORMATS = (".png", ".svg")
INK, FAINT = "#222222", "#6B6B6B"


def save(path: Path) -> Run:
    """Run the all-reduce and save its picture to ``path``, in the format of its suffix.

    Raises ValueError for a suffix other than .png and .svg.
    """
    if path.suffix not in FORMATS:
        raise ValueError(f"{path}: the file must end in {' or '.join(FORMATS)}")
    run = launch(all_reduce, LENGTH, world_size=WORLD_SIZE, device="cpu", quiet=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a date, the same run gives the same file.
    dateless = {"Date": None} if path.suffix == ".svg" else {}
    figure(run).savefig(path, dpi=200, metadata=dateless)
    return run


def all_reduce(length: int) -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(length))


def figure(run: Run) -> Figure:
    """Ring, heat map and bars side by side, on white, so it is readable on a dark page too."""
    drawing = Figure(figsize=(10, 4.1), facecolor="white")
    drawing.text(
        0.035, 0.93, f"Ring all-reduce of {format_bytes(TENSOR_BYTES)} on {run.world_size} ranks",
        fontsize=15, fontweight="bold", color=INK,
    )  # fmt: skip
    drawing.text(0.035, 0.865, f"Bytes {run.traffic.source}", fontsize=10.5, color=FAINT)
    _ring(drawing.add_axes((0.02, 0.09, 0.29, 0.71)), run)
    _heat_map(drawing.add_axes((0.37, 0.10, 0.255, 0.62)), run)
    _bars(drawing.add_axes((0.715, 0.10, 0.25, 0.62)), run)
    return drawing


def _ring(axes: Axes, run: Run) -> None:
    """Ranks on a circle, with an arrow where more than 1 % of the maximum was sent."""
    sent = run.traffic.sent_bytes
    axes.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5), aspect="equal")
    axes.axis("off")
    angles = [math.pi / 2 - math.tau * rank / run.world_size for rank in range(run.world_size)]
    places = [(math.cos(angle), math.sin(angle)) for angle in angles]
    for sender, receiver in zip(*np.nonzero(sent > sent.max() / 100), strict=True):
        clockwise = (receiver - sender) % run.world_size == 1
        axes.add_patch(
            FancyArrowPatch(
                places[sender], places[receiver], arrowstyle="-|>", mutation_scale=16,
                connectionstyle=f"arc3,rad={-0.32 if clockwise else 0.32}",
                shrinkA=21, shrinkB=21, linewidth=5 * sent[sender, receiver] / sent.max(),
                color=MEASURED, joinstyle="miter",
            )
        )  # fmt: skip
        turn = -1 if clockwise else 1
        between = angles[sender] + turn * math.pi / run.world_size
        axes.text(
            1.29 * math.cos(between), 1.29 * math.sin(between),
            format_bytes(sent[sender, receiver]), ha="center", va="center", fontsize=10, color=INK,
        )  # fmt: skip
    for rank, place in enumerate(places):
        color = rank_color(rank)
        axes.add_patch(Circle(place, 0.27, color=color, zorder=3))
        axes.text(
            *place, str(rank), ha="center", va="center", zorder=4,
            fontsize=15, fontweight="bold", color=ink_on(color),
        )  # fmt: skip
    axes.text(0, 0, "rank", ha="center", va="center", fontsize=10.5, color=FAINT)


def _heat_map(axes: Axes, run: Run) -> None:
    sent = run.traffic.sent_bytes
    n = run.world_size
    axes.set(xlim=(0, n), ylim=(n, 0), aspect="equal")
    for row in range(n):
        for column in range(n):
            level = sent[row, column] / sent.max()
            fill = (MEASURED, 0.15 + 0.85 * level) if level else ("#000000", 0.04)
            axes.add_patch(
                Rectangle((column + 0.03, row + 0.03), 0.94, 0.94, facecolor=fill, linewidth=0)
            )
            if level:
                axes.text(
                    column + 0.5, row + 0.5, format_bytes(sent[row, column]),
                    ha="center", va="center", fontsize=9.5, color="white" if level > 0.5 else INK,
                )  # fmt: skip
    ranks = [str(rank) for rank in range(n)]
    axes.set_xticks(np.arange(n) + 0.5, ranks)
    axes.set_yticks(np.arange(n) + 0.5, [f"rank {rank}" for rank in ranks])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=10, labelcolor=INK)
    axes.spines[:].set_visible(False)
    axes.set_title("row sends to column", loc="left", fontsize=10.5, color=FAINT, pad=8)


def _bars(axes: Axes, run: Run) -> None:
    """Predicted and measured bytes sent by each rank, aligned with the heat map's rows."""
    n = run.world_size
    predicted = ring_sent_bytes(TENSOR_BYTES, n)
    rows = np.arange(n) + 0.5
    both = (
        (rows - 0.19, np.full(n, predicted), PREDICTED, "predicted: 2(N − 1)/N · S"),
        (rows + 0.19, run.traffic.sent_by_rank, MEASURED, "measured"),
    )
    for at, values, color, label in both:
        axes.barh(at, values, height=0.34, color=color, label=label)
        for y, value in zip(at, values, strict=True):
            axes.text(
                predicted * 0.03, y + 0.01, f"{value:,.0f} bytes", va="center", fontsize=9,
                color=ink_on(color),
            )  # fmt: skip
    axes.set(xlim=(0, predicted * 1.05), ylim=(n, 0))
    axes.set_xticks([])
    axes.set_yticks(rows, [str(rank) for rank in range(n)])
    axes.tick_params(length=0, labelsize=10, labelcolor=INK)
    axes.spines[:].set_visible(False)
    axes.set_title("sent by each rank", loc="left", fontsize=10.5, color=FAINT, pad=21)
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.035, 0.99), ncols=2, frameon=False, fontsize=9,
        handlelength=0.9, handleheight=0.9, columnspacing=1.2, handletextpad=0.5,
    )  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.readme_picture")
    parser.add_argument("path", type=Path, help="a .png or .svg file")
    path = parser.parse_args(argv).path
    try:
        run = save(path)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"drew {path} from {run}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
