# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 16 · Where the time goes
#
# A training step takes a second. How much of it did the model need? What could it take at best on this machine, and what takes the rest? You will compute the utilization of published runs, the least time of a layer and its communication, and the sizes at which communication hides; then you will take recorded steps of all ranks apart.
#
# **In this lab you**
#
# - compute MFU and HFU from a log line and a configuration, and say which one a report means;
# - derive the least time of a layer, and the sizes from which its communication hides;
# - take a step of all ranks apart, find its bottleneck and repair it.
#
# **You need:** [chapter 16](../../course/chapters/16_where_the_time_goes.ipynb).
#
# <!-- table of points -->
#
# Each exercise has a task, a **spec** that runs, a **budget**, your cell, a picture of what your code did, and a check. Grading adds hidden cases: other sizes, other machines, other runs. A mistake in one exercise never costs points in a later one.

# %%
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import matplotlib.pyplot as plt
import torch
from torch.utils.flop_counter import FlopCounterMode

from autograder import check
from shardlab import show_table
from shardlab.models import paper_layer
from shardlab.recorded_runs.published import PUBLISHED
from shardlab.widgets import palette

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# ## 1 · `mfu`
#
# TODO

# %% nbgrader={"grade_id": "mfu", "solution": true}
def mfu(log, model, cluster, recomputed=False):
    """A log line, a configuration  ->  {"mfu": 0.46, "hfu": 0.46}"""
    ### BEGIN SOLUTION
    if "step_s" in log:
        tokens_per_s = log["sequences"] * model["sequence"] / log["step_s"]
    elif "tokens_per_s" in log:
        tokens_per_s = log["tokens_per_s"]
    else:
        tokens_per_s = log["tokens_per_s_per_device"] * cluster["devices"]
    parameters = model["parameters"] - model["lookup_parameters"]
    if "experts" in model:
        used = model["experts_per_token"] / model["experts"]
        parameters -= model["expert_parameters"] * (1 - used)
    heads_width = model["heads"] * model["head_width"]
    forward = 2 * parameters + 4 * model["layers"] * heads_width * model["sequence"]
    peak_flops_per_s = cluster["peak_flops_per_s"] / (2 if cluster["with_sparsity"] else 1)
    forward_share = forward * tokens_per_s / (cluster["devices"] * peak_flops_per_s)
    return {"mfu": 3 * forward_share, "hfu": (4 if recomputed else 3) * forward_share}
    ### END SOLUTION

# %% nbgrader={"grade_id": "check_mfu", "grade": true}
check("where_the_time_goes.mfu", mfu)

# %% [markdown]
# ## 3 · `roofline_time`
#
# TODO

# %% nbgrader={"grade_id": "roofline_time", "solution": true}
def roofline_time(rows, inner, columns, element_bytes, machine, ranks=1):
    """Sizes, a machine  ->  {"product_s": 0.001, "all_reduce_s": 0.002}"""
    ### BEGIN SOLUTION
    own_inner = inner / ranks
    flops = 2 * rows * own_inner * columns
    elements = rows * own_inner + own_inner * columns + rows * columns
    product_s = max(
        flops / machine["flops_per_s"], elements * element_bytes / machine["memory_bytes_per_s"]
    )
    chunk_bytes = rows * columns * element_bytes / ranks
    message_s = machine["latency_s"] + 8 * chunk_bytes / machine["link_bits_per_s"]
    return {"product_s": product_s, "all_reduce_s": 2 * (ranks - 1) * message_s}
    ### END SOLUTION

# %% nbgrader={"grade_id": "check_roofline_time", "grade": true}
check("where_the_time_goes.roofline_time", roofline_time)

# %% [markdown]
# ## 4 · `threshold`
#
# TODO

# %% nbgrader={"grade_id": "threshold", "solution": true}
def threshold(parallelism, cluster, gradient_bytes=2, hidden_width=None):
    """"data" or "zero3"  ->  tokens per device; "tensor"  ->  ranks"""
    ### BEGIN SOLUTION
    if parallelism == "tensor":
        sent_bytes_per_s = cluster["nvlink_bytes_per_s"] / 2
        return 1 + hidden_width * sent_bytes_per_s / cluster["flops_per_s"]
    to_other_nodes = (cluster["nodes"] - 1) / cluster["nodes"]
    s_per_byte = 8 * to_other_nodes / cluster["node_bits_per_s"]
    s_per_flop = 1 / cluster["flops_per_s"]
    if parallelism == "data":
        return 2 * gradient_bytes * s_per_byte / (4 * s_per_flop)
    forward = 2 * s_per_byte / (2 * s_per_flop)
    backward = (2 + gradient_bytes) * s_per_byte / (4 * s_per_flop)
    return max(forward, backward)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check_threshold", "grade": true}
check("where_the_time_goes.threshold", threshold)
