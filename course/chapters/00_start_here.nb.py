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
# A model that is too large or too slow to train on one device is trained on many, and they have to exchange data all the time. In this course you write the code that exchanges it, on real processes on this machine. You predict what will happen, run it, see what was measured, and find out why the two differ.
#
# Run the cells from top to bottom with **Shift + Enter**. Change them and run them again as often as you like.

# %%
import os
import time

import psutil
import torch
import torch.distributed as dist

from shardlab import DeadlockError, RankError, launch
from shardlab.machine import choose_device, most_ranks
from shardlab.widgets import format_bytes, timeline, traffic_map

# %% [markdown]
# ## Four processes say hello
#
# `launch` starts four processes, runs your function in each of them, and comes back when all are done.

# %%
def hello():
    print(f"hello, I am rank {dist.get_rank()} of {dist.get_world_size()}, process {os.getpid()}")

run = launch(hello, world_size=4)

# %% [markdown]
# The lines stand in the order in which they arrived. Run the cell again: the order may change, since nothing makes one process wait for another.
#
# Four words that you will meet everywhere in this field:
#
# | word | meaning | in the run above |
# |---|---|---|
# | **rank** | one of the processes that work together, and its number, from 0 | 0, 1, 2, 3 |
# | **world size** | how many ranks there are | 4 |
# | **process group** | ranks that communicate with each other; at first one group holds them all | ranks 0 to 3 |
# | **backend** | the library that carries the data between ranks: *gloo* for CPUs, *NCCL* for NVIDIA GPUs | shown further down |
#
# Every rank runs the same function. What it does differently, it decides by its rank:

# %%
def my_share(numbers):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return numbers[rank::world_size]

run = launch(my_share, list(range(10)), world_size=4)
run.outputs

# %% [markdown]
# `run.outputs[r]` is what rank r returned. Ranks share no memory: each got its own copy of the list, and only what a function returns, or sends, leaves its process.
#
# ## Send a tensor round the ring
#
# `dist.send` and `dist.recv` carry a tensor from one rank to another. Rank 0 starts, each rank adds 1 and passes the tensor on to its right neighbour, and the last one hands it back to rank 0.

# %%
def pass_round(length):
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
# The tensor has 262,144 elements of type float32, 4 bytes each. **How many bytes will each rank send?** Type a number in place of `None`, or leave it: everything runs without a guess, too.

# %%
# Your prediction: the bytes that each rank sends
predicted_bytes = None

# %%
length = 262_144
run = launch(pass_round, length, world_size=4, device="cpu")
traffic_map(run, predicted=predicted_bytes)

# %% [markdown]
# On the left, the row is the rank that sends and the column the one that receives: 0 → 1, 1 → 2, 2 → 3, 3 → 0. On the right, the bytes that each rank sent, with your guess above them if you made one. In this course **orange is what was predicted and blue what was measured**.
#
# Nobody computed the blue numbers. They are the operating system's own count of what went through the sockets between the ranks:

# %%
print(run.traffic.source)
for rank, sent in enumerate(run.traffic.sent_by_rank):
    print(f"rank {rank} sent {sent:,} bytes: the tensor's {4 * length:,} and {sent - 4 * length} more")

# %% [markdown]
# The few bytes on top are gloo's own. A sender announces each message and says how long it is; a receiver tells the sender that it is ready, and those are the pale cells against the ring's direction.
#
# Rank 0's tensor was once round, so it comes back with a 1 from each rank:

# %%
run.outputs

# %% [markdown]
# When did each rank do what? A bar is one call. Ranks 1, 2 and 3 start to receive at once and then wait for their turn:

# %%
timeline(run)

# %% [markdown]
# The same as text. Each call knows the line of your code that made it, and that is how errors will be explained to you:

# %%
for call in run.calls:
    toward = "to" if call.op == "send" else "from"
    print(f"rank {call.rank}  {call.op} {toward} rank {call.peer}   {call.source}")

# %% [markdown]
# ## When a rank fails
#
# Here rank 2 divides by zero. `launch` stops the others, none of them stays behind, and you get the traceback of the rank that failed first, with the lines of your cell.

# %%
def stumble():
    return 10 / (dist.get_rank() - 2)

try:
    launch(stumble, world_size=4)
except RankError as error:
    print(error)

# %% [markdown]
# The `try` is there only so that *Run All* goes on after this cell. In your own work leave it out: the error then shows by itself.
#
# ## When ranks wait for each other
#
# The typical failure of distributed code is not an error: nothing happens, for ever. Here two ranks both want to receive first.

# %%
def both_listen():
    other = 1 - dist.get_rank()
    mail = torch.zeros(1)
    dist.recv(mail, src=other)
    dist.send(mail, dst=other)

try:
    launch(both_listen, world_size=2)
except DeadlockError as error:
    hang = error
    print(error)

# %% [markdown]
# This is a **deadlock**: each rank needs the other to go on first. `launch` notices that no rank can ever go on, ends the run and names the ranks, the calls and the lines. The timeline draws who waits for whom:

# %%
timeline(hang)

# %% [markdown]
# A rank that computes for a long time is no deadlock. For that there is `timeout_s`, and there is the **stop button** (■ above, or press `I` twice): it ends the cell and all its ranks. Set the seconds to 20, run the cell, and stop it.

# %%
def nap(seconds):
    time.sleep(seconds)
    return f"rank {dist.get_rank()} slept well"

launch(nap, 0.5, world_size=2).outputs

# %% [markdown]
# ## What your machine has

# %%
print("cores       ", len(os.sched_getaffinity(0)))
print("free memory ", format_bytes(psutil.virtual_memory().available))
print("GPUs        ", torch.cuda.device_count())
print("most ranks  ", most_ranks(), "(what launch would start here)")

# %% [markdown]
# There may be more ranks than cores: they then take turns. `device="auto"`, which is what you get when you say nothing, takes GPUs if there is one for each rank, and CPUs otherwise:

# %%
for world_size in (1, 2, 4, 8):
    device, why = choose_device("auto", world_size)
    print(f"world size {world_size}: {device} ({why})")

# %% [markdown]
# And each run says what it ran on:

# %%
run = launch(dist.get_backend, world_size=2, device="cpu")
print(run.device, "because:", run.device_reason, "· backend of each rank:", run.outputs)

# %% [markdown]
# **What ranks on CPUs can teach you, and what not.** The same: which rank calls what in which order, what a deadlock is, how many bytes an algorithm needs. Different: seconds, since ranks here share cores and their messages are copies in this machine's memory; and the backend, since NCCL chooses among other algorithms than gloo. Where that matters, the chapter says so. The operating system does not see NCCL's traffic, so on GPUs `run.traffic` is computed from the calls, and `run.traffic.source` tells you. Cells that count bytes on the wire ask for `device="cpu"` for that reason.
#
# ## How the course works
#
# 1. **Chapter.** Read and run it, with your predictions. Nothing in it is graded.
# 2. **Lab.** The lab with the same number lies in `labs/`. Each exercise gives a task, a specification that you can run, and a budget, most often in bytes. You write the marked cell.
# 3. **Check.** The cell below yours runs your code on real ranks and shows each case: the result on every rank, the bytes against the budget, and what went wrong if it did. Run it as often as you like.
# 4. **Hints.** Each exercise has a few, folded up. The last one nearly gives the answer away, so open them one at a time.
# 5. **Validate.** Before you hand in, press *Validate* in the toolbar above the lab: it runs the whole notebook from the top, as grading will. Grading adds cases that you do not see, with other sizes and other numbers of ranks.
#
# ## Where to go now
#
# To [chapter 01, one device](01_one_device.ipynb): before work is split over devices, see what fills one. Each chapter ends with a link to its lab.
