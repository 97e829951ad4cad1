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
# # 02 · DP vs DDP
#
# **Data parallelism** is the simplest way to train on N devices. Each has a copy of the model, a **replica**, and learns from its own share of the batch. Then the gradients are combined, so that all take the same step.
#
# PyTorch has two modules for it. In `nn.DataParallel` (DP) one device is in charge of all the others. In `DistributedDataParallel` (DDP) none is. The questions of this chapter: what does each device send, who waits for whom, and how does that change from 2 ranks to 8?
#
# **After this chapter you can**
#
# - say what each rank sends in a step of DP and of DDP, and who waits for whom;
# - choose a bucket size, so that gradients are sent while the backward pass still computes;
# - recognize the usual mistakes: wrong mean, unused parameters, different starts.
#
# **You need:** [01 One device](01_one_device.ipynb).

# %% [markdown]
# <details open><summary>Gradients leave in buckets while backward still computes</summary>
#
# [![Animation: Gradients leave in buckets while backward still computes](openers/02_dp_vs_ddp.svg)](openers/02_dp_vs_ddp.svg)
#
# Backward computes gradients from the last layer to the first. As soon as a bucket of them is complete, its all-reduce starts, while backward continues. (Recorded from real processes.)
#
# </details>

# %% jupyter={"source_hidden": true}
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

from contextlib import nullcontext

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from shardlab import data, estimate, holds, launch, measure, models, show_table
from shardlab.errors import DeadlockError, RankError
from shardlab.widgets import format_bytes, palette, predict, timeline, traffic_map

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# The model is a small GPT that reads text byte by byte. Ψ (psi) stands for the number of its parameters, N for the number of ranks. Everything is float32, 4 bytes per number, so a copy of the weights takes 4Ψ bytes, and so do the gradients.

# %%
SIZE, SEQUENCES, CONTEXT = "0.3M", 4, 32  # each rank gets 4 sequences of 32 tokens per step
parameters = models.count_parameters(models.gpt(SIZE))
weight_bytes = 4 * parameters
print(f"Ψ = {parameters:,}; the weights take {format_bytes(weight_bytes)}")

# %% [markdown]
# ## DP: one device in charge
#
# `nn.DataParallel` is one process with a thread for each GPU. We write it as messages between ranks instead, so that we can count them: rank 0 is the device in charge, the **hub**. There are two kinds of messages. In a **scatter** the hub sends each rank its part; in a **gather** each rank sends its tensor to the hub. A step has five:
#
# 1. The hub, the only one that has the batch, scatters the **inputs**.
# 2. It sends its **weights** to all ranks, in every step: their copies are out of date, because only the hub updated its weights in the previous step. All ranks compute.
# 3. The **outputs** go to the hub. Only the hub has the targets, so it computes the loss of the whole batch.
# 4. The hub scatters the **gradients of the outputs**, and each rank runs backward from there.
# 5. The **gradients** of the weights go to the hub, which adds them up and takes the step.
#
# **How many bytes will each of four ranks send in one step?** Weights and gradients make up most of it.

# %%
predicted_bytes = predict(f"Bytes that each rank sends (the weights take {weight_bytes:,})", unit="B", ranks=4)
predicted_bytes

# %% [markdown]
# Scatter and gather are collectives of PyTorch (this cell is collapsed):

# %% jupyter={"source_hidden": true}
def is_hub():
    return dist.get_rank() == 0

def scatter(like, parts):
    """The hub's parts[r] arrives on rank r; ranks other than the hub have no parts (None)."""
    mine = torch.empty_like(like)
    dist.scatter(mine, parts)
    return mine

def gather(mine):
    """Every rank's tensor, on the hub; None elsewhere."""
    ranks = range(dist.get_world_size())
    gathered = [torch.empty_like(mine) for _ in ranks] if is_hub() else None
    dist.gather(mine, gathered)
    return gathered

# %% [markdown]
# The first two messages, and forward:

# %%
def forward_everywhere(model, tokens):
    ranks = dist.get_world_size()
    parts = list(tokens.chunk(ranks)) if is_hub() else None
    mine = scatter(torch.empty(SEQUENCES, CONTEXT, dtype=torch.int64), parts)
    weights = parameters_to_vector(model.parameters()).detach()
    copies = [weights] * ranks if is_hub() else None
    vector_to_parameters(scatter(weights, copies), model.parameters())
    return model(mine)

# %% [markdown]
# The next two, and backward. The hub computes the gradient of the loss with respect to each output; each rank gets those of its own outputs.

# %%
def backward_everywhere(logits, targets):
    gathered, parts = gather(logits.detach()), None
    if is_hub():
        with measure("loss"):  # a label, to find this part later
            outputs = torch.cat(gathered).requires_grad_()
            F.cross_entropy(outputs.flatten(0, 1), targets.flatten()).backward()
            parts = list(outputs.grad.chunk(dist.get_world_size()))
    logits.backward(scatter(logits, parts))

# %% [markdown]
# Now each rank has the gradients of the weights, from its own share, and the hub takes the step.

# %%
def update_on_hub(model, optimizer):
    gradients = [parameter.grad for parameter in model.parameters()]
    gathered = gather(parameters_to_vector(gradients))
    if is_hub():
        with measure("update"):
            vector_to_parameters(sum(gathered), gradients)
            optimizer.step()

# %%
def data_parallel(steps=2, optimizer_class=torch.optim.SGD):
    model = models.gpt(SIZE)
    optimizer = optimizer_class(model.parameters(), lr=0.1)
    for step in range(steps):
        batch_size = SEQUENCES * dist.get_world_size()
        tokens, targets = data.batch(step, batch_size, CONTEXT) if is_hub() else (None, None)
        optimizer.zero_grad()
        backward_everywhere(forward_everywhere(model, tokens), targets)
        update_on_hub(model, optimizer)
    return parameters_to_vector(model.parameters()).detach()

# %%
run = launch(data_parallel, 1, world_size=4, device="cpu")
traffic_map(run, predicted=predicted_bytes)

# %%
named = {
    "weights and gradients, without inputs and outputs": [3 * weight_bytes, *[weight_bytes] * 3],
    "the weights without the gradients": [3 * weight_bytes, 0, 0, 0],
    "the gradients without the weights": [0, *[weight_bytes] * 3],
}
predicted_bytes.compare(run.traffic.sent_by_rank, named)

# %% [markdown]
# Row 0 is what the hub sends, column 0 what it receives; there is no other traffic. These are rank 1's messages:

# %%
kinds = ("inputs", "weights", "outputs", "gradients of outputs", "gradients")
of_rank_1 = [call for call in run.calls if call.rank == 1]
show_table(
    {"message": "", "bytes": ",d", "direction": ""},
    [
        (kind, call.bytes, "from the hub" if call.op == "scatter" else "to the hub")
        for kind, call in zip(kinds, of_rank_1, strict=True)
    ],
)

# %% [markdown]
# As a formula, for each step: the hub sends **$(N-1)\,\Psi$** weights and receives $(N-1)\,\Psi$ gradients, every other rank sends Ψ. Inputs and outputs are sent in addition. They depend on the batch, not on Ψ: an input token is one int64 of 8 bytes, an output token has one float32 for each of the 256 possible next bytes.

# %%
def data_parallel_bytes(ranks):
    """Bytes that each rank sends in a step."""
    tokens = SEQUENCES * CONTEXT  # per rank
    inputs, outputs = 8 * tokens, 4 * tokens * 256
    hub, *others = estimate.traffic.sent_bytes("hub", parameters, ranks)
    return [hub + (ranks - 1) * (inputs + outputs)] + [other + outputs for other in others]

# %%
sent, predicted = run.traffic.sent_by_rank, data_parallel_bytes(4)
show_table(
    {"rank": "d", "formula, bytes": ",d", "sent, bytes": ",d", "sent / formula": ".4f"},
    [(rank, predicted[rank], sent[rank], sent[rank] / predicted[rank]) for rank in range(4)],
)
holds("every rank sends what the formula says", sent, predicted, rtol=0.01, unit="bytes")

# %% [markdown]
# The rest is overhead of gloo, PyTorch's library for messages between CPUs: it sends a header with each tensor, and the receiver replies that it is ready.
#
# Our outputs are small. A real language model has a large vocabulary. GPT-2 small has 124 million parameters and 50,257 tokens (Radford et al. 2019); eight sequences of 1,024 tokens on each rank produce this much output, in float32:

# %%
output_bytes = 4 * 8 * 1024 * 50_257
print(f"outputs {format_bytes(output_bytes)}, weights {format_bytes(4 * 124e6)}")

# %% [markdown]
# The outputs are larger than the model, and all of them end up on the hub. If you still use DP, let the model compute the loss itself, so that each rank returns one number.
#
# ## Who waits?
#
# Two steps, and this time we look at the clock. A bar is a call, in which a rank sends, receives or waits. Between bars it computes.

# %%
run = launch(data_parallel, world_size=4, device="cpu")
timeline(run)

# %% [markdown]
# Look at the other ranks during "loss" and "update" (the shaded parts of the hub's row). They have **nothing to do** and wait in the next scatter until the hub gets to it. How long was that?

# %%
def waited_s(run, rank):
    """Seconds that a rank spent in a scatter before the hub entered it."""
    of_rank, of_hub = (
        [call.start_s for call in run.calls if call.rank == which and call.op == "scatter"]
        for which in (rank, 0)
    )
    return sum(max(0, hub - mine) for mine, hub in zip(of_rank, of_hub, strict=True))

# %%
for rank in range(1, 4):
    print(f"rank {rank} waited {1000 * waited_s(run, rank):.0f} ms for the hub in these two steps")

# %% [markdown]
# The milliseconds depend on this machine, where ranks also wait for a core. The waiting does not: with N ranks, a single rank computes the loss of the whole batch, the sum of N gradients and the update. The result is right, though: the same weights as in one process that learns from the whole batch. (`data.batch` splits exactly that batch into N parts for N ranks.)

# %%
def one_process(ranks, steps=2):
    model = models.gpt(SIZE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        loss = model(*data.batch(step, ranks * SEQUENCES, CONTEXT))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach()

# %%
reference = launch(one_process, 4, world_size=1, device="cpu").outputs[0]

def largest_difference(weights):
    return (weights - reference).abs().max().item()

holds("largest difference from one process", largest_difference(run.outputs[0]), below=1e-5)

# %% [markdown]
# ## DDP: no device in charge
#
# With DDP each rank is a process that could train alone: it has its own model, its own optimizer, and reads its own part of the data. Every rank computes loss and update. The ranks need only one thing from each other, the mean of the gradients. They get it from an **all-reduce**: a call that all ranks make together and that leaves the sum on each of them. The usual algorithm is a **ring**, in which each rank sends only to its neighbor. The tensor is cut into N chunks. A chunk goes from rank to rank until all have added their part, and then its sum goes from rank to rank until all have it. Chapter 03 takes the ring apart; here we use it.

# %%
def ddp(steps=2, optimizer_class=torch.optim.SGD, **options):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = DDP(models.gpt(SIZE), **options)
    optimizer = optimizer_class(model.parameters(), lr=0.1)
    for step in range(steps):
        with measure("step"):
            loss = model(*data.batch(step, SEQUENCES, CONTEXT, rank, ranks))
            optimizer.zero_grad()
            loss.backward()  # in here DDP all-reduces the gradients
            optimizer.step()
    return parameters_to_vector(model.parameters()).detach()

# %% [markdown]
# Apart from the line with `DDP(...)` and the rank's own part of the data, this is `one_process`. **How many bytes will each of four ranks send in one step?**

# %%
predicted_bytes = predict(f"Bytes that each rank sends (the gradients take {weight_bytes:,})", unit="B")
predicted_bytes

# %%
run = launch(ddp, 1, world_size=4, device="cpu")
traffic_map(run, predicted=predicted_bytes, block="step")

# %%
measured = run.traffic["step"].sent_by_rank
named = {
    "what the hub sends with DP": 3 * weight_bytes,
    "the gradients once: they go around to be added up, and their sums go around again": weight_bytes,
    "one hop too many each way": 2 * weight_bytes,
    "only the way to the sums": 0.75 * weight_bytes,
}
predicted_bytes.compare(measured.mean(), named)

# %% [markdown]
# Each chunk makes $N-1$ hops to be added up, and its sum makes $N-1$ hops to reach everyone. There are N chunks and N ranks, so each rank sends $2(N-1)$ chunks of $\frac{S}{N}$ bytes, for a tensor of $S$ bytes: $\frac{2(N-1)}{N} S$.

# %%
predicted = estimate.traffic.sent_bytes("ddp", parameters, 4)
holds("each rank sends 2(N − 1)/N · 4Ψ", measured, predicted, rtol=0.01, unit="bytes")

# %% [markdown]
# No rank sends more than another. Inputs and outputs are not sent at all. And on every rank the weights are those of one process:

# %%
run = launch(ddp, world_size=4, device="cpu")
differences = [largest_difference(weights) for weights in run.outputs]
holds("on all four ranks, largest difference from one process", differences, below=1e-5)

# %% [markdown]
# DDP takes the mean over ranks of the mean over each rank's tokens. That equals the mean over all tokens only if every rank has the same number of tokens, as here. Chapter 01 shows how to weight them otherwise.
#
# ## From 2 to 8 ranks
#
# We run both again, with more and more ranks. The batch grows with them, because each rank adds its own four sequences. With four ranks, none of DDP's sent as much as the hub. **And all ranks together: do they send less with DDP?**

# %%
amounts = ["less than half as much as with DP", "about as much", "more than twice as much"]
predicted_total = predict("With DDP, eight ranks together send", options=amounts)
predicted_total

# %%
world_sizes = (2, 3, 4, 8)
dp_sent, ddp_sent = {}, {}
for n in world_sizes:
    dp_sent[n] = launch(data_parallel, 1, world_size=n, device="cpu").traffic.sent_by_rank
    ddp_sent[n] = launch(ddp, 1, world_size=n, device="cpu").traffic["step"].sent_by_rank

# %%
def amount(share):
    return amounts[0 if share < 0.5 else 1 if share <= 2 else 2]

named = {"what the busiest rank sends": amount(ddp_sent[8].max() / dp_sent[8].max())}
predicted_total.compare(amount(ddp_sent[8].sum() / dp_sent[8].sum()), named)

# %%
show_table(
    dict.fromkeys(["ranks N"], "d") | dict.fromkeys(
        ("DP, busiest rank", "DDP, busiest rank", "DP, all ranks", "DDP, all ranks"), format_bytes),
    [(n, dp_sent[n].max(), ddp_sent[n].max(), dp_sent[n].sum(), ddp_sent[n].sum()) for n in world_sizes],
)

# %%
def of_all(by_world_size):
    return np.concatenate(list(by_world_size))

dp_bytes = of_all(map(data_parallel_bytes, world_sizes))
ddp_bytes = of_all(estimate.traffic.sent_bytes("ddp", parameters, n) for n in world_sizes)
holds("DP, every rank for each N", of_all(dp_sent.values()), dp_bytes, rtol=0.01, unit="bytes")
holds("DDP, every rank for each N", of_all(ddp_sent.values()), ddp_bytes, rtol=0.01, unit="bytes")

# %%
def plot_busiest(axes, formula, sent):
    ranks = np.arange(1, 11)
    axes.plot(ranks, [max(formula(n)) / weight_bytes for n in ranks], color=palette.PREDICTED)
    busiest = [sent[n].max() / weight_bytes for n in sent]
    axes.plot(list(sent), busiest, "o", color=palette.MEASURED)

# %%
figure, axes = plt.subplots(figsize=(7, 3.6))
plot_busiest(axes, data_parallel_bytes, dp_sent)
plot_busiest(axes, lambda n: estimate.traffic.sent_bytes("ddp", parameters, n), ddp_sent)
axes.annotate("DP's hub: (N − 1)Ψ, and outputs", (7.4, 7.6), ha="right")
axes.annotate("DDP: 2(N − 1)/N·Ψ", (7.6, 2.3))
axes.set(xlabel="ranks N", ylabel="sent by the busiest rank, in copies of Ψ")
axes.legend(["predicted", "measured"], frameon=False, loc="upper left")
figure.tight_layout()

# %% [markdown]
# All ranks together send $2(N-1)\,\Psi$ with both, and DP adds inputs and outputs. But with DP all of it leaves the hub or arrives there, so the hub's traffic grows by Ψ each way with every rank. Some tutorials say that DDP, too, needs more and more bandwidth as N grows. But the lower line stays below 2Ψ for any N.
#
# How faithful is our DP to `nn.DataParallel`? Its parts and their order are the same (`torch/nn/parallel/data_parallel.py`). With NCCL, NVIDIA's library for messages between GPUs, weights and gradients move directly from GPU to GPU (`torch/nn/parallel/comm.py`), which relieves the first GPU's link. The rest remains: all weights are sent in every step, one GPU gets all outputs and computes loss and update, and one Python process drives all GPUs, on one machine. PyTorch's documentation recommends DDP even there.
#
# ## Buckets: sending while still computing
#
# An all-reduce of each gradient tensor alone would mean many calls, and each has a fixed cost, its **latency**. A single all-reduce of all of them could begin only when the last gradient is ready. DDP is a compromise: it collects gradients in **buckets**, in the order in which the backward pass computes them, and all-reduces a bucket when it is full. `bucket_cap_mb` says how many MiB make a bucket full. By default (`None`) the first bucket is full at 1 MiB, so that sending starts early, and all others at 25 MiB; a number that you pass holds for all of them.
#
# We use a larger model now, and a hook, a function that PyTorch calls whenever a gradient is ready, records the time.

# %%
def record_time(parameter):
    with measure("gradient"):  # sends nothing: only the time matters
        pass

def two_passes(bucket_cap_mb):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = DDP(models.gpt("1M"), bucket_cap_mb=bucket_cap_mb)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(record_time)
    for step in range(2):
        loss = model(*data.batch(step, SEQUENCES, 64, rank, ranks))
        with measure("backward"):
            loss.backward()
        model.zero_grad()

# %%
larger = models.gpt("1M")
larger_bytes = 4 * models.count_parameters(larger)
tensors = len(list(larger.parameters()))
print(f"{tensors} gradient tensors, {format_bytes(larger_bytes)} in all")

# %% [markdown]
# A pass with buckets of 1 MiB makes several all-reduces. **How many of them can begin only when the last gradient is ready?**

# %%
predicted_late = predict("All-reduces that begin only when the last gradient is ready")
predicted_late

# %%
runs = {cap: launch(two_passes, cap, world_size=2, device="cpu") for cap in (25, None, 1, 0.25)}

# %%
def second_pass(run):
    """Rank 0's all-reduces and when its gradients were ready, in seconds since the pass began."""
    backward, gradients = (
        [block.start_s for block in run.traffic[label].blocks if block.rank == 0]
        for label in ("backward", "gradient")
    )
    calls = [call for call in run.calls if call.rank == 0 and call.op == "all_reduce"]
    start_s = backward[1]
    return start_s, [c for c in calls if c.start_s > start_s], [g for g in gradients if g > start_s]

# %%
def early_share(run):
    """All-reduces, how many of them began before the last gradient, and their share of the bytes."""
    _, calls, ready_s = second_pass(run)
    early = [call.bytes for call in calls if call.start_s < max(ready_s)]
    return len(calls), len(early), sum(early) / larger_bytes

# %%
made, early, _ = early_share(runs[1])
predicted_late.compare(made - early, {"all, as if they came after backward": made, "none: but one bucket needs the last gradient": 0}, "counted")

# %%
timeline(runs[1])

# %% [markdown]
# There are two backward passes (shaded). The first has a single all-reduce, at its end: DDP does not know yet in which order gradients arrive, so it uses one bucket. Then rank 0 broadcasts the order that it saw (the two small broadcasts), and all ranks sort gradients into buckets in that order. In the second pass all-reduces run in the background while backward continues. This is **overlap**. Let us look more closely at rank 0's second pass, with each `bucket_cap_mb`.

# %%
def draw_pass(axes, start_s, calls, ready_s):
    axes.eventplot([1000 * (s - start_s) for s in ready_s], lineoffsets=1, color=palette.PLOT_INK)
    for i, call in enumerate(calls):
        left, right = 1000 * (call.start_s - start_s), 1000 * (call.end_s - start_s)
        y = -0.3 * (i % 4)  # staggered, because several may be in flight
        axes.barh(y, right - left, 0.26, left=left, color=palette.op_color("all_reduce"))

# %%
figure, all_axes = plt.subplots(4, 1, figsize=(8, 5.6), sharex=True)
for axes, (cap, run) in zip(all_axes, runs.items(), strict=True):
    draw_pass(axes, *second_pass(run))
    axes.set(ylim=(-1.2, 1.7), title=f"bucket_cap_mb = {cap}" + " (the default)" * (cap is None))
    axes.set_yticks([-0.45, 1], ["all-reduces", "gradients"])
all_axes[-1].set_xlabel("ms since backward began")
figure.tight_layout()

# %% [markdown]
# An upright line marks a gradient that is ready. A bar begins when a bucket is full and ends when its sum is ready, which also depends on the other rank.

# %%
rows = [(str(cap), *early_share(run)) for cap, run in runs.items()]
show_table({"bucket_cap_mb": "", "all-reduces": "d", "begun early": "d", "of the bytes": ".0%"}, rows)
holds("all-reduces not begun early", [calls - early for _, calls, early, _ in rows], 1)
in_all = [sum(call.bytes for call in second_pass(run)[1]) for run in runs.values()]
holds("all-reduced in the pass: every gradient once", in_all, larger_bytes, unit="bytes")

# %% [markdown]
# All buckets but the last start early. How large are they?

# %%
for cap in (None, 1):
    sizes = np.array([call.bytes for call in second_pass(runs[cap])[1]]) / 2**20
    print(f"bucket_cap_mb = {cap}:", ", ".join(f"{size:.3f}" for size in sizes), "MiB")
    holds("each bucket but the last is larger than 1 MiB", sizes[:-1], above=1, unit="MiB")

# %% [markdown]
# Each full bucket is larger than its cap: DDP closes a bucket **after** the gradient that reaches the cap (`compute_bucket_assignment_by_size` in `torch/csrc/distributed/c10d/reducer.cpp`). So the cap is a threshold, not a limit. The lab has a stricter rule: there a gradient that would exceed the cap begins the next bucket.
#
# No computation hides the last bucket, so it should be small. But many small buckets pay more latency, so the cap is a compromise; on a real cluster you choose it by measuring. How much time overlap saves here is not worth reporting: our ranks share their cores with the threads that send.
#
# ## Accumulation: send once, not every time
#
# When the batch is too large for memory, a rank processes it in **micro-batches** and adds up the gradients (chapter 01). DDP all-reduces in every backward pass, four times for four micro-batches, although only the sum is needed. Inside `no_sync()` it does not.

# %%
def accumulate(use_no_sync, micro_batches=4):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = DDP(models.gpt(SIZE))
    with measure("step"):
        for i in range(micro_batches):
            is_last = i == micro_batches - 1
            with nullcontext() if is_last or not use_no_sync else model.no_sync():
                loss = model(*data.batch(i, 1, CONTEXT, rank, ranks)) / micro_batches
                loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])

# %%
every_time, once = (launch(accumulate, skip, world_size=4, device="cpu") for skip in (False, True))
for run, sync in ((every_time, "micro_batch"), (once, "step")):
    sent = run.traffic["step"].sent_by_rank / 2**20
    predicted = estimate.traffic.sent_bytes("ddp", parameters, 4, micro_batches=4, sync=sync)
    holds(f"once per {sync}", sent.max(), predicted[0] / 2**20, rtol=0.01, unit="MiB")

# %%
difference = (every_time.outputs[0] - once.outputs[0]).abs().max().item()
holds("largest difference between the two gradients", difference, below=1e-6)

# %% [markdown]
# A quarter of the bytes, the same gradient. One pitfall: DDP decides in the **forward** pass whether the backward pass will send. `no_sync()` around `loss.backward()` alone changes nothing:

# %%
def only_around_backward():
    model = DDP(models.gpt(SIZE))
    loss = model(*data.batch(0, 1, CONTEXT))
    with measure("backward"), model.no_sync():
        loss.backward()

run = launch(only_around_backward, world_size=4, device="cpu")
print("sent despite no_sync:", format_bytes(run.traffic["backward"].sent_by_rank.max()))

# %% [markdown]
# ## What can go wrong
#
# ### Replicas that start with different weights
#
# All ranks take the same steps, so they end with the same weights only if they start with the same weights. Each rank draws its own random weights, so DDP first sends rank 0's to all ranks. Here are all calls that `DDP(...)` makes on rank 0 before the first step:

# %%
run = launch(ddp, 0, world_size=4, device="cpu")
show_table(
    {"call": "", "bytes": ",d", "of": ""},
    [(call.op, call.bytes, call.dtype) for call in run.calls if call.rank == 0],
)

# %% [markdown]
# The first two check that all ranks have the same number of tensors with the same shapes, the third is a **broadcast** of the weights: one rank sends, and afterwards all have the same values.
#
# `init_sync=False` turns this off. **Will the replicas then drift further apart, come together, or stay as far apart as they began?** (`init_sync` concerns only the start: the gradients are still averaged.)

# %%
predicted_drift = predict("The distance between the replicas", options=["grows", "shrinks", "stays the same"])
predicted_drift

# %%
def distance_to_rank_0(model):
    mine = parameters_to_vector(model.parameters()).detach()
    of_rank_0 = mine.clone()
    dist.broadcast(of_rank_0, src=0)
    return (mine - of_rank_0).norm().item()

# %%
def train_and_compare(init_sync, steps=30):
    model, history = DDP(models.gpt("0.1M"), init_sync=init_sync), []
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        loss = model(*data.batch(step, 4, CONTEXT, dist.get_rank(), dist.get_world_size()))
        history.append((distance_to_rank_0(model), loss.item()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return np.array(history)  # [steps, 2]

# %%
together, apart = (
    launch(train_and_compare, sync, world_size=2, device="cpu").outputs for sync in (True, False)
)

# %%
first, last = apart[1][[0, -1], 0]
moved = "stays the same" if np.isclose(first, last, rtol=1e-3) else "grows" if last > first else "shrinks"
named = {
    "what steps that differ by rank would do": "grows",
    "what averaging the weights, not the gradients, would do": "shrinks",
}
predicted_drift.compare(moved, named)

# %%
show_table(
    {"step": "d", "distance, with the broadcast": ".3f", "loss, with it": ".2f",
     "distance, without": ".3f", "loss, without": ".2f"},
    [(step, *together[1][step], *apart[1][step]) for step in (0, 15, 29)],
)
holds("distance in each step, with the broadcast", together[1][:, 0], 0)
holds("distance in each step, without", apart[1][:, 0], apart[1][0, 0], rtol=1e-4)

# %% [markdown]
# They stay as far apart as they began. Both replicas take exactly the same steps, so the difference between them never changes. There is no error and no hang, and the loss falls on both, so nothing looks wrong. But each gradient is the mean of gradients at two different points, and when you save rank 0's weights, half of the gradients were computed for a different model. DDP synchronizes the start and checks nothing afterwards. A learning rate that differs by rank, or a step that only one rank skips, moves replicas apart without any message. Compare them now and then, as `distance_to_rank_0` does. (Buffers, such as the running means of batch norm, are not parameters and get no gradient. DDP sends rank 0's to all ranks at the start of each forward pass.)
#
# ### Parameters that get no gradient
#
# A bucket is sent when all its gradients are ready. What if one never is? This model has a second layer that is not always used.

# %%
class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.rest = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x, stop_early):
        x = self.body(x)
        return x if stop_early else self.rest(x)

# %%
def train_early_exit(early_ranks, steps, **options):
    model = DDP(EarlyExit(), **options)
    for _ in range(steps):
        model(torch.randn(4, 64), dist.get_rank() in early_ranks).sum().backward()
    return model.module.body.weight.grad.sum().item()

# %% [markdown]
# First, all ranks stop early, for one step:

# %%
run = launch(train_early_exit, [0, 1], 1, world_size=2, device="cpu")
print("gradients of body, summed up:", [round(output, 2) for output in run.outputs])
print("all-reduces:", sum(call.op == "all_reduce" for call in run.calls))

# %% [markdown]
# No all-reduce at all. The only bucket never filled, so even `body`'s gradients were not averaged, and each rank has its own. This goes unnoticed for one step; the next step raises an error:

# %%
try:
    launch(train_early_exit, [0, 1], 2, world_size=2, device="cpu")
except RankError as error:
    print(error.headline)

# %% [markdown]
# Second, only rank 1 stops early. Rank 0 has all its gradients and starts an all-reduce, but rank 1 never joins it:

# %%
try:
    launch(train_early_exit, [1], 1, world_size=2, device="cpu")
except DeadlockError as error:
    print(error.headline)
    print(error.detail)

# %% [markdown]
# The fix is in the error message: with `find_unused_parameters=True`, DDP checks after each forward pass which parameters the loss depends on, and marks the others as ready.

# %%
def find_unused(steps):
    return train_early_exit([1], steps, find_unused_parameters=True)

run = launch(find_unused, 2, world_size=2, device="cpu", quiet=True)
show_table(
    {"call": "", "bytes": ",d", "of": ""},
    [(c.op, c.bytes, c.dtype) for c in run.calls if c.rank == 0 and c.op == "all_reduce"],
)
holds("both ranks have the same gradient", run.outputs[0], run.outputs[1])

# %% [markdown]
# This has a cost. Each step has a second, small all-reduce, one int32 for each parameter tensor, in which ranks exchange which ones they used; and traversing the graph takes time in every step. So use it only where you need it; DDP warns you when it finds no unused parameters.
#
# The same hang follows if one rank has **fewer batches**: it leaves the loop, and the others wait for it in their next backward pass. Inside `with model.join():` a rank that has run out takes part in the others' all-reduces, with zeros, until all have finished.
#
# ### Two that raise no error
#
# DDP prepares its all-reduces in `forward`. A loss from `model.module(…)` **by-passes** it. And DDP matches parameters by their **position**, not by name: here rank 1 registers two layers of the same shape in the other order.

# %%
class TwoLayers(nn.Module):
    def __init__(self, names):
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(64, 64))

    def forward(self, x):
        return self.second(self.first(x))

# %%
def gradient_norms(by_pass=False, other_order=False):
    names = ["first", "second"]
    model = DDP(TwoLayers(names[::-1] if other_order and dist.get_rank() == 1 else names))
    forward = model.module if by_pass else model
    forward(torch.randn(4, 64)).square().sum().backward()
    return [model.module.get_submodule(name).weight.grad.norm().item() for name in names]

# %%
norms = {}
for name, options in {"as usual": (), "by-passed": (True, False), "other order": (False, True)}.items():
    run = launch(gradient_norms, *options, world_size=2, device="cpu")
    norms[name] = [norm for by_rank in run.outputs for norm in by_rank]
columns = [f"rank {rank}, {name}" for rank in range(2) for name in ("first", "second")]
show_table({"norm of the gradient": "", **dict.fromkeys(columns, ".1f")}, [(name, *each) for name, each in norms.items()])

# %% [markdown]
# By-passed, each rank keeps the gradient of its own batch. In the other order, rank 1's second layer has the gradient of rank 0's first: a mean over two different layers. (DDP compares only shapes, so layers of different shapes would raise an error.) Use `model.module` to save or to read attributes, not to compute a loss.
#
# ### Groups of ranks
#
# A collective may run in a smaller **group** of ranks, which `dist.new_group` makes. **Every rank has to make every group, in the same order**, also those that it is not in. Otherwise ranks wait for each other, or take two groups for one. In a group a rank has a second number:

# %%
def sum_in_pairs():
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]  # all four ranks make both
    mine = pairs[dist.get_rank() // 2]
    total = torch.tensor([dist.get_rank()])
    dist.all_reduce(total, group=mine)
    return dist.get_rank(), dist.get_rank(mine), total.item()

run = launch(sum_in_pairs, world_size=4, device="cpu")
show_table(dict.fromkeys(("global rank", "rank in its group", "sum in the group"), "d"), run.outputs)

# %% [markdown]
# `src` and `dst` are global ranks, also with `group=`. From the second pair's first rank that is `dist.broadcast(x, src=2, group=mine)`, or `group_src=0`.
#
# ### Tied and frozen parameters
#
# Our GPT uses one matrix twice, as the token embedding and as the output head: the two are **tied**. A parameter that is **frozen** (`requires_grad_(False)`) gets no gradient. What do they cost?

# %%
def variant(kind):
    model = models.gpt(SIZE)
    if kind == "untied":
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    if kind == "blocks frozen":
        model.blocks.requires_grad_(False)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    model = DDP(model)
    with measure("step"):
        model(*data.batch(0, 1, CONTEXT)).backward()
    return trainable

# %%
rows = []
for kind in ("tied", "untied", "blocks frozen"):
    run = launch(variant, kind, world_size=2, device="cpu")
    rows.append((kind, run.outputs[0], run.traffic["step"].sent_by_rank.max()))
show_table({"model": "", "trainable parameters": ",d", "sent by a rank": format_bytes}, rows)
predicted = [estimate.traffic.sent_bytes("ddp", trainable, 2)[0] for _, trainable, _ in rows]
holds("4 bytes for each trainable parameter", [sent for *_, sent in rows], predicted, rtol=0.01, unit="bytes")

# %% [markdown]
# A tied parameter is one tensor with one gradient and is sent once. A frozen one is not sent. In DDP's formula, Ψ counts the trainable parameters. Freeze **before** you wrap the model: DDP lists its parameters when it is constructed, and would then wait for gradients that never come, as above.
#
# ## What it costs in memory
#
# DDP divides a batch among N ranks, and with it the work and the activations. Does it divide the rest of the memory as well? With `memory=True` a run also records the live bytes on each rank. **With AdamW, which keeps two numbers for each parameter, how many copies of Ψ will a rank have after a step**, weights, gradients and optimizer state together, for N = 1, 2 and 4?

# %%
predicted_copies = predict("Copies of Ψ on a rank after a step", labels=["N = 1", "N = 2", "N = 4"])
predicted_copies

# %%
live = {}
for n in (1, 2, 4):
    run = launch(ddp, 2, torch.optim.AdamW, world_size=n, device="cpu", memory=True)
    live[n] = run.memory[0].at("step")  # when the last step ended

# %%
categories = ("parameters", "gradients", "optimizer")
copies = [sum(live[n][each] for each in categories) / weight_bytes for n in live]
predicted_copies.compare(copies, {"what it would be if DDP divided it": [copies[0] / n for n in live]})

# %%
show_table(
    {"copies of Ψ": "", **dict.fromkeys(live[1], ".2f")},
    [(f"N = {n}", *(size / weight_bytes for size in live[n].values())) for n in live],
)

# %%
states = estimate.memory.model_states(parameters, precision="fp32", optimizer="adam")
for category, predicted in states.device.items():
    measured = [live[n][category] / weight_bytes for n in live]
    holds(f"copies of Ψ in {category}", measured, predicted / weight_bytes, rtol=0.01)
holds("copies of Ψ in buckets", [live[n]["buckets"] / weight_bytes for n in live], 1, rtol=0.01)

# %% [markdown]
# The same for any N: **everything is on every rank**. Four ranks have four identical copies of the weights, the gradients and the optimizer's state. ZeRO removes this redundancy, in chapter 04. DDP even adds something: its buckets are another copy of the gradients. With `gradient_as_bucket_view=True` the gradients are views of the buckets, and the copy is gone. ("Other" is the text that the batches are drawn from.)

# %%
def ddp_in_buckets():
    return ddp(optimizer_class=torch.optim.AdamW, gradient_as_bucket_view=True)

run = launch(ddp_in_buckets, world_size=2, device="cpu", memory=True)
show_table(
    {"as views": "", "copies of Ψ": ".2f"},
    [(name, size / weight_bytes) for name, size in run.memory[0].at("step").items()],
)

# %% [markdown]
# And DP? Here are both, each rank at its peak:

# %%
peaks = {
    name: launch(fn, 2, torch.optim.AdamW, device="cpu", memory=True).memory.at("peak")
    for name, fn in (("DP", data_parallel), ("DDP", ddp))
}

# %%
figure, all_axes = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True)
for axes, (name, peak) in zip(all_axes, peaks.items(), strict=True):
    bottom = np.zeros(4)
    for category, color in palette.MEMORY.items():
        copies = peak[category] / weight_bytes
        axes.bar(range(4), copies, bottom=bottom, color=color, label=category)
        bottom += copies
    axes.set(title=name, xlabel="rank", xticks=range(4))
all_axes[0].set_ylabel("live bytes, in copies of Ψ")
all_axes[0].legend(frameon=False, loc="upper right")
figure.tight_layout()

# %%
hub, *others = sum(peaks["DP"].values())
holds("DP's hub uses this many times as much memory as another rank", hub / max(others), above=2)
holds("bytes of optimizer state on the other ranks", peaks["DP"]["optimizer"][1:], 0)

# %% [markdown]
# In DP only the hub has optimizer state, and all outputs and all ranks' gradients arrive there as well (here as tensors passed to `gather`, so they count as buckets). The hub runs out of memory first, while the others have memory that nobody can use. That is why DP users see one GPU fuller than the rest.
#
# ## In practice
#
# Only the label `measure("step")` in `ddp` comes from Shardlab, and it does nothing outside `launch`. As a script for any number of GPUs it looks like this:
#
# ```python
# # train.py
# import os
# import torch, torch.distributed as dist
# from torch.nn.parallel import DistributedDataParallel as DDP
# from torch.utils.data import DataLoader, DistributedSampler
#
# dist.init_process_group("nccl")             # reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
# gpu = int(os.environ["LOCAL_RANK"])         # this process's GPU on its machine
# torch.cuda.set_device(gpu)
# model = DDP(build_model().to(gpu), device_ids=[gpu])
# optimizer = torch.optim.AdamW(model.parameters())
# sampler = DistributedSampler(dataset)       # this rank's part of the data
# loader = DataLoader(dataset, batch_size=32, sampler=sampler)
# for epoch in range(epochs):
#     sampler.set_epoch(epoch)                # else every epoch has the same order
#     for tokens, targets in loader:
#         loss = model(tokens.to(gpu), targets.to(gpu))
#         optimizer.zero_grad()
#         loss.backward()
#         optimizer.step()
# if dist.get_rank() == 0:
#     torch.save(model.module.state_dict(), "model.pt")   # one copy is enough
# dist.destroy_process_group()
# ```
#
# `torchrun --standalone --nproc-per-node=4 train.py` starts it four times on one machine. `torchrun` does what `launch` does here: it starts the processes, passes each its rank in those environment variables, and stops all of them when one fails.
#
# What is different on GPUs:
#
# - NCCL instead of gloo: several rings in parallel, or trees (chapter 03), with different headers. $\frac{2(N-1)}{N} \Psi$ holds for its rings.
# - A GPU queues its work. All-reduces run on a separate stream, in parallel with the backward pass, which hides most of their time if the link keeps up. This is not free: an all-reduce of NCCL is a program on the GPU, too. It occupies some of the GPU's processors (**streaming multiprocessors**, SMs), as a rule one for each of its channels (Hu et al. 2025), and it reads and writes the same memory as the backward pass, which is slower meanwhile.
# - If gradients are 16-bit (a bf16 model, or DDP's `bf16_compress_hook`), each takes 2 bytes on the wire, half of what we counted.
#
# ## What to remember
#
# | | DP | DDP |
# |---|---|---|
# | processes | one, with a thread for each GPU | one for each GPU, on any number of machines |
# | sent in a step | the hub $(N-1)\,\Psi$ weights, every other rank Ψ gradients; inputs and outputs on top | each rank $\frac{2(N-1)}{N} \Psi$, below $2\Psi$ for any $N$ |
# | weights are sent | in every step | once, at the start |
# | loss, update, optimizer state | on the hub, while the others wait | on every rank |
#
# - Buckets let gradients be sent during the backward pass. With `no_sync()` around forward **and** backward they are sent only in the last micro-batch.
# - Replicas stay equal because they start equal and take equal steps. DDP makes sure that they start equal.
# - Every trainable parameter must get a gradient on every rank, or DDP waits for it.
# - DDP divides the batch, and with it the work and the activations. Weights, gradients and optimizer state are complete on every rank.
#
# ## Sources
#
# - S. Li et al.: *PyTorch Distributed: experiences on accelerating data parallel training.* [arXiv 2006.15704](https://arxiv.org/abs/2006.15704), 2020. It describes buckets, overlap and `no_sync`.
# - PyTorch documentation: [DataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html), [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html), [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html).
# - A. Radford et al.: *Language models are unsupervised multitask learners.* OpenAI, 2019.
# - Z. Hu et al.: *Demystifying NCCL.* [arXiv 2507.04786](https://arxiv.org/abs/2507.04786), 2025.
# - P. Patarasuk, X. Yuan: *Bandwidth optimal all-reduce algorithms for clusters of workstations.* Journal of Parallel and Distributed Computing 69(2), 2009.
# - S. Rajbhandari et al.: *ZeRO: memory optimizations toward training trillion parameter models.* [arXiv 1910.02054](https://arxiv.org/abs/1910.02054), 2020.
