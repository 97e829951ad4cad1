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
# # Lab 02 · DP vs DDP
#
# Data parallelism gives every rank its own batch and takes one step with the **mean of all gradients**. You will write it twice: through a hub, as in `nn.DataParallel`, and without one, as in `DistributedDataParallel` (DDP). Then you will make the second version overlap communication with backward.
#
# **In this lab you**
#
# - write a data-parallel step through a hub and one with an all-reduce;
# - predict the bytes that each rank sends in both;
# - overlap communication with the backward pass by sending gradients in buckets.
#
# **You need:** [chapter 02](../../course/chapters/02_dp_vs_ddp.ipynb).
#
# <!-- table of points -->
#
# Each exercise has a task, a **spec** that runs, a **budget**, your cell, a picture of what your code did, and a check. The check starts real ranks, compares every rank's result with one process on the whole batch, counts the bytes on the wire and reads the recorded calls. Grading adds hidden cases: other models, other numbers of ranks. A mistake in one exercise never costs points in a later one.
#
# Throughout this lab `model(inputs, targets)` is the mean loss of a batch, N is the number of ranks, and S is the size of all parameters in bytes: 4Ψ for Ψ parameters in float32. All ranks' batches have the same size.

# %%
from functools import partial

import torch
import torch.distributed as dist

from autograder import check
from shardlab import data, launch, measure, models, show_table
from shardlab.widgets import timeline, traffic_map

# %% [markdown]
# Your own runs use a small GPT on real text; this is one rank's model and batch. Each rank starts from **different weights**, as it would without synchronization.

# %%
def my_model_and_batch(step=0):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    batch = data.batch(step, batch_size=2, context=32, rank=rank, world_size=world_size)
    return models.gpt("0.1M"), *batch

model_bytes = sum(parameter.nbytes for parameter in models.gpt("0.1M").parameters())
print(f"S = {model_bytes:,} bytes")

# %% [markdown]
# ## 1 · `hub_step`
#
# One training step in which **rank 0, the hub, holds the weights**, and the others help:
#
# 1. The hub sends all of its parameters to every other rank, which overwrites its own.
# 2. Every rank, including the hub, computes the gradient of its own batch.
# 3. Every other rank sends its gradient to the hub.
# 4. The hub takes the mean of all N gradients and the step: `parameter -= lr * mean`.
#
# A **frozen** parameter (`requires_grad` is `False`) is sent out like the others, but it gets no gradient (its `.grad` is `None`) and no step. What you return is ignored; the hub's parameters have to hold the new values.
#
# The check calls your function several times in a row on the same model:
#
# - The last call's gradients are still in `.grad` unless you reset them. Nothing that you add (hooks, lists, attributes) may pile up from call to call.
# - Each call has another `lr`. Only the hub needs it: the check gives the other ranks a different one.
# - The other ranks' parameters do not matter afterwards: the check changes them before the next call.
# - Every `isend` and `irecv` has to be waited for.

# %%
def whole_batch_spec(model, batches, lr):
    """The result that every step in this lab has to match: one process, all batches together."""
    inputs, targets = (torch.cat(side) for side in zip(*batches, strict=True))
    model.zero_grad()
    model(inputs, targets).backward()
    torch.optim.SGD(model.parameters(), lr).step()

batches = [data.batch(0, batch_size=2, context=32, rank=rank, world_size=4) for rank in range(4)]
whole_batch_spec(models.gpt("0.1M"), batches, lr=0.1)

# %% [markdown]
# **Budget** · each rank sends and receives ≤ 1.01 × its ideal bytes, those that these four steps need · calls: send and recv only (`dist.isend` and `dist.irecv` included).
#
# <details><summary>Hint 1 · who sends when</summary>
#
# First the hub sends all weights, then it receives all gradients. Each `dist.send` needs a matching `dist.recv` on the other side, so both sides go through `model.parameters()` in the same order.
# </details>
# <details><summary>Hint 2 · one rank, two roles</summary>
#
# ```python
# for parameter in model.parameters():
#     if rank == 0:
#         for peer in range(1, world_size):
#             dist.send(parameter.data, peer)
#     else:
#         dist.recv(parameter.data, 0)
# ```
#
# sends out the weights. The same loop with the roles swapped sends the gradients back.
# </details>
# <details><summary>Hint 3 · where the hub receives</summary>
#
# `dist.recv` overwrites the tensor that it gets. The hub's `.grad` already contains its own gradient, so each gradient that arrives needs another tensor of the same size, and is added from there. Change a parameter under `torch.no_grad()`, or its `.data`.
# </details>

# %% nbgrader={"grade_id": "hub_step", "solution": true}
def hub_step(model, inputs, targets, lr):
    """rank 0's weights, every rank's batch  ->  rank 0's weights after one step"""
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for parameter in model.parameters():
        if rank == 0:
            for peer in range(1, world_size):
                dist.send(parameter.data, peer)
        else:
            dist.recv(parameter.data, 0)
    model.zero_grad()
    model(inputs, targets).backward()
    for parameter in [p for p in model.parameters() if p.requires_grad]:
        if rank == 0:
            for peer in range(1, world_size):
                received = torch.empty_like(parameter.grad)
                dist.recv(received, peer)
                parameter.grad += received
            parameter.data -= lr * parameter.grad / world_size
        else:
            dist.send(parameter.grad, 0)
    ### END SOLUTION

# %% [markdown]
# Your step with four ranks. All traffic is in row 0 and column 0: a hub.

# %%
def one_hub_step():
    hub_step(*my_model_and_batch(), lr=0.1)

hub_run = launch(one_hub_step, world_size=4)
traffic_map(hub_run)

# %% [markdown]
# The same step over time. The hub sends the weights to one rank after another and receives the gradients the same way; meanwhile the other ranks wait for their turn.

# %%
timeline(hub_run)

# %% nbgrader={"grade_id": "check_hub_step", "grade": true}
check("dp_vs_ddp.hub_step", hub_step)

# %% [markdown]
# ## 2 · `hub_bytes`
#
# How many bytes does each rank **send** and **receive** in one such step, if no parameter is frozen? Return a list with a pair `(sent, received)` for each rank, the hub first.

# %%
def hub_bytes_spec(run):
    """Measured, including gloo's own messages (under 1% here)."""
    sent, received = run.traffic.sent_by_rank, run.traffic.received_by_rank
    return [(int(sent[rank]), int(received[rank])) for rank in range(run.world_size)]

# %% [markdown]
# **Budget** · no communication: this is arithmetic.
#
# <details><summary>Hint 1 · follow the weights</summary>
#
# The weights leave the hub once for each other rank, and each other rank receives them once.
# </details>
# <details><summary>Hint 2 · follow the gradients</summary>
#
# The gradients have as many bytes as the weights and take the same paths in the other direction.
# </details>
# <details><summary>Hint 3 · check yourself</summary>
#
# The list has one pair for the hub and N − 1 equal ones. What all ranks send together is what all receive together. With two ranks both pairs are the same.
# </details>

# %% nbgrader={"grade_id": "hub_bytes", "solution": true}
def hub_bytes(parameter_bytes, world_size):
    """(100, 3)  ->  a list of 3 pairs (sent, received)"""
    ### BEGIN SOLUTION
    hub = (world_size - 1) * parameter_bytes
    return [(hub, hub)] + [(parameter_bytes, parameter_bytes)] * (world_size - 1)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check_hub_bytes", "grade": true}
check("dp_vs_ddp.hub_bytes", hub_bytes)

# %% [markdown]
# Your formula next to your run: what it predicts and what the operating system counted.

# %%
measured, predicted = hub_bytes_spec(hub_run), hub_bytes(model_bytes, 4)
ways = ("sent, measured", "received, measured", "sent, predicted", "received, predicted")
show_table(
    {"rank": "d", **dict.fromkeys(ways, ",.0f")},
    [(rank, *measured[rank], *predicted[rank]) for rank in range(4)],
    caption="bytes",
)

# %%
traffic_map(hub_run, predicted=[sent for sent, received in hub_bytes(model_bytes, 4)])

# %% [markdown]
# ## 3 · `ddp_step`
#
# Now **every rank holds the weights**, computes the same mean gradient and takes the same step, so that all replicas stay equal and no weights have to be sent. They have to be equal at the start:
#
# 1. In step 0, before anything else, `dist.broadcast` copies rank 0's parameters **and buffers** (`model.buffers()`: state that is not trained) to every rank.
# 2. Every rank computes the gradient of its own batch.
# 3. `dist.all_reduce` sums each gradient over all ranks; `.grad` should end up with the **mean**.
# 4. Every rank takes the step: `parameter -= lr * parameter.grad`.
#
# A frozen parameter is broadcast like the others, but has no gradient and takes no step.
#
# The check calls your function with `step` 0, 1, … in a row and different `lr`, on ranks that start with different weights. It compares **every** rank's parameters and `.grad` with `whole_batch_spec`.
#
# - In one case the training restarts: `step` is 0 again, and the check has changed the weights and buffers of every rank except rank 0.
# - A collective with `async_op=True` has to be waited for, and nothing that you add (hooks, lists, attributes) may pile up from call to call.
#
# **Budget** · sends ≤ 1.05 × ideal bytes per rank, those of one all-reduce of each gradient, and in step 0 of one broadcast of each parameter and buffer · calls: broadcast and all_reduce only.
#
# <details><summary>Hint 1 · in place</summary>
#
# `dist.broadcast(tensor, src=0)` and `dist.all_reduce(tensor)` change their argument in place, on every rank. Pass `parameter.data` and `parameter.grad` themselves, not copies.
# </details>
# <details><summary>Hint 2 · the mean</summary>
#
# `all_reduce` computes the sum. `parameter.grad /= world_size` turns it into the mean.
# </details>
# <details><summary>Hint 3 · four parts</summary>
#
# The function has four parts: make the ranks equal, compute gradients, average them, take the step. Only one of them depends on `step`. Only two of them leave out frozen parameters.
# </details>

# %% nbgrader={"grade_id": "ddp_step", "solution": true}
def ddp_step(model, inputs, targets, lr, step):
    """every rank's own batch  ->  on every rank the same weights after one step"""
    ### BEGIN SOLUTION
    if step == 0:
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.data, src=0)
    model.zero_grad()
    model(inputs, targets).backward()
    for parameter in [p for p in model.parameters() if p.requires_grad]:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
        parameter.data -= lr * parameter.grad
    ### END SOLUTION

# %% [markdown]
# Your second step, without the first step's broadcast. There is no hub: every rank sends to one neighbor, and all send the same amount. The faint cells are gloo's own replies.

# %%
def two_ddp_steps():
    model, *batch = my_model_and_batch()
    ddp_step(model, *batch, lr=0.1, step=0)
    with measure("step 1"):
        ddp_step(model, *batch, lr=0.1, step=1)

ddp_run = launch(two_ddp_steps, world_size=4)
traffic_map(ddp_run, block="step 1")

# %% nbgrader={"grade_id": "check_ddp_step", "grade": true}
check("dp_vs_ddp.ddp_step", ddp_step)

# %% [markdown]
# ## 4 · `ring_bytes`
#
# The same question for one step of DDP after the broadcast: what does each rank **send** and **receive** when the gradients are all-reduced in a ring? Again return a list of pairs `(sent, received)`; N divides S, so the bytes are whole numbers.

# %%
def ring_bytes_spec(run):
    """Measured, including gloo's own messages."""
    sent, received = run.traffic["step 1"].sent_by_rank, run.traffic["step 1"].received_by_rank
    return [(int(sent[rank]), int(received[rank])) for rank in range(run.world_size)]

# %% [markdown]
# **Budget** · no communication: this is arithmetic.
#
# <details><summary>Hint 1 · two halves</summary>
#
# A ring all-reduce is a reduce-scatter and an all-gather, and both move the same number of bytes.
# </details>
# <details><summary>Hint 2 · one half</summary>
#
# The tensor is cut into N chunks. In one half a rank sends N − 1 of them, and receives N − 1.
# </details>
# <details><summary>Hint 3 · check yourself</summary>
#
# With two ranks each sends S in all, half of the tensor in each half of the all-reduce. With very many ranks it is nearly 2S, never more.
# </details>

# %% nbgrader={"grade_id": "ring_bytes", "solution": true}
def ring_bytes(parameter_bytes, world_size):
    """(300, 3)  ->  a list of 3 pairs (sent, received)"""
    ### BEGIN SOLUTION
    each = 2 * (world_size - 1) * parameter_bytes / world_size
    return [(each, each)] * world_size
    ### END SOLUTION

# %% nbgrader={"grade_id": "check_ring_bytes", "grade": true}
check("dp_vs_ddp.ring_bytes", ring_bytes)

# %% [markdown]
# Your two formulas for more and more ranks, each for its busiest rank, in units of S:

# %%
show_table(
    {"ranks N": "d", "hub sends, in S": ".0f", "ring sends, in S": ".3f"},
    [(n, hub_bytes(n, n)[0][0] / n, ring_bytes(n, n)[0][0] / n) for n in (2, 4, 8, 64)],
)

# %% [markdown]
# The ring's formula next to your run. Your `ddp_step` most likely makes one all-reduce for each parameter, and many of them are tiny, so gloo's own messages are visible: one reason for the buckets that come next.

# %%
predicted_bytes = [sent for sent, received in ring_bytes(model_bytes, 4)]
traffic_map(ddp_run, predicted=predicted_bytes, block="step 1")

# %% [markdown]
# ## 5 · `BucketedDDP`
#
# `ddp_step` first finishes backward, then communicates. But the gradients of the last layers are ready long before those of the first. DDP packs gradients into **buckets** and starts the all-reduce of a bucket as soon as all of its gradients are ready, while backward continues.
#
# ```python
# ddp = BucketedDDP(model, cap_bytes)   # once
# loss = ddp(inputs, targets)           # in each step
# loss.backward()                       # starts the all-reduces
# ddp.finish()                          # now every .grad is the mean over all ranks
# ```
#
# - **Which parameters:** those with `requires_grad`. A frozen parameter has no gradient and is in no bucket; a tied one counts once, as in `module.parameters()`.
# - **Which buckets:** go through these parameters in **reverse** order. Each joins the current bucket if the bucket then has at most `cap_bytes` bytes; otherwise it begins the next one. A parameter larger than the cap gets its own bucket.
# - **When:** in the hook of the gradient that completes the bucket, start **one** all-reduce of the whole bucket with `async_op=True`. Do not wait for it there. A model may use its layers in a different order from that in which it registers them, so gradients may arrive in any order, and a bucket may be complete before an earlier one: it starts at once.
# - **`finish()`** waits for all of them, copies the means back into `.grad`, and resets the buckets for the next step.
#
# `parameter.register_post_accumulate_grad_hook(fn)` makes backward call `fn(parameter)` as soon as `parameter.grad` is ready, once in each backward. You may assume that all ranks' weights are already equal (no broadcast), that every trainable parameter is used in every step, and that `.grad` is `None` before each backward.
#
# The check takes 10 steps and looks for what grows: nothing may pile up. Buffers that the next step uses again or replaces may stay. Keep your state in `self`: the check also trains two models at once, each in its own `BucketedDDP`.
#
# This rule is simpler than PyTorch's:
#
# - There a bucket is closed by the parameter that fills it, so it may overshoot its cap. By default the first one is full at 1 MiB, to start early, and the others at 25 MiB (`bucket_cap_mb`).
# - A bucket that is complete waits until all earlier ones have started.
# - After the first step DDP rebuilds its buckets in the order in which gradients arrived.

# %%
def bucket_spec(sizes, cap_bytes):
    """bytes by parameter, in the order of module.parameters()  ->  buckets, first to fill first"""
    *rest, last = sizes
    buckets = [[last]]
    for size in reversed(rest):
        fits = sum(buckets[-1]) + size <= cap_bytes
        buckets[-1].append(size) if fits else buckets.append([size])
    return buckets

bucket_spec([40, 70, 10, 200, 30, 20], cap_bytes=100)

# %% [markdown]
# The check makes one rank **late**: it starts its backward only when all others have finished theirs. An answer that waits inside a hook then waits forever.
#
# **Budget**
#
# - One all_reduce for each bucket and step, and nothing else.
# - It starts in the hook of the gradient that completes its bucket, before the next gradient arrives.
# - Sends ≤ 1.05 × ideal bytes per rank, $\frac{2(N-1)}{N} S$ in each step, S without frozen parameters.
#
# <details><summary>Hint 1 · what to keep</summary>
#
# A list of buckets, each a list of parameters; how many gradients each bucket still waits for; and for each bucket in flight its flat tensor and the handle that `dist.all_reduce(flat, async_op=True)` returns.
# </details>
# <details><summary>Hint 2 · a hook that knows its bucket</summary>
#
# ```python
# parameter.register_post_accumulate_grad_hook(partial(self.arrived, index))
# ```
#
# calls `self.arrived(index, parameter)`. Count down there; at 0 concatenate the bucket with `torch.cat([p.grad.flatten() for p in bucket])` and start the all-reduce.
# </details>
# <details><summary>Hint 3 · finish</summary>
#
# Each bucket in flight takes three steps: wait, take the mean, and bring it back. `flat.split(sizes)` cuts a flat tensor into pieces, and `piece.view_as(parameter)` has a parameter's shape. Afterwards everything that the hooks have changed has to be as before backward.
# </details>

# %% nbgrader={"grade_id": "BucketedDDP", "solution": true}
class BucketedDDP(torch.nn.Module):
    """Averages gradients over all ranks, bucket by bucket, while backward still runs."""

    def forward(self, *batch):
        return self.module(*batch)

    def __init__(self, module, cap_bytes):
        super().__init__()
        self.module = module
        ### BEGIN SOLUTION
        self.buckets, size = [], 0
        for parameter in reversed([p for p in module.parameters() if p.requires_grad]):
            if not self.buckets or size + parameter.nbytes > cap_bytes:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(parameter)
            size += parameter.nbytes
        for index, bucket in enumerate(self.buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(partial(self.arrived, index))
        self.reset()

    def reset(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.in_flight = []

    def arrived(self, index, parameter):
        self.missing[index] -= 1
        if self.missing[index] == 0:
            flat = torch.cat([p.grad.flatten() for p in self.buckets[index]])
            work = dist.all_reduce(flat, async_op=True)
            self.in_flight.append((self.buckets[index], flat, work))
        ### END SOLUTION

    def finish(self):
        """Call it after backward: then every trainable parameter's .grad is the mean."""
        ### BEGIN SOLUTION
        for bucket, flat, work in self.in_flight:
            work.wait()
            flat /= dist.get_world_size()
            parts = flat.split([parameter.numel() for parameter in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                parameter.grad.copy_(part.view_as(parameter))
        self.reset()
        ### END SOLUTION

# %% [markdown]
# Your buckets over time, with a larger GPT. The band marks backward: each bar that begins inside it is a bucket in flight while gradients are still being computed. On a GPU, an all-reduce runs next to backward and takes some of its processors (SMs) and of its memory bandwidth; on two CPU cores they take turns, so the gain here is small.

# %%
def one_bucketed_step():
    torch.manual_seed(0)
    ddp = BucketedDDP(models.gpt("3M"), cap_bytes=2_000_000)
    batch = data.batch(0, batch_size=2, rank=dist.get_rank(), world_size=dist.get_world_size())
    loss = ddp(*batch)
    dist.barrier()  # so that all start backward together
    with measure("backward"):
        loss.backward()
    ddp.finish()

bucketed_run = launch(one_bucketed_step, world_size=2)
timeline(bucketed_run)

# %% nbgrader={"grade_id": "check_BucketedDDP", "grade": true}
check("dp_vs_ddp.BucketedDDP", BucketedDDP)

# %% [markdown]
# ## 6 · How large should a bucket be?
#
# PyTorch's DDP uses buckets of about 25 MiB by default, after a first one of 1 MiB. What would you lose with buckets of **1 KB**, and what with **one bucket** for the whole model? Also explain why the parameters are in reverse order in the buckets. Three to six sentences.

# %% [markdown] nbgrader={"grade_id": "how_large_a_bucket", "grade": true, "solution": true, "points": 2}
# ### BEGIN SOLUTION
# Each all-reduce pays 2(N − 1) delays, whatever its size. With 1 KB buckets there are thousands of collectives, and the delays (and the headers of each message) cost more than the bytes: latency dominates. With one bucket the only all-reduce starts when the last gradient is ready, so nothing overlaps, and the whole transfer time is added to backward. (Memory does not decide: buckets of any size together are one copy of all gradients.)
#
# Backward goes from the loss to the input, so the last parameters' gradients come first. In forward order, the first bucket contains the earliest layers and fills only at the very end.
#
# Points: 1 for both sizes (many delays; no overlap), 1 for the order of gradients in backward.
# ### END SOLUTION
