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
# # 00 · Start here
#
# A model that is too large or too slow to train on one device is trained on many devices, which exchange data constantly. In this course you write the code for that exchange and run it in real processes on this machine. You predict what will happen, run it, see what was measured, and find out why the two differ.
#
# Run the cells from top to bottom with **Shift + Enter**. Change them and run them again as often as you like.
#
# **After this chapter you can**
#
# - start ranks from a notebook, and say what rank, world size, process group and backend mean;
# - read how many bytes each rank sent to each other, and when, from pictures of a real run;
# - find out why a run failed or hangs: which rank, in which call, on which line.
#
# **You need:** Python, and to have seen a PyTorch training loop. No GPU, and no experience with distributed training.

# %% [markdown]
# <details open><summary>Four processes start, and a message passes from one to the next</summary>
#
# [![Animation: Four processes start, and a message passes from one to the next](openers/00_start_here.svg)](openers/00_start_here.svg)
#
# Each of four ranks computes for a moment. Then rank 0 sends a tensor to rank 1, which adds its own and passes it on, until it is back at rank 0. A rank that has called recv waits there until its neighbor sends. (Recorded from real processes.)
#
# </details>

# %% jupyter={"source_hidden": true}
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import os
import time

import psutil
import torch
import torch.distributed as dist

from shardlab import DeadlockError, RankError, launch, show_table
from shardlab.ranks.machine import choose_device, max_ranks
from shardlab.widgets import format_bytes, predict, timeline, traffic_map

# %% [markdown]
# ## Four processes say hello
#
# `launch` starts four processes, runs your function in each of them, and returns when all are done.

# %%
def hello():
    print(f"hello, I am rank {dist.get_rank()} of {dist.get_world_size()}, process {os.getpid()}")

run = launch(hello, world_size=4)

# %% [markdown]
# The lines appear in the order in which they arrived. Run the cell again: the order may change, because no process waits for another.
#
# Four terms that you will meet everywhere in this field:
#
# | term | meaning | in the run above |
# |---|---|---|
# | **rank** | one of the processes that work together, and its number, from 0 | 0, 1, 2, 3 |
# | **world size** | how many ranks there are | 4 |
# | **process group** | ranks that communicate with each other; by default one group contains them all | ranks 0 to 3 |
# | **backend** | the library that carries the data between ranks: *gloo* for CPUs, *NCCL* for NVIDIA GPUs | shown further down |
#
# Every rank runs the same function, and its rank decides what it does differently:

# %%
def my_share(numbers):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return numbers[rank::world_size]

run = launch(my_share, list(range(10)), world_size=4)
run.outputs

# %% [markdown]
# `run.outputs[r]` is what rank r returned. Ranks share no memory. Each got its own copy of the list, and data leaves a rank only when it is returned or sent.
#
# ## Send a tensor around the ring
#
# `dist.send` and `dist.recv` move a tensor from one rank to another. Rank 0 starts, each rank adds 1 and passes the tensor on to its right neighbor, and the last rank sends it back to rank 0.

# %%
def pass_around(length):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    token = torch.zeros(length)
    if rank > 0:
        dist.recv(token, src=rank - 1)
    token += 1
    dist.send(token, dst=(rank + 1) % world_size)
    if rank == 0:
        dist.recv(token, src=world_size - 1)
    return token[0].item()

# %% [markdown]
# The tensor has 262,144 elements of type float32, 4 bytes each. **How many bytes will each rank send?** Type a number into the field below and press Enter. (Every cell also runs without a guess.)

# %%
predicted_bytes = predict("Bytes that each rank sends", unit="B")
predicted_bytes

# %%
length = 262_144
run = launch(pass_around, length, world_size=4, device="cpu")
traffic_map(run, predicted=predicted_bytes)

# %%
sent = run.traffic.sent_by_rank
predicted_bytes.compare(sent.mean(), {"what all ranks send together": sent.sum(), "the number of elements": length})

# %% [markdown]
# On the left, rows are senders and columns are receivers: 0 → 1, 1 → 2, 2 → 3, 3 → 0. On the right are the bytes that each rank sent, with your guess above them if you made one. In this course **orange is predicted and blue is measured**.
#
# The blue numbers do not come from a formula. The operating system counted the bytes that went through the sockets between the ranks:

# %%
print(run.traffic.source)
show_table(
    {"rank": "d", "sent, bytes": ",d", "tensor, bytes": ",d", "protocol, bytes": ",d"},
    [(rank, sent, 4 * length, sent - 4 * length) for rank, sent in enumerate(run.traffic.sent_by_rank)],
)

# %% [markdown]
# The few extra bytes are gloo's protocol. A sender announces each message and its length; a receiver replies that it is ready, and these replies are the pale cells against the ring's direction.
#
# Rank 0's tensor has gone around once, so it comes back with a 1 from each rank:

# %%
run.outputs

# %% [markdown]
# What did each rank do, and when? Each bar is one call, pale until the rank at the other end has begun its own. Ranks 1, 2 and 3 call `recv` right away and then wait for their turn. Point at a call to see where its message goes:

# %%
timeline(run)

# %% [markdown]
# The same calls as a table. Each is recorded with the line of your code that made it, and error messages show these lines:

# %%
show_table(
    {"rank": "d", "call": "", "with rank": "d", "line of your code": ""},
    [(call.rank, call.op, call.peer, call.source) for call in run.calls],
)

# %% [markdown]
# ## When a rank fails
#
# Here rank 2 divides by zero. `launch` stops all other ranks and shows the traceback of the rank that failed first, with the lines of your cell.

# %%
def fail_on_rank_2():
    return 10 / (dist.get_rank() - 2)

try:
    launch(fail_on_rank_2, world_size=4)
except RankError as error:
    print(error)

# %% [markdown]
# The `try` is there only so that *Run All* continues after this cell. Leave it out in your own work: Jupyter then shows the error.
#
# ## When ranks wait for each other
#
# The typical failure of distributed code is not an error but a hang: nothing happens, forever. Here both ranks receive first.

# %%
def both_receive_first():
    other = 1 - dist.get_rank()
    message = torch.zeros(1)
    dist.recv(message, src=other)
    dist.send(message, dst=other)

try:
    launch(both_receive_first, world_size=2)
except DeadlockError as error:
    hang = error
    print(error)

# %% [markdown]
# This is a **deadlock**: each rank waits for the other to go first. `launch` detects that no rank can ever continue, ends the run and reports the ranks, the calls and the lines. The timeline shows who waits for whom:

# %%
timeline(hang)

# %% [markdown]
# Some mistakes show nothing at all: every rank starts from other weights, or two ranks exchange the wrong tensors of the same shape. A run without an error may still compute the wrong numbers, so compare them with those of one process.
#
# A rank that computes for a long time is not a deadlock. For that case there are `timeout_s` and the **stop button** (■ above, or press `I` twice), which ends the cell and all its ranks. Set the seconds to 20, run the cell, and stop it.

# %%
def nap(seconds):
    time.sleep(seconds)
    return f"rank {dist.get_rank()} slept well"

launch(nap, 0.5, world_size=2).outputs

# %% [markdown]
# ## Your machine

# %%
show_table({"this machine": "", "has": str}, [
    ("cores", len(os.sched_getaffinity(0))),
    ("free memory", format_bytes(psutil.virtual_memory().available)),
    ("GPUs", torch.cuda.device_count()),
    ("ranks at most, in one launch", max_ranks()),
])

# %% [markdown]
# There may be more ranks than cores; they then take turns. The default, `device="auto"`, uses GPUs if there is one for each rank, and CPUs otherwise:

# %%
show_table(
    {"world size": "d", "device": "", "because": ""},
    [(world_size, *choose_device("auto", world_size)) for world_size in (1, 2, 4, 8)],
)

# %% [markdown]
# Each run also reports what it ran on:

# %%
run = launch(dist.get_backend, world_size=2, device="cpu")
print(run.device, "because:", run.device_reason, "· backend of each rank:", run.outputs)

# %% [markdown]
# **What ranks on CPUs can and cannot teach you.** The same as on GPUs: which rank calls what in which order, what a deadlock is, how many bytes an algorithm needs. Different: timings, because ranks here share cores and their messages are copies in this machine's memory; and the backend, because NCCL has other algorithms to choose from than gloo. Where that matters, the chapter says so. The operating system does not see NCCL's traffic, so on GPUs `run.traffic` is computed from the calls, and `run.traffic.source` says so. That is why cells that count bytes on the wire use `device="cpu"`.
#
# ## How the course works
#
# 1. **Chapter.** Read it, predict what will happen, and run it. Nothing in it is graded.
# 2. **Lab.** The lab with the same number is in `labs/`. Each exercise has a task, a specification that you can run, and a budget, usually in bytes. You write the marked cell.
# 3. **Check.** The cell below yours runs your code on real ranks and shows each case: the result on every rank, the bytes against the budget, and what went wrong, if anything did. Run it as often as you like.
# 4. **Hints.** Each exercise has a few, collapsed. The last one nearly gives the answer away, so open them one at a time.
# 5. **Validate.** Before you submit, press *Validate* in the toolbar above the lab: it runs the whole notebook from the top, as grading will. Grading adds hidden cases, with other sizes and other numbers of ranks.
#
# ## The colors
#
# A color has one meaning in all pictures of the course:

# %%
from shardlab.widgets import color_legend

color_legend()
