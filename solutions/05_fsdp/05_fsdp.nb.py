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
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from autograder import check
from shardlab import data, launch, measure, models

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
# The models differ: a block may be too large and has to be split; tiny blocks are not worth a message and belong to the unit around them. Read the sizes, not the names. Every module has a `forward`, no parameter is shared by two modules, and every layer (a module without children) fits into a unit. A block may have parameters of its own, next to those of its children.

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

# %% nbgrader={"grade_id": "check_wrap", "grade": true, "points": 4}
check("fsdp.wrap", wrap)
