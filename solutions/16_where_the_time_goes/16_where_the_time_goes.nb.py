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
# **You need:** [chapter 16](../../course/chapters/16_where_the_time_goes.ipynb). Exercises 1 and 2 use [chapter 10](../../course/chapters/10_activation_checkpointing.ipynb) (full activation checkpointing), exercises 3 and 4 [chapter 08](../../course/chapters/08_tensor_parallel.ipynb) (tensor parallelism).
#
# <!-- table of points -->
#
# Each exercise has a task, a **spec** that runs, a **budget**, your cell, a picture of what your code did, and a check. Grading adds hidden cases: other sizes, other machines, other runs. A mistake in one exercise never costs points in a later one.

# %%
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import time

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from autograder import check
from shardlab import launch, measure, show_table
from shardlab.models import paper_layer
from shardlab.recorded_runs import bottlenecks
from shardlab.recorded_runs.published import MACHINES, PUBLISHED
from shardlab.widgets import palette, timeline

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# ## 1 · `mfu`
#
# **MFU** (model FLOPs utilization) is the share of the devices' peak that a model **needs** to train at the speed in the log. **HFU** (hardware FLOPs utilization) also counts what activation checkpointing computes a second time.
#
# `mfu(log, model, cluster, recomputed=False)` returns both as fractions of 1. The arguments are dictionaries, and these are three of them:

# %%
RUNS = {name: run.question for name, run in PUBLISHED.items()}
{name: RUNS[name] for name in ("PaLM 540B", "Llama 3.1 8B", "Mixtral 8x7B")}

# %% [markdown]
# Everyone counts differently. Here, count as in appendix B of the PaLM paper (arXiv 2204.02311):
#
# - **forward, parameters**: each token is multiplied by each parameter of each matrix that it passes: one multiplication and one addition, two operations. `lookup_parameters` are part of `parameters`, but only looked up: an embedding that is not also the matrix of the logits.
# - **forward, attention**: in each of the `layers` and each of the `heads`, a token's query is multiplied by the keys of all `sequence` tokens, and the scores by their values. Queries, keys and values have `head_width` elements for each head. Count all pairs of tokens, although a causal mask makes half of them superfluous.
# - **backward**: each product has two in backward, one for the gradient of each factor.
# - **recomputed**: with `recomputed=True`, all of forward runs a second time. This is full activation checkpointing.
# - **experts**: in a mixture of experts, each token uses `experts_per_token` of the `experts` in each layer. `expert_parameters`, those of all experts of all layers together, are part of `parameters`. Other models do not have these keys.
# - **the peak** is that of dense matrices. With `with_sparsity`, `peak_flops_per_s` is printed for matrices in which two of four elements are zero, and that is twice as much.
# - **the log** has one of three forms: `tokens_per_s` of all devices together, `tokens_per_s_per_device`, or a step of `sequences` sequences that takes `step_s` seconds. A sequence has `model["sequence"]` tokens.
#
# Nothing else counts: no norms, no softmax, no optimizer. As a spec, torch counts the operations of one layer with an MLP of $4 \cdot$ width, so $12 \cdot \text{width}^2$ parameters. The result is for each token:

# %%
def layer_flops_spec(width, heads, sequence):
    """Forward, and forward and backward: operations for each token, counted by torch"""
    with torch.device("meta"):  # shapes without data
        layer = paper_layer.PaperLayer(width, heads)
        x = torch.empty(1, sequence, width, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        y = layer(x)
        forward = counter.get_total_flops() / sequence
        y.sum().backward()
    return forward, counter.get_total_flops() / sequence

layer_flops_spec(width=1024, heads=16, sequence=128), layer_flops_spec(1024, 16, 8192)

# %% [markdown]
# **Budget** · no communication: this is arithmetic. Your answer may not use the library's `shardlab.estimate`.
#
# <details><summary>Hint 1 · one token, forward</summary>
#
# For N parameters in matrices, 2N. For attention, look at the difference of the spec's two results: which sizes does it grow with, and with which factor?
# </details>
# <details><summary>Hint 2 · the whole step</summary>
#
# If forward is 1, backward is 2. So how many forwards does MFU count, and how many does HFU with full recomputation? What is the ratio of the two?
# </details>
# <details><summary>Hint 3 · the speed</summary>
#
# Bring each form of the log to tokens per second of all devices. The peak to compare with is then that of all devices.
# </details>
# <details><summary>Hint 4 · nearly there</summary>
#
# Compare your forward with the spec, which has one layer, `parameters` = 12 · width² and `heads * head_width` = width. Then take out the parameters that no product uses: those that are only looked up, and those of the experts that a token does not use. Of Mixtral's parameters, 12.75 billion remain.
# </details>

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

# %% [markdown]
# Your numbers next to those that were published. BLOOM was trained with Megatron-LM, whose formula does not count the logits as recomputed: 48.0%. PaLM recomputed a part of its forward, so its HFU is between the two that this exercise knows, 57.8%. torchtitan gives one range for Llama on 8 and 128 GPUs, without and with `torch.compile`: the two runs here are without it, at the lower end. The throughput of Mixtral is made up.

# %%
show_table(
    {"run": "", "published": "", "your MFU": ".1%", "your HFU": ".1%"},
    [
        (name, run.published, *(mfu(**run.question)[key] for key in ("mfu", "hfu")))
        for name, run in PUBLISHED.items()
    ],
)

# %% [markdown]
# What the devices could have computed, and what they did. Without layers, `mfu` gives the share of the parameters; attention is the rest of MFU. Chapter 16 and the rest of this lab are about the part that is not used.

# %%
def plot_shares(runs):
    figure, axes = plt.subplots(figsize=(7, 2.6))
    for row, run in enumerate(runs.values()):
        both = mfu(**run)
        parameters = mfu(**run | {"model": run["model"] | {"layers": 0}})["mfu"]
        ends = [0, parameters, both["mfu"], both["hfu"], 1]
        for part, color in enumerate(SHARES.values()):
            width = ends[part + 1] - ends[part]
            axes.barh(row, width, 0.6, left=ends[part], color=color, edgecolor=palette.WAIT)
    axes.set(yticks=range(len(runs)), yticklabels=runs, xlim=(0, 1), xlabel="share of the peak")
    axes.invert_yaxis()
    handles = [plt.Rectangle((0, 0), 1, 1, fc=color, ec=palette.WAIT) for color in SHARES.values()]
    figure.legend(handles, SHARES, loc="outside upper center", ncols=4, frameon=False)

SHARES = {
    "parameters": palette.MEMORY["parameters"],
    "attention": palette.PARTS[3],
    "recomputed": palette.OTHER_PART,
    "not used": "none",
}
plot_shares(RUNS)

# %% nbgrader={"grade_id": "check_mfu", "grade": true}
check("where_the_time_goes.mfu", mfu)

# %% [markdown]
# ## 2 · Which utilization is meant?
#
# Four reports, three of them from public discussions:
#
# 1. Megatron-LM logs about 420 TFLOP/s for each H200. The user divides by 1979, gets 21%, and asks why that is so small. (NVIDIA/Megatron-LM, issue 1565)
# 2. FlashAttention's benchmark reaches 189 TFLOP/s with causal attention over 16k tokens on an A100; it counts half of all pairs. A user notes that a program which counts all of them would report 189 · 2 / 312 = 121%. (pytorch/torchtitan, issue 341)
# 3. A program with a fixed formula for transformers trains models with linear attention, in which no token meets all others, and reports 133% MFU. (fla-org/flame, issue 7)
# 4. BLOOM's log shows 149.77 TFLOP/s on A100s, 48% of 312, with full recomputation. Korthikanti et al. (arXiv 2205.05198) give 41.5% MFU for a model of 22B parameters on the same GPUs. So BLOOM used its GPUs better?
#
# For each: which part of the fraction is wrong, or means something else than in exercise 1, and what is the number in the convention of exercise 1, where the report allows it to be computed? Which conclusions are right? Write one to three sentences for each.

# %% [markdown] nbgrader={"grade_id": "which_utilization", "grade": true, "solution": true, "points": 2}
# ### BEGIN SOLUTION
# 1\. The peak is wrong: 1979 TFLOP/s is for matrices with 2:4 sparsity, and training multiplies dense ones, with half of it. 420/989.5 = 42.4%, which is usual, and not small.
#
# 2\. Nothing is wrong, but the convention counts all pairs of tokens and the kernel computes half of them. So the number has no upper limit of 100%: for this kernel alone, exercise 1 gives the same 121%, and the operations that were executed are 189/312 = 60.6% of the peak. The longer the sequences, the more this matters: compare MFU only between runs with the same sequence length and convention.
#
# 3\. The operations are wrong: the formula counts the attention of another model, so the number means nothing for this one. The operations of linear attention have to be counted for themselves; without the sizes and the throughput the report does not allow it.
#
# 4\. 48% is HFU, because Megatron-LM's formula counts the recomputed forward: 96 where MFU counts 72. BLOOM's MFU is about three quarters of it, 36%. The conclusion is wrong: the 22B model used its GPUs better, 41.5% against 36%.
#
# Points: 0.5 for each report: what is wrong with the fraction, and the number (42.4%; 121% by the convention or 60.6% executed; none; 36%).
# ### END SOLUTION

# %% [markdown]
# ## 3 · `roofline_time`
#
# How long does a layer take at least? A device computes and moves data between its memory and its cores at the same time, so a product takes at least as long as the slower of the two. Communication takes at least the time of its messages.
#
# `roofline_time(rows, inner, columns, element_bytes, machine, ranks=1)`: as in the row-parallel layer of chapter 08, `ranks` devices split the **inner** dimension. Each multiplies [rows, inner / ranks] by [inner / ranks, columns], which is its part of the sum, and a ring all-reduce adds the parts. `ranks` divides `inner`. Return the least seconds of both: `{"product_s": …, "all_reduce_s": …}`.
#
# - **product**, on one device: it computes `flops_per_s` operations and moves `memory_bytes_per_s` bytes a second. Each element of the three matrices crosses the memory's bus once and takes `element_bytes`.
# - **all-reduce**: the ring of chapter 03, with equal chunks. All ranks send at the same time, each through its own link of `link_bits_per_s`. Every message takes `latency_s` and then the time of its bytes, and the next one starts when it has arrived. Additions take no time, nor does the memory. One rank has nothing to reduce.
#
# `MACHINES` has the numbers of datasheets; the latency is an assumption. The spec counts a product:

# %%
def product_spec(rows, inner, columns):
    """Operations and elements of [rows, inner] @ [inner, columns], counted by torch"""
    left, right = (torch.empty(size, device="meta") for size in ((rows, inner), (inner, columns)))
    with FlopCounterMode(display=False) as counter:
        result = left @ right
    return counter.get_total_flops(), left.numel() + right.numel() + result.numel()

MACHINES["H100"], product_spec(16, 4096, 16384)

# %% [markdown]
# **Budget** · no communication: this is arithmetic, without a loop.
#
# <details><summary>Hint 1 · the product</summary>
#
# Two times, one of the operations and one of the bytes. With 16 rows, which is longer? Which of the three matrices has most of the bytes?
# </details>
# <details><summary>Hint 2 · the ring</summary>
#
# How many messages does a rank send one after another, in the reduce-scatter and in the all-gather? Which part of the result is in each?
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# A message takes `latency_s + 8 * chunk_bytes / link_bits_per_s`, and there are `2 * (ranks - 1)` of them.
# </details>

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

# %% [markdown]
# The second matrix of the MLP of Llama 3 70B, on one H100 and on 8 with a network adapter each. On the left, few rows: reading the matrix takes most of the time, and so does the latency of the all-reduce. On the right, many: the all-reduce takes longer than the product that it follows. That is why tensor parallelism stays within a node, where NVLink is about nine times as fast as an adapter.

# %%
def plot_times(inner, columns, machine, ranks):
    figure, axes = plt.subplots(figsize=(6.5, 3.2))
    sizes = [2**power for power in range(15)]
    product, all_reduce = palette.PHASES["forward"], palette.op_color("all_reduce")
    for n, key, name, color, line in (
        (1, "product_s", "product on one device", product, "-"),
        (ranks, "product_s", f"product on {ranks}", product, "--"),
        (ranks, "all_reduce_s", f"all-reduce on {ranks}", all_reduce, "-"),
    ):
        times = [roofline_time(rows, inner, columns, 2, machine, n)[key] for rows in sizes]
        axes.plot(sizes, [1e6 * seconds for seconds in times], line, color=color, label=name)
    axes.set(xscale="log", yscale="log", xlabel="rows: tokens", ylabel="least µs")
    axes.legend(frameon=False, loc="upper left")
    figure.tight_layout()

plot_times(28672, 8192, MACHINES["H100"], ranks=8)

# %% nbgrader={"grade_id": "check_roofline_time", "grade": true}
check("where_the_time_goes.roofline_time", roofline_time)

# %% [markdown]
# ## 4 · `threshold`
#
# Communication **hides** if it takes no longer than the computation that runs at the same time. `threshold(parallelism, machine, nodes=1, gradient_bytes=2, hidden_width=None)` returns the size at which both take equally long on this machine, at its peak and without latency:
#
# - `"data"`: **tokens per device** of each step. All nodes have the same parameters. While backward runs, their gradients, `gradient_bytes` each, are all-reduced: first added up within each node over NVLink, then in a ring across `nodes`. Only what crosses the network counts here, in which each of the `devices_per_node` devices has its own adapter, and all send at the same time, each a part of the gradients.
# - `"zero3"`: **tokens per device** again. The parameters, 2 bytes each, are sharded over the nodes: they are all-gathered for forward and once more for backward, and backward reduce-scatters the gradients, `gradient_bytes` each. Forward must hide its own traffic, and backward its own.
# - `"tensor"`: **ranks** t within a node. An MLP has two matrices, [D, `hidden_width`] and [`hidden_width`, D], both split over t ranks. In forward, the time of both products on each rank hides one ring all-reduce of their result, [tokens, D] in 16 bit. `nvlink_bytes_per_s` is printed as datasheets do: what a device sends and what it receives, added up. Count what the ring really sends, with its $\frac{t-1}{t}$: chapter 16's $\frac{F W}{C}$, F for the hidden width, leaves this factor out, so it is the limit for many ranks.
#
# Operations are counted as in exercise 1, without attention. The result does not depend on the number of parameters, on D or, for `"tensor"`, on the tokens. Do not round it. The spec counts the operations of a linear layer:

# %%
def linear_flops_spec(tokens, parameters_in, parameters_out):
    """Operations of forward and of backward, counted by torch"""
    with torch.device("meta"):
        layer = torch.nn.Linear(parameters_in, parameters_out, bias=False)
        x = torch.empty(tokens, parameters_in, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        y = layer(x)
        forward = counter.get_total_flops()
        y.sum().backward()
    return forward, counter.get_total_flops() - forward

linear_flops_spec(tokens=100, parameters_in=10, parameters_out=1000)

# %% [markdown]
# **Budget** · no communication: this is arithmetic. Derive each threshold on paper first: write both times, set them equal, and see what cancels.
#
# <details><summary>Hint 1 · data</summary>
#
# Take N parameters and T tokens on each device. What does backward compute for each parameter and token? How many bytes leave a node in an all-reduce across M nodes, and how many bytes leave it in a second?
# </details>
# <details><summary>Hint 2 · zero3</summary>
#
# An all-gather or a reduce-scatter sends half of what an all-reduce does. Compute the tokens at which forward hides its all-gather, and those at which backward hides its two. From how many tokens on are both hidden?
# </details>
# <details><summary>Hint 3 · tensor</summary>
#
# For each token, a rank computes $\frac{2 \cdot 2 D F}{t}$ operations, with F the hidden width, and sends $\frac{2(t-1)}{t}$ of D elements. Set both times equal: what cancels?
# </details>
# <details><summary>Hint 4 · nearly there</summary>
#
# For `"data"`, N cancels, and three factors remain: the bytes that leave a node for each parameter, the operations of backward for each parameter and token, and $\frac{C}{W}$, with C of one device and W of its whole node, in bytes per second. Which of them multiply, and which divide? If $\frac{C}{W}$ were 1, two nodes with gradients of 4 bytes would need 1 token.
# </details>

# %% nbgrader={"grade_id": "threshold", "solution": true}
def threshold(parallelism, machine, nodes=1, gradient_bytes=2, hidden_width=None):
    """What hides behind what  ->  tokens per device, or for "tensor" ranks"""
    ### BEGIN SOLUTION
    if parallelism == "tensor":
        sent_bytes_per_s = machine["nvlink_bytes_per_s"] / 2
        return 1 + hidden_width * sent_bytes_per_s / machine["flops_per_s"]
    node_bytes_per_s = machine["devices_per_node"] * machine["link_bits_per_s"] / 8
    flops_per_byte = machine["flops_per_s"] / node_bytes_per_s
    of_one_pass = (nodes - 1) / nodes * flops_per_byte
    if parallelism == "data":
        return of_one_pass * 2 * gradient_bytes / 4
    return max(of_one_pass * 2 / 2, of_one_pass * (2 + gradient_bytes) / 4)
    ### END SOLUTION

# %% [markdown]
# Data parallelism on H100s: the time of backward grows with the tokens on each device, that of the all-reduce does not. They meet at your threshold. The scaling book (Austin et al., 2025, part 12) gives 2475 tokens for many nodes, with 990 TFLOP/s and 400 GB/s.

# %%
def plot_threshold(machine, nodes, parameters=8e9):
    figure, axes = plt.subplots(figsize=(6.5, 3))
    met = {size: threshold("data", machine, nodes, size) for size in (2, 4)}
    backward_s = 4 * parameters / machine["flops_per_s"]  # for each token
    tokens = [0, 1.3 * met[4]]
    axes.plot(tokens, [backward_s * n for n in tokens], color=palette.PHASES["backward"])
    axes.text(tokens[1], backward_s * tokens[1], " backward", va="center")
    for size, meeting in met.items():
        axes.axhline(backward_s * meeting, color=palette.op_color("all_reduce"))
        axes.plot(meeting, backward_s * meeting, "o", color=palette.MEASURED)
        words = f"{size} bytes: {meeting:,.0f} tokens"
        axes.annotate(words, (0, backward_s * meeting), (6, 3), textcoords="offset points")
        axes.text(tokens[1], backward_s * meeting, "all-reduce", ha="right", va="bottom")
    axes.set(xlabel="tokens per device", ylabel="seconds", xlim=(0, tokens[1]))
    figure.tight_layout()

plot_threshold(MACHINES["H100"], nodes=1024)

# %% [markdown]
# Up to how many ranks tensor parallelism hides its all-reduce, for wider and wider MLPs; the last two are those of GPT-3 and Llama 3 405B. Nodes have 4 or 8 devices, so whether it hides within a node depends on the model's width.

# %%
show_table(
    {"hidden width": ",d", "A100, ranks": ".1f", "H100, ranks": ".1f"},
    [
        (width, *(threshold("tensor", MACHINES[name], hidden_width=width) for name in MACHINES))
        for width in (4096, 14336, 49152, 53248)
    ],
)

# %% nbgrader={"grade_id": "check_threshold", "grade": true}
check("where_the_time_goes.threshold", threshold)

# %% [markdown]
# ## 5 · `exposed_communication`
#
# How much of a step is communication? Not the sum of its calls: a call may run while the rank computes, and a rank may stand in a call in which nothing moves, because another rank has not entered it. From the intervals of **all** ranks, take each rank's calls apart:
#
# - **exposed**: the rank does not compute, and at least one of its calls has been entered by all ranks, so bytes move;
# - **overlapped**: bytes move as well, but the rank computes meanwhile: this costs no time;
# - **waiting**: the rank does not compute, is in a call, and no call that it is in has been entered by all ranks yet.
#
# A moment in which a rank computes and bytes do not move yet is just computation.
#
# `exposed_communication(compute, calls)` returns a list with a dict for each rank: `{"exposed_s": …, "overlapped_s": …, "waiting_s": …}`. `compute[rank]` is a list of intervals `(start_s, end_s)` in which that rank computes, in any order; they may overlap and contain each other (an operator that calls another one), touch, or be empty. `calls[rank]` lists that rank's all-reduces, `(start_s, end_s)`: `calls[0][k]`, `calls[1][k]`, … are the parts of the ranks in the same all-reduce. Several may be in flight at the same time (the buckets of DDP). No rank leaves an all-reduce before all have entered it.

# %%
def exposed_communication_spec(compute, calls):
    """Looks at each unit of time; for intervals between whole numbers."""
    found = [{"exposed_s": 0, "overlapped_s": 0, "waiting_s": 0} for _ in calls]
    for seconds, computing, own in zip(found, compute, calls):
        for t in range(max(end for _, end in own)):
            computes = any(start <= t < end for start, end in computing)
            entered = [k for k, (start, end) in enumerate(own) if start <= t < end]
            if any(all(of_rank[k][0] <= t for of_rank in calls) for k in entered):
                seconds["overlapped_s" if computes else "exposed_s"] += 1
            elif entered and not computes:
                seconds["waiting_s"] += 1
    return found

compute = [[(0, 3), (7, 9)], [(0, 6)]]
calls = [[(3, 8), (8, 12)], [(5, 8), (6, 12)]]
exposed_communication_spec(compute, calls)

# %% [markdown]
# **Budget** · no communication: this is arithmetic, for times of any size · grading adds other numbers of ranks and calls, and intervals of recorded runs.
#
# <details><summary>Hint 1 · when bytes move</summary>
#
# Call k moves bytes from the latest of its starts on all ranks, `max(of_rank[k][0] for of_rank in calls)`, to its end on this rank.
# </details>
# <details><summary>Hint 2 · time counts once</summary>
#
# Write a function that returns the length of the **union** of intervals: sort them, and add what each has beyond the end of those before. Lengths alone would count two calls in flight twice.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# With |X| for the length of a union, C for the intervals of computation, M for those in which calls move bytes, and W for those before that: exposed is |C ∪ M| − |C|, and overlapped is |M| without it. What does W add to both?
# </details>

# %% nbgrader={"grade_id": "exposed_communication", "solution": true}
def exposed_communication(compute, calls):
    """Intervals of all ranks  ->  [{"exposed_s": 5, "overlapped_s": 2, "waiting_s": 2}, …]"""
    ### BEGIN SOLUTION
    def covered_s(intervals):
        total_s, until_s = 0, 0
        for start_s, end_s in sorted(map(tuple, intervals)):
            total_s += max(0, end_s - max(start_s, until_s))
            until_s = max(until_s, end_s)
        return total_s

    entered_s = [max(start_s for start_s, _ in of_call) for of_call in zip(*calls)]
    found = []
    for computing, own in zip(compute, calls):
        moves = [(at_s, end_s) for at_s, (_, end_s) in zip(entered_s, own)]
        compute_s, moves_s = covered_s(computing), covered_s(moves)
        both_s = covered_s([*computing, *moves])
        all_s = covered_s([*computing, *moves, *own])
        exposed_s = both_s - compute_s
        found.append({
            "exposed_s": exposed_s, "overlapped_s": moves_s - exposed_s, "waiting_s": all_s - both_s,
        })
    return found
    ### END SOLUTION

# %% [markdown]
# The example: computation above, each call below it, pale until the last rank has entered it; with your seconds.

# %%
def draw(compute, calls, seconds):
    figure, axes = plt.subplots(figsize=(7, 2.6))
    for rank, (computing, own) in enumerate(zip(compute, calls)):
        for start, end in computing:
            axes.barh(4 * rank, end - start, left=start, color=palette.STATES["compute"])
        for k, (start, end) in enumerate(own):
            entered = max(of_rank[k][0] for of_rank in calls)
            for left, right, alpha in ((start, entered, 0.35), (entered, end, 1)):
                axes.barh(
                    4 * rank + 1 + k, right - left, left=left, alpha=alpha, color=palette.op_color("all_reduce")
                )
        words = ", ".join(f"{key[:-2]} {value:g} s" for key, value in seconds[rank].items())
        axes.annotate(
            f"rank {rank}: {words}", (0, 4 * rank + 2.9), (6, 0), textcoords="offset points", va="center"
        )
    axes.set(xlabel="seconds", yticks=[], ylim=(4 * len(calls) - 0.5, -0.7))
    figure.tight_layout()

if (mine := exposed_communication(compute, calls)) is not None:
    draw(compute, calls, mine)

# %% nbgrader={"grade_id": "check_exposed_communication", "grade": true}
check("where_the_time_goes.exposed_communication", exposed_communication)

# %% [markdown]
# ## 6 · `find_the_bottleneck`
#
# Nine recorded steps, A to I. In each, one of five causes costs more time than any other cause. A cause has a **place**, where you would go to repair it:
#
# | cause | what happens | place |
# |---|---|---|
# | `"straggler"` | one rank computes longer than all others | that rank, an int |
# | `"slow loader"` | ranks stand still until their loader has the next batch | the rank whose loader takes longest |
# | `"small messages"` | many calls of less than 64 KiB (65,536 bytes) each | their line |
# | `"synchronization"` | the ranks meet in every micro-batch, for nothing that the step needs; each time another rank comes last | the line where they meet |
# | `"no overlap"` | calls of 64 KiB or more begin when nothing is left to compute | their line |
#
# The ranks and their calls are real, on nodes with links of 1 Gbit/s; computing devices and loaders are sleeps, because the two cores of the recording machine could not have computed for all ranks. Each cause was put in on purpose, and the step was recorded again with that cause repaired. A recording was kept if the estimate of hint 2 for this cause is at least 1.8 times that for any other cause or line, and if the repair saved at least half of the estimate. So the cause is the largest loss of its step; it need not be most of the step:

# %%
steps = bottlenecks.load()
show_table(
    {"step": "", "cause": "", "place": str, "ms": ".0f", "repaired, ms": ".0f", "saved": ".0%"},
    [
        (
            name, step["cause"], step["place"], 1e3 * step["step_s"], 1e3 * step["repaired_s"],
            1 - step["repaired_s"] / step["step_s"],
        )
        for name, step in steps.items()
    ],
)

# %% [markdown]
# Look at several of them: change the letter. Which ranks wait, and for whom? What do they do when their calls begin?

# %%
timeline(bottlenecks.as_run(steps["A"]))

# %% [markdown]
# `find_the_bottleneck(step)` gets numbers instead of a picture, and returns the cause and its place: `("straggler", 2)`. `step` is a dict:
#
# - `step["compute_s"]`, `step["loader_s"]`: the seconds that each rank computes, or stands in its loader: lists by rank;
# - `step["lines"]`: a dict for each line of `train.py` that makes collectives, with its `"line"`, `"op"`, number of `"calls"`, the sum of their `"bytes"` on one rank, and by rank `"exposed_s"` and `"waiting_s"`, as in exercise 5.
#
# Real steps have some of each: small collectives for a log, a barrier, a rank that has less to do than the others, a loader that takes its time. The cause is the one whose repair would save most. Grading uses other recorded steps, with other numbers of ranks, lines and sizes. Below are the numbers of A to E; change the letters for those of F to I.

# %%
def rows(step):
    """By rank: compute, loader; and for each line exposed and waiting, in milliseconds"""
    yield "compute", "", "", *(1e3 * each for each in step["compute_s"])
    yield "loader", "", "", *(1e3 * each for each in step["loader_s"])
    for line in step["lines"]:
        what = f"{line['calls']} × {line['op']}, {line['bytes'] / line['calls']:,.0f} bytes each"
        for key in ("exposed_s", "waiting_s"):
            yield key[:-2], line["line"], what, *(1e3 * each for each in line[key])

for name in "ABCDE":
    ranks = {f"rank {rank}, ms": ".0f" for rank in range(len(steps[name]["compute"]))}
    columns = {"state": "", "line": "", "calls": "", **ranks}
    show_table(columns, rows(steps[name]["summary"]), caption=f"{name}: {steps[name]['cause']}")

# %% [markdown]
# **Budget** · no communication: this is arithmetic.
#
# <details><summary>Hint 1 · a wait is a symptom</summary>
#
# Who waits is not the one to repair. If one rank hardly ever waits, the others wait for it: does it compute longer, or does its loader take longer? If *every* rank waits, each in its turn, the ranks meet too often.
# </details>
# <details><summary>Hint 2 · what a repair can save</summary>
#
# Estimate for each cause, and for each line, the seconds that the step could gain at most. A straggler as fast as the next slowest rank: the difference between the two (if one rank has *less* to do than the others, nobody gains). A loader that is never late: the longest time in a loader.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Of a line, count what every rank has, the **minimum** over the ranks: of `"waiting_s"` for a synchronization, of `"exposed_s"` for the two others, which differ by the bytes of *one* call. The answer is the largest of all these numbers.
# </details>

# %% nbgrader={"grade_id": "find_the_bottleneck", "solution": true}
def find_the_bottleneck(step):
    """{"compute_s": […], "loader_s": […], "lines": […]}  ->  ("straggler", 2)"""
    ### BEGIN SOLUTION
    compute_s, loader_s = step["compute_s"], step["loader_s"]
    next_s, longest_s = sorted(compute_s)[-2:]
    gain_s = {
        ("straggler", compute_s.index(longest_s)): longest_s - next_s,
        ("slow loader", loader_s.index(max(loader_s))): max(loader_s),
    }
    for line in step["lines"]:
        is_small = line["bytes"] / line["calls"] < 2**16
        cause = "small messages" if is_small else "no overlap"
        gain_s[cause, line["line"]] = min(line["exposed_s"])
        gain_s["synchronization", line["line"]] = min(line["waiting_s"])
    return max(gain_s, key=gain_s.get)
    ### END SOLUTION

# %% [markdown]
# Your answers, next to what was recorded:

# %%
show_table(
    {"step": "", "your answer": str, "recorded": str},
    [
        (name, find_the_bottleneck(step["summary"]), (step["cause"], step["place"]))
        for name, step in steps.items()
    ],
)

# %% nbgrader={"grade_id": "check_find_the_bottleneck", "grade": true}
check("where_the_time_goes.find_the_bottleneck", find_the_bottleneck)

# %% [markdown]
# ## 7 · `repaired_step`
#
# Here is a training step that has two of these causes. It is correct: parameters change by the mean gradient over all ranks and micro-batches, and it returns the mean loss. But it all-reduces each gradient by itself, in every micro-batch, and after each micro-batch it asks for the loss of all ranks, for a log.

# %%
def repaired_step_spec(model, optimizer, micro_batches):
    share = 1 / len(micro_batches) / dist.get_world_size()
    parameters = [each for each in model.parameters() if each.requires_grad]
    optimizer.zero_grad()
    total = 0
    for inputs, targets in micro_batches:
        loss = model(inputs, targets)
        logged = loss.detach() * share
        dist.all_reduce(logged)
        total += logged.item()
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
            dist.all_reduce(gradient)
            parameter.grad = share * gradient + (0 if parameter.grad is None else parameter.grad)
    optimizer.step()
    return total

# %% [markdown]
# In the run below, another rank is late in each micro-batch. So every rank waits in turn:

# %%
class Regression(torch.nn.Sequential):
    def forward(self, inputs, targets):
        return F.mse_loss(super().forward(inputs), targets)

class LateInTurn(list):
    """Micro-batches; rank r's own numbers r, r + 3, … take 30 ms longer to come."""
    def __iter__(self):
        for index, batch in enumerate(super().__iter__()):
            time.sleep(0.03 if index % 3 == dist.get_rank() else 0)
            yield batch

def train(take_step):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64) for _ in range(6)]
    model = Regression(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    micro_batches = LateInTurn((torch.randn(8, 64), torch.randn(8, 64)) for _ in range(3))
    dist.barrier()  # the first collective connects the ranks
    with measure("step"):
        loss = take_step(model, optimizer, micro_batches)
    return loss, sum(each.double().sum().item() for each in model.parameters())

slow_run = launch(train, repaired_step_spec, world_size=3, device="cpu")
timeline(slow_run, by="records")

# %% [markdown]
# Write `repaired_step(model, optimizer, micro_batches)`: the same change of the parameters and the same loss, which it returns on every rank, in **one collective**. `micro_batches` has a `len` and can be iterated over, once; each is a pair of inputs and targets, and `model(inputs, targets)` returns the mean loss of that micro-batch. All ranks have the same number of micro-batches, of the same size. Some parameters may be frozen (`requires_grad=False`), or shared by two layers. What is in `.grad` when it is called belongs to the step before.
#
# **Budget** · one `all_reduce` a step, on every rank · sends ≤ 1.05 × ideal bytes per rank, ideal = $2 \cdot \frac{N-1}{N} \cdot (\Psi + 4)$ bytes in each step: Ψ bytes of gradients and a loss in fp32 · no rank waits for another one before it has its last micro-batch. In the check, the last rank gets its first micro-batch when all others have got their last one: who waits earlier, hangs.
#
# <details><summary>Hint 1 · what adds up by itself</summary>
#
# `backward()` adds to `.grad`. So the micro-batches need no communication between them, only `zero_grad` before the first. Divide each loss by `len(micro_batches)` before `backward()`.
# </details>
# <details><summary>Hint 2 · one message</summary>
#
# `torch.cat` of all gradients, flattened, is one flat buffer. The loss, added up over the micro-batches, is one more number in it.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# After the all-reduce, divide by world_size, `split` the buffer by the parameters' numbers of elements, and `copy_` each part back into `.grad`, with `view_as`. Then step. `.item()` now reads a number that is already there.
# </details>

# %% nbgrader={"grade_id": "repaired_step", "solution": true}
def repaired_step(model, optimizer, micro_batches):
    """The mean gradient of all ranks and micro-batches  ->  the mean loss; one all_reduce"""
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    loss_sum = torch.zeros(1)
    for inputs, targets in micro_batches:
        loss = model(inputs, targets) / len(micro_batches)
        loss.backward()
        loss_sum += loss.detach()
    parameters = [each for each in model.parameters() if each.requires_grad]
    buffer = torch.cat([loss_sum, *(each.grad.flatten() for each in parameters)])
    dist.all_reduce(buffer)
    buffer /= dist.get_world_size()
    mean_loss, *parts = buffer.split([1, *(each.numel() for each in parameters)])
    for parameter, part in zip(parameters, parts):
        parameter.grad.copy_(part.view_as(parameter))
    optimizer.step()
    return mean_loss.item()
    ### END SOLUTION

# %% [markdown]
# Your step on the same ranks:

# %%
run = launch(train, repaired_step, world_size=3, device="cpu")
timeline(run, by="records")

# %%
def of_step(run):
    blocks = run.traffic["step"].blocks
    calls = run.calls_in("step")
    duration_s = max(each.end_s for each in blocks) - min(each.start_s for each in blocks)
    return len(calls), run.traffic["step"].sent_by_rank[0], 1e3 * duration_s, *run.outputs[0]

show_table(
    {"step": "", "calls": "d", "bytes sent by rank 0": ",d", "ms": ".0f", "loss": ".5f", "sum of parameters": ".5f"},
    [("as it was", *of_step(slow_run)), ("yours", *of_step(run))],
)

# %% nbgrader={"grade_id": "check_repaired_step", "grade": true}
check("where_the_time_goes.repaired_step", repaired_step)
