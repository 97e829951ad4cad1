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
# # 03 · Ring all-reduce
#
# In data-parallel training each of N ranks computes a gradient from its own share of the batch. Before they can take a step, **all of them need the sum** (or the mean, which is the sum divided by N). A call in which every rank takes part is a **collective**; the one that gives everyone the sum is **all-reduce**.
#
# The question of this chapter: how many bytes must each rank send for it, and how long does that take?
#
# **After this chapter you can**
#
# - compute how many bytes each rank sends in an all-reduce, through a hub and on a ring;
# - follow a reduce-scatter and an all-gather chunk by chunk;
# - say whether latency or bandwidth decides how long a collective takes.
#
# **You need:** [02 DP vs DDP](02_dp_vs_ddp.ipynb).

# %% [markdown]
# <details open><summary>Around a ring of four ranks, a tensor is summed in 2(N − 1) = 6 steps</summary>
#
# [![Animation: Around a ring of four ranks, a tensor is summed in 2(N − 1) = 6 steps](openers/03_ring_all_reduce.svg)](openers/03_ring_all_reduce.svg)
#
# Every rank sends one quarter of its tensor to the next rank, again and again. After three steps each rank has one quarter of the sum; after three more, everyone has all of it. Rank 0 sent 6.0 MiB for a tensor of 4.0 MiB. (Recorded from real processes.)
#
# </details>

# %% jupyter={"source_hidden": true}
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import os
import statistics
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from shardlab import DeadlockError, estimate, holds, launch, measure, show_table
from shardlab.widgets import format_bytes, palette, predict, ring_player, timeline, traffic_map

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# Below, S is the size of the tensor in bytes and N the number of ranks. Our gradient has 2²⁰ float32 elements, 4 bytes each. All runs use `device="cpu"`, because we want the bytes counted on the wire.

# %%
length = 2**20
tensor_bytes = 4 * length
print("S =", format_bytes(tensor_bytes))

# %% [markdown]
# ## The obvious way: a hub
#
# Every rank sends its tensor to rank 0. Rank 0 adds them up and sends the sum back to all.

# %%
def hub_all_reduce(length):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((length,), float(rank))
    if rank == 0:
        add_all_then_send_back(tensor, peers=range(1, world_size))
    else:
        dist.send(tensor, dst=0)
        dist.recv(tensor, src=0)
    return tensor[0].item()

# %%
def add_all_then_send_back(total, peers):
    received = torch.empty_like(total)
    for peer in peers:
        dist.recv(received, src=peer)
        total += received
    for peer in peers:
        dist.send(total, dst=peer)

# %% [markdown]
# **How many bytes will each of four ranks send?**

# %%
predicted_bytes = predict(f"Bytes that each rank sends (the tensor takes {tensor_bytes:,})", unit="B", ranks=4)
predicted_bytes

# %%
run = launch(hub_all_reduce, length, world_size=4, device="cpu")
traffic_map(run, predicted=predicted_bytes)

# %%
one_way = {"rank 0's part": [3 * tensor_bytes, 0, 0, 0], "what the others send": [0, *[tensor_bytes] * 3]}
predicted_bytes.compare(run.traffic.sent_by_rank, one_way)

# %%
print("sum on each rank:", run.outputs)

# %% [markdown]
# All traffic is in row 0 and column 0. Rank 0 sends $(N-1) \cdot S$ and receives as much: **$2(N-1) \cdot S$ bytes pass through it**, while every other rank sends S. Add a rank, and rank 0 has more to do while the others wait:

# %%
timeline(run)

# %% [markdown]
# Adding machines adds work to one of them, and its network link limits all the others. Can the work be spread so that no rank does more than another?
#
# ## Split the work: one chunk for each rank
#
# Split the tensor into N chunks, and let each rank add up one of them. Two collectives do that, one after the other:
#
# - **reduce-scatter**: afterwards rank r has chunk r of the sum, and only that;
# - **all-gather**: every rank passes its finished chunk on, until all ranks have all chunks.
#
# ```
#              rank 0     rank 1     rank 2     rank 3
# before       a b c d    a b c d    a b c d    a b c d      each has its own numbers
# halfway      A . . .    . B . .    . . C .    . . . D      capital: the sum over ranks
# afterwards   A B C D    A B C D    A B C D    A B C D
# ```
#
# In a **ring** each rank sends only to its right neighbor, rank + 1, and receives only from its left one, rank − 1; after the last rank comes rank 0 again. To see whose numbers are in a chunk, rank 0 starts with ones, rank 1 with tens, rank 2 with hundreds, rank 3 with thousands. A chunk that reads 1111 is complete.

# %%
def own_numbers():
    return [torch.full((8,), 10**rank) for rank in range(4)]

for rank, tensor in enumerate(own_numbers()):
    print(f"rank {rank}", tensor.tolist())

# %% [markdown]
# ### One step
#
# In a step every rank sends one chunk to the right, and adds the chunk that comes from the left to its own copy. `isend` and `irecv` only start a transfer (the i is for *immediate*), so a rank can do both at the same time; `wait` returns when the transfer is done.

# %%
def neighbors():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return (rank - 1) % world_size, (rank + 1) % world_size  # left, right

# %%
def pass_and_add(outgoing, incoming):
    left, right = neighbors()
    received = torch.empty_like(incoming)
    sending = dist.isend(outgoing, right)
    receiving = dist.irecv(received, left)
    sending.wait()
    receiving.wait()
    incoming += received

# %% [markdown]
# Which rank sends which chunk? Here is the plan for four ranks, one row for each step and one column for each rank. A rank receives what its left neighbor sends, one column to the left (in Python, index −1 is the last column, which is exactly what rank 0 needs).

# %%
SCATTER_PLAN = [  # the chunk that ranks 0, 1, 2, 3 send
    [3, 0, 1, 2],
    [2, 3, 0, 1],
    [1, 2, 3, 0],
]

# %%
def reduce_scatter_of_four(tensor, steps=3):
    rank, chunks = dist.get_rank(), tensor.chunk(4)
    for sends in SCATTER_PLAN[:steps]:
        pass_and_add(outgoing=chunks[sends[rank]], incoming=chunks[sends[rank - 1]])
    return tensor

# %%
run = launch(reduce_scatter_of_four, 1, inputs=own_numbers(), device="cpu")
for rank, tensor in enumerate(run.outputs):
    print(f"rank {rank}", tensor.tolist())

# %% [markdown]
# After one step each rank has one chunk with two ranks' numbers in it: its own and its left neighbor's.
#
# ### All three steps
#
# Follow chunk 0 through the plan: rank 1 sends it first, then rank 2, then rank 3, and each has added its own part before it sends. **On which rank will chunk 2 be complete?**

# %%
predicted_rank = predict("Chunk 2 is complete on", options=[f"rank {rank}" for rank in range(4)])
predicted_rank

# %%
run = launch(reduce_scatter_of_four, inputs=own_numbers(), device="cpu")

# %%
complete_on = [rank for rank, tensor in enumerate(run.outputs) if tensor.chunk(4)[2][0] == 1111]
first_sender = f"rank {SCATTER_PLAN[0].index(2)}"
predicted_rank.compare(f"rank {complete_on[0]}", {"the rank that sends chunk 2 first": first_sender})

# %%
for rank, summed in enumerate(run.outputs):
    print(f"rank {rank}", summed.tolist())

# %% [markdown]
# After N − 1 steps rank r has the complete chunk r. Its other chunks are partial sums that nobody needs.
#
# ### Once more around the ring
#
# All-gather uses the same ring. In the first step each rank sends the chunk that it has completed; then it forwards what it has just received. Nothing is added, so a chunk is received directly into its place.

# %%
GATHER_PLAN = [  # the chunk that ranks 0, 1, 2, 3 send
    [0, 1, 2, 3],
    [3, 0, 1, 2],
    [2, 3, 0, 1],
]

# %%
def all_gather_of_four(tensor):
    rank, chunks = dist.get_rank(), tensor.chunk(4)
    left, right = neighbors()
    for sends in GATHER_PLAN:
        sending = dist.isend(chunks[sends[rank]], right)
        dist.recv(chunks[sends[rank - 1]], left)
        sending.wait()

# %%
def all_reduce_of_four(tensor):
    reduce_scatter_of_four(tensor)
    all_gather_of_four(tensor)
    return tensor

run = launch(all_reduce_of_four, inputs=own_numbers(), device="cpu")
run.outputs

# %% [markdown]
# The picture below replays the calls that this run recorded. Press play, or go step by step: in the first three steps each moving chunk collects one more rank's numbers, in the last three complete chunks replace the partial sums.

# %%
ring_player(run)

# %% [markdown]
# The plans are written out for four ranks, and `chunk(4)` is only right when 4 divides the length. In the lab you will find the rule behind the plans, for any N and any length.
#
# ### How we write who has what
#
# All chapters write it as Austin et al. (2025) do. Let X be a group of N ranks, and A a tensor with dimensions I and J:
#
# | written | each rank of X has |
# |---|---|
# | $A[I, J]$ | all of A |
# | $A[I_X, J]$ | 1/N of A's rows: dimension I is split over X |
# | $A[I, J]\,\{U_X\}$ | a tensor as large as A; *unreduced*, as A is the sum of these over X |
#
# Collectives change one into another:
#
# - all-gather: $A[I_X, J] \to A[I, J]$;
# - reduce-scatter: $A[I, J]\,\{U_X\} \to A[I_X, J]$;
# - all-reduce: $A[I, J]\,\{U_X\} \to A[I, J]$.
#
# ## How many bytes is that?
#
# Count the steps of both plans, and think of the size of a chunk. **How many bytes does each rank send in all**, for our S and N = 4?

# %%
predicted_bytes = predict(f"Bytes that each rank sends (S is {tensor_bytes:,})", unit="B")
predicted_bytes

# %% [markdown]
# PyTorch has the whole algorithm in one call, `dist.all_reduce`. In gloo it is a ring, too:

# %%
def all_reduce(length):
    tensor = torch.full((length,), float(dist.get_rank()))
    dist.all_reduce(tensor)
    return tensor[0].item()

run = launch(all_reduce, length, world_size=4, device="cpu")
traffic_map(run, predicted=predicted_bytes)

# %%
steps = len(SCATTER_PLAN) + len(GATHER_PLAN)
named = {
    "whole tensors instead of chunks": steps * tensor_bytes,
    "one of the two halves": len(GATHER_PLAN) * tensor_bytes / 4,
    "the value for very many ranks": 2 * tensor_bytes,
}
predicted_bytes.compare(run.traffic.sent_by_rank.mean(), named)

# %% [markdown]
# There are $2(N-1)$ steps, and in each a rank sends a chunk of $S/N$ bytes. Each rank sends $2(N-1) \cdot \frac{S}{N}$ bytes, and no rank sends more than another. gloo's ring runs in the other direction, from rank r to r − 1; that makes no difference. Here is the formula against the measurement, for three world sizes:

# %%
world_sizes = (2, 4, 8)
ring_runs = {n: launch(all_reduce, length, world_size=n, device="cpu") for n in world_sizes}
for n, run in ring_runs.items():
    predicted, measured = estimate.ring_sent_bytes(tensor_bytes, n), run.traffic.sent_by_rank
    holds(f"N = {n}: each rank sends 2(N − 1)/N · S", measured, predicted, rtol=0.01, unit="bytes")

# %% [markdown]
# And the hub, for the same world sizes. We compare the busiest rank, because all others wait for it.

# %%
hub_runs = {n: launch(hub_all_reduce, length, world_size=n, device="cpu") for n in world_sizes}
show_table(
    {"ranks N": "d", "rank 0 sends": format_bytes, "each other rank": format_bytes},
    [(n, *run.traffic.sent_by_rank[:2]) for n, run in hub_runs.items()],
)
for n, run in hub_runs.items():
    predicted = estimate.hub_sent_bytes(tensor_bytes, n)
    holds(f"N = {n}: as the formula says", run.traffic.sent_by_rank, predicted, rtol=0.01, unit="bytes")

# %%
def plot_busiest_rank(axes, formula, runs, world_sizes=range(1, 17)):
    sent = [run.traffic.sent_by_rank.max() / tensor_bytes for run in runs.values()]
    axes.plot(world_sizes, [np.max(formula(1, n)) for n in world_sizes], color=palette.PREDICTED)
    axes.plot(list(runs), sent, "o", color=palette.MEASURED)

# %%
figure, axes = plt.subplots(figsize=(7, 3.6))
plot_busiest_rank(axes, estimate.hub_sent_bytes, hub_runs)
plot_busiest_rank(axes, estimate.ring_sent_bytes, ring_runs)
axes.annotate("hub: (N − 1)·S", (10.4, 10.4), ha="right")
axes.annotate("ring: 2(N − 1)/N·S", (11, 2.4), ha="left")
axes.set(xlabel="ranks N", ylabel="sent by the busiest rank, in units of S")
axes.legend(["predicted", "measured"], frameon=False, loc="upper left")
figure.tight_layout()

# %% [markdown]
# The hub's line grows with every rank; the ring's never reaches $2S$. Patarasuk and Yuan (2009) prove that no all-reduce in which the ranks do the adding can send fewer bytes per rank: the ring is **bandwidth-optimal**. Summed over all ranks the two cost the same, $2(N-1) \cdot S$. The ring does not save bytes, it spreads them.
#
# ## Half a ring: a surprise in the library
#
# Reduce-scatter alone is half of the ring, so it should send half the bytes, $\frac{N-1}{N} S$. Ours from above does; for the comparison we give it a tensor as large as before. PyTorch's call is `reduce_scatter_single`; before version 2.13 it was `reduce_scatter_tensor`, and `all_gather_single` was `all_gather_into_tensor`. Most code you will read has these older names, which still work, with a warning.

# %%
def own_reduce_scatter(length):
    reduce_scatter_of_four(torch.ones(length))

def library_reduce_scatter(length):
    whole, chunk = torch.ones(length), torch.empty(length // dist.get_world_size())
    dist.reduce_scatter_single(chunk, whole)

# %%
ideal = estimate.scatter_or_gather_sent_bytes(tensor_bytes, world_size=4)
for reduce_scatter in (own_reduce_scatter, library_reduce_scatter):
    run = launch(reduce_scatter, length, world_size=4, device="cpu")
    ratio = run.traffic.sent_by_rank.max() / ideal
    print(f"{reduce_scatter.__name__}: {ratio:.3f} times the ideal {format_bytes(ideal)}")

# %%
traffic_map(run, predicted=ideal)

# %% [markdown]
# The library sends twice as much as it needs to. The map shows why: it is the map of an all-reduce. gloo runs the whole ring, and each rank then keeps one chunk of it. A measurement shows what a library does, a formula only what it could do. NCCL has a real reduce-scatter; methods such as ZeRO rely on it, so on gloo they do not save the bytes that the paper promises (Rajbhandari et al. 2020).
#
# ## When everyone sends first
#
# Why did `pass_and_add` use `isend`? Here is the simpler way, with `send`:

# %%
def everyone_sends_first(length):
    left, right = neighbors()
    outgoing, received = torch.ones(length), torch.empty(length)
    dist.send(outgoing, right)
    dist.recv(received, left)

# %%
for elements in (1, length):
    try:
        launch(everyone_sends_first, elements, world_size=4, device="cpu")
    except DeadlockError as error:
        hang = error
        print(f"length {elements:,}: {error.headline}")

# %% [markdown]
# `send` returns only when a receiver takes the data. Here nobody receives, because everybody is still sending: the ranks wait for each other in a cycle.

# %%
print(hang.detail)
timeline(hang)

# %% [markdown]
# There are two ways out. One is to start the send, receive, and only then wait for the send, as `pass_and_add` does:

# %%
def start_sending_then_receive(length):
    left, right = neighbors()
    outgoing, received = torch.ones(length), torch.empty(length)
    sending = dist.isend(outgoing, right)
    dist.recv(received, left)
    sending.wait()

run = launch(start_sending_then_receive, length, world_size=4, device="cpu")
timeline(run)

# %% [markdown]
# The other is an order in which somebody always receives: even ranks send first, odd ranks receive first. It works too, but the two transfers of a rank no longer overlap.

# %%
def take_turns(length):
    left, right = neighbors()
    outgoing, received = torch.ones(length), torch.empty(length)
    if dist.get_rank() % 2 == 0:
        dist.send(outgoing, right)
        dist.recv(received, left)
    else:
        dist.recv(received, left)
        dist.send(outgoing, right)

# %%
run = launch(take_turns, length, world_size=4, device="cpu")
timeline(run)

# %% [markdown]
# With gloo, sending first hangs for one element as well as for a million. Elsewhere the bug can hide: the MPI standard lets `MPI_Send` buffer a message and return, or wait for the receiver; a program that relies on buffering works until a message is too long to be buffered. In NCCL, sends and receives that depend on each other must be started as one group (see its User Guide); in PyTorch that is `dist.batch_isend_irecv`.
#
# ## How long does it take?
#
# So far we counted bytes. Time has a second part. A **message** is what one rank sends to its neighbor in one step of the ring, so an all-reduce takes $2(N-1)$ messages, one after another. Each message has a fixed cost, however short it is: the **latency** α. Each byte costs time as well: β seconds, one over the **bandwidth** in bytes per second. This is the **alpha-beta model**:
#
# $$t = \alpha \cdot \text{messages} + \beta \cdot \text{bytes}, \qquad t_{\text{ring all-reduce}} = \alpha \cdot 2(N-1) + \beta \cdot \frac{2(N-1)}{N} S$$
#
# We measure all-reduces of several sizes and fit α and β. One launch measures all sizes, the time of a call is the median of several, and the barrier before it (a collective in which ranks wait for each other) makes the ranks start together.

# %%
def median_seconds(tensors, repeats):
    seconds = []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        for tensor in tensors:
            dist.all_reduce(tensor)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)

# %%
lengths = [2**k for k in range(6, 23, 2)]
sizes = np.array([4 * length for length in lengths])  # bytes

def time_all_sizes(repeats):
    return [median_seconds([torch.zeros(length)], repeats) for length in lengths]

# %% [markdown]
# Two ranks first. **By what factor will the time grow** from the smallest tensor, 256 bytes, to one 64 times as large? And from 256 KiB to 16 MiB, again 64 times as large?

# %%
predicted_factors = predict("Factor for 64 times the bytes", labels=["small tensors", "large tensors"])
predicted_factors

# %%
def measure_seconds(world_size, repeats=5):
    run = launch(time_all_sizes, repeats, world_size=world_size, device="cpu")
    return np.max(run.outputs, axis=0)  # of the slowest rank, for each size

seconds = {2: measure_seconds(2, repeats=25)}
factors = seconds[2][3] / seconds[2][0], seconds[2][-1] / seconds[2][-4]
predicted_factors.compare(factors, {"what bandwidth alone would cost": sizes[3] / sizes[0]})

# %% [markdown]
# Small tensors cost about the same, whatever their size; that is latency. Large ones cost nearly in proportion to their size; that is bandwidth. The fit finds both. It leaves out the largest tensor, which will show whether the model is any good. (gloo itself splits a message into pieces, so that it can add one while the next arrives: gloo/allreduce.cc. The model counts them as one.)

# %%
def costs(sizes, world_size):
    """Messages and bytes that each rank sends, for each size."""
    sent_bytes = [estimate.ring_sent_bytes(size, world_size) for size in sizes]
    return estimate.ring_messages(world_size), sent_bytes

known = sizes <= 2**22
model = estimate.AlphaBeta.fit(*costs(sizes[known], 2), seconds[2][known])
print(f"latency α = {model.alpha_s * 1e6:.0f} µs, bandwidth 1/β = {model.bytes_per_s / 1e9:.2f} GB/s")

# %% [markdown]
# Where is the crossover between small and large? It is the size at which both parts cost the same:

# %%
messages, sent_per_byte = estimate.ring_messages(2), estimate.ring_sent_bytes(1, 2)
crossover_bytes = messages * model.alpha_s * model.bytes_per_s / sent_per_byte
print("latency and bandwidth cost the same at", format_bytes(crossover_bytes))

# %% [markdown]
# Now we test the model on what it has not seen: the largest tensor, and 4 and 8 ranks.

# %%
seconds |= {n: measure_seconds(n) for n in (4, 8)}
predicted_s = {n: model.seconds(*costs(sizes, n)) for n in seconds}
show_table(
    {"ranks N": "d", "measured / predicted at 256 B": ".1f", "at 16 MiB": ".1f"},
    [(n, *(seconds[n] / predicted_s[n])[[0, -1]]) for n in seconds],
)
print("cores for the ranks to share:", len(os.sched_getaffinity(0)))

# %%
figure, all_axes = plt.subplots(1, 3, figsize=(8, 3.2), sharey=True)
for axes, n in zip(all_axes, seconds, strict=True):
    axes.loglog(sizes, predicted_s[n], color=palette.PREDICTED, label="fitted to N = 2, ≤ 4 MiB")
    axes.loglog(sizes, seconds[n], "o", color=palette.MEASURED, label="measured")
    axes.set(title=f"N = {n}", xlabel="bytes S", xticks=[2**8, 2**16, 2**24])
    axes.set_xticklabels(["256 B", "64 KiB", "16 MiB"])
all_axes[0].set_ylabel("seconds")
all_axes[0].legend(frameon=False)
figure.tight_layout()

# %% [markdown]
# Where points lie above the line, the run has costs that are not in the model. The model assumes that each rank has its own core and its own link. Here a message is a copy in memory that a core makes, and all ranks share the cores and the memory: with more ranks than cores, a rank waits for a core before it can wait for a message. Large tensors do not fit into the caches, so each byte may cost more than it did in the fit. And the points include whatever else runs on this machine. On a cluster each rank has its own link, and the model is more accurate; even there it leaves out the additions, and links shared with other jobs. So use it to see which of the two costs dominates, and measure before you believe its numbers.
#
# ### Small chunks: the same bytes in more messages
#
# Each additional rank makes the chunks of a ring smaller, S/N each, and more numerous. What do small chunks cost? Take our tensor, once in one all-reduce, and once split into 64 pieces with an all-reduce for each. **How many times longer will the 64 take?**

# %%
predicted_factor = predict("Time of 64 all-reduces of a piece, over that of one of the whole")
predicted_factor

# %%
def whole_and_in_pieces(length, pieces):
    tensor = torch.zeros(length)
    return median_seconds([tensor], 9), median_seconds(tensor.chunk(pieces), 9)

# %%
run = launch(whole_and_in_pieces, length, 64, world_size=2, device="cpu")
whole_s, pieces_s = np.max(run.outputs, axis=0)
modeled = model.seconds(64 * 2, tensor_bytes) / model.seconds(2, tensor_bytes)
predicted_factor.compare(pieces_s / whole_s, {"what latency alone would cost": 64, "what the model predicts": modeled})

# %%
print(f"the model predicts {modeled:.1f}")

# %% [markdown]
# The model may miss the number. In back-to-back calls the other ranks are already running and small pieces stay in the caches, which makes them cheaper than predicted; ranks that share cores wait for each other at every piece, which makes them more expensive. In any case, a factor above 1 comes from the additional messages: the bytes are the same.

# %% [markdown]
# ## Two nodes: a slow link
#
# A cluster has two levels of links. GPUs of one machine, a **node**, talk over NVLink or PCIe, and nodes over a network: an H100 sends 450 GB/s to its own node and 50 GB/s to others (Austin et al. 2025). `launch` can make such a cluster here: with `nodes=2`, each half of the ranks has a network of its own, and a real link of the given speed joins the two.
#
# Take eight ranks, 0 to 3 on node 0 and 4 to 7 on node 1, and our tensor of 4 MiB. On the ring, rank 0 sends to rank 7 and rank 4 to rank 3 over the slow link, all others within their node. There is another way, in **two levels**:
#
# 1. a reduce-scatter within each node: each rank has a quarter of its node's sum;
# 2. an all-reduce across, of this quarter, with the rank of the other node that has the same one;
# 3. an all-gather within each node.

# %%
def all_reduce_in_two_levels(tensor, within, across):
    quarter = torch.empty(len(tensor) // dist.get_world_size(within))
    dist.reduce_scatter_single(quarter, tensor, group=within)
    dist.all_reduce(quarter, group=across)
    dist.all_gather_single(tensor, quarter, group=within)

# %% [markdown]
# **How many bytes leave each node**, in each of the two ways?

# %%
ways = ["ring", "two levels"]
predicted_leaving = predict("Bytes that leave each node, for a tensor of 4 MiB", unit="B", labels=ways)
predicted_leaving

# %%
def timed(label, function, *args):
    dist.barrier()
    start = time.perf_counter()
    with measure(label):
        function(*args)
    return time.perf_counter() - start

def both_ways(length, nodes):
    mesh = init_device_mesh("cpu", (nodes, 8 // nodes), mesh_dim_names=("across", "within"))
    groups = mesh["within"].get_group(), mesh["across"].get_group()
    on_ring, in_levels = torch.ones(length), torch.ones(length)
    seconds = timed("ring", dist.all_reduce, on_ring), timed("two levels", all_reduce_in_two_levels, in_levels, *groups)
    return *seconds, torch.equal(on_ring, in_levels)

# %%
link_bits_per_s = 100e6
run = launch(both_ways, length, 2, world_size=8, nodes=2, link_bits_per_s=link_bits_per_s, recorded="03_two_nodes")
leaving = [run.traffic[way].between_nodes[0, 1] for way in ways]
named = {"what all its ranks send": [run.traffic[way].sent_by_rank[:4].sum() for way in ways]}
predicted_leaving.compare(leaving, named)

# %% [markdown]
# On the ring, one rank of each node sends across, and it sends what every rank sends: $\frac{2(N-1)}{N} S$. In two levels each of the four ranks all-reduces a quarter with one other rank, together $\frac{2(M-1)}{M} S$ for $M$ nodes. The number of ranks in a node has dropped out.

# %%
traffic_map(run, block="two levels")

# %%
for way, n in zip(ways, (8, 2), strict=True):
    sent = run.traffic[way].between_nodes[0, 1]
    holds(f"{way}: 2(n − 1)/n · S with n = {n}", sent, estimate.ring_sent_bytes(tensor_bytes, n), rtol=0.01, unit="bytes")

# %% [markdown]
# And the time? The link alone needs 8 bits for each byte that leaves:

# %%
seconds = np.max(run.outputs, axis=0)[:2]  # of the slowest rank
link_s = [8 * sent / link_bits_per_s for sent in leaving]
in_all = [run.traffic[way].sent_by_rank.mean() / tensor_bytes for way in ways]
show_table(
    {"way": "s", "leaves a node": format_bytes, "link alone, s": ".2f", "measured, s": ".2f", "a rank sends in all, in S": ".2f"},
    zip(ways, leaving, link_s, seconds, in_all, strict=True),
)
print("the same sum on every rank:", all(same for *_, same in run.outputs))

# %%
traffic_map(run, mode="links")

# %% [markdown]
# The slow link decides the time of both. The ring keeps it busy in both directions until it ends, so all eight ranks go at the link's speed, and only fewer bytes across can be faster; in two levels the link is idle while the nodes work within. The price is in the last column: in two levels every rank sends more in all, within its node. A part of that is gloo's: its reduce-scatter costs as much as an all-reduce, as you saw; with a real one the two ways would send the same. (What is measured above the link's time is also this machine's: eight ranks share its cores.)
#
# NCCL decides between rings and trees by size and by number of nodes. Its tree reduces within a node, all-reduces across and broadcasts within. `NCCL_DEBUG=INFO` prints what it has found and chosen, and `NCCL_ALGO=Ring` or `Tree` forces one. Its benchmark, nccl-tests, prints two bandwidths: **algbw** is S over the time, and **busbw** is algbw times $\frac{2(N-1)}{N}$, which can be compared with the speed of a link, whatever the number of ranks:

# %%
algbw = tensor_bytes / seconds[0]
busbw = algbw * 2 * (8 - 1) / 8
print(f"ring: algbw {algbw / 1e6:.1f} MB/s, busbw {busbw / 1e6:.1f} MB/s; the link: {link_bits_per_s / 8 / 1e6:.1f} MB/s")

# %% [markdown]
# ## In practice: DDP
#
# A model has many parameters, most of them small. If PyTorch's `DistributedDataParallel` (DDP) all-reduced each gradient separately, it would pay the latency for each. It therefore collects gradients in **buckets** and all-reduces a bucket as soon as all its gradients are ready, while the backward pass still works on earlier layers (Li et al. 2020). Here a model of eight layers takes two steps, with buckets of 1 MiB:

# %%
def two_steps():
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
    for _ in range(2):
        model(torch.randn(4, 256)).sum().backward()
    return sum(p.numel() for p in model.parameters()), len(list(model.parameters()))

# %%
run = launch(two_steps, world_size=2, device="cpu")
parameters, tensors = run.outputs[0]
print(f"{tensors} gradients of {format_bytes(4 * parameters)} in all")
mine = [call for call in run.calls if call.rank == 0 and call.op == "all_reduce"]
show_table(
    {"rank 0 all-reduces": format_bytes, "at, in s": ".3f"},
    [(call.bytes, call.start_s) for call in mine],
)

# %% [markdown]
# There are fewer all-reduces than gradients. The first step uses one bucket, because DDP does not know yet in which order gradients arrive; for the second step it has sorted them in that order into buckets, each closed as soon as it holds the requested size. [Chapter 02](02_dp_vs_ddp.ipynb) looks at these buckets and at their default sizes.
#
# ## Where NCCL differs
#
# What you saw of the algorithm is also true on GPUs. These things differ:
#
# - **Other wires.** Ranks on one machine send over NVLink or PCIe, machines over InfiniBand or Ethernet, and NCCL runs several rings in parallel, laid out so that all links are in use (Hu et al. 2025).
# - **Trees.** A ring needs $2(N-1)$ messages one after another. For small tensors on many ranks that is too slow, so NCCL also has double binary trees, whose latency grows with log N, and picks an algorithm by size and by number of ranks (Jeaugey 2019; the trees are from Sanders et al. 2009). Choosing by size is an older idea: Thakur et al. (2005) did it in MPICH.
# - **Switches that add.** With NVLink SHARP or InfiniBand SHARP the network does the adding. The lower bound above assumes that the ranks do it, so it does not apply there.
# - **Asynchronous calls.** On a GPU `dist.all_reduce` only queues the work and returns immediately. Time it with CUDA events, or wait with `torch.cuda.synchronize()` before you look at the clock.
# - **The wire is hidden.** The operating system does not see these bytes; Shardlab computes them from the calls, and `run.traffic.source` says so.
#
# ## What to remember
#
# - Hub: $2(N-1) \cdot S$ through one rank. Ring: $\frac{2(N-1)}{N} S$ sent by each rank, less than $2S$ for any $N$.
# - All-reduce = reduce-scatter + all-gather, N − 1 steps each.
# - Small tensors cost latency, $2(N-1) \cdot \alpha$; large ones bandwidth. Combine small ones.
# - Across $M$ nodes, two levels send $\frac{2(M-1)}{M} S$ from each node instead of $\frac{2(N-1)}{N} S$; in the lab you will write them for any number of nodes and any length.
# - Never let all ranks wait in `send` at the same time.
#
# ## Sources
#
# - P. Patarasuk, X. Yuan: *Bandwidth optimal all-reduce algorithms for clusters of workstations.* Journal of Parallel and Distributed Computing 69(2), 2009.
# - R. Thakur, R. Rabenseifner, W. Gropp: *Optimization of collective communication operations in MPICH.* International Journal of High Performance Computing Applications 19(1), 2005.
# - J. Austin et al.: *How to scale your model.* Google DeepMind, 2025. [Sharded matrices and how to multiply them](https://jax-ml.github.io/scaling-book/sharding): the notation; [How to think about GPUs](https://jax-ml.github.io/scaling-book/gpus): the links.
# - P. Sanders, J. Speck, J. L. Träff: *Two-tree algorithms for full bandwidth broadcast, reduction and scan.* Parallel Computing 35(12), 2009.
# - S. Jeaugey: *Massively scale your deep learning training with NCCL 2.4.* NVIDIA Technical Blog, 2019.
# - S. Li et al.: *PyTorch Distributed: experiences on accelerating data parallel training.* [arXiv 2006.15704](https://arxiv.org/abs/2006.15704), 2020.
# - S. Rajbhandari et al.: *ZeRO: memory optimizations toward training trillion parameter models.* [arXiv 1910.02054](https://arxiv.org/abs/1910.02054), 2020.
# - Z. Hu et al.: *Demystifying NCCL.* [arXiv 2507.04786](https://arxiv.org/abs/2507.04786), 2025.
# - MPI Forum: *MPI: a message-passing interface standard*, on communication modes. [mpi-forum.org/docs](https://www.mpi-forum.org/docs/)
# - NVIDIA: nccl-tests, [performance](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md): the two bandwidths.
# - NCCL User Guide: [point-to-point communication](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/p2p.html).
