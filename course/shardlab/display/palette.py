"""The course's colors, in one place: one color, one meaning, in every chapter and widget.

There are nine scales: predicted and measured, ranks, kinds of memory, calls, phases of a step,
states of a rank, axes of parallelism, work of a device, parts of a model. All colors have a
contrast of at least 3:1 with JupyterLab's light and dark pages. Two that can appear in the same
picture also differ for color-blind readers, or are distinguished by something else: ranks by their
number, an error by stripes or an outline. tests/…/test_palette.py measures this. The colors come
from a computer search under these conditions, so that no shade of one suggests the meaning of
another: if you change one, run that test.
"""

from __future__ import annotations

PLOT_INK = "#767676"  # text and axes of plots outside a page; inside, plots.py uses the page's own

# For `plt.style.use`. Text stays text, so that a browser can draw and measure it and read it aloud.
PLOT_STYLE = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), PLOT_INK
    ),
}

PREDICTED = "#CF7C00"  # orange; also simulated, ideal, expected
MEASURED = "#137CEC"  # blue; on dark pages, 4.5:1
WAIT = "#949397"  # gray; also idle
ERROR = "#DD3D22"  # red; also a deadlock
OK = "#008754"  # green

# Muted, and always drawn with the rank's number or at its position.
RANKS = (
    "#4D85AC",
    "#8C5E3D",
    "#6B9D79",
    "#9B6D8E",
    "#699AB0",
    "#AA8A6A",
    "#6C7142",
    "#8684B6",
)

# From the bottom of a stack, in the order of `shardlab.run.live_memory.CATEGORIES`.
MEMORY = {
    "parameters": "#329FBF",
    "gradients": "#AC497F",
    "optimizer": "#7B5FD0",
    "activations": "#399784",
    "buckets": "#697A04",
    "other": "#745F4B",
}

# What a device computes. "weights" is the weight gradient alone, "update" the optimizer's step.
PHASES = {
    "forward": "#188390",
    "backward": "#B74A46",
    "weights": "#9F7FD7",
    "update": "#5E9E4B",
}

# What a rank is doing; WAIT is waiting, and stripes of "compute" are computing while communication
# is in progress.
STATES = {
    "compute": "#5A648C",
    "exposed": "#C86EDC",
    "loader": "#508200",
}

# Axes of parallelism: of a mesh, and of a step the traffic that waits for them.
AXES = {
    "data": "#1A66A9",
    "tensor": "#E46D7B",
    "pipeline": "#847DCE",
    "context": "#BC61A9",
    "expert": "#A8403E",
}

# What a device does in a step by what sets its time, where forward and backward are not apart.
WORK = {
    "products": "#1D714E",
    "memory-bound work": "#907018",
    "overhead": "#785585",
}

# Calls of torch.distributed. The first name that an op starts with gives its color:
# all_gather_single has all_gather's, reduce_scatter is listed before reduce.
CALLS = {
    "send": "#776CE6",
    "recv": "#047473",
    "all_reduce": "#C949B8",
    "reduce_scatter": "#1E741B",
    "reduce": "#A1499A",
    "all_gather": "#CB7769",
    "gather": "#985048",
    "scatter": "#58945B",
    "broadcast": "#989731",
    "all_to_all": "#785FA4",
    "barrier": "#678195",
}
OTHER_CALL = "#887260"

# Layers and tensors, which have names and outnumber the colors: neighbors differ.
PARTS = (
    "#6A7393",
    "#707A64",
    "#4A6E4F",
    "#855A77",
    "#A17C6E",
    "#5F8F8F",
)
OTHER_PART = "#976A3F"  # embedding, head, loss


def rank_color(rank: int) -> str:
    """The color of a rank and of its contributions."""
    return RANKS[rank % len(RANKS)]


BLACK, WHITE = "#000000", "#ffffff"


def op_color(op: str) -> str:
    """The color of a torch.distributed call, by its name."""
    return next((color for name, color in CALLS.items() if op.startswith(name)), OTHER_CALL)


def ink_on(color: str) -> str:
    """Black or white, whichever reads better on ``color``."""
    return BLACK if luminance(color) > 0.179 else WHITE


def luminance(color: str) -> float:
    """WCAG's relative luminance, from 0 (black) to 1 (white)."""

    def linear(channel: int) -> float:
        share = channel / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(int(color[i : i + 2], 16)) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
