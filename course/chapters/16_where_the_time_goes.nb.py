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
# # 16 · Where the time goes
#
# A training step takes 800 ms on 64 GPUs. Is that good? A faster link may help, or a faster loader, or nothing at all: it depends on what the ranks do in these 800 ms, and on what they wait for.
#
# The questions of this chapter: what is each rank doing at each moment, what would the step take at best on this hardware, and what share of the hardware does a training run use?
#
# **After this chapter you can**
#
# - take a step apart on all ranks, and find a straggler, a slow loader, small messages and needless synchronization;
# - compute from a roofline how long a layer takes at least, and when its communication hides;
# - compute MFU and HFU from a log line, and recognize a wrong one.
#
# **You need:** [03 Ring all-reduce](03_ring_all_reduce.ipynb) and [05 FSDP](05_fsdp.ipynb); for the second half also [08 Tensor parallel](08_tensor_parallel.ipynb), [09 Pipeline](09_pipeline.ipynb) and [10 Activation checkpointing](10_activation_checkpointing.ipynb).

# %% [markdown]
# <details open><summary>The rank that never waits is the one that all others wait for</summary>
#
# [![Animation: The rank that never waits is the one that all others wait for](openers/16_where_the_time_goes.svg)](openers/16_where_the_time_goes.svg)
#
# Three steps of four ranks. Each computes and then enters an all-reduce; it is pale while another rank has not entered it yet. Rank 2 has three times as much to compute: it has the shortest all-reduces, and it decides how long a step takes. (Recorded from real processes.)
#
# </details>

# %% jupyter={"source_hidden": true}
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import itertools
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from shardlab import data, holds, launch, measure, models, profile, show_table
from shardlab.errors import RunTimeout
from shardlab.estimate import flops, roofline
from shardlab.estimate.devices import DEVICES
from shardlab.estimate.work import data_parallel, pipeline_parallel, product, tensor_parallel
from shardlab.machine_report.speed import best_s, measured_roofline
from shardlab.run import StepTime, critical_path
from shardlab.widgets import palette, predict, roofline_plot, timeline

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# ## A step taken apart
#
# At each moment of a step, a rank is in one of six states:
#
# | state | what the rank does |
# |---|---|
# | **compute** | it computes, and no communication is in progress |
# | **overlapped** | it computes while communication is in progress, which is then hidden |
# | **exposed** | it stands still for a communication that all its ranks have begun |
# | **waiting** | it stands still in a call that another rank has not begun yet |
# | **loader** | it gets its next batch |
# | **other** | none of these: Python between two operators |
#
# Exposed and waiting look the same from inside a rank, because both are time spent in a call. The cause differs: the link causes exposed time, another rank causes waiting time. To tell them apart you need the records of **all** ranks.
#
# Four ranks train a small GPT. As in DDP, gradients leave in buckets while backward still computes; here, a quarter of the 52 gradients is a bucket.

# %%
def average_during_backward(model):
    """From now on, 13 gradients are all-reduced together as soon as backward has computed them."""
    ready, works = [], []

    def collect(parameter):
        ready.append(parameter.grad)
        if len(ready) == 13:
            flat = parameters_to_vector(ready)
            works.append((dist.all_reduce(flat, op=dist.ReduceOp.AVG, async_op=True), flat, [*ready]))
            ready.clear()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(collect)
    return works

# %%
def step(number, model, optimizer, works):
    with measure("loader"):
        batch = data.batch(number, 16, 64, dist.get_rank(), dist.get_world_size())
    model(*batch).backward()
    while works:
        work, flat, gradients = works.pop(0)
        work.wait()
        vector_to_parameters(flat, gradients)
    optimizer.step()
    optimizer.zero_grad()

# %% [markdown]
# `measure("step")` marks the step, and whatever runs inside `measure("loader")` is in the state loader: this label has a meaning of its own. `profile()` runs torch.profiler and puts its times on the clock of our own records. The first step also sets up connections and buffers, so we measure the second.

# %%
def train():
    model = models.gpt("1M")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    works = average_during_backward(model)
    step(0, model, optimizer, works)
    dist.barrier()
    with profile(), measure("step"):
        step(1, model, optimizer, works)

run = launch(train, world_size=4, device="cpu")
timeline(run, label="step")

# %% [markdown]
# In each rank's row, the thin lane at the top shows the state, and the bars below it are calls; calls in progress at the same time are drawn one below another. Zoom with the mouse wheel or the + key; the 0 key shows the whole run, with the first step. **Critical path** marks the work that decided when the step ended. It starts at the last event and goes back in time; where a rank was waiting, it changes to the rank that was waited for. Only a shorter critical path makes a step shorter.
#
# `run.step_time("step")` adds up the states. Here are its sums from two sources: **our records** of all calls, and the spans of **torch.profiler**, which sees operators such as `aten::mm`, and the work of gloo's threads, `gloo:all_reduce`.

# %%
STATES = ("compute", "overlapped", "exposed", "waiting", "loader", "other")

def shares(spent):
    return [getattr(spent, f"{state}_s") / spent.total_s for state in STATES]

rows = []
for source in ("records", "profiler"):
    for rank, spent in enumerate(run.step_time("step", by=source)):
        rows.append((source, rank, *shares(spent), 1000 * spent.total_s))
show_table({"by": "", "rank": "d", **dict.fromkeys(STATES, ".0%"), "ms": ".0f"}, rows)

# %% [markdown]
# The two sources see different things. The profiler also knows when no operator runs: that time, which Python needs between two operators, is **other**, or exposed if communication is in progress. Our records count it as compute or overlapped. So the profiler finds more time in which a rank stands still (exposed or waiting).
#
# We ran this step 48 times, mostly on a busy machine, and compared the two shares of standing still in each run. They differed by 4 % of the step on average; for a single rank by at most 13 %, for the mean over the four ranks by at most 7 %. With 52 all-reduces in place of four buckets, there is more Python between operators, and they differed by 20 % on average. The check below allows 20 %.

# %%
def still(source):
    """The share of the step in which a rank stands still, on average."""
    return np.mean([(s.exposed_s + s.waiting_s) / s.total_s for s in run.step_time("step", by=source)])

apart = abs(still("profiler") - still("records"))
holds("exposed and waiting, difference of the two sources' shares of the step", apart, below=0.2)

# %% [markdown]
# For a closer look there are trace viewers. `save_trace` writes all ranks into one file, with arrows from sends to receives. Open [ui.perfetto.dev](https://ui.perfetto.dev) and drop the file on the page (it stays on your computer); the keys W, A, S and D zoom and move.

# %%
path = run.save_trace(Path(tempfile.mkdtemp(), "all_ranks.json"))
print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")

# %% [markdown]
# ## Four bottlenecks
#
# Each of the next four programs has one fault. For each, find it in the picture, repair it, and measure again. Seconds differ from machine to machine, so we compare shares of the step, calls and bytes.

# %%
def ready_model():
    """A small model, after one-time setup, with all ranks at the same place."""
    model = models.gpt("0.3M")
    model(*data.batch(0, 2, 64)).backward()
    model.zero_grad()
    dist.all_reduce(torch.zeros(1))
    dist.barrier()
    return model

def own_batch(number, sequences=2):
    return data.batch(number, sequences, 64, dist.get_rank(), dist.get_world_size())

# %%
def average(model):
    """The mean of all gradients over ranks, in one call."""
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = parameters_to_vector(gradients)
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    vector_to_parameters(flat, gradients)

# %%
def mean_s(run):
    return np.mean([spent.total_s for spent in run.step_time("steps")])

def show_steps(**runs):
    """For each run: each state's share and the time, as means over ranks; rank 0's calls and bytes."""
    rows = []
    for name, run in runs.items():
        means = np.mean([shares(spent) for spent in run.step_time("steps")], axis=0)
        sent_bytes = run.traffic["steps"].sent_by_rank[0]
        relative = mean_s(run) / mean_s(runs["before"])
        rows.append((name, *means[:-1], relative, len(run.calls_in("steps")), sent_bytes / 1e6))
    columns = {"run": "", **dict.fromkeys(STATES[:-1], ".0%"), "time": ".2f"}
    show_table({**columns, "calls of rank 0": "d", "MB sent": ".2f"}, rows)

# %% [markdown]
# ### A straggler
#
# A **straggler** is a rank that is slower than the others. Here one rank also evaluates the model on 24 batches in each step, as if "rank 0 does the evaluation" had been the easiest way to write it (here it is rank 2):

# %%
def train_and_evaluate(evaluating, steps=4):
    model = ready_model()
    with measure("steps"):
        for number in range(steps):
            model(*own_batch(number)).backward()
            if dist.get_rank() in evaluating:
                with torch.no_grad():
                    for i in range(24 // len(evaluating)):
                        model(*own_batch(i, sequences=4))
            average(model)
            model.zero_grad()

# %% [markdown]
# Suppose you do not know which rank it is, and get a table of the shares of each rank. **How do you recognize the slow rank: is its share of waiting the largest or the smallest?**

# %%
predicted_share = predict("The slow rank's share of waiting is", options=["the largest", "the smallest", "like the others'"])
predicted_share

# %%
slow = launch(train_and_evaluate, [2], world_size=4, device="cpu")

# %%
waiting = [spent.waiting_s / spent.total_s for spent in slow.step_time("steps")]
place = {min(waiting): "the smallest", max(waiting): "the largest"}.get(waiting[2], "like the others'")
predicted_share.compare(place, {"what the ranks that wait for it have": "the largest"})

# %%
by_rank = [(rank, *shares(spent)[:-1]) for rank, spent in enumerate(slow.step_time("steps"))]
show_table({"rank": "d", **dict.fromkeys(STATES[:-1], ".0%")}, by_rank)
timeline(slow, label="steps", by="records")

# %% [markdown]
# Rank 2 hardly waits: when it enters the all-reduce, everybody is already there. The others wait for it. People often look for the problem in the rank that spends most time in communication, but that rank has nothing else to do. Look for the rank that waits **least**. Most of the critical path is its work:

# %%
on_path = critical_path(slow, "steps")
path_s = [StepTime.of([state for state in on_path if state.rank == rank]).total_s for rank in range(4)]
show_table({"rank": "d", "of the critical path": ".0%"}, [(r, s / sum(path_s)) for r, s in enumerate(path_s)])

# %% [markdown]
# The repair divides the work: each rank evaluates six of the 24 batches. (If the cause is a hot GPU, or long texts on one rank, the picture is the same, and the repair is another GPU, or batches of equal length.) **Time** is relative to the run before the repair. It depends on how many cores the four ranks share: with fewer cores than ranks, dividing the same work saves little. So nothing is claimed about it.

# %%
shared = launch(train_and_evaluate, [0, 1, 2, 3], world_size=4, device="cpu")
show_steps(before=slow, after=shared)

# %% [markdown]
# ### A slow loader
#
# Reading a batch takes 40 ms here, in which the rank sleeps, as it would while it waits for a disk. `ahead=True` reads the next batch in a thread while the rank computes, as `DataLoader(num_workers=…)` does with processes:

# %%
def read(number):
    time.sleep(0.04)
    return own_batch(number)

def read_ahead(steps):
    batches = queue.Queue(maxsize=1)
    threading.Thread(target=lambda: [batches.put(read(i)) for i in range(steps)], daemon=True).start()
    return (batches.get() for _ in range(steps))

# %%
def train_from_disk(ahead, steps=6):
    model = ready_model()
    batches = read_ahead(steps) if ahead else map(read, range(steps))
    with measure("steps"):
        for _ in range(steps):
            with measure("loader"):
                batch = next(batches)
            model(*batch).backward()
            average(model)
            model.zero_grad()

# %%
each_time, ahead = (launch(train_from_disk, choice, world_size=4, device="cpu") for choice in (False, True))
show_steps(before=each_time, after=ahead)
timeline(each_time, label="steps")

# %%
def loader_s(run):
    return sum(spent.loader_s for spent in run.step_time("steps"))

holds("seconds in the loader, after over before", loader_s(ahead) / loader_s(each_time), below=0.9)

# %% [markdown]
# Some loading remains: the first batch, which nothing can hide, and, if a batch takes longer to read than to compute, the difference. If only one rank has a slow loader, the other ranks wait for it as for a straggler. So mark the loader in your own code too: `torch.profiler.record_function("loader")` makes it visible in torch.profiler's trace.
#
# ### Small messages
#
# Here each gradient has its own blocking all-reduce:

# %%
def train_by_tensor(flat, steps=3):
    model = ready_model()
    with measure("steps"):
        for number in range(steps):
            model(*own_batch(number)).backward()
            if flat:
                average(model)
            else:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
            model.zero_grad()

# %%
one_by_one, flat = (launch(train_by_tensor, choice, world_size=4, device="cpu") for choice in (False, True))
show_steps(before=one_by_one, after=flat)
before, after = (np.array(run.traffic["steps"].sent_by_rank) for run in (one_by_one, flat))
holds("bytes of each rank, before over after", before / after, above=1, below=1.05)
timeline(one_by_one, label="steps", by="records")

# %% [markdown]
# The picture shows a comb: many thin bars, one after another. The gradients' bytes are the same; only the number of messages differs, and each pays for its latency (α in [chapter 03](03_ring_all_reduce.ipynb)). The few percent of bytes that are saved are gloo's: it sends a header and a reply with each message. One flat buffer is the other extreme: it cannot overlap with backward. DDP's buckets are a compromise.
#
# ### Synchronization that nobody asked for
#
# The batch is processed in four micro-batches of different length. Each rank has one long one, at a different place. Somebody wanted the mean loss in the log:

# %%
def mean_over_ranks(loss):
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return mean

# %%
def train_and_log(each_time, steps=2):
    model = ready_model()
    with measure("steps"):
        for _ in range(steps):
            total = torch.zeros(())
            for i in range(4):
                loss = model(*own_batch(i, sequences=8 if i == dist.get_rank() else 1))
                loss.backward()
                total += mean_over_ranks(loss) if each_time else loss.detach()
            mean_over_ranks(total)
            average(model)
            model.zero_grad()

# %% [markdown]
# Suppose each rank had its own device, and a sequence took one unit of time. Between two synchronizations all ranks take as long as the slowest. **How many times as long does a step take with the loss averaged after each micro-batch?**

# %%
predicted_factor = predict("Step with an all-reduce in each micro-batch, over one without")
predicted_factor

# %%
units = np.array([[8 if i == rank else 1 for i in range(4)] for rank in range(4)])  # [rank, micro-batch]
synchronized, free = units.max(axis=0).sum(), units.sum(axis=1).max()
named = {"the number of all-reduces": 4, "the longest over the mean": 8 / units.mean()}
predicted_factor.compare(synchronized / free, named, "calculated")

# %%
logging, quiet = (launch(train_and_log, choice, world_size=4, device="cpu") for choice in (True, False))
show_steps(before=logging, after=quiet)
print(f"with a device for each rank, the time after would be {free / synchronized:.2f}")
timeline(logging, label="steps", by="records")

# %% [markdown]
# Each rank has the same work in a step, 11 sequences. But every all-reduce makes all ranks wait for the slowest of **that** micro-batch: the step takes the sum of the maxima, 4 · 8, instead of the maximum of the sums, 11. The four bytes of the loss are not the cost.
#
# The time in the table is another one than predicted, because the prediction assumes two things that do not hold here. Our ranks share a few cores: while one waits, another computes faster. And some of the costs of a step do not depend on the number of sequences.
#
# On a GPU this fault has a second form. Python only queues work there, and runs ahead of the GPU. `loss.item()`, `print(loss)`, `if loss > …`, `tensor.cpu()` wait until the queue is empty; then the GPU is idle until Python has queued more. In a trace this is a long `cudaStreamSynchronize` or `cudaMemcpyAsync` followed by a gap in the row of kernels. Add up on the device, and read the number once every hundred steps. `torch.cuda.set_sync_debug_mode("warn")` finds such lines.

# %% [markdown]
# ## The least time: a roofline
#
# How fast could it be? A computation does arithmetic and moves bytes. A device that does both at the same time needs at least the longer of the two times (Williams et al. 2009):
#
# $$t \ge \max\left(\frac{\text{operations}}{\text{FLOP/s}},\; \frac{\text{bytes}}{\text{bytes/s}}\right)$$
#
# The quotient of operations and bytes is the computation's **intensity**. If it is below the device's own quotient, the **ridge**, memory sets the time: the computation is memory-bound.
#
# An H100 has 989 TFLOP/s in bf16 and reads 3.35 TB/s. To generate one token of one text, a model multiplies a single row with each weight matrix: 2 bytes to read for each weight, and one multiplication and one addition. **What share of its peak can an H100 reach at most?**

# %%
predicted_peak = predict("Share of the H100's peak, with one row", maximum=1)
predicted_peak

# %%
h100, one_row = DEVICES["H100"], product(1, 8192, 8192)
share = h100.attainable_flops_per_s(one_row.intensity) / h100.flops_per_s
predicted_peak.compare(share, {"the share with 8-bit weights": 2 * share}, "calculated")

# %%
gpus = {"A100": DEVICES["A100"], "H100": h100}
roofline_plot(gpus, moving={2**k: product(2**k, 8192, 8192) for k in range(13)}, at=1)

# %% [markdown]
# A product $[m, k] \cdot [k, n]$ has $2mkn$ operations and moves $mk + kn + mn$ elements. With few rows m, nearly all bytes are the weights', and the intensity is m for 2-byte elements. So it takes about as many rows as the ridge, 295, before an H100 has enough to do; move the slider there. Training has them, and so has reading a prompt; generating text for one user has not.
#
# Now the same on this machine: its peak, its memory, and products of fp32 matrices. 64 weight matrices take turns, as layers do, so that none stays in a cache.

# %%
WIDTH = 1024

def time_products(all_rows):
    weights = itertools.cycle(torch.rand(64, WIDTH, WIDTH))  # 256 MiB
    inputs = [torch.rand(rows, WIDTH) for rows in all_rows]
    return [best_s(lambda x=x: x @ next(weights), total_s=0.2) for x in inputs]

# %%
machine = launch(measured_roofline, world_size=1, device="cpu").outputs[0]
all_rows = (1, 4, 16, 64, 128)
seconds = launch(time_products, all_rows, world_size=1, device="cpu").outputs[0]

# %%
timed = {n: product(n, WIDTH, WIDTH, element_bytes=4).measured(s) for n, s in zip(all_rows, seconds, strict=True)}
roofline_plot({"this machine": machine}, moving=timed, at=16)

# %%
show_table(
    {"rows": "d", "FLOP per byte": ".1f", "measured GFLOP/s": ".1f", "of the roof": ".0%", "µs": ".0f"},
    [(n, w.intensity, w.flops_per_s / 1e9, w.flops_per_s / machine.attainable_flops_per_s(w.intensity), 1e6 * w.seconds) for n, w in timed.items()],
)
holds("FLOP/s with 64 rows, over those with one row", timed[64].flops_per_s / timed[1].flops_per_s, above=2)

# %% [markdown]
# On the slope, memory sets the time; on the flat part, arithmetic does. 16 rows take far less than 16 times as long as one. The roof is a bound and not a prediction: in our runs, 4 to 128 rows usually reached between a fifth and three fifths of it; why, these numbers do not show. A single row came nearest to the roof, and was once above it, at 139 %: roof and points are measured a few seconds apart, and another program may slow one of them down. With the same weights again and again, a product can also be above the slope, because its weights come from a cache.
#
# The least time of a **message** is $t = \alpha + \beta \cdot \text{bytes}$ (chapter 03). Below α/β bytes, most of it is latency. That is why the small messages were expensive.
#
# ## When traffic hides
#
# Replace memory by the link, and the roofline answers another question: when does communication take less time than the computation that it overlaps with? Let C be the FLOP/s of a device and W the bytes per second that it sends. Traffic hides if the operations per sent byte are above C/W. With 16-bit elements, a model of width D, and MLPs of width F:
#
# | split | operations | bytes sent meanwhile | hides if |
# |---|---|---|---|
# | data parallel, T tokens per device | backward of N parameters: 4NT | ring all-reduce of 2N bytes: 4N | T > C/W |
# | FSDP, ZeRO-3 | forward: 2NT | all-gather of the weights: 2N | T > C/W |
# | tensor parallel, t ranks, MLP of width F | per token: 4DF/t | all-reduce of D elements: 4D | t < F·W/C |
# | pipeline, L layers per stage | per token: 24LD² | D elements: 2D | 12LD > C/W |
# | ring attention, T tokens per device | one block of keys: 4T²D | keys and values: 4TD | T > C/W |
#
# All numbers are those of one device. A ring all-reduce sends about twice its tensor (chapter 03), and a layer of width D has 12D² parameters. For data parallelism and FSDP the number of parameters cancels: only the tokens **per device** count. More devices for the same batch mean fewer tokens on each, and from some number of devices on, the traffic no longer hides.
#
# A node of 8 H100 has 8 network adapters of 50 GB/s. In an all-reduce of two levels (chapter 03), each GPU sends an eighth of the node's sum, over an adapter of its own. So a whole node sends its gradients at 400 GB/s: this is W between nodes. Within a node, over NVLink, W is 450 GB/s. Thresholds from these numbers, and published ones:

# %%
def compare_published(rows, computed, rtol):
    """A table of what was computed and published, and whether they agree."""
    show_table({"quantity": "", "computed": computed, "published": computed}, rows)
    apart = max(abs(ours / published - 1) for _, ours, published in rows)
    holds(f"at most {apart:.1%} apart; {rtol:.0%} allowed", apart <= rtol)

# %%
H100_PUBLISHED, A100_PUBLISHED = 2475, 1.0e3  # tokens: Austin et al., part 12; Liu et al., table 2
node = h100.over("node")  # between nodes: 8 adapters
thresholds = [
    ("H100 between nodes, data parallelism: tokens per GPU", node.ridge, H100_PUBLISHED),
    ("A100 over NVLink, ring attention: tokens per GPU", DEVICES["A100"].over("NVLink").ridge, A100_PUBLISHED),
]

compare_published(thresholds, ",.0f", rtol=0.05)

# %%
for model, width in {"70B": 28_672, "405B": 53_248}.items():
    ranks = roofline.tensor_parallel_ranks(width, h100.flops_per_s, h100.sent_bytes_per_s["NVLink"])
    print(f"Llama 3 {model}, F = {width:,}, NVLink of H100: tensor parallelism up to {ranks:.1f} ranks")

# %% [markdown]
# These are ranks by F·W/C, the limit for many ranks: it counts twice the tensor for an all-reduce. A ring sends only $\frac{2(t-1)}{t}$ of it. If you count that, as the lab does, the result is exactly one rank more.
#
# Llama 3 405B was trained on 16,384 H100, with 16.8 million tokens in a batch (Meta 2024, table 4: 2,048 sequences of 8,192). **Could FSDP alone have hidden its traffic between nodes?** Work out the tokens per GPU.

# %%
predicted_tokens = predict("Tokens per GPU with data parallelism alone")
predicted_tokens

# %%
tokens = 2048 * 8192 / 16_384
named = {"the tokens of one sequence": 8192, "the threshold": node.ridge}
predicted_tokens.compare(tokens, named, "calculated")

# %%
print(f"exposed, at the least: {1 - tokens / node.ridge:.0%} of the time")
links = {"NVLink": h100.over("NVLink"), "8 adapters": node, "1 adapter": h100.over("one adapter")}
between = ("8 adapters", "1 adapter")
counts = {2**k: data_parallel(405e9, 2**k).on(*between) for k in range(8, 18)}
splits = [tensor_parallel(16_384, 53_248, 8).on("NVLink"), pipeline_parallel(8, 16_384).on(*between)]
roofline_plot(links, splits, moving=counts, at=1024, slider="tokens per device", bytes_of="link")

# %% [markdown]
# 1,024 tokens are below 2,475: for more than half of each step, the GPUs would wait for the network. So Meta used three splits:
#
# - **tensor** parallelism over 8 GPUs has 6,656 operations per byte, three times what NVLink needs. By arithmetic, 24 ranks would hide their traffic (F·W/C above). But only the 8 GPUs of a node are connected by NVLink, so Meta used 8. The lines of the adapters say nothing about this point: an all-reduce within a node does not use them;
# - a **pipeline** of 16 stages, each with 8 layers, sends so little that any link will do;
# - 8 · 16 = 128 GPUs then share one copy of the model, so there are only 128 copies, and **data** parallelism has 131,072 tokens per copy. Each GPU computes and sends a 128th of its copy's share, so what counts is the tokens per copy: move the slider to 131,072.
#
# Thresholds are optimistic. They assume that arithmetic and link reach their peaks, and that overlap is perfect.
#
# ## MFU: which share of the hardware?
#
# **MFU**, model FLOPs utilization, is the share of the peak that the **model** needs: operations per token, times tokens per second, over the peak of all devices (Chowdhery et al. 2022). A token costs
#
# $$6N + 12 L h s$$
#
# operations: 2 for each of N parameters in forward and 4 in backward, and attention in L layers, where each token meets s tokens with h = heads times their width. N counts parameters in products: an embedding is looked up, not multiplied.
#
# **HFU**, hardware FLOPs utilization, counts also what is computed twice. With full activation checkpointing, forward runs again: $\frac{2+4+2}{2+4} = \frac43$ of the MFU.
#
# torchtitan published (December 2024): Llama 3.1 8B, 8 H100, FSDP, **5,762 tokens per second and GPU**. The model has 32 layers, h = 4,096, and 8.03 billion parameters, of which 525 million are the input embedding; its configuration says sequences of 8,192 tokens. The peak is 989 TFLOP/s. **What is the MFU?**

# %%
predicted_mfu = predict("MFU of this run", maximum=1)
predicted_mfu

# %%
llama = {"layers": 32, "width": 4096, "sequence": 8192}

def mfu(parameters, tokens_per_s, devices, peak, **attention):
    """What the model needs in one second, over what the devices can compute in it."""
    return flops.utilization(flops.training_flops(parameters, tokens_per_s, **attention), 1, devices, peak)

titan = mfu(8.03e9 - 0.525e9, 5762, 1, 989e12, **llama)
named = {
    "the MFU without attention": mfu(8.03e9 - 0.525e9, 5762, 1, 989e12),
    "the MFU with the embedding as a product": mfu(8.03e9, 5762, 1, 989e12, **llama),
    "the HFU of full recomputation": titan * 4 / 3,
}
predicted_mfu.compare(titan, named, "calculated")

# %% [markdown]
# Published numbers use both conventions, and often do not say which. Here are four, recomputed from the throughput or the seconds per step that the papers print:

# %%
palm = mfu(540e9, 238.3e3, 6144, 275e12, layers=118, width=48 * 256, sequence=2048)
shape = {"layers": 105, "width": 20_480}  # MT-NLG: 1,920 sequences in 60.1 s on 280 nodes of 8 A100
parameters = flops.transformer_parameters(**shape, vocabulary=51_200)
mt_nlg = mfu(parameters, 1920 * 2048 / 60.1, 2240, 312e12, **shape, sequence=2048)
largest = 163 / 312  # Megatron's 1T model: TFLOP/s as the paper counts them, with recomputation

# %%
reports = [
    ("PaLM 540B, MFU", palm, 0.462),
    ("MT-NLG 530B, MFU (PaLM's table)", mt_nlg, 0.302),
    ("MT-NLG 530B, HFU (126 of 312 TFLOP/s)", mt_nlg * flops.RECOMPUTED, 126 / 312),
    ("Megatron 1T, HFU", largest, 0.52),
]
compare_published(reports, ".1%", rtol=0.01)
print(f"Megatron 1T, MFU: {largest / flops.RECOMPUTED:.1%}")

# %% [markdown]
# So Megatron's 52 % and PaLM's 46 % are not comparable: by the same measure, Megatron's model has 39 %, and PaLM 46 %. (PaLM's HFU is 57.8 %, less than $\frac43$ of its MFU: it does not recompute everything.)
#
# One log line can be read in many ways. Here is torchtitan's once more, each time with one mistake:

# %%
counted = {"parameters": 8.03e9 - 0.525e9, "tokens_per_s": 5762, "devices": 1, "peak": 989e12, **llama}
mistakes = {
    "none": {},
    "the peak of an A100": {"peak": 312e12},
    "tokens of one GPU, peak of all 8": {"devices": 8},
    "the embedding counted as a product": {"parameters": 8.03e9},
    "sequences of 2,048 tokens": {"sequence": 2048},
}
show_table({"mistake": "", "“MFU”": ".1%"}, [(name, mfu(**counted | wrong)) for name, wrong in mistakes.items()])

# %% [markdown]
# More than 100 % is easy to notice; [nanoGPT #464](https://github.com/karpathy/nanoGPT/pull/464) is about such a log, 104 % on an H100 by the A100's peak. A few points too many are not. So always report the formula, the peak and the number of devices with an MFU.
#
# A **mixture of experts** has many MLPs, the experts, in place of one, and each token passes only a few of them. So N is the **active** parameters, those that a token uses. DeepSeek-V3 has 671 billion parameters, of which 37 billion are active: with the wrong N, the part of its MFU that comes from parameters would be 18 times too high.
#
# And tables can be wrong. In table 4 in the first version of the Llama 3 paper, the row for sequences of 131,072 tokens has 16,384 GPUs, split 8 (tensor) × 16 (context: each sequence is split) × 16 (pipeline) × 4 (data):

# %%
tensor, context, pipeline = 8, 16, 16
for data_ranks in (4, 8):
    print(f"data {data_ranks} gives {tensor * context * pipeline * data_ranks:,} GPUs")

# %% [markdown]
# The next version of the paper has 8.
#
# ## A hang, in the flight recorder
#
# The extreme of waiting is a hang: one rank never enters a call. PyTorch has a **flight recorder** for that, a ring buffer of the last collectives on each rank. On GPUs, NCCL's watchdog writes it to disk when a call times out. gloo has the same buffer, but no watchdog, so here a timer writes it on each rank, 0.3 s into the step in which rank 2's loader hangs. (The function's name begins with `_`, so it may change. gloo leaves the group's name empty in one place, which we fill in.)

# %%
def write_flight_recorder(folder):
    recorded = pickle.loads(torch._C._distributed_c10d._dump_fr_trace(includeStackTraces=False))
    group = recorded["pg_config"].pop("")
    recorded["pg_config"]["0"] = {**group, "name": "0", "desc": "default_pg"}
    for entry in recorded["entries"]:
        entry["frames"] = []  # with stack traces this would be the line of code
    Path(folder, f"rank_{dist.get_rank()}").write_bytes(pickle.dumps(recorded))

# %%
def next_gradients(number):
    if number == 2 and dist.get_rank() == 2:
        time.sleep(3600)  # a file system that does not answer
    return torch.ones(1000)

def train_until_it_hangs(folder):
    for number in range(4):
        if number == 2:
            threading.Timer(0.3, write_flight_recorder, [folder]).start()
        dist.all_reduce(next_gradients(number))

# %%
dumps = tempfile.mkdtemp()
try:
    launch(train_until_it_hangs, dumps, world_size=4, device="cpu", timeout_s=5)
except RunTimeout as error:
    hang = error
    print(error.detail)

# %% [markdown]
# That is our report. Now the recorder's files, with the last entry of rank 0:

# %%
print(sorted(os.listdir(dumps)))
last = pickle.loads(Path(dumps, "rank_0").read_bytes())["entries"][-1]
for key in ("collective_seq_id", "profiling_name", "input_sizes", "state", "retired"):
    print(f"{key}: {last[key]}")

# %% [markdown]
# `retired: False`: this call has not ended (with gloo, `state` is always "scheduled"). What one rank's file cannot say is who is missing. PyTorch's analyzer reads the files of all ranks; on the command line it is `torchfrtrace FOLDER -p rank_`:

# %%
analyzer = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", dumps, "-p", "rank_"]
report = subprocess.run(analyzer, capture_output=True, text=True).stderr
said = ("Not all ranks", "collective:", "missing ranks", "input sizes", "expected ranks")
print(*[line for line in report.splitlines() if line.startswith(said)], sep="\n")

# %% [markdown]
# Both say the same: collective 3, and rank 2 is missing. With stack traces, the entry also has the line of the call. To switch it on for NCCL:
#
# ```
# TORCH_FR_BUFFER_SIZE=2000            # entries; older: TORCH_NCCL_TRACE_BUFFER_SIZE
# TORCH_NCCL_DUMP_ON_TIMEOUT=1         # write when the watchdog finds a timeout
# TORCH_FR_DUMP_TEMP_FILE=/shared/fr/rank_   # older: TORCH_NCCL_DEBUG_INFO_TEMP_FILE
# ```
#
# The dump comes only after the timeout of `init_process_group`, ten minutes by default with NCCL.
#
# ## torch.compile and overlap
#
# DDP starts an all-reduce when a bucket's gradients are ready. `torch.compile` makes **one** operation of the whole backward, and gradients of one operation become ready together, at its end. We compile a model of eight layers without fusing anything (a backend that needs no C++ compiler), in four ways. In "one graph", DDP's optimizer for graphs is off. "Graph break" interrupts the compiled model in the middle, as a `print` in `forward` would.

# %%
def four_layers():
    return nn.Sequential(*[nn.Linear(384, 384) for _ in range(4)])

class EightLayers(nn.Module):
    def __init__(self, graph_break):
        super().__init__()
        self.first, self.second, self.graph_break = four_layers(), four_layers(), graph_break

    def forward(self, x):
        x = self.first(x)
        if self.graph_break:
            torch._dynamo.graph_break()
        return self.second(x)

# %%
WAYS = {  # compiled, with a graph break, with DDP's optimizer for graphs
    "not compiled": (False, False, False),
    "one graph": (True, False, False),
    "graph break": (True, True, False),
    "DDP's default": (True, False, True),
}

def backward_in_all_ways():
    for label, way in WAYS.items():
        one_backward(label, *way)

# %%
def one_backward(label, compiled, graph_break, split_by_bucket):
    torch._dynamo.reset()
    torch._dynamo.config.optimize_ddp = split_by_bucket
    model = EightLayers(graph_break)
    if compiled:
        model.compile(backend="aot_eager_default_partitioner")
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
    for _ in range(2):  # DDP sorts its buckets in the first step
        model(torch.randn(64, 384)).sum().backward()
    loss = model(torch.randn(64, 384)).sum()
    with profile(), measure(label):
        loss.backward()

# %% [markdown]
# **How many of the all-reduces start before backward has computed its last gradient**, if the model is compiled as one graph?

# %%
predicted_early = predict("All-reduces that start before backward's last operation has ended, one graph")
predicted_early

# %%
compiled = launch(backward_in_all_ways, world_size=2, device="cpu", timeout_s=120)

# %%
def operations_and_calls(label):
    """Rank 0's backward operations of layers, its all-reduces, and how many began before the end."""
    calls = compiled.calls_in(label)
    [block] = [b for b in compiled.traffic[label].blocks if b.rank == 0]
    layers = [
        span for span in compiled.spans
        if span.rank == 0 and block.start_s <= span.start_s <= block.end_s
        and ("AddmmBackward" in span.name or "CompiledFunctionBackward" in span.name)
    ]
    last_s = max(span.end_s for span in layers)
    return len(layers), len(calls), sum(call.start_s < last_s for call in calls)

# %%
rows = [(label, *operations_and_calls(label)) for label in WAYS]

# %%
early = {label: count for label, *_, count in rows}
predicted_early.compare(early["one graph"], {"the count without compile": early["not compiled"]}, "counted")

# %%
show_table({"model": "", "operations of layers in backward": "d", "all-reduces": "d", "begun before the last": "d"}, rows)
holds("all-reduces that begin early, with a graph break", early["graph break"], above=early["one graph"])

# %% [markdown]
# (Why five all-reduces instead of four? After its first step, DDP sorts the gradients into buckets of 1 MiB again, in the order in which they became ready. A compiled backward returns weights and biases in another order, so one to three small gradients are left for a fifth bucket, of a few kilobytes.)
#
# In one graph nothing overlaps. A graph break usually makes a compiled model slower; here it brings overlap back, because each graph's gradients are ready when its part of backward ends. DDP's default splits the graph on purpose: its `DDPOptimizer` does so where buckets end, so that gradients leave in time ([PyTorch's FAQ](https://docs.pytorch.org/docs/stable/torch.compiler_faq.html)). The price: nothing is fused across a boundary. With FSDP2, compile each block on its own, as torchtitan does; hooks between blocks then gather and free as usual.
#
# ## In practice
#
# - **torch.profiler** on each GPU rank: `profile(activities=[CPU, CUDA], schedule=schedule(wait=1, warmup=1, active=3), with_stack=True, record_shapes=True, on_trace_ready=tensorboard_trace_handler(folder))`. Stacks and shapes cost time; leave them out when you measure seconds.
# - **Holistic Trace Analysis** (HTA) reads the files of all ranks and computes what `step_time` does, from GPU kernels: compute, communication, idle time, overlap, the critical path. **Nsight Systems** (`nsys profile`) also sees the driver and NCCL's kernels.
# - Mark the loader and the steps with `record_function` before you look for anything else.
# - Compare ranks before operators: who waits least? Then look at exposed time, then at the roofline of the largest kernels.
#
# What differs on GPUs: our four ranks share a few cores, and gloo's threads copy and add on the same cores, so overlap here costs compute and seconds say little. NCCL's kernels take streaming multiprocessors and memory bandwidth as well, but few. There, operators only start kernels: look at the kernels' rows, not at Python's.
#
# ## The 800 ms, again
#
# A training step takes 800 ms on 64 GPUs. Is that good? Now you know what to ask:
#
# 1. What is its MFU? With the model and the tokens in a step, that is one line of arithmetic. Compare it with published runs of the same kind, counted by the same formula.
# 2. If it is low: which state takes the time? If ranks wait, look for the one that waits least. If it is the loader, a faster link changes nothing.
# 3. If communication is exposed: are the messages large enough, do they start early enough, and are there more than C/W tokens on each GPU? If not, a faster link helps, or another split.
# 4. If it is compute: how far is the longest kernel from its roof?
#
# ## What to remember
#
# - Compute, overlapped, exposed, waiting, loader, other: only all ranks' records together tell exposed from waiting. The rank that waits least is the slow one.
# - $t \ge \max$ of arithmetic and bytes. Traffic hides if operations per sent byte exceed C/W: 2,475 tokens per H100 between nodes.
# - MFU counts what the model needs, HFU also what is recomputed: $\frac43$ with full checkpointing. Ask which N, attention, peak and number of devices were counted.
# - Every synchronization turns a maximum of sums into a sum of maxima.
#
# ## Sources
#
# - S. Williams, A. Waterman, D. Patterson: *Roofline: an insightful visual performance model for multicore architectures.* CACM 52(4), 2009.
# - J. Austin et al.: *How to Scale Your Model*, parts 5 and 12. [jax-ml.github.io/scaling-book](https://jax-ml.github.io/scaling-book/), 2025.
# - H. Liu et al.: *Ring Attention with blockwise transformers.* [arXiv 2310.01889](https://arxiv.org/abs/2310.01889), 2023.
# - A. Chowdhery et al.: *PaLM.* [arXiv 2204.02311](https://arxiv.org/abs/2204.02311), appendix B, 2022. D. Narayanan et al.: [arXiv 2104.04473](https://arxiv.org/abs/2104.04473), 2021. S. Smith et al. (MT-NLG): [arXiv 2201.11990](https://arxiv.org/abs/2201.11990), 2022. A. Grattafiori et al. (Llama 3): [arXiv 2407.21783](https://arxiv.org/abs/2407.21783), table 4, 2024.
# - torchtitan: [benchmarks](https://github.com/pytorch/torchtitan/tree/main/benchmarks), December 2024. DeepSeek-V3: [arXiv 2412.19437](https://arxiv.org/abs/2412.19437), 2024.
# - PyTorch: [flight recorder](https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html), [profiler](https://docs.pytorch.org/docs/stable/profiler.html); [HTA](https://hta.readthedocs.io).
