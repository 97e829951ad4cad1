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
# # Lab 05 · FSDP
#
# | exercise | points |
# |---|---|
# | 3 · `wrap` | 4 |
# | 4 · `accumulate` | 4 |

# %%
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from autograder import check
from shardlab import launch, measure
from shardlab.widgets import memory_timeline

# %% [markdown]
# ## 3 · `wrap`
#
# Now PyTorch's own `fully_shard`. Each call makes one **unit**: the parameters of that module, without those that an earlier call took. A unit is gathered as a whole, computes, and is freed. So the choice of units has two costs:
#
# - **memory**: while a layer computes, its unit is whole, and so are the units around it, up to the root.
# - **messages**: a step gathers every unit twice, for forward and for backward, and reduce-scatters its gradients once. The root stays whole after forward and is gathered once: 3U − 1 messages with U units.
#
# `wrap(model, unit_bytes)` applies `fully_shard` to the right modules of `model`, the root included, so that **no unit has more than `unit_bytes` bytes of parameters, and there are as few units as possible**. It returns the optimizer, `torch.optim.SGD` with learning rate 0.1. The check then trains with your optimizer for two steps; losses and parameters must equal those of one process on all ranks' batches.
#
# The models differ: a block may be too large and has to be split; tiny blocks are not worth a message and belong to the unit around them. Read the sizes, not the names. A unit is one module: call `fully_shard` with one module at a time, and leave its options at their defaults. Every module has a `forward`, no parameter is shared by two modules, and every layer (a module without children) fits into a unit. A block may have parameters of its own, next to those of its children.

# %%
def wrap_spec(sizes, unit_bytes):
    """One level: the sizes of a root's children  ->  (units, messages in a step)"""
    in_the_root, units = sorted(sizes), []
    while sum(in_the_root) > unit_bytes:
        units.append(in_the_root.pop())
    return [*units, sum(in_the_root)], 3 * (len(units) + 1) - 1

wrap_spec([30, 50, 10, 50], unit_bytes=50)

# %% [markdown]
# **Budget** · no unit above `unit_bytes` · whole parameters ≤ `unit_bytes` × the levels of units around each other (the root, a block, a layer: 3) · exactly 3U − 1 messages per step, with U the least possible number of units.
#
# On the wire, this lab's backend gloo sends twice as much for `reduce_scatter` as a ring would (lab 04). The number of messages is the same with every backend, so that is what counts here.
#
# <details><summary>Hint 1 · the order of calls</summary>
#
# `fully_shard` takes the parameters that no earlier call took, so call it on the inner modules first and on the root last. It replaces each parameter by a DTensor, the rank's shard; an optimizer that was built before would update tensors that the model does not use any more.
# </details>
# <details><summary>Hint 2 · one level</summary>
#
# Suppose you know how many bytes each child leaves for the unit around it. While they are too many together, one child must become a unit: the one with the most bytes, since no other choice frees more. What it keeps is then in its own unit, and its parent no longer counts it.
# </details>
# <details><summary>Hint 3 · all levels</summary>
#
# A recursive function: `rest(module)` returns the bytes that this module leaves for the unit around it. It calls itself for each of `module.children()`, applies hint 2, and returns its own parameters, `module.parameters(recurse=False)`, plus what the remaining children leave. A module without children leaves its own parameters. Read the sizes before you shard.
# </details>

# %% nbgrader={"grade_id": "wrap", "solution": true}
def wrap(model, unit_bytes):
    """model, equal on all ranks  ->  its optimizer; the model is sharded in few enough units"""
    ### BEGIN SOLUTION
    def rest(module):
        """Bytes that this module leaves for the unit around it."""
        own = sum(p.numel() * p.element_size() for p in module.parameters(recurse=False))
        left = {child: rest(child) for child in module.children()}
        while own + sum(left.values()) > unit_bytes:
            heaviest = max(left, key=left.get)
            fully_shard(heaviest)
            del left[heaviest]
        return own + sum(left.values())

    rest(model)
    fully_shard(model)
    return torch.optim.SGD(model.parameters(), lr=0.1)
    ### END SOLUTION

# %% [markdown]
# Your units on two ranks, for three budgets. This model has a large block, four of medium size and two tiny ones. With 1,000 KiB all of it fits into one unit.

# %%
def make_model():
    torch.manual_seed(0)  # the same parameters on every rank
    blocks = [
        nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 64))
        for width in (256, 256, 16, 512, 16, 256, 256)
    ]
    return nn.Sequential(nn.Linear(64, 64), *blocks, nn.Linear(64, 8))

def one_step(unit_bytes):
    model = make_model()
    optimizer = wrap(model, unit_bytes)
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()

runs = {f"{kib} KiB": launch(one_step, kib * 1024, world_size=2, memory=True) for kib in (1000, 300, 140)}
for name, run in runs.items():
    in_step = [phase for phase in run.memory[0].phases if phase.name in ("forward", "backward")]
    peak_bytes = max(sum(phase.at_peak.values()) for phase in in_step)
    print(f"{name:>8}: {len(run.calls) // 2:2} messages, {peak_bytes:9,} bytes live at the peak")

# %% [markdown]
# At first each rank has the whole model, until `wrap` has sharded it. Then come forward, where each unit rises and falls, and backward.

# %%
memory_timeline(runs)

# %% nbgrader={"grade_id": "check_wrap", "grade": true, "points": 4}
check("fsdp.wrap", wrap)

# %% [markdown]
# ## 4 · `accumulate`
#
# One step on several micro-batches: their gradients are added up, and the optimizer steps once. On a sharded model there is a choice. Backward can reduce-scatter the gradients of every micro-batch, so that only shards stay; or it can keep whole gradients on every rank and reduce-scatter once, at the last micro-batch. And between micro-batches the parameters do not change: whoever keeps them whole gathers them only once.
#
# `accumulate(model, micro_batches, loss_of, save)` runs forward and backward for each micro-batch in turn. Afterwards each rank's shards have in `.grad` **the mean gradient over all micro-batches and all ranks**. `loss_of(model, micro_batch)` runs the forward pass and returns the mean loss of the micro-batch; all micro-batches have the same number of samples. `model` is already sharded: each block is a unit, and so is the root. The optimizer steps after your function returns, not in it.
#
# - `save="bytes"`: with the fewest bytes on the wire; memory does not matter.
# - `save="memory"`: with the least memory; bytes do not matter.
#
# The same model may be used with the one and then with the other.

# %%
def accumulate_spec(gradients_by_rank):
    """gradients_by_rank[rank][micro_batch]  ->  the mean: rank r has its part of it in .grad"""
    return torch.stack([torch.stack(own).mean(0) for own in gradients_by_rank]).mean(0)

accumulate_spec([[torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])]] * 2)

# %% [markdown]
# **Budget** · `save="bytes"`: its messages carry 2(N − 1)/N · Ψ per rank and step, as much as DDP's all-reduce, for any number of micro-batches: each unit is gathered once and reduce-scattered once · `save="memory"`: parameters and gradients live between micro-batches ≤ 1.02 × their shards, 2Ψ/N; when a block begins in forward or backward ≤ 1.02 × (2Ψ/N + twice the root and the largest block).
#
# The bytes of messages are computed from the recorded calls, as a ring would send them: (N − 1)/N of the whole tensor for an all-gather as well as for a reduce-scatter. On the wire the second costs twice as much here, because gloo runs it as an all-reduce.
#
# <details><summary>Hint 1 · the mean</summary>
#
# `fully_shard` averages over the ranks. Gradients of several backward passes add up, so divide each loss by the number of micro-batches.
# </details>
# <details><summary>Hint 2 · the switches</summary>
#
# Methods of the sharded model, which apply to all its units: `set_requires_gradient_sync(False)`: backward keeps whole gradients and sends nothing. `set_reshard_after_forward(False)`: a unit stays whole from forward to backward. `set_reshard_after_backward(False)`: it stays whole after backward, too. By default all three are `True`, except that the root does not reshard after forward.
# </details>
# <details><summary>Hint 3 · the last micro-batch</summary>
#
# Its backward pass must reduce-scatter what has been added up, or the shards have no gradient. And it must reshard: the optimizer changes the shards, and units that stay whole would keep the old parameters. Which switches does a step with `save="memory"` find after one with `save="bytes"`?
# </details>

# %% nbgrader={"grade_id": "accumulate", "solution": true}
def accumulate(model, micro_batches, loss_of, save):
    """gradients None  ->  .grad of each shard: the mean over all micro-batches and ranks"""
    ### BEGIN SOLUTION
    saves_bytes = save == "bytes"
    model.set_reshard_after_forward(not saves_bytes)
    for i, micro_batch in enumerate(micro_batches):
        is_last = i == len(micro_batches) - 1
        model.set_requires_gradient_sync(is_last or not saves_bytes)
        model.set_reshard_after_backward(is_last or not saves_bytes)
        loss = loss_of(model, micro_batch) / len(micro_batches)
        loss.backward()
    ### END SOLUTION

# %% [markdown]
# The same model on two ranks, a unit for each block, four micro-batches: what rank 0 sends in one step, and what is live.

# %%
def loss_of(model, micro_batch):
    return model(micro_batch).square().mean()

def four_micro_batches(save):
    model = make_model()
    for part in model:
        if isinstance(part, nn.Sequential):
            fully_shard(part)
    fully_shard(model)
    with measure(save):
        accumulate(model, list(torch.randn(4, 8, 64)), loss_of, save)

saves = {save: launch(four_micro_batches, save, world_size=2, memory=True) for save in ("bytes", "memory")}
for save, run in saves.items():
    print(f"{save:>6}: {run.traffic[save].sent_by_rank[0]:9,} bytes sent by rank 0")

# %%
memory_timeline(saves)

# %% nbgrader={"grade_id": "check_accumulate", "grade": true, "points": 4}
check("fsdp.accumulate", accumulate)
