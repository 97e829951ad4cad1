"""The course's colours, in one place (Okabe & Ito's set, safe for colour-blind readers).

Roles are the same in every chapter and widget: orange is predicted, blue measured, grey waiting,
vermillion wrong, green right.
"""

from __future__ import annotations

PREDICTED = "#E69F00"  # orange; also the ideal
MEASURED = "#0072B2"  # blue
WAIT = "#999999"  # grey; also idle
ERROR = "#D55E00"  # vermillion; also a deadlock
OK = "#009E73"  # bluish green

CYCLE = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#666666",
)

# Memory categories: different from the roles above, and from each other in a stack. The order is
# from the bottom of the stack, the same as in `shardlab.run.MEMORY_CATEGORIES`.
MEMORY = {
    "parameters": "#56B4E9",
    "gradients": "#CC79A7",
    "optimizer": "#7A5FD0",
    "activations": "#DDCC77",
    "buckets": "#44AA99",
    "other": "#BBBBBB",
}

# For `plt.style.use`: plots that are readable on light and dark pages.
PLOT_INK = "#767676"
PLOT_STYLE = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), PLOT_INK
    ),
}

# The first prefix that matches an op gives its colour: all_gather_single has all_gather's.
# Vermillion is left out: on a timeline it means a hang.
_OPS = {
    "send": "#0072B2",
    "recv": "#56B4E9",
    "all_reduce": "#CC79A7",
    "reduce_scatter": "#009E73",
    "all_gather": "#E69F00",
    "scatter": "#009E73",
    "gather": "#E69F00",
    "broadcast": "#F0E442",
    "all_to_all": "#AA4499",
    "barrier": "#666666",
}
_OTHER_OP = "#999933"


def rank_color(rank: int) -> str:
    """The colour of a rank and of its contributions."""
    return CYCLE[rank % len(CYCLE)]


def op_color(op: str) -> str:
    """The colour of a torch.distributed call, by its name."""
    return next((color for name, color in _OPS.items() if op.startswith(name)), _OTHER_OP)


def ink_on(color: str) -> str:
    """Black or white, whichever reads better on ``color`` (WCAG's relative luminance)."""

    def linear(channel: int) -> float:
        share = channel / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(int(color[i : i + 2], 16)) for i in (1, 3, 5))
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#000000" if luminance > 0.179 else "#ffffff"
