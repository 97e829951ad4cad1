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
# # Lab 06 · FSDP in practice
#
# A model is sharded in units, and each is gathered before it computes ([lab 05](../05_fsdp/05_fsdp.ipynb)). You will count what hybrid sharding sends, repair a run whose loss does not fall, accumulate gradients in two ways, and recognize a method by its calls.
#
# **In this lab you**
#
# - count what hybrid sharding sends within a node and between nodes;
# - repair a run that stalls, and accumulate with the fewest bytes or the least memory;
# - recognize a method by its calls.
#
# **You need:** [chapter 06](../../course/chapters/06_fsdp_in_practice.ipynb).
#
# <!-- table of points -->
#
# Each exercise has a task, a **spec** that runs, a **budget**, your cell, a picture of what your code did, and a check. The check starts real ranks, compares every rank's result with one process, and compares the bytes it sent and the bytes it kept alive with the budget. Grading adds hidden cases: other sizes, other numbers of ranks. A mistake in one exercise never costs points in a later one.

# %%
print("Loading PyTorch's FSDP: a few seconds, longer the first time on a computer …")

from collections import Counter

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from autograder import check
from shardlab import launch, measure, show_table
from shardlab.recorded_runs import step_traces
from shardlab.widgets import memory_timeline, palette, predict

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# ## 1 · `hsdp_bytes`
#
# On a cluster, the links within a node are fast and those between nodes are slow. **HSDP** (hybrid sharding) shards only within a node. The ranks form a mesh of R rows and S columns:
#
# - a row is a **shard group**: its S ranks share one copy of the model, each has 1/S of it. They gather the parameters and reduce-scatter the gradients, as in FSDP;
# - a column is a **replica group**: its R ranks hold the same shard, and all-reduce their shards of the gradients.
#
# How many bytes does **one rank** send in a step with one forward and one backward pass? Return a dict of two numbers: `"within"` its shard group, and `"across"`, to ranks of other shard groups. Each collective is a ring: in an all-gather or a reduce-scatter over n ranks each rank sends $\frac{n-1}{n}$ of the whole tensor, in an all-reduce twice as much. With `reshard_after_forward=False` the parameters stay whole between forward and backward. Sizes are not rounded, and nothing is padded.

# %%
def mesh_spec(replicas, shards):
    """Row: a shard group. Column: a replica group."""
    return torch.arange(replicas * shards).view(replicas, shards)

mesh_spec(replicas=2, shards=4)

# %% [markdown]
# **Budget** · no communication: this is arithmetic.
#
# <details><summary>Hint 1 · two cases that you know</summary>
#
# R = 1 is plain FSDP on S ranks: nothing goes across. S = 1 is DDP on R ranks: every rank has a whole copy, and nothing stays within.
# </details>
# <details><summary>Hint 2 · within a shard group</summary>
#
# Three collectives over the S ranks, each with the whole model: an all-gather of the parameters for forward, another for backward, and a reduce-scatter of the gradients. Which of them is not needed if the parameters stay whole?
# </details>
# <details><summary>Hint 3 · across</summary>
#
# How much of the gradient does a rank still have after the reduce-scatter? Only that is all-reduced. Over how many ranks?
# </details>

# %% nbgrader={"grade_id": "hsdp_bytes", "solution": true}
def hsdp_bytes(parameters, replicas, shards, element_bytes=2, reshard_after_forward=True):
    """(8, 2, 2)  ->  {"within": 24, "across": 8}"""
    ### BEGIN SOLUTION
    model_bytes = parameters * element_bytes
    tensors = 3 if reshard_after_forward else 2
    return {
        "within": tensors * (shards - 1) / shards * model_bytes,
        "across": 2 * (replicas - 1) / replicas * model_bytes / shards,
    }
    ### END SOLUTION

# %% [markdown]
# 7 billion parameters in 16 bits on 64 ranks, with your formula: from DDP (S = 1) to FSDP over all ranks (S = 64). Nodes of 8 ranks: up to S = 8, only what goes across uses the slow links.

# %%
meshes = [(shards, 64 // shards) for shards in (1, 2, 4, 8, 16, 64)]
sent = [hsdp_bytes(7e9, replicas, shards) for shards, replicas in meshes]
show_table(
    {"S": "d", "R": "d", "within, GB": ".2f", "across, GB": ".2f"},
    [(*mesh, each["within"] / 1e9, each["across"] / 1e9) for mesh, each in zip(meshes, sent)],
)

# %% nbgrader={"grade_id": "check_hsdp_bytes", "grade": true}
check("fsdp_in_practice.hsdp_bytes", hsdp_bytes)

# %% [markdown]
# ## 2 · `stalled`
#
# A colleague fine-tunes a model with FSDP, and the loss does not fall. There is no error and no NaN, and at a learning rate ten times as large the same script works. Here is a small copy of it. `load(dtype)` returns the pretrained model, whose weights are stored in fp32, converted to `dtype`, as `from_pretrained(…, dtype=…)` does.

# %%
class Tiny(nn.Module):
    """tokens [T] -> logits [T, 64] of the next token"""

    def __init__(self, width=96):
        super().__init__()
        self.token, self.head = nn.Embedding(64, width), nn.Linear(width, 64)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width))
            for _ in range(3)
        )

    def forward(self, tokens):
        x = self.token(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)

# %%
def load(dtype):
    torch.manual_seed(0)  # the same weights on every rank: 0.13 to 0.24 in size
    model = Tiny()
    for parameter in model.parameters():
        size = 0.13 + 0.11 * torch.rand_like(parameter)
        parameter.data = size * torch.randn_like(parameter).sign()
    return model.to(dtype)

# %%
def stalled_spec(load, lr):
    """The run that stalls."""
    model = load(dtype=torch.bfloat16)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=lr)

# %%
def fine_tune(prepare, lr=3e-4, steps=8):
    model, optimizer = prepare(load, lr)
    tokens, targets = torch.randint(64, (2, 64))  # each rank its own
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(tokens).float(), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses

stalled_run = launch(fine_tune, stalled_spec, world_size=2, device="cpu")
print("the loss on rank 0:", *(f"{loss:.3f}" for loss in stalled_run.outputs[0]))

# %% [markdown]
# Why? Look at one matrix. The distance between a number w and the next larger one of its dtype is its **ulp** (*unit in the last place*). An optimizer subtracts an update from w: with SGD lr · g; AdamW divides the gradient by its own size, so its update is about lr. The result is rounded to the nearest number of w's dtype. **Which share of the bf16 weights does an update of lr change?**

# %%
predicted_share = predict("Share of the bf16 weights that an update of lr changes", maximum=1)
predicted_share

# %%
def share_that_moves(weight, update):
    return (weight - update != weight).float().mean().item()

lr = 3e-4
weights = {dtype: load(dtype).head.weight.detach() for dtype in (torch.bfloat16, torch.float32)}
shares = {dtype: share_that_moves(weight, lr) for dtype, weight in weights.items()}
predicted_share.compare(shares[torch.bfloat16], {"the share of fp32 weights": shares[torch.float32]})

# %%
def half_ulp(weight):
    return torch.finfo(weight.dtype).eps * weight.float().abs().log2().floor().exp2() / 2

show_table(
    {"weights": str, "half an ulp, on average": ".1e", "update": ".1e", "share that moves": ".2f"},
    [(dtype, half_ulp(weight).mean().item(), lr, shares[dtype]) for dtype, weight in weights.items()],
)

# %% [markdown]
# Write `stalled(load, lr)`, a repaired `stalled_spec`. It returns `model, optimizer`: the model in the same units (one for each module in `model.blocks`, and the root for the rest), and AdamW with **the same learning rate**. With them the loss must fall as it does with fp32 parameters. The check trains them with a loop like the one above.
#
# FSDP2 keeps the sharded parameters in the dtype in which the model was loaded, and the optimizer updates these. (DeepSpeed's bf16 mode makes fp32 masters by itself: see chapter 06.) But fp32 parameters without a policy are also gathered in fp32, which sends twice as many bytes as in bf16. A **`MixedPrecisionPolicy(param_dtype=…, reduce_dtype=…)`**, passed to each `fully_shard` as `mp_policy`, sets the dtype in which parameters are gathered and used, and the dtype in which gradients are reduced.
#
# **Budget** · sharded parameters in float32 · all-gathers in bfloat16, reduce-scatters in float32 · sends ≤ 1.03 × ideal bytes per rank, ideal = $\frac{N-1}{N} \cdot (2 \cdot 2 + 2 \cdot 4)$ bytes per parameter and step: two all-gathers (or one, if a unit stays whole after forward), and a reduce-scatter, which gloo runs as an all-reduce · each step's loss within 0.2% of one process that keeps fp32 parameters and computes with a bf16 copy.
#
# <details><summary>Hint 1 · what is too coarse</summary>
#
# A bf16 number has 8 significant bits. Between 1/8 and 1/4 two neighbors are 2⁻¹⁰ ≈ 0.001 apart, and an update of 0.0003 is rounded away. The subtraction loses it; the gradients are fine, whatever dtype they were reduced in.
# </details>
# <details><summary>Hint 2 · where the fp32 copy is</summary>
#
# Load the model in fp32: each rank then holds a slice of fp32 masters. The policy makes bf16 copies of them for each all-gather.
# </details>
# <details><summary>Hint 3 · what does not help</summary>
#
# Autocast casts inside each layer, after FSDP has gathered fp32 parameters. Loading in bf16 and converting to fp32 gives masters on bf16's grid: compare the losses. A policy that is given only to the last `fully_shard` covers only the root.
# </details>

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

# %% [markdown]
# Both runs, and what they sent:

# %%
run = launch(fine_tune, stalled, world_size=2, device="cpu")
figure, axes = plt.subplots(figsize=(6, 2.6))
axes.plot(stalled_run.outputs[0], "o-", color=palette.ERROR, label="as it was")
axes.plot(run.outputs[0], "o-", color=palette.MEASURED, label="yours")
axes.set(xlabel="step", ylabel="loss on rank 0")
axes.legend(frameon=False)

def dtypes_of(run):
    return ", ".join(sorted({f"{call.op} in {call.dtype}" for call in run.calls}))

show_table(
    {"run": "", "bytes sent by rank 0": ",d", "calls": ""},
    [
        (name, each.traffic.sent_by_rank[0], dtypes_of(each))
        for name, each in (("as it was", stalled_run), ("yours", run))
    ],
)

# %% nbgrader={"grade_id": "check_stalled", "grade": true}
check("fsdp_in_practice.stalled", stalled)

# %% [markdown]
# ## 3 · `accumulate`
#
# In gradient accumulation a step has several micro-batches: their gradients are added up, and the optimizer steps once. On a sharded model there are two choices:
#
# - **gradients**: every backward pass reduce-scatters them, so that a rank keeps only its shards; or each rank keeps whole gradients, and only the last micro-batch's backward pass reduce-scatters their sum;
# - **parameters**: they do not change between micro-batches. A unit is freed after use and gathered again for each micro-batch; or it stays whole and is gathered once in the step.
#
# `accumulate(model, micro_batches, loss_of, save)` runs forward and backward for each micro-batch in turn. When it returns, the `.grad` of each of the model's parameters, which are shards, is this rank's shard of **the mean gradient over all micro-batches and all ranks**. `loss_of(model, micro_batch)` runs the forward pass and returns the mean loss of the micro-batch; all micro-batches have the same number of samples. `model` is already sharded: each block is a unit, and the root has the rest. The caller's optimizer steps afterwards, so your function does not. It leaves the list `micro_batches` as it is, and keeps nothing from step to step, not even a list of numbers.
#
# - `save="bytes"`: send as few bytes as possible; memory does not matter.
# - `save="memory"`: use as little memory as possible; bytes do not matter.
#
# The same model may be used for a step of one kind and then for a step of the other.

# %%
def accumulate_spec(gradients_by_rank):
    """gradients_by_rank[rank][micro_batch]  ->  the mean: rank r has its part of it in .grad"""
    return torch.stack([torch.stack(own).mean(0) for own in gradients_by_rank]).mean(0)

accumulate_spec([[torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])]] * 2)

# %% [markdown]
# **Budget** · no barrier.
#
# - `save="bytes"`: each rank sends $\frac{2(N-1)}{N}\,\Psi$ elements in a step, as in DDP's all-reduce, for any number of micro-batches. This is computed from the recorded calls, as if each were a ring. (On the wire gloo's reduce-scatter takes twice as many bytes.)
# - `save="memory"`: parameters and gradients live between micro-batches ≤ 1.02 × their shards, $2\Psi/N$, and no activations, except the losses themselves. When a block begins its forward or backward pass ≤ 1.02 × ($2\Psi/N$ + 2 × (the root + the largest block)): these two units are whole, and so may be their gradients.
#
# <details><summary>Hint 1 · the mean</summary>
#
# `fully_shard` averages over the ranks. Gradients of several backward passes add up, so divide each loss by the number of micro-batches.
# </details>
# <details><summary>Hint 2 · the switches</summary>
#
# These methods of the sharded model apply to all its units. After `set_requires_gradient_sync(False)`, backward keeps whole gradients and reduces nothing. After `set_reshard_after_forward(False)`, a unit stays whole from forward to backward. After `set_reshard_after_backward(False)`, it stays whole after backward, too. By default all three are `True`, except that the root does not reshard after forward.
# </details>
# <details><summary>Hint 3 · the last micro-batch</summary>
#
# Its backward pass must reduce-scatter what has been added up, or the shards have no gradient. It must also reshard: the optimizer changes the shards, and units that stay whole would keep the old parameters. The switches keep their values after your function returns. Which ones does a step with `save="memory"` have to set, if the step before had `save="bytes"`?
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
# A model of seven blocks on two ranks, a unit for each block, four micro-batches: what rank 0 sends in one step, and what is live.

# %%
def make_model():
    torch.manual_seed(0)  # the same parameters on every rank
    blocks = [
        nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 64))
        for width in (256, 256, 16, 512, 16, 256, 256)
    ]
    return nn.Sequential(nn.Linear(64, 64), *blocks, nn.Linear(64, 8))

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
show_table(
    {"save": "", "bytes sent by rank 0": ",d"},
    [(save, run.traffic[save].sent_by_rank[0]) for save, run in saves.items()],
)

# %%
memory_timeline(saves)

# %% nbgrader={"grade_id": "check_accumulate", "grade": true}
check("fsdp_in_practice.accumulate", accumulate)

# %% [markdown]
# ## 4 · `which_is_it`
#
# A colleague sends you the calls of one rank in one training step, and no code. Which method is it? `which_is_it(trace)` returns one of six names: `"DDP"`, `"ZeRO-2"`, `"FSDP"`, `"FSDP, not resharded"` (parameters stay whole from forward to backward), `"HSDP"` or `"TP"` (tensor parallelism).
#
# A trace is a dict. `trace["calls"]` lists the calls in order, each a dict with
#
# - `"op"`: `"all_reduce"`, `"all_gather"` or `"reduce_scatter"`
# - `"bytes"`: the size of the tensor that this rank passed in. For an all-gather that is **its own slice**, otherwise the whole tensor
# - `"ranks"`: the ranks of the call's group
# - `"phase"`: `"forward"`, `"backward"` or `"step"` (the optimizer's)
#
# `trace` also has three numbers to compare these sizes with: `"world_size"`, `"parameter_bytes"` (the whole model in fp32; call it $\Psi$ here) and `"activation_bytes"` (the tensor that one block passes to the next, for the micro-batch that this rank computes). All traces are from real runs: DDP, FSDP, HSDP and TP are PyTorch's, ZeRO-2 is DeepSpeed's. (In a step with one micro-batch, DeepSpeed's stage 1 makes the same kinds of calls as stage 2, so ZeRO-1 is not among the names.) Ten traces, A to J, are here; grading uses others, of other models and other numbers of ranks.
#
# Real traces also contain small calls that have nothing to do with the method: numbers of samples, losses or metrics of all ranks for a log, and norms for clipping. In forward and in the step they add up to less than a tenth of Ψ, and in backward there are none; what belongs to the method is more. A step may have several micro-batches. FSDP may gather in bf16, have most of its parameters in the root, which is not gathered again in backward, or reshard to a few ranks, which alone gather again.

# %%
def which_is_it_spec(name):
    """The method that the trace was recorded from."""
    return step_traces.load()[name][0]

show_table({"trace": "", "method": ""}, [(name, which_is_it_spec(name)) for name in "ABCDEFGHIJ"])

# %% [markdown]
# Here is what each trace contains: for each phase, operation and group of ranks, the number of calls and the sum of their bytes.

# %%
def summary(trace):
    """(phase, operation, ranks, calls, bytes in all)"""
    groups = {}
    for call in trace["calls"]:
        key = call["phase"], call["op"], tuple(call["ranks"])
        groups.setdefault(key, []).append(call["bytes"])
    return [(*key, len(sizes), sum(sizes)) for key, sizes in groups.items()]

# %%
columns = {"phase": "", "operation": "", "ranks": str, "calls": "d", "bytes in all": ",d"}
for name, (method, trace) in step_traces.load().items():
    sizes = f"parameters {trace['parameter_bytes']:,} bytes, activations {trace['activation_bytes']:,} bytes"
    show_table(columns, summary(trace), caption=f"{name}: {method}, {trace['world_size']} ranks, {sizes}")

# %% [markdown]
# **Budget** · no communication: this is arithmetic. Two methods may call the same operations in the same phases, so look at sizes.
#
# <details><summary>Hint 1 · what is in the tensor</summary>
#
# FSDP gathers parameters: all slices of all ranks together are Ψ (half of it in bf16, a little more with padding). TP gathers or all-reduces activations: one whole tensor is `activation_bytes`, whatever Ψ is. An all-gather's whole tensor is `bytes` times the number of ranks in its group.
# </details>
# <details><summary>Hint 2 · when</summary>
#
# DDP all-reduces gradients in backward and gathers nothing. ZeRO-2 gathers parameters in the step, after the update. FSDP gathers them in forward, before use, and again in backward if they were freed in between.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# First look for a whole tensor of `activation_bytes` among all calls. Then add up whole tensors in a `Counter` with the keys `(op, phase)`, and compare each sum, not each call, with a tenth of Ψ. Which keys tell the remaining five methods apart? HSDP is FSDP within groups, and the slices of the gradients are then all-reduced across the groups.
# </details>

# %% nbgrader={"grade_id": "which_is_it", "solution": true}
def which_is_it(trace):
    """{"calls": [{"op": "all_gather", "bytes": 11352, …}, …], …}  ->  "FSDP" """
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
traces = step_traces.load().items()
show_table(
    {"trace": "", "your answer": str, "recorded from": ""},
    [(name, which_is_it(trace), method) for name, (method, trace) in traces],
)

# %% nbgrader={"grade_id": "check_which_is_it", "grade": true}
check("fsdp_in_practice.which_is_it", which_is_it)

