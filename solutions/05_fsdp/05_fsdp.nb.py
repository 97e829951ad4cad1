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
# | 5 · `which_is_it` | 3 |
| 6 · `stalled` | 3 |

# %%
from collections import Counter

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

from autograder import check
from shardlab import launch, step_traces

# %% [markdown]
# ## 5 · `which_is_it`
#
# A colleague sends you the calls of one rank in one training step, and no code. Which method is it? `which_is_it(trace)` returns one of six names: `"DDP"`, `"ZeRO-2"`, `"FSDP"`, `"FSDP, not resharded"` (parameters stay whole from forward to backward), `"HSDP"` or `"TP"` (tensor parallelism).
#
# A trace is a dict. `trace["calls"]` lists the calls in order, each a dict with
#
# - `"op"`: `"all_reduce"`, `"all_gather"` or `"reduce_scatter"`
# - `"bytes"` of the tensor that this rank passed in: for an all-gather **its own slice**, otherwise the whole tensor
# - `"ranks"` of the call's group
# - `"phase"`: `"forward"`, `"backward"` or `"step"`
#
# and `trace` has three numbers to compare them with: `"world_size"`, `"parameter_bytes"` (Ψ in bytes: the whole model, in fp32) and `"activation_bytes"` (the tensor that one block passes to the next, for the whole batch that this rank works on). All traces are from real runs: DDP, FSDP, HSDP and TP are PyTorch's, ZeRO-2 is DeepSpeed's. Nine of them are here; grading uses others, of other models and other numbers of ranks.

# %%
def which_is_it_spec(name):
    """The method that the trace was recorded from."""
    return step_traces.load()[name][0]

{name: which_is_it_spec(name) for name in "ABCDEFGHI"}

# %% [markdown]
# What a trace contains: for each phase and operation the number of calls, their bytes, and the groups.

# %%
def summary(trace):
    groups = {}
    for call in trace["calls"]:
        key = call["phase"], call["op"], tuple(call["ranks"])
        groups.setdefault(key, []).append(call["bytes"])
    for (phase, op, ranks), sizes in groups.items():
        print(f"  {phase:8} {len(sizes):2} × {op:14} of ranks {ranks}: {sum(sizes):7,} bytes in all")

# %%
for name, (method, trace) in step_traces.load().items():
    sizes = f"Ψ {trace['parameter_bytes']:,} bytes, activations {trace['activation_bytes']:,} bytes"
    print(f"{name}: {method}, {trace['world_size']} ranks, {sizes}")
    summary(trace)

# %% [markdown]
# **Budget** · no communication: this is arithmetic.
#
# Real traces also contain small calls that have nothing to do with the method: the loss is averaged over the ranks for a log (H and I), or a gradient's norm is summed before it is clipped (I). Some runs gather parameters in bf16 (I), some have several micro-batches in a step (H). And two methods may call the same operations in the same phases, so look at sizes: what do the gathered tensors add up to?
#
# <details><summary>Hint 1 · what is in the tensor</summary>
#
# FSDP gathers parameters: all slices of all ranks together are Ψ (half of it in bf16, a little more with padding). TP gathers or all-reduces activations: one whole tensor is `activation_bytes`, whatever Ψ is. An all-gather's whole tensor is `bytes` times the number of ranks in its group.
# </details>
# <details><summary>Hint 2 · when</summary>
#
# DDP reduces gradients in backward and gathers nothing. ZeRO-2 gathers parameters in the step, after the update; FSDP gathers them in forward, before use, and again in backward if they were freed in between.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Add up the whole tensors' bytes in a `Counter` with the keys `(op, phase)`, and return `"TP"` when one of them is `activation_bytes`. A sum below a small part of Ψ is none of the method's own. HSDP is FSDP within groups; the slices of the gradients are then all-reduced across the groups.
# </details>

# %% nbgrader={"grade_id": "which_is_it", "solution": true}
def which_is_it(trace):
    """{"calls": [{"op": "all_gather", "bytes": 8352, …}, …], …}  ->  "FSDP" """
    ### BEGIN SOLUTION
    whole_bytes = Counter()
    for call in trace["calls"]:
        slices = len(call["ranks"]) if call["op"] == "all_gather" else 1
        if call["bytes"] * slices == trace["activation_bytes"]:
            return "TP"
        whole_bytes[call["op"], call["phase"]] += call["bytes"] * slices
    large = {key for key, size in whole_bytes.items() if size > trace["parameter_bytes"] / 10}
    if ("all_gather", "step") in large:
        return "ZeRO-2"
    if ("all_gather", "forward") not in large:
        return "DDP"
    if ("all_reduce", "backward") in large:
        return "HSDP"
    return "FSDP" if ("all_gather", "backward") in large else "FSDP, not resharded"
    ### END SOLUTION

# %% [markdown]
# Your answers, next to the methods of the runs:

# %%
for name, (method, trace) in step_traces.load().items():
    print(f"trace {name}: {which_is_it(trace):20} recorded from {method}")

# %% nbgrader={"grade_id": "check_which_is_it", "grade": true, "points": 3}
check("fsdp.which_is_it", which_is_it)

# %% [markdown]
# ## 6 · `stalled`

# %% nbgrader={"grade_id": "stalled", "solution": true}
def stalled(load, lr):
    """load(dtype=…) gives the pretrained model  ->  the model in units, its optimizer"""
    ### BEGIN SOLUTION
    model = load(dtype=torch.float32)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model, torch.optim.AdamW(model.parameters(), lr=lr)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check_stalled", "grade": true, "points": 3}
check("fsdp.stalled", stalled)
