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
# # Lab 10 · Activation checkpointing
#
# The forward keeps activations because the backward needs them: in a large model they take more memory than the parameters. Activation checkpointing, also called gradient checkpointing, keeps only the **inputs** of some parts of the model and **recomputes** the rest when the backward reaches them. You will write it, choose where to cut, count what it saves, and partition the kept inputs over tensor-parallel ranks.
#
# **In this lab you**
#
# - write activation checkpointing that gives bit-equal gradients;
# - choose checkpoints within a memory budget, and compute what they save;
# - partition the kept inputs over tensor-parallel ranks.
#
# **You need:** [chapter 10](../../course/chapters/10_activation_checkpointing.ipynb).
#
# <!-- table of points -->
#
# Each exercise has a task, a **spec** that runs, a **budget**, your cell, a picture of what your code did, and a check. The check counts how often your functions ran and how many bytes were kept, and requires **bit-equal** gradients. Grading adds cases that you do not see: other sizes, other network structures, other numbers of ranks. A mistake in one exercise never costs points in a later one.

# %%
import inspect

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from autograder import check
from shardlab import launch, models, show_table
from shardlab.models import paper_layer
from shardlab.widgets import memory_timeline, traffic_map

# %% [markdown]
# ## 1 · `checkpoint`
#
# `checkpoint(function, *args)` returns what `function(*args)` returns, and the backward computes the same gradients as without checkpointing: those of the arguments, and those of all weights that the function uses. But between forward and backward **only the arguments are kept**. In the backward, the function runs a second time.

# %%
def checkpoint_spec(function, *args):
    """The same outputs and gradients, bit for bit. But it keeps everything."""
    return function(*args)

x = torch.ones(2, requires_grad=True)
checkpoint_spec(torch.sin, x).sum().backward()
x.grad

# %% [markdown]
# It has to work for functions with
#
# - several arguments. Some are tensors, with a gradient or without, such as a mask of booleans; two may be the same tensor or views of one storage; others are numbers, strings, `None`, in any order;
# - one output or a tuple of outputs, all of them tensors; a tuple of one stays a tuple. Some outputs may require no gradient, such as integer tensors or those that depend on no argument that requires one, and the loss may not use all of them;
# - dropout. The second run must drop what the first one dropped, and random numbers drawn after the forward and **after** the backward must be the same as without checkpointing;
# - several losses, and several calls with the same function: the backward of one call may run before or after that of another;
# - a checkpoint inside.
#
# Not required: a second backward through the same graph (`retain_graph=True`), keyword arguments, autocast, other devices, a low peak within the backward, and arguments that are changed in place before the backward (torch raises an error for tensors in `save_for_backward`). An argument or a weight that the outputs in the loss do not depend on may end with a gradient of zeros or `None`.
#
# Use a `torch.autograd.Function`. Autograd does not record its `forward`, so only what you save is kept; you write its `backward`:
#
# ```python
# class Double(torch.autograd.Function):
#     @staticmethod
#     def forward(ctx, x, note):
#         ctx.save_for_backward(x)   # tensors only
#         ctx.note = note            # anything else
#         return 2 * x
#     @staticmethod
#     def backward(ctx, y_grad):     # one gradient for each output
#         (x,) = ctx.saved_tensors
#         return 2 * y_grad, None    # one for each argument of forward; None: no gradient
# ```
#
# At least one of the tensor arguments must require a gradient, or autograd does not call `backward`. The same is true of `torch.utils.checkpoint` with `use_reentrant=True`.
#
# **Budget** · runs each function twice: once in forward, once in backward (three times if it is in a checkpoint within a checkpoint) · in a chain of blocks, keeps ≤ 1.02 × one block's input and 8 kB of random state for each call · leaves only gradients after the backward, when the outputs are deleted too · gradients bit-equal · no communication.
#
# <details><summary>Hint 1 · what to keep</summary>
#
# Save the tensors with `ctx.save_for_backward`, and everything else as attributes of `ctx`, with a list that says which argument was a tensor. And save `torch.get_rng_state()` before the function runs.
# </details>
# <details><summary>Hint 2 · the second run</summary>
#
# Detach each tensor first, or the backward would continue into the graph before the checkpoint; `.requires_grad_(each.requires_grad)` makes it a leaf that accumulates its gradient. Then run the function in `torch.enable_grad()`: inside `backward`, autograd is off.
# </details>
# <details><summary>Hint 3 · the random numbers</summary>
#
# `with torch.random.fork_rng(devices=[]):` restores the generator's state when the block ends. Inside, call `torch.set_rng_state(ctx.random_state)`.
# </details>
# <details><summary>Hint 4 · nearly there</summary>
#
# `torch.autograd.backward(outputs, grads)` backpropagates through the second run's graph and fills the `.grad` of your leaves **and** of the weights. Pass only outputs that require a gradient. Return `None` for the function, then the `.grad` of each leaf, and `None` for each other argument.
# </details>

# %% nbgrader={"grade_id": "checkpoint", "solution": true}
class Checkpoint(torch.autograd.Function):
    """Keeps the arguments of function and runs it again in backward."""

    @staticmethod
    def forward(ctx, function, *args):
        ### BEGIN SOLUTION
        ctx.function, ctx.random_state = function, torch.get_rng_state()
        ctx.is_tensor = [isinstance(each, torch.Tensor) for each in args]
        ctx.others = [each for each in args if not isinstance(each, torch.Tensor)]
        ctx.save_for_backward(*[each for each in args if isinstance(each, torch.Tensor)])
        return function(*args)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, *grads):
        ### BEGIN SOLUTION
        leaves = [each.detach().requires_grad_(each.requires_grad) for each in ctx.saved_tensors]
        tensors, others = iter(leaves), iter(ctx.others)
        args = [next(tensors) if is_tensor else next(others) for is_tensor in ctx.is_tensor]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.random_state)
            outputs = ctx.function(*args)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [
            (output, grad)
            for output, grad in zip(outputs, grads)
            if isinstance(output, torch.Tensor) and output.requires_grad
        ]
        torch.autograd.backward(*zip(*pairs))
        return None, *[each.grad if isinstance(each, torch.Tensor) else None for each in args]
        ### END SOLUTION


def checkpoint(function, *args):
    """function(*args), keeping only args for backward"""
    return Checkpoint.apply(function, *args)

# %% [markdown]
# Eight blocks of a GPT, with dropout, once unchanged and once with your checkpoint around each block. Click to choose a run. With the checkpoint the forward keeps less, the backward recomputes each block's tensors, and the step takes longer: one more forward.

# %%
CONFIG = models.GPTConfig(layers=8, heads=4, width=128, context=128, dropout=0.1)

def eight_blocks(around):
    blocks = [models.Block(CONFIG) for _ in range(CONFIG.layers)]
    x = torch.randn(8, 128, 128, requires_grad=True)
    for block in blocks:
        x = around(block, x)
    x.square().mean().backward()

# %%
runs = {
    name: launch(eight_blocks, around, world_size=1, device="cpu", memory=True)
    for name, around in [("everything kept", checkpoint_spec), ("checkpoint", checkpoint)]
}
memory_timeline(runs)

# %% nbgrader={"grade_id": "check_checkpoint", "grade": true}
check("activation_checkpointing.checkpoint", checkpoint)

# %% [markdown]
# ## 2 · `checkpoint_sequential`
#
# Where should you cut? Take n equal layers in sequence: each keeps `kept_bytes` for the backward, including its input, and its output is as large as its input, `input_bytes`. Cut them into segments. All but the last go through `checkpoint`. The last one does not: the backward starts with it, so it can keep its activations until then.
#
# While segment j runs (j = 0 for the first), memory holds everything its layers keep, plus the stored inputs of the j segments before it:
#
# $$ j \cdot \text{input bytes} + \text{layers of segment } j \cdot \text{kept bytes} \;\le\; \text{budget bytes, for every } j $$
#
# Of all cuts that fit the budget, choose one that recomputes **as few layers as possible**. If no cut fits, raise a `ValueError`. With √n segments of √n layers, and `kept_bytes` not much larger than `input_bytes`, memory grows like √n instead of n (Chen et al., arXiv 1604.06174). Here you cut to fit a given budget instead.

# %%
def segments_spec(layers, kept_bytes, input_bytes, budget_bytes):
    """Segment lengths of the best cut that fits, found by trying all. Only for a few layers."""
    def cuts(left, j=0):
        for length in range(1, left + 1):
            if j * input_bytes + length * kept_bytes <= budget_bytes:
                rest = cuts(left - length, j + 1) if length < left else [[]]
                yield from ([length, *others] for others in rest)
    return min(cuts(layers), key=lambda cut: (sum(cut[:-1]), len(cut)))

segments_spec(10, kept_bytes=5, input_bytes=1, budget_bytes=23)

# %% [markdown]
# `checkpoint_sequential(layers, x, kept_bytes, budget_bytes)` runs `layers`, a list of functions, on `x` and returns the output of the last one. They need not be modules, which `nn.Sequential` requires. No layer is in the list twice, and the list stays as it is; x requires a gradient and is not a view of another tensor. There is at least one layer. `input_bytes` is the size of `x`, whatever its shape and dtype. The spec tries every cut, which takes forever with thirty layers: find the cut directly, without calling the spec.
#
# **Budget** · holds ≤ `budget_bytes` for backward, at all times · recomputes no more layers than the best cut · gradients bit-equal · no communication.
#
# <details><summary>Hint 1 · how long a segment may be</summary>
#
# Segment j has room for `(budget_bytes - j * input_bytes) // kept_bytes` layers.
# </details>
# <details><summary>Hint 2 · how many segments</summary>
#
# The last segment is computed only once, so it should be long; but each segment before it leaves less room for it. So use the smallest number of segments that together have room for all layers, and fill the last one first.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Append the maximum length of each segment to a list `max_lengths`, until their sum reaches n. If a length is below 1 before the sum reaches n, no cut fits: raise the `ValueError`. The last segment starts at `n - max_lengths[-1]`, or at 0. Fill the others from the front: `stop = min(start + max_length, last_start)`. A segment is a function of x that runs its layers in order, `functools.partial(run, layers[start:stop])` for example. A lambda made in the loop would read `start` and `stop` when the backward runs it, after the loop.
# </details>

# %% nbgrader={"grade_id": "checkpoint_sequential", "solution": true}
def checkpoint_sequential(layers, x, kept_bytes, budget_bytes):
    """n layers, x  ->  layers[n-1](… layers[0](x)), within the budget"""
    ### BEGIN SOLUTION
    def in_order(some):
        def run(x):
            for layer in some:
                x = layer(x)
            return x
        return run

    input_bytes, max_lengths = x.numel() * x.element_size(), []
    while sum(max_lengths) < len(layers):
        max_lengths.append((budget_bytes - len(max_lengths) * input_bytes) // kept_bytes)
        if max_lengths[-1] < 1:
            raise ValueError("no cut of these layers fits the budget")
    start, last_start = 0, max(0, len(layers) - max_lengths[-1])
    for max_length in max_lengths[:-1]:
        stop = min(start + max_length, last_start)
        x = checkpoint(in_order(layers[start:stop]), x)
        start = stop
    return in_order(layers[start:])(x)
    ### END SOLUTION

# %% [markdown]
# How often each layer runs, for several budgets in units of `kept_bytes`, here 5 times the input's. There is one digit for each layer: 1 if it is in the last segment, 2 if it is recomputed.

# %%
def how_often(n, budget):
    counts, x = [0] * n, torch.ones(25, requires_grad=True)
    def layer_of(i):
        def layer(x):
            counts[i] += 1
            return torch.sin(x)
        return layer
    y = checkpoint_sequential(
        [layer_of(i) for i in range(n)], x, 500, int(500 * budget)
    )
    y.sum().backward()
    return "".join(map(str, counts))

# %%
show_table(
    {"room for layers": "g", "how often each layer runs": ""},
    [(budget, how_often(16, budget)) for budget in (16, 12, 8, 6, 5, 4, 3.6)],
)

# %% [markdown]
# The same for the GPT's eight blocks: a hook on the tensors that autograd saves counts what one block keeps. The budget is three blocks and three stored inputs. The dashed lines are the parameters, their gradients, and the budget on top of both.

# %%
INPUT = torch.randn(8, 128, 128, requires_grad=True)
BLOCK_BYTES = paper_layer.saved_bytes(models.Block(CONFIG), INPUT)
BUDGET = 3 * BLOCK_BYTES + 3 * 8 * 128 * 128 * 4
WEIGHT_BYTES = 8 * 4 * models.count_parameters(models.Block(CONFIG))

def eight_blocks_within(budget_bytes):
    blocks = [models.Block(CONFIG) for _ in range(CONFIG.layers)]
    x = torch.randn(8, 128, 128, requires_grad=True)
    checkpoint_sequential(blocks, x, BLOCK_BYTES, budget_bytes).square().mean().backward()

# %%
run = launch(eight_blocks_within, BUDGET, world_size=1, device="cpu", memory=True)
levels = {"parameters": WEIGHT_BYTES, "gradients": WEIGHT_BYTES, "activations": BUDGET}
memory_timeline({"within a budget": run} | runs, predicted=levels)

# %% nbgrader={"grade_id": "check_checkpoint_sequential", "grade": true}
check("activation_checkpointing.checkpoint_sequential", checkpoint_sequential)

# %% [markdown]
# ## 3 · `activation_bytes`
#
# How many bytes does one layer of a large transformer keep **on each rank**? Korthikanti et al., arXiv 2205.05198, count them in 16 bit, tensor by tensor, for s tokens, b sequences (`samples`), width h (`width`), a heads and t tensor-parallel ranks (`tp_size`); t divides the heads, the width and the tokens:
#
# | kept | bytes | sharded over t by |
# |---|---|---|
# | inputs of two layer norms, of qkv, of the MLP's first matrix | 8sbh | sequence parallelism |
# | masks of two dropouts, one byte for each element | 2sbh | sequence parallelism |
# | queries, keys, values; the output of attention | 8sbh | tensor parallelism |
# | input and output of GELU, 4h wide | 16sbh | tensor parallelism |
# | softmax of the scores, its dropout's mask, and the scores after dropout | 5as²b | tensor parallelism |
#
# `recompute="selective"` recomputes the last row in the backward and keeps nothing of it. `"full"` keeps only the layer's input, 2sbh, which is replicated on every rank unless sequence parallelism shards it.

# %%
print(inspect.getsource(paper_layer.PaperLayer))

# %%
def activation_bytes_spec(tokens, samples, width, heads):
    """Counted in a real layer on torch's meta device, which has shapes but no data."""
    with torch.device("meta"):
        layer = paper_layer.PaperLayer(width, heads).bfloat16()
        x = torch.empty(samples, tokens, width, dtype=torch.bfloat16, requires_grad=True)
    return paper_layer.saved_bytes(layer, x)

f"{activation_bytes_spec(tokens=2048, samples=1, width=12288, heads=96):,}"

# %% [markdown]
# **Budget** · no communication: this is arithmetic. Your result may be a float, and may differ by 0.5% from what a real layer keeps, because it also keeps a mean and a standard deviation for each token and layer norm. Your answer may not call the spec or `paper_layer`.
#
# <details><summary>Hint 1 · one rank</summary>
#
# 8 + 2 + 8 + 16 = 34, so sbh · 34, and 5as²b for the scores. As a multiple of sbh the scores are 5as/h.
# </details>
# <details><summary>Hint 2 · several ranks</summary>
#
# Tensor parallelism shards 24 of the 34, and the scores. The other 10 are replicated, because layer norms and residual dropout work on whole tokens; sequence parallelism gives each rank a part of the tokens there, and shards those 10 as well.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `sbh * (10 / sp_size + 24 / tp_size + scores / tp_size)`, where `sp_size` is `tp_size` with sequence parallelism and 1 without, and `scores` is 0 with selective recomputation. Handle full recomputation separately.
# </details>

# %% nbgrader={"grade_id": "activation_bytes", "solution": true}
def activation_bytes(
    tokens, samples, width, heads, tp_size=1, sequence_parallel=False, recompute="none"
):
    """(8, 1, 4, 2)  ->  1728; without the scores, 34 · 32 = 1088"""
    ### BEGIN SOLUTION
    sbh = tokens * samples * width
    sp_size = tp_size if sequence_parallel else 1
    if recompute == "full":
        return 2 * sbh / sp_size
    scores = 5 * heads * tokens / width if recompute == "none" else 0
    return sbh * (10 / sp_size + 24 / tp_size + scores / tp_size)
    ### END SOLUTION

# %% [markdown]
# GPT-3's layer by your formula and by counting, and then all of its 96 layers, in GiB on each rank, as in the paper.

# %%
GPT_3 = {"tokens": 2048, "samples": 1, "width": 12288, "heads": 96}
print(f"formula {activation_bytes(**GPT_3):,.0f}, counted {activation_bytes_spec(**GPT_3):,} bytes")

# %%
variants = {
    "no parallelism": {},
    "tensor parallel": {"tp_size": 8},
    "tensor + sequence parallel": {"tp_size": 8, "sequence_parallel": True},
    "… and selective": {"tp_size": 8, "sequence_parallel": True, "recompute": "selective"},
    "tensor parallel, full": {"tp_size": 8, "recompute": "full"},
}
show_table(
    {"GPT-3 on each rank": "", "GiB": ".2f"},
    [(name, 96 * activation_bytes(**GPT_3, **how) / 2**30) for name, how in variants.items()],
)

# %% nbgrader={"grade_id": "check_activation_bytes", "grade": true}
check("activation_checkpointing.activation_bytes", activation_bytes)

# %% [markdown]
# ## 4 · `partitioned_checkpoint`
#
# With tensor parallelism every rank has the same x between layers, so t ranks store t copies of it. With DeepSpeed's `partition_activations` each rank stores only **1/t of x**, and the backward gathers the pieces before it runs the function a second time.
#
# `partitioned_checkpoint(function, x)`: all ranks are the tensor-parallel group, x is equal on all of them, and `function` may differ between ranks and have different weights on each. It returns `function(x)`, with one output. The number of elements of x may not be divisible by t: pad it with zeros. The budget leaves room for a few more elements of padding than you need. x is contiguous, of any shape and floating-point dtype. `function` may call `partitioned_checkpoint` itself, and several calls may have the same function.

# %%
def pieces_spec(x, tp_size):
    """[a b c d e], 2 ranks  ->  a b c | d e 0"""
    flat = x.flatten()
    return F.pad(flat, (0, -len(flat) % tp_size)).chunk(tp_size)

pieces_spec(torch.arange(1, 6), 2)

# %% [markdown]
# **Budget** · saves ≤ 1.02 × 1/t of each padded input · sends ≤ 1.02 × ideal bytes per rank, ideal = $\frac{t-1}{t}$ of each padded input: one all-gather of a tensor in backward, not of pickled objects, no barrier, nothing in forward · leaves only gradients after the backward, when the outputs are deleted too · gradients bit-equal on each rank · random state restored, as in exercise 1.
#
# <details><summary>Hint 1 · from exercise 1</summary>
#
# The same Function with one argument and one output. Only two things change: what forward saves, and how backward restores x.
# </details>
# <details><summary>Hint 2 · what keeps x alive</summary>
#
# A chunk is a view, and a view keeps its whole tensor alive, here all of x on every rank. `.clone()` copies the piece into its own storage. `ctx.shape = x.shape` keeps no tensor alive.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# In backward `flat = piece.new_empty(t * len(piece))` and `dist.all_gather_single(flat, piece)`. Then cut off the padding, `.view(ctx.shape)`, `.requires_grad_()`. The second run leaves the gradient of x in its `.grad`: do not send it to the other ranks.
# </details>

# %% nbgrader={"grade_id": "partitioned_checkpoint", "solution": true}
class PartitionedCheckpoint(torch.autograd.Function):
    """Keeps this rank's piece of x; gathers x and runs function again in backward."""

    @staticmethod
    def forward(ctx, function, x):
        ### BEGIN SOLUTION
        tp_rank, tp_size = dist.get_rank(), dist.get_world_size()
        ctx.function, ctx.shape, ctx.random_state = function, x.shape, torch.get_rng_state()
        flat = F.pad(x.flatten(), (0, -x.numel() % tp_size))
        ctx.save_for_backward(flat.chunk(tp_size)[tp_rank].clone())
        return function(x)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, y_grad):
        ### BEGIN SOLUTION
        (piece,) = ctx.saved_tensors
        flat = piece.new_empty(dist.get_world_size() * len(piece))
        dist.all_gather_single(flat, piece)
        x = flat[: ctx.shape.numel()].view(ctx.shape).requires_grad_()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.random_state)
            y = ctx.function(x)
        torch.autograd.backward(y, y_grad)
        return None, x.grad
        ### END SOLUTION


def partitioned_checkpoint(function, x):
    """x, equal on all ranks  ->  function(x), keeping 1/t of x on each rank for backward"""
    return PartitionedCheckpoint.apply(function, x)

# %% [markdown]
# Eight layers on four ranks: the memory of each rank with your `checkpoint` and with a quarter of each input, and the bytes that the gathers send. The inputs that a Function keeps are shown as *other*, because autograd did not record how they were made.

# %%
def eight_layers(around):
    torch.manual_seed(0)  # x and the weights are the same on every rank
    layers = [nn.Linear(256, 256) for _ in range(8)]
    x = torch.randn(1024, 256, requires_grad=True)
    for layer in layers:
        x = around(layer, x)
    x.square().mean().backward()

# %%
runs = {
    name: launch(eight_layers, around, world_size=4, device="cpu", memory=True)
    for name, around in [("whole inputs", checkpoint), ("1/4 of each", partitioned_checkpoint)]
}
memory_timeline(runs)

# %%
traffic_map(runs["1/4 of each"], predicted=[8 * 3 / 4 * 4 * 1024 * 256] * 4)

# %% nbgrader={"grade_id": "check_partitioned_checkpoint", "grade": true}
check("activation_checkpointing.partitioned_checkpoint", partitioned_checkpoint)

# %% [markdown]
# ## 5 · Nothing happened
#
# A colleague trains a transformer of 32 layers, h = 4096, 32 heads, s = 4096 tokens, b = 2 sequences for each GPU, in bf16 without parallelism, on GPUs with 80 GB, where the model states take 30 GB. It runs out of memory. She adds this to her DeepSpeed configuration, and it still runs out of memory:
#
# ```json
# "activation_checkpointing": {"partition_activations": true, "cpu_checkpointing": true}
# ```
#
# Why did nothing change, and what must she do for this section to have an effect? By your formula, how many bytes do the activations of all layers take without recomputation, with selective and with full recomputation? Which would you choose, what does it cost, and what would the two keys do for her? Give the numbers. Four to eight sentences.

# %% [markdown] nbgrader={"grade_id": "nothing_happened", "grade": true, "solution": true, "points": 2}
# ### BEGIN SOLUTION
# The section only sets up `deepspeed.checkpointing`; it does not switch checkpointing on. The model has to call it: `deepspeed.checkpointing.configure(…)` and then `deepspeed.checkpointing.checkpoint(layer, x)` around each layer (or torch's own, or the model library's `activation_checkpointing_enable()`, which this section does not affect).
#
# sbh = 4096 · 2 · 4096 = 33.6 million, and 5as/h = 160. Without recomputation a layer keeps 194 sbh = 6.51 GB, 32 layers 208 GB. Selective: 34 sbh = 1.14 GB, 36.5 GB in all. Full: 2 sbh = 67 MB, 2.1 GB in all, plus one recomputed layer at a time in the backward, 6.5 GB. 50 GB are free, so selective fits: 30 + 36.5 = 66.5 GB, and it recomputes only attention's core: for each token 4sh of the layer's 24h² + 4sh FLOPs, which at s = h is a seventh of a forward, 14%, and about 5% of a step's three forwards. Full takes 30 + 2.1 + 6.5 GB and costs one more forward, a third of the step's arithmetic. I would choose selective here (FlashAttention does the same inside one kernel), and full only for a larger batch or longer sequences.
#
# `partition_activations` partitions stored inputs over the tensor-parallel ranks: with t = 1 there is nothing to partition. `cpu_checkpointing` moves only the stored inputs, 2.1 GB, to the host: too little to help her.
#
# Points: 1 for the reason (the section configures but does not call) and what to call; 1 for the numbers (208, 36.5 and 2.1 GB) and a choice that fits them.
# ### END SOLUTION
