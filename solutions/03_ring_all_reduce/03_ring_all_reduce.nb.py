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
# # Lab 03 · Ring all-reduce
#
# Data-parallel training sums all ranks' gradients in each step. You will compute that sum the way NCCL often does it for large tensors: in a **ring**, where each rank communicates only with its two neighbors and no link carries more than any other.
#
# **In this lab you**
#
# - divide any tensor into chunks for any number of ranks;
# - write reduce-scatter and all-gather on a ring without deadlock;
# - combine them into an all-reduce, predict its bytes, and send fewer of them between nodes.
#
# **You need:** [chapter 03](../../course/chapters/03_ring_all_reduce.ipynb).
#
# <!-- table of points -->
#
# Each exercise has a task, a **spec** that runs, a **budget**, your cell, a picture of what your code did, and a check. The check starts real ranks, compares every rank's result with the spec and counts the bytes on the wire. Grading adds hidden cases: other lengths, other dtypes, other numbers of ranks. A mistake in one exercise never costs points in a later one.

# %%
from dataclasses import replace

import torch
import torch.distributed as dist

from autograder import check
from shardlab import launch
from shardlab.widgets import ring_player, timeline, traffic_map

# %% [markdown]
# ## 1 · `chunk_bounds`
#
# A ring of N ≥ 2 ranks moves a tensor in N chunks, one for each rank. Return a list with the `(start, stop)` of each chunk; if N does not divide the length, the first chunks are one element longer. Each chunk starts where the one before it stops, also if it is empty.

# %%
def chunk_bounds_spec(length, world_size):
    """(10, 4)  ->  [0 1 2] [3 4 5] [6 7] [8 9]"""
    return torch.arange(length).tensor_split(world_size)

chunk_bounds_spec(10, 4)

# %% [markdown]
# **Budget** · no communication: this is arithmetic, and right for any length, also where the elements would not fit in memory or in 32 bits.
#
# <details><summary>Hint 1 · what to count</summary>
#
# `10 = 4 × 2 + 2`: every chunk has at least 2 elements, and 2 elements are left over. Who gets them?
# </details>
# <details><summary>Hint 2 · the two numbers</summary>
#
# `divmod(length, world_size)` is `(small, extra)`: the first `extra` chunks have `small + 1` elements, the others `small`.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Chunk `r` starts at `r * small + min(r, extra)`. It stops where chunk `r + 1` starts.
# </details>

# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
def chunk_bounds(length, world_size):
    """(10, 4)  ->  [(0, 3), (3, 6), (6, 8), (8, 10)]"""
    ### BEGIN SOLUTION
    small, extra = divmod(length, world_size)
    starts = [r * small + min(r, extra) for r in range(world_size + 1)]
    return [(starts[r], starts[r + 1]) for r in range(world_size)]
    ### END SOLUTION

# %% nbgrader={"grade_id": "check_chunk_bounds", "grade": true}
check("ring_all_reduce.chunk_bounds", chunk_bounds)

# %% [markdown]
# Your chunks of ten elements, a row for each rank:

# %%
rows = ["·  " * start + "■  " * (stop - start) for start, stop in chunk_bounds(10, 4)]
print(*rows, sep="\n")

# %% [markdown]
# ## 2 · `reduce_scatter`
#
# Every rank holds a whole tensor; afterwards **rank r holds chunk r of the sum**. In each of N − 1 steps a rank sends one chunk to its right neighbor `(rank + 1) % N`, receives another from its left neighbor `(rank - 1) % N`, and adds what it received to its own copy of that chunk.

# %%
def reduce_scatter_spec(tensors, bounds):
    """rank0 [1 2 3] | rank1 [10 20 30] | rank2 [100 200 300]  ->  [111] | [222] | [333]"""
    total = sum(tensors)
    return [total[start:stop] for start, stop in bounds]

reduce_scatter_spec([torch.tensor([1, 2, 3]) * 10**r for r in range(3)], [(0, 1), (1, 2), (2, 3)])

# %% [markdown]
# Work in place, on views of `tensor`: `tensor[start:stop]` is a view, so adding to it changes `tensor`. Return the view of chunk `rank`, not a copy; the values of the other chunks do not matter afterwards.
#
# `bounds` may cut the tensor anywhere: chunks of any lengths, some of them empty, in order and without gaps; do not modify `bounds`. `tensor` may have any dtype; add and send in that dtype. **Wait** for every send: until then its part of `tensor` may not be changed. How many buffers you keep meanwhile does not matter.
#
# **Budget** · sends ≤ 1.01 × ideal bytes per rank, ideal = every chunk but one, once each ($\frac{N-1}{N} S$ for equal chunks of a tensor of S bytes) · calls: send and recv only (`dist.isend` and `dist.irecv` included), to the right and from the left neighbor (≤ 1% of the ideal bytes to other ranks: gloo's own messages).
#
# <details><summary>Hint 1 · follow one chunk</summary>
#
# Chunk 0 must end on rank 0 with every rank's part in it. It travels to the right and visits every rank, so it starts on rank 1, and rank 0 adds the last part. Chunk 1 starts on rank 2, and so on.
# </details>
# <details><summary>Hint 2 · which chunk in which step</summary>
#
# In step 0 rank r sends chunk r − 1 and receives chunk r − 2 (all modulo N). In each later step both numbers are one lower: you pass on the chunk that you have just added to.
# </details>
# <details><summary>Hint 3 · nearly there, and no deadlock</summary>
#
# If every rank calls `dist.send` first, all wait for somebody to receive. Start the send and do not wait for it yet:
#
# ```python
# sending = dist.isend(outgoing, right)
# dist.recv(received, left)
# sending.wait()
# ```
#
# `received = torch.empty_like(incoming)`, then `incoming += received`. After the loop return `chunks[rank]`.
# </details>

# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(tensor, bounds):
    """tensor [length] on each rank  ->  chunk `rank` of the sum, a view of tensor"""
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    chunks = [tensor[start:stop] for start, stop in bounds]
    for step in range(world_size - 1):
        outgoing = chunks[(rank - step - 1) % world_size]
        incoming = chunks[(rank - step - 2) % world_size]
        received = torch.empty_like(incoming)
        sending = dist.isend(outgoing, right)
        dist.recv(received, left)
        sending.wait()
        incoming += received
    return chunks[rank]
    ### END SOLUTION

# %% [markdown]
# Your ring in action: four ranks, a tensor of four chunks. Press play, or go step by step.

# %%
four_chunks = [(0, 3), (3, 6), (6, 9), (9, 12)]
tensors = [torch.arange(12.0) + 100 * rank for rank in range(4)]
run = launch(reduce_scatter, four_chunks, inputs=tensors, world_size=4)
ring_player(run)

# %% nbgrader={"grade_id": "check_reduce_scatter", "grade": true}
check("ring_all_reduce.reduce_scatter", reduce_scatter)

# %% [markdown]
# ## 3 · `all_gather`
#
# Now **rank r starts with the correct chunk r** and arbitrary values in the rest of `tensor`; afterwards every rank has all chunks. The same ring, the same neighbors, N − 1 steps, but a received chunk replaces the old values.

# %%
def all_gather_spec(tensors, bounds):
    """rank0 [a . .] | rank1 [. b .] | rank2 [. . c]  ->  [a b c] on every rank"""
    own = [tensors[r][start:stop] for r, (start, stop) in enumerate(bounds)]
    return [torch.cat(own)] * len(tensors)

all_gather_spec([torch.full((3,), r) for r in range(3)], [(0, 1), (1, 2), (2, 3)])

# %% [markdown]
# Fill `tensor` in place. Again `bounds` may cut it anywhere, it may have any dtype, and every send has to be waited for.
#
# **Budget** · sends ≤ 1.01 × ideal bytes per rank, ideal = every chunk but one, once each · calls: send and recv only, to the right and from the left neighbor (≤ 1% of the ideal bytes to other ranks: gloo's own messages).
#
# <details><summary>Hint 1 · follow one chunk</summary>
#
# Chunk 0 starts on rank 0 and travels to the right until rank N − 1 has it. Each rank keeps a copy as it passes.
# </details>
# <details><summary>Hint 2 · which chunk in which step</summary>
#
# In step 0 rank r sends chunk r, the only one it has, and receives chunk r − 1. In each later step both numbers are one lower.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The loop of `reduce_scatter` with `outgoing = chunks[(rank - step) % world_size]` and `incoming = chunks[(rank - step - 1) % world_size]`. Nothing is added, so receive directly into the view: `dist.recv(incoming, left)`.
# </details>

# %% nbgrader={"grade_id": "all_gather", "solution": true}
def all_gather(tensor, bounds):
    """tensor [length], chunk `rank` filled  ->  all of tensor filled, in place"""
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    chunks = [tensor[start:stop] for start, stop in bounds]
    for step in range(world_size - 1):
        sending = dist.isend(chunks[(rank - step) % world_size], right)
        dist.recv(chunks[(rank - step - 1) % world_size], left)
        sending.wait()
    ### END SOLUTION

# %% [markdown]
# Each rank's calls over time. A long bar is a rank that waits for its neighbor.

# %%
tensors = [torch.full((12,), float(rank)) for rank in range(4)]
run = launch(all_gather, four_chunks, inputs=tensors, world_size=4)
timeline(run)

# %% nbgrader={"grade_id": "check_all_gather", "grade": true}
check("ring_all_reduce.all_gather", all_gather)

# %% [markdown]
# ## 4 · `ring_all_reduce`
#
# Put the pieces together: afterwards **every rank's `tensor` holds the sum over all ranks**, or with `op="mean"` their mean. Change `tensor` in place, as `dist.all_reduce` does; the mean is required only for floating-point tensors.

# %%
def ring_all_reduce_spec(tensors, op="sum"):
    """rank0 [1 2] | rank1 [3 4]  ->  sum: both [4 6]   mean: both [2 3]"""
    total = sum(tensors)
    return [total / len(tensors) if op == "mean" else total] * len(tensors)

ring_all_reduce_spec([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])], op="mean")

# %% [markdown]
# You can call your `chunk_bounds`, `reduce_scatter` and `all_gather` by these names. The check replaces them with its own, so this exercise is only about how they fit together. The result has the tensor's dtype; compute in it as well.
#
# **Budget** · sends ≤ 1.01 × ideal bytes per rank, ideal = $\frac{2(N-1)}{N} S$ · calls: send and recv only.
#
# <details><summary>Hint 1 · the order</summary>
#
# After `reduce_scatter` rank r has chunk r of the sum: exactly what `all_gather` starts from.
# </details>
# <details><summary>Hint 2 · the mean</summary>
#
# The mean is the sum divided by `world_size`. You may divide before, in between or after, but dividing one chunk is less work than dividing all of them.
# </details>
# <details><summary>Hint 3 · in place</summary>
#
# `tensor = tensor / n` makes a new tensor, and the caller never sees it. `tensor /= n` and `chunk /= n` change what is there.
# </details>

# %% nbgrader={"grade_id": "ring_all_reduce", "solution": true}
def ring_all_reduce(tensor, op="sum"):
    """tensor [length] on each rank  ->  the sum (or mean) over ranks, in place"""
    ### BEGIN SOLUTION
    world_size = dist.get_world_size()
    bounds = chunk_bounds(len(tensor), world_size)
    chunk = reduce_scatter(tensor, bounds)
    if op == "mean":
        chunk /= world_size
    all_gather(tensor, bounds)
    ### END SOLUTION

# %% [markdown]
# Who sent how much to whom, with a tensor of 4 MiB:

# %%
tensors = [torch.ones(2**20) for _ in range(4)]
run = launch(ring_all_reduce, inputs=tensors, world_size=4)
traffic_map(run)

# %% nbgrader={"grade_id": "check_ring_all_reduce", "grade": true}
check("ring_all_reduce.ring_all_reduce", ring_all_reduce)

# %% [markdown]
# ## 5 · `bytes_per_rank`
#
# How many bytes does each rank **send** in a whole ring all-reduce of `length` elements of `element_bytes` each? Write the formula; assume that `world_size` divides `length`. A single rank sends 0 bytes.

# %%
def bytes_per_rank_spec(length, element_bytes, world_size):
    """Measured: what torch's own ring sends, including gloo's messages (under 1%)."""
    def one_all_reduce():
        dist.all_reduce(torch.zeros(length * element_bytes, dtype=torch.uint8))
    return launch(one_all_reduce, world_size=world_size).traffic.sent_by_rank

bytes_per_rank_spec(1_000_000, 4, 4)

# %% [markdown]
# **Budget** · no communication: this is arithmetic, and no loop is needed.
#
# <details><summary>Hint 1 · two halves</summary>
#
# Reduce-scatter and all-gather send the same number of bytes.
# </details>
# <details><summary>Hint 2 · one half</summary>
#
# In one half a rank sends every chunk but one, once each.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The whole tensor has S = `length * element_bytes` bytes, and all chunks but one are $\frac{N-1}{N}$ of it.
# </details>

# %% nbgrader={"grade_id": "bytes_per_rank", "solution": true}
def bytes_per_rank(length, element_bytes, world_size):
    """(1000, 4, 4)  ->  6000"""
    ### BEGIN SOLUTION
    tensor_bytes = length * element_bytes
    return 2 * (world_size - 1) * tensor_bytes / world_size
    ### END SOLUTION

# %% nbgrader={"grade_id": "check_bytes_per_rank", "grade": true}
check("ring_all_reduce.bytes_per_rank", bytes_per_rank)

# %% [markdown]
# Your prediction next to your measurement. The difference is gloo's own messages, about a hundred bytes for each send.

# %%
predicted_bytes = bytes_per_rank(2**20, 4, 4)
traffic_map(run, predicted=[predicted_bytes] * 4)

# %% [markdown]
# ## 6 · `hierarchical_all_reduce`
#
# A cluster of M nodes with L = `ranks_per_node` ranks each: node 0 has the ranks 0 to L − 1, node 1 the next L, and so on. Links between nodes are slow. Sum `tensor` over all ranks in **two levels**: a reduce-scatter within each node, an all-reduce across nodes among the ranks with the same local rank (`rank % ranks_per_node`), an all-gather within each node.

# %%
def hierarchical_all_reduce_spec(tensors, ranks_per_node):
    """rank0 [1 2] | rank1 [3 4] || rank2 [5 6] | rank3 [7 8]  ->  [16 20] on every rank"""
    nodes = torch.stack(tensors).split(ranks_per_node)
    node_sums = [node.sum(0) for node in nodes]
    return [sum(node_sums)] * len(tensors)

hierarchical_all_reduce_spec([torch.tensor([k, k + 1]) for k in (1, 3, 5, 7)], ranks_per_node=2)

# %% [markdown]
# Change `tensor` in place; it may have any length and any dtype. Use collectives of torch.distributed, each with its `group=`. `dist.new_group(ranks)` makes a group. **Every rank makes every group**, in the same order, also those that it is not in, and keeps the two that it is in. (A training job makes its groups once, at the start; here each call makes its own.)
#
# **Budget** · sends ≤ 1.01 × ideal bytes to other nodes per rank, ideal = $\frac{2(M-1)}{M} \cdot \frac{S}{L}$, so that a node sends $\frac{2(M-1)}{M} S$ in all · sends ≤ 1.01 × $\frac{3(L-1)}{L} S$ within its node per rank (gloo's reduce-scatter takes two thirds of this, as you saw in the chapter) · collectives: within one node, but no all-reduce; or with one rank of each node, of no more than a shard.
#
# <details><summary>Hint 1 · which groups</summary>
#
# Write the ranks as a table with a row for each node. The rows are one kind of groups; what are the columns?
# </details>
# <details><summary>Hint 2 · what L does not divide</summary>
#
# The collectives want L shards of the same length. `torch.nn.functional.pad(tensor, (0, n))` returns a copy with n zeros at the end, and `-length % L` is how many are missing.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# ```python
# table = torch.arange(world_size).view(-1, ranks_per_node)
# rows = [dist.new_group(ranks) for ranks in table.tolist()]
# ```
#
# The group of its node is `rows[rank // ranks_per_node]`, and `table.T` has the columns as rows. In `dist.reduce_scatter_single(shard, padded, group=…)` the result comes first, as in `dist.all_gather_single(padded, shard, group=…)`.
# </details>

# %% nbgrader={"grade_id": "hierarchical_all_reduce", "solution": true}
def hierarchical_all_reduce(tensor, ranks_per_node):
    """tensor [length] on each rank  ->  the sum over all ranks, in place"""
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    table = torch.arange(world_size).view(-1, ranks_per_node)
    rows = [dist.new_group(ranks) for ranks in table.tolist()]
    columns = [dist.new_group(ranks) for ranks in table.T.tolist()]
    within, across = rows[rank // ranks_per_node], columns[rank % ranks_per_node]
    padded = torch.nn.functional.pad(tensor, (0, -len(tensor) % ranks_per_node))
    shard = padded.new_empty(len(padded) // ranks_per_node)
    dist.reduce_scatter_single(shard, padded, group=within)
    dist.all_reduce(shard, group=across)
    dist.all_gather_single(padded, shard, group=within)
    tensor.copy_(padded[: len(tensor)])
    ### END SOLUTION

# %% [markdown]
# Two nodes of three ranks, a tensor of 4 MiB. Cells outside of the two boxes are bytes between nodes:

# %%
tensors = [torch.ones(2**20) for _ in range(6)]
run = launch(hierarchical_all_reduce, 3, inputs=tensors, world_size=6)
run.traffic = replace(run.traffic, nodes=(0, 0, 0, 1, 1, 1))
traffic_map(run)

# %% nbgrader={"grade_id": "check_hierarchical_all_reduce", "grade": true}
check("ring_all_reduce.hierarchical_all_reduce", hierarchical_all_reduce)

# %% [markdown]
# ## 7 · From 8 to 64 ranks
#
# A training job grows from 8 ranks to 64; each link still has the same speed and the same delay. What happens to the time of one ring all-reduce of a **1 KB** tensor, and of a **1 GB** tensor? Give a factor for each and explain why they differ. Three to six sentences.

# %% [markdown] nbgrader={"grade_id": "from_8_to_64_ranks", "grade": true, "solution": true, "points": 2}
# ### BEGIN SOLUTION
# A ring takes 2(N − 1) steps: 14 with 8 ranks, 126 with 64. In each step a rank waits for one delay α and moves S/N bytes, each of which takes β seconds, so the time is $2(N-1)\,\alpha + \frac{2(N-1)}{N} S \beta$.
#
# 1 KB: the bytes take next to no time and the delays dominate, so the time grows with the number of steps, by 126/14 = 9. 1 GB: the bytes dominate, and each rank sends $\frac{2(N-1)}{N} S$, which grows only from 1.75 S to 1.97 S: a factor of about 1.13. The extra 112 delays, some microseconds each, hardly matter in a transfer of many milliseconds.
#
# Points: 1 for both factors (about 9, or "with N"; about 1.1, or "hardly at all"), 1 for naming latency and bandwidth as the reasons.
# ### END SOLUTION
