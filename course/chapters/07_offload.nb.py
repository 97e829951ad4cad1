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
# # 07 · Offload
#
# A model of Ψ parameters, trained in 16 bits with Adam, takes 16Ψ bytes of model states ([chapter 04](04_zero.ipynb)). 12Ψ of them are fp32: a master copy of each parameter, momentum and variance. Forward and backward never use these. They are needed once per step, for the update.
#
# Every GPU (the **device**) sits in a computer (the **host**), which usually has several times as much memory. **Offloading** keeps data on the host that the device does not need all the time. The question of this chapter: what has to move between the two in each step, and what does that cost?
#
# **After this chapter you can**
#
# - compute what ZeRO-Offload moves between device and host in a step, and what it frees;
# - decide from link speed and tokens per step whether offload pays off;
# - check that a DeepSpeed engine really offloads what its configuration says.
#
# **You need:** [04 ZeRO memory math](04_zero.ipynb).

# %% [markdown]
# <details open><summary>Gradients go down to the host, the update runs there, and new weights come back up</summary>
#
# [![Animation: Gradients go down to the host, the update runs there, and new weights come back up](openers/07_offload.svg)](openers/07_offload.svg)
#
# The device computes forward and backward. Then, parameter by parameter, the gradient is copied to the host, the host updates its fp32 master copy, and the new weight is copied to the device. (56 copies. On a machine without a GPU the two memories are simulated, and the times are those of its CPU.) (Recorded from real processes.)
#
# </details>

# %% jupyter={"source_hidden": true}
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import difflib
import json
import statistics
import time
from unittest import mock

import matplotlib.pyplot as plt
import torch
from torch import nn

from shardlab import data, holds, launch, models, placement, show_table, warm_up
from shardlab.estimate import memory, offload
from shardlab.placement import PoolError, Pools
from shardlab.widgets import memory_bars, offload_times, palette, predict

warm_up("deepspeed")  # loads in the background while you read

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# ## Two pools of memory
#
# `Pools` represents our device and our host. On a GPU both are real: the GPU's memory, and **pinned** host memory, which the operating system may not move, so that the GPU can copy from it directly. **On a CPU there is only one memory, and Shardlab tracks it as two pools**, with a GPU's rules: an operation runs where its tensors are, one operation cannot mix tensors of both pools, and only `to_host` and `to_device` move data. Byte counts and tensor placement are the same as on a GPU; times are not.

# %%
print("For the first operation in a pool, PyTorch loads the modules that watch operations: a few seconds …")
pools = Pools("cpu")
with pools:
    on_device = torch.ones(1000, dtype=torch.bfloat16)
    on_host = pools.to_host(on_device)
    print("moved to the host:", pools.to_host_bytes, "bytes")
    try:
        on_host + on_device
    except PoolError as error:
        print("PoolError:", error)

# %% [markdown]
# Now we put a model on the device, in bf16, and run one forward and backward pass over real text. **How many bytes per parameter are on the device after backward?** (The inputs are too small to matter.)

# %%
predicted_bytes_each = predict("Bytes per parameter on the device after backward", unit="bytes")
predicted_bytes_each

# %%
model = models.gpt("0.3M").bfloat16()
count = models.count_parameters(model)
tokens, targets = data.batch(0, batch_size=4, context=64)

def forward_and_backward(model, tokens, targets):
    model.zero_grad()
    model(tokens, targets).backward()

# %%
pools = Pools("cpu")
with pools:
    forward_and_backward(model, tokens, targets)
live_bytes = pools.live_bytes("device")

# %%
with_adam = memory.model_states(count).device_bytes / count
named = {"what training with Adam takes, but there is no optimizer yet": with_adam}
predicted_bytes_each.compare(live_bytes["bfloat16"] / count, named)

# %%
holds("2Ψ of parameters, 2Ψ of gradients: bytes per parameter", live_bytes["bfloat16"] / count, 4, atol=0.01)
show_table(
    {"on the device": "", "after backward": ",d", "at the peak, with activations": ",d"},
    [(dtype, live_bytes.get(dtype), peak) for dtype, peak in pools.peak_bytes("device").items()],
    caption=f"bytes, for Ψ = {count:,} parameters",
)

# %% [markdown]
# ## The obvious way: swap
#
# Keep the states on the host, and copy them to the device when the update needs them. An operating system does the same when memory runs short; this is called **swapping**.

# %%
def states_on_host(model, pools):
    """Master, momentum and variance of each parameter: 4 bytes each."""
    with pools.host():
        masters = [pools.to_host(p.detach()).float() for p in model.parameters()]
    return [(master, torch.zeros_like(master), torch.zeros_like(master)) for master in masters]

# %%
def swapped_step(model, states, pools, lr=1e-3):
    """Adam's first step, on the device. ``states`` are moved there one parameter at a time."""
    for parameter, on_host in zip(model.parameters(), states):
        master, momentum, variance = (pools.to_device(state) for state in on_host)
        gradient = parameter.grad.float()
        momentum.lerp_(gradient, 0.1)
        variance.lerp_(gradient.square(), 0.001)
        master.sub_(lr * (momentum / 0.1) / ((variance / 0.001).sqrt() + 1e-8))
        parameter.data.copy_(master)
        for state, new in zip(on_host, (master, momentum, variance)):
            state.copy_(pools.to_host(new))

# %% [markdown]
# **How many bytes per parameter go up to the device in this step, and how many come down to the host?**

# %%
predicted_swap = predict("Bytes per parameter that cross the link", unit="bytes", labels=["up", "down"])
predicted_swap

# %%
pools = Pools("cpu")
with pools:
    states = states_on_host(model, pools)
    forward_and_backward(model, tokens, targets)
    before = pools.to_host_bytes  # creating the states moved the weights once
    swapped_step(model, states, pools)
swap_moved = pools.to_device_bytes / count, (pools.to_host_bytes - before) / count
sixteen_bit = 2 * pools.live_bytes("device")["bfloat16"] / 4 / count
predicted_swap.compare(swap_moved, {"what the 16-bit parameters and gradients would take": sixteen_bit})

# %% [markdown]
# It works, and between steps no states are on the device. But all 12Ψ bytes cross twice, and while a parameter is updated, its states and its fp32 gradient are on the device:

# %%
print("fp32 on the host:", pools.live_bytes("host")["float32"] / count, "bytes per parameter")
print(f"fp32 on the device at the peak: {pools.peak_bytes('device')['float32']:,} bytes")

# %% [markdown]
# ## ZeRO-Offload: move the work to the data
#
# The update is cheap: one or two dozen operations per parameter, while forward and backward take about 6 per parameter **and token**. So the host's CPU can run it, where the states are. Ren et al. (2021) call this **ZeRO-Offload**:
#
# ```
# device   parameters (16 bit) ──► forward, backward ──► gradients (16 bit)
#               ▲                                             │
#               │ 2Ψ bytes up                                 │ 2Ψ bytes down
#               │                                             ▼
# host     round to 16 bit ◄────── Adam's update ◄────── widen to fp32
#                                  masters, momentum, variance (12Ψ bytes, kept here)
# ```
#
# Only 16-bit numbers cross, in both directions. Here we only make the moves, with zeros in place of the new weights; you will write the optimizer in the lab.

# %%
def move_without_update(model, pools):
    for parameter in model.parameters():
        on_host = pools.to_host(parameter.grad)
        with pools.host():
            new_weight = torch.zeros_like(on_host)
        pools.to_device(new_weight)

# %%
pools = Pools("cpu")
with pools:
    forward_and_backward(model, tokens, targets)
    move_without_update(model, pools)
offload_moved = pools.to_device_bytes / count, pools.to_host_bytes / count
print(f"measured: {offload_moved[0]:.0f} up, {offload_moved[1]:.0f} down, per parameter")

# %% [markdown]
# The formula, compared with both measurements:

# %%
def predicted_moves(method):
    moved = offload.moved_bytes(count, method)
    return moved.to_device_bytes / count, moved.to_host_bytes / count

measured = {"swap": swap_moved, "zero-offload": offload_moved}
for method, moves in measured.items():
    holds(f"{method}: bytes up and down per parameter", moves, predicted_moves(method))

# %%
figure, axes = plt.subplots(figsize=(7, 2.4))
labels = [f"{method}, {way}" for method in measured for way in ("up", "down")]
rows = range(len(labels))
axes.barh([row - 0.2 for row in rows], [*predicted_moves("swap"), *predicted_moves("zero-offload")],
          height=0.36, color=palette.PREDICTED, label="predicted")
axes.barh([row + 0.2 for row in rows], [*swap_moved, *offload_moved],
          height=0.36, color=palette.MEASURED, label="measured")
axes.set(yticks=rows, yticklabels=labels, xlabel="bytes moved per parameter in a step")
axes.invert_yaxis()
axes.legend(frameon=False)
figure.tight_layout()

# %% [markdown]
# ### Can it be done with less?
#
# No, says section 3 of the paper. Draw a step as a cycle: parameters → forward and backward → gradients → update → parameters. Everything on the cycle is on the device or on the host. If anything is on the host, the cycle crosses between the two at least twice, and each crossing moves at least 2Ψ bytes. (Forward and backward stay on the device: their work grows with the batch.) That leaves four ways to place the 16-bit gradients and the update with its states. This is what each leaves on the device:

# %%
PARAMETERS, GRADIENTS, UPDATE = 2, 2, 12  # bytes for each parameter: 16 bit, 16 bit, three in fp32
on_host = {
    "nothing": 0,
    "gradients": GRADIENTS,
    "update": UPDATE,
    "gradients and update": GRADIENTS + UPDATE,
}
left = {what: PARAMETERS + GRADIENTS + UPDATE - moved for what, moved in on_host.items()}
show_table(
    {"on the host": "", "on the device, bytes per parameter": "d", "times less": ".2f"},
    [(what, each, 16 / each) for what, each in left.items()],
)

# %% [markdown]
# The last row is ZeRO-Offload: an eighth of the memory for the fewest bytes that any offload can move. Gradients go down during backward, one bucket at a time, so only one bucket of them is ever on the device.
#
# ## 13 billion parameters on one GPU
#
# The paper trains a model with 13B parameters on a single V100 with 32 GB. Let us reproduce that number (GB = 10⁹ bytes). **How many GB of model states stay on the device, and how many are on the host?**

# %%
predicted_13b_gb = predict("Model states of 13B parameters", unit="GB", labels=["device", "host"])
predicted_13b_gb

# %%
plain = memory.model_states(13e9)
offloaded_13b = memory.model_states(13e9, stage=2, offload_optimizer=True)
plain_gb = plain.device_bytes / 1e9
on_device, on_host = offloaded_13b.device_bytes / 1e9, offloaded_13b.host_bytes / 1e9

# %%
named = {"the parameters counted twice": [on_device, plain_gb], "no offload": [plain_gb, 0]}
predicted_13b_gb.compare([on_device, on_host], named, "calculated")

# %%
show_table(
    {"13B parameters": "", "device, GB": ".0f", "host, GB": ".0f"},
    [("no offload", plain_gb, 0), ("optimizer offloaded", on_device, on_host)],
)

# %%
most = memory.largest_model(32e9, stage=2, offload_optimizer=True)
print(f"32 GB hold the parameters of {most / 1e9:.0f}B and nothing else;")
print(f"13B leaves {(32e9 - offloaded_13b.device_bytes) / 1e9:.0f} GB for activations and buckets")

# %%
memory_bars(parameters=13e9, world_size=1, stage=2, offload="optimizer", capacity_bytes=32e9)

# %% [markdown]
# With one rank ZeRO's stages alone save nothing: try the sliders. Only offload makes the model fit, and by the paper's count it needs a host with 182 GB to spare. DeepSpeed needs more: see "What DeepSpeed keeps on the host" below.
#
# ## How long do the moves take?
#
# Bytes divided by bandwidth. Here is the copy bandwidth of this machine, from one pool to the other:

# %%
def copy_bytes_per_s(elements=2**22, repeats=7):
    pools = Pools("cpu")
    with pools:
        gradients = torch.ones(elements, dtype=torch.bfloat16)
        for _ in range(repeats):
            pools.to_host(gradients)
    return statistics.median(move.bytes / (move.end_s - move.start_s) for move in pools.moves)

here_bytes_per_s = copy_bytes_per_s()
print(f"a copy here: {here_bytes_per_s / 1e9:.2f} GB/s")

# %% [markdown]
# This is one core copying within one memory. It says nothing about your GPU, where the link between device and host is the limit: PCIe 3.0 with 16 lanes, as on a V100, carries at most about 16 GB/s each way, and every generation doubles that. We can also measure the host's update here, and that number is meaningful, for one core and PyTorch's AdamW:

# %%
def updates_per_s(elements=2**20, repeats=5):
    master = nn.Parameter(torch.ones(elements))
    adam, seconds = torch.optim.AdamW([master]), []
    master.grad = torch.ones(elements)
    for _ in range(repeats):
        start = time.perf_counter()
        adam.step()
        seconds.append(time.perf_counter() - start)
    return elements / statistics.median(seconds)

# %%
torch_parameters_per_s = updates_per_s()
print(f"torch's AdamW here: {torch_parameters_per_s / 1e6:.0f} million parameters a second")
print(f"13B would take {13e9 / torch_parameters_per_s:.0f} s,",
      f"their moves {26e9 / 16e9:.1f} s each way on PCIe 3.0")

# %% [markdown]
# The update is the slow part, not the link. That is why DeepSpeed has **DeepSpeedCPUAdam**: Adam in C++ for the host, with vector instructions, on all cores, in a single pass over the states. Its documentation claims 5 to 7 times the speed of `torch.optim.AdamW`. It is compiled on first use, which takes about a minute. Our runs below do not use it: results are the same, only times differ.
#
# ## When it pays off
#
# Forward and backward take 6Ψ operations per token, so with $T$ tokens per step they take $6\Psi T$ seconds, divided by the operations per second of the device. The moves take $4\Psi$ seconds, divided by the bytes per second of the link, if nothing overlaps. **For a model ten times as large, is offload's share of the step larger, smaller, or the same?**

# %%
SHARES = ["larger", "smaller", "the same"]
predicted_share = predict("For a model ten times as large, offload's share of the step is", options=SHARES)
predicted_share

# %%
MACHINE = {"device_flops_per_s": 50e12, "link_bytes_per_s": 16e9, "host_parameters_per_s": 4e9}

def times_longer(parameters, tokens):
    work = {"tokens_per_step": tokens, **MACHINE}
    without = offload.step_seconds(parameters, "device", **work)
    offloaded = offload.step_seconds(parameters, "zero-offload", overlap=False, **work)
    return offloaded.step_s / without.step_s

# %%
small, large = times_longer(1e9, 8192), times_longer(10e9, 8192)
change = "the same" if abs(small / large - 1) < 1e-9 else "larger" if large > small else "smaller"
predicted_share.compare(change, source="calculated")

# %%
holds("how many times as long a step takes, 1B and 10B parameters", small, large, rtol=1e-9)

# %% [markdown]
# The same: Ψ is in every term and cancels. What matters is **tokens per step**. Moves and update happen once, however large the batch:

# %%
show_table(
    {"tokens per step": ",d", "times as long": ".2f"},
    [(tokens, times_longer(10e9, tokens)) for tokens in (512, 2048, 8192, 32768, 131072)],
)

# %% [markdown]
# So use the memory that offload frees for a larger batch. The picture below has sliders for all of this, and three more placements. Its bars come from the model in `estimate.offload`: round numbers for a GPU with 32 GB, nothing measured. With overlap, gradients go down during backward, and new parameters come up while the host is still updating others.

# %%
offload_times(parameters=10e9, tokens_per_step=8192, **MACHINE, capacity_bytes=32e9)

# %% [markdown]
# ## Further: parameters and NVMe
#
# With ZeRO-3 each rank keeps 1/N of the parameters. These can live on the host too; then the device holds one layer at a time, and each layer comes up twice in a step, for forward and for backward. Beyond the host there is **NVMe**, the computer's solid-state disk: even larger, and even slower (ZeRO-Infinity, Rajbhandari et al. 2021). For 7.5B parameters on 8 ranks each rank moves:

# %%
def gigabytes(moved):
    sizes = moved.to_host_bytes, moved.to_device_bytes, moved.nvme_read_bytes, moved.nvme_written_bytes
    return [size / 1e9 for size in sizes]

show_table(
    {"placement": "", **dict.fromkeys(("down", "up", "read from NVMe", "written to NVMe"), ".2f")},
    [
        (method, *gigabytes(offload.moved_bytes(7.5e9, method, world_size=8)))
        for method in ("device", "zero-offload", "parameters", "nvme")
    ],
    caption="GB that each rank moves in a step",
)

# %% [markdown]
# Each rank moves its own share over its own link. With more ranks each share is smaller, but all ranks share the host and its disk.
#
# ## In practice: DeepSpeed
#
# You set up DeepSpeed with a **configuration**, a dict or a JSON file. Plain ZeRO-3 in bf16:

# %%
plain_config = {
    "train_micro_batch_size_per_gpu": 4,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}

# %% [markdown]
# Two keys turn on offload, one for the optimizer and one for the parameters. Both belong inside `zero_optimization`. (In DeepSpeed 0.19.8 `pin_memory` is true unless you turn it off. We write it anyway: readers of the file should not have to know that.) New lines are marked:

# %%
on_host = {"device": "cpu", "pin_memory": True}
offload_config = plain_config | {
    "zero_optimization": {"offload_optimizer": on_host, "offload_param": on_host, "stage": 3}
}

# %%
def show_change(before, after):
    lines = [json.dumps(config, indent=2).splitlines() for config in (before, after)]
    marked = [line for line in difflib.ndiff(*lines) if line[0] in " +"]
    print(*(line.replace("+ ", "▶ ", 1) for line in marked), sep="\n")

show_change(plain_config, offload_config)

# %% [markdown]
# We run both on two real ranks with the same model and the same text, three steps each. We pass PyTorch's AdamW; the two keys in `OWN_OPTIMIZER` make DeepSpeed accept it.

# %%
OWN_OPTIMIZER = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}

def start_engine(config):
    import deepspeed

    torch.manual_seed(0)
    model = models.gpt("0.1M")
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return deepspeed.initialize(model=model, optimizer=adam, config=config | OWN_OPTIMIZER)[0]

# %%
def train(config, steps=3):
    engine, losses = start_engine(config), []
    for step in range(steps):
        tokens, targets = data.batch(step, 4, 64, torch.distributed.get_rank(), world_size=2)
        loss = engine(tokens, targets)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses, placement.of_deepspeed(engine)

def train_both():
    return train(plain_config), train(offload_config)

# %% [markdown]
# **Will the losses of the two be equal, close, or different?**

# %%
predicted_losses = predict("The losses with and without offload are", options=["equal", "close", "different"])
predicted_losses

# %%
run = launch(train_both, world_size=2, device="cpu", timeout_s=60)

# %%
losses = [(without[0], with_it[0]) for without, with_it in run.outputs]
far = max(abs(a - b) for both in losses for a, b in zip(*both, strict=True))
predicted_losses.compare("equal" if far == 0 else "close" if far < 0.01 else "different")

# %%
names = ("plain", "offload")
show_table(
    {"rank": "d", "configuration": "", **{f"loss {step}": ".4f" for step in range(3)}},
    [(r, name, *both[i][0]) for r, both in enumerate(run.outputs) for i, name in enumerate(names)],
)

# %%
plain_losses, offload_losses = zip(*[(a, b) for (a, _), (b, _) in run.outputs])
holds("the losses are the same, bit for bit", plain_losses == offload_losses)
engines = [(rank, name, both[i][1]) for rank, both in enumerate(run.outputs) for i, name in enumerate(names)]
show_table(
    {"rank": "d", "configuration": "", "stage": "d", "elements": ",d", "parameters on": "", "optimizer on": ""},
    [
        (rank, name, engine["stage"], engine["optimizer"]["elements"],
         engine["parameters"]["place"], engine["optimizer"]["place"])
        for rank, name, engine in engines
    ],
)
half = models.count_parameters(models.gpt("0.1M")) // 2
holds("elements on each rank", [engine["parameters"]["elements"] for *_, engine in engines], half)

# %% [markdown]
# The losses are identical: offload changes where the update happens, not what it computes. Either way each rank holds half of the elements, as the size of its buffers shows.
#
# **What these ranks can and cannot show.** The engine reports `host`, and its sizes are those of its real buffers. It ran the code paths of offload: gradients went into host buffers, the update ran on them, parameters came back. But both pools of a CPU rank are the same memory: `tensor.device` is `cpu` before and after, and nothing crossed a link. On a GPU the first configuration shows `cuda:0` where the second shows `cpu`.
#
# ### What DeepSpeed keeps on the host
#
# The paper moves 16-bit gradients, and the host widens them to fp32. How does DeepSpeed do it? We run both configurations again and look at the gradients that are alive after backward, in bytes per parameter of a rank's share:

# %%
share = models.count_parameters(models.gpt("0.1M")) // 2
gradients = {}
for name, config in (("plain", plain_config), ("offload", offload_config)):
    run = launch(train, config, 1, world_size=2, device="cpu", memory=True, timeout_s=60)
    gradients[name] = run.memory.at("backward")["gradients"] / share
show_table(
    {"gradients, bytes per parameter": "", "rank 0": ".2f", "rank 1": ".2f"},
    [(name, *by_rank) for name, by_rank in gradients.items()],
)
holds("more with offload, in bytes per parameter", gradients["offload"] - gradients["plain"], 4, atol=0.01)

# %% [markdown]
# With offload there are 4 bytes more: an **fp32** buffer for the gradients, on the host. The code shows that they are widened on the device, before the move (`_offload_grad_partition_at_boundary` in `stage3.py`, `async_inplace_copy_grad_to_fp32_buffer_from_gpu` in `stage_1_and_2.py`). So in DeepSpeed 0.19.8, where the paper counts $2\Psi/N$ bytes down, $4\Psi/N$ go down at stage 2. At stage 3, as here, it is $6\Psi/N$: the 16-bit gradients go down first, and come up again ($2\Psi/N$) to be widened (`partition_grads`). The host holds $(4 + 12)\,\Psi$ bytes instead of $14\Psi$. Its estimator adds half of that for further buffers:

# %%
estimate = memory.model_states(13e9, stage=2, offload_optimizer=True, convention="deepspeed")
buffers = estimate.host["gradients"] + estimate.host["optimizer"]
show_table({"on the host for 13B": "", "GB": ".0f"}, [
    ("by the paper's count", offloaded_13b.host_bytes / 1e9),
    ("with fp32 gradients", buffers / 1e9),
    ("by the estimator", estimate.host_bytes / 1e9),
])

# %% [markdown]
# Which of these is right? The second is what the buffers take. The third is advice, for memory that is needed while the model is loaded and for everything that nobody counted. Plan with it.
#
# ## What goes wrong
#
# **A misplaced key fails silently.** Each of these three asks for offload, and DeepSpeed starts:

# %%
off = {"device": "cpu"}
misplaced = {
    "next to zero_optimization": {"zero_optimization": {"stage": 2}, "offload_optimizer": off},
    "without a stage": {"zero_optimization": {"stage": 0, "offload_optimizer": off}},
    "parameters at stage 2": {"zero_optimization": {"stage": 2, "offload_param": off}},
}

def where_things_are():
    return [placement.of_deepspeed(start_engine(plain_config | more)) for more in misplaced.values()]

# %%
run = launch(where_things_are, world_size=2, device="cpu", timeout_s=60)
places = [(e["optimizer"]["place"], e["parameters"]["place"]) for e in run.outputs[0]]
show_table(
    {"the key is": "", "optimizer on": "", "parameters on": ""},
    [(name, *each) for name, each in zip(misplaced, places)],
)
holds("everything is still on the device", set(places), {("device", "device")})

# %% [markdown]
# Nothing was offloaded, and there was no warning. Inside `zero_optimization` an unknown key is an error; at the top level it is ignored. So never rely on the configuration: check the engine. Other pitfalls:
#
# - **Accumulation.** Gradients go down after each backward, not once per step: by the paper's count $8 \cdot 2\Psi/N$ bytes with 8 micro-batches, added up on the host. In DeepSpeed the host only stores the sum. For each further micro-batch it comes up, the device adds to it, and it goes down again; the last time it also goes down in fp32 (`async_accumulate_grad_in_cpu_via_gpu`). At stage 2 that is $(2m + 4)\,\Psi/N$ bytes down and $2(m-1)\,\Psi/N$ bytes of gradients up for $m$ micro-batches, if $m > 1$:

# %%
def down_and_up(m, stage):
    moved = offload.moved_bytes(7.5e9, world_size=8, micro_batches=m, deepspeed_stage=stage)
    return gigabytes(moved)[:2]

ways = ("GB down, paper", "GB up, paper", "GB down, DeepSpeed", "GB up, DeepSpeed")
show_table(
    {"micro-batches": "d", **dict.fromkeys(ways, ".2f")},
    [(m, *down_and_up(m, None), *down_and_up(m, 2)) for m in (1, 4, 8)],
    caption="gradients and parameters, at stage 2",
)

# %% [markdown]
# - **A small host.** It must hold the states of all ranks: 12Ψ bytes, and the gradients, 2Ψ by the paper's count and 4Ψ in DeepSpeed. The operating system cannot swap out pinned memory; if memory runs short, the whole computer stalls.
# - **Few cores.** All ranks on a computer share its cores for the update: eight ranks on eight cores have only one core each. DeepSpeed's launcher has `--bind_cores_to_rank` for this.
# - **Time.** With `torch.optim.AdamW` on the host the update may take longer than everything else. DeepSpeed rejects it unless you set `zero_force_ds_cpu_optimizer` to false; on a GPU machine let it build DeepSpeedCPUAdam.
#
# ## In practice: FSDP2
#
# PyTorch's FSDP2 ([chapter 05](05_fsdp.ipynb)) offloads with `offload_policy=CPUOffloadPolicy()`: shards, gradients and optimizer states live on the host, and the optimizer you pass runs there. It is all or nothing; DeepSpeed can offload the optimizer alone. Our ranks have no other memory, so nothing really moves here. But we can count which copies FSDP asks for, if we replace `Tensor.to`. (`pin_memory=False`, because pinned memory needs an accelerator.)

# %%
def fsdp_moves(batch):
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    offloaded = {"offload_policy": CPUOffloadPolicy(pin_memory=False)}
    model = models.gpt("0.3M")
    for unit in (*model.blocks, model):
        fully_shard(unit, mp_policy=MixedPrecisionPolicy(torch.bfloat16), **offloaded)
    moved, original = [], torch.Tensor.to
    def counted(tensor, *place, **options):
        if place and isinstance(place[0], torch.device):
            moved.append((tensor.nbytes, str(tensor.dtype)))
        return original(tensor, *place, **options)
    with mock.patch.object(torch.Tensor, "to", counted):
        model(*batch).backward()
    return sum(nbytes for nbytes, _ in moved), {dtype for _, dtype in moved}

# %%
text = [data.batch(0, 2, 32, rank, 4) for rank in range(4)]
moved, dtypes = launch(fsdp_moves, inputs=text, device="cpu", quiet=True).outputs[0]
psi = models.count_parameters(models.gpt("0.3M"))
in_blocks = models.count_parameters(models.gpt("0.3M").blocks)
print("moved in", *dtypes)
holds("up twice (the root once), down once", moved, 2 * psi + in_blocks, unit="bytes")

# %% [markdown]
# Each shard goes up before every gather, so twice per step (the root's once), and its gradient comes down. All of that is fp32, although the policy computes in bf16: a shard is cast on the device. So a rank moves $8\Psi/N$ bytes up and $4\Psi/N$ down for each batch, against DeepSpeed's $6\Psi/N$ down and $2\Psi/N$ up at stage 3.
#
# **Clipping needs a process group for CPU tensors.** The gradients are on the host, so `clip_grad_norm_` all-reduces a norm that is on the host, and NCCL cannot: "No backend type associated with device type cpu" ([PyTorch issue 148532](https://github.com/pytorch/pytorch/issues/148532)). Start the ranks with `init_process_group("cpu:gloo,cuda:nccl")`.
#
# ## Where a GPU differs
#
# - **Places are real.** `Pools("cuda")` moves tensors between the GPU's memory and pinned host memory, and `nvidia-smi` shows the difference. Shardlab's tests run on CPUs and do not cover it.
# - **Copies overlap with computation.** A GPU copies while it computes, in both directions at the same time. That hides the moves behind backward, as long as host memory is pinned.
# - **Links are shared.** Two GPUs behind one PCIe switch have half the bandwidth each. Grace Hopper's NVLink-C2C has 450 GB/s each way, according to NVIDIA, which shifts the break-even point by a factor of 28 compared with PCIe 3.0.
#
# ## What to remember
#
# - Move the update to the states, not the states to the update: $2\Psi/N$ bytes down and $2\Psi/N$ up per step, instead of $12\Psi/N$ each way. (In DeepSpeed gradients take $4\Psi/N$ down at stage 2; at stage 3 $6\Psi/N$ down and $2\Psi/N$ up.)
# - 2Ψ bytes of parameters stay on the device; 12Ψ bytes of fp32 states are on the host, and the gradients.
# - The cost of offload per token depends on the tokens per step, not on the size of the model.
# - Check the engine, not the configuration: a misplaced key is ignored without a warning.
#
# ## Sources
#
# - J. Ren et al.: *ZeRO-Offload: democratizing billion-scale model training.* [arXiv 2101.06840](https://arxiv.org/abs/2101.06840), 2021.
# - S. Rajbhandari et al.: *ZeRO-Infinity: breaking the GPU memory wall for extreme scale deep learning.* [arXiv 2104.07857](https://arxiv.org/abs/2104.07857), 2021.
# - S. Rajbhandari et al.: *ZeRO: memory optimizations toward training trillion parameter models.* [arXiv 1910.02054](https://arxiv.org/abs/1910.02054), 2020.
# - DeepSpeed 0.19.8: [configuration JSON](https://www.deepspeed.ai/docs/config-json/), the documentation of `DeepSpeedCPUAdam`, and the code in `deepspeed/runtime/zero`: `offload_config.py`, `stage_1_and_2.py` (with the estimator) and `stage3.py`.
# - PCI-SIG: PCI Express 3.0, 8 GT/s on each lane. NVIDIA: *Grace Hopper Superchip architecture*, on NVLink-C2C.
