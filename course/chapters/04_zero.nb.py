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
# # 04 · ZeRO memory math
#
# In data-parallel training every rank holds everything: all parameters, all gradients, all of the optimizer. N ranks hold N copies of the same numbers. **ZeRO** (*zero redundancy optimizer*) keeps one copy, in slices, one slice on each rank.
#
# The question of this chapter: how many bytes are left on each rank, and what does that cost in traffic?

# %%
import json

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist

from shardlab import data, launch, measure, models, shards
from shardlab.estimate import memory, traffic
from shardlab.estimate.zero_extras import zero_extras
from shardlab.widgets import format_bytes, memory_bars, memory_timeline, palette, shard_map

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# Below, Ψ (psi) is the number of parameters and N the number of ranks. We train a small GPT on four ranks, each with its own two lines of text. All runs ask for `device="cpu"`, because we want bytes counted on the wire.

# %%
world_size = 4
model = models.gpt("0.3M")
parameters = models.count_parameters(model)
batches = [data.batch(0, 2, 32, rank, world_size) for rank in range(world_size)]
print(f"Ψ = {parameters:,} parameters, N = {world_size} ranks")

# %% [markdown]
# ## Where 16 bytes for each parameter go
#
# **Mixed precision** computes in 16 bits and updates in 32. A bf16 number keeps 8 significant bits, too few to add a small update to it, so the optimizer keeps a **master copy** of each parameter in fp32 and adds to that. Adam keeps two more fp32 numbers: a running mean of the gradient, and one of its square. All these together are the **model states**.

# %%
state_bytes = {
    "parameter, bf16": 2, "gradient, bf16": 2,
    "master copy, fp32": 4, "Adam's mean, fp32": 4, "Adam's mean of squares, fp32": 4,
}
for what, size in state_bytes.items():
    print(f"{size:4}  {what}")
print(f"{sum(state_bytes.values()):4}  bytes for each parameter")

# %% [markdown]
# We run it with DeepSpeed, the library that ZeRO comes from. It wraps the model in an **engine**, which owns the optimizer. Everything else is said in a configuration, a dictionary or a JSON file:

# %%
def configuration(stage, **more):
    for_a_small_model = {"reduce_bucket_size": 2**15, "stage3_param_persistence_threshold": 0}
    return {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "gradient_clipping": 0.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage, **for_a_small_model, **more},
    }

# %% [markdown]
# `torch_adam` asks for PyTorch's own Adam; DeepSpeed would otherwise compile one. What the two keys for a small model do comes further down.
#
# The training itself is plain DeepSpeed. `measure` marks a block so that its bytes are told apart. After backward, when gradients are there, we read the layout: who holds what. (gloo's threads may hold what they sent for a moment longer. In a `barrier` ranks wait for each other, and the threads let go.)

# %%
def train(batch, config):
    import deepspeed

    torch.manual_seed(0)  # the same parameters on every rank
    model = models.gpt("0.3M").bfloat16()
    engine, *_ = deepspeed.initialize(model=model, config=config)
    for step in range(2):
        with measure(f"step {step}"):
            engine.backward(engine(*batch))
            with measure("after backward"):
                dist.barrier()
                layout = shards.of_deepspeed(engine)
            engine.step()
    return layout

# %% [markdown]
# Stage 0 shards nothing. **How many bytes of model states does each of the four ranks hold, for each parameter?**

# %%
# Your prediction: bytes on each rank for each parameter, at stage 0
predicted_bytes_each = None

# %% [markdown]
# The first run loads DeepSpeed, once for this notebook. `memory=True` follows every tensor's storage; we look at what was alive after the second backward pass.

# %%
options = {"inputs": batches, "memory": True, "device": "cpu"}
runs = {0: launch(train, configuration(0), **options)}

# %%
STATES = ("parameters", "gradients", "optimizer")

def states_each(run, moment="after backward"):
    """Bytes for each parameter, on the rank that holds most."""
    live = run.memory.at(moment)
    return np.array([live[state].max() for state in STATES]) / parameters

print("parameters, gradients, optimizer:", states_each(runs[0]).round(3))
print("your prediction:", predicted_bytes_each, "  measured:", states_each(runs[0]).sum().round(3))

# %% [markdown]
# All 16, on each of the four ranks. A model of 7.5 billion parameters would take 120 GB of every GPU before the first activation.
#
# ## Three stages
#
# Adam treats every element by itself. So a rank can update a slice of the parameters without ever seeing the rest of the optimizer's states: only who *uses* something must have it.
#
# | stage | sliced | bytes on each rank (Rajbhandari et al. 2020) |
# |---|---|---|
# | 0 | nothing | 16Ψ |
# | 1 | optimizer states | 4Ψ + 12Ψ/N |
# | 2 | gradients as well | 2Ψ + 14Ψ/N |
# | 3 | parameters as well | 16Ψ/N |
#
# At stage 1 each rank updates its slice, and an all-gather hands the new parameters round. At stage 2 a gradient is needed only by the rank that will use it: the others free it as soon as it is summed. At stage 3 not even parameters stay: a layer is gathered when it is its turn, and freed right after.
#
# **For N = 4, how many bytes for each parameter at stages 1, 2 and 3?**

# %%
# Your prediction: bytes on each rank for each parameter at stages 1, 2 and 3, as a list
predicted_by_stage = None

# %%
free_at_once = {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
runs[1] = launch(train, configuration(1), **options)
runs[2] = launch(train, configuration(2), **options)
runs[3] = launch(train, configuration(3, **free_at_once), **options)

# %%
print("stage   paper  measured   parameters, gradients, optimizer")
for stage, run in runs.items():
    paper = memory.model_states(parameters, stage=stage, world_size=world_size).device_bytes
    each = states_each(run)
    print(f"{stage:5} {paper / parameters:7.2f} {each.sum():9.2f}  ", each.round(2))
print("your prediction for stages 1, 2 and 3:", predicted_by_stage)

# %% [markdown]
# Choose a stage below to see its step over time: parameters lie at the bottom, the optimizer's part shrinks from stage 0 to stage 1, gradients come and go.

# %%
memory_timeline({f"stage {stage}": run for stage, run in runs.items()})

# %% [markdown]
# The bars show the same by formula, for the model and the ranks of our run, with what was measured after backward beside it. The sliders take you to other models and other N.

# %%
memory_bars(parameters, world_size, stage=2, measured=runs[2], moment="after backward")

# %% [markdown]
# ### What the paper leaves out, by name
#
# Formula and measurement are close, but not equal, and at stage 1 the run holds **less** than the paper says. Each difference has a name and follows from the tensors' sizes:
#
# - **freed gradients**: after its last backward before a step, DeepSpeed frees at stage 1, too, what only other ranks will use.
# - **tensors on a border**: a gradient whose tensor lies in two ranks' slices is kept whole by both.
# - **padding**: slices are equal, so the last may reach past the last parameter.
# - **step counters**: Adam counts its steps, 4 bytes for each tensor that it updates.

# %%
numels = {name: parameter.numel() for name, parameter in model.named_parameters()}
for stage, run in runs.items():
    about = {"stage": stage, "world_size": world_size}
    extras = zero_extras(numels, persistence_threshold=0, **about)
    predicted = memory.model_states(parameters, **about).device_bytes
    predicted += sum(map(np.array, extras.values()))
    measured = sum(run.memory.at("after backward")[state] for state in STATES)
    print(f"stage {stage}: measured / predicted on each rank:", (measured / predicted).round(4))
    print("   beyond the paper, rank 2:", {name: round(each[2]) for name, each in extras.items()})
    assert (abs(measured / predicted - 1) < 0.02).all()

# %% [markdown]
# What then tells stage 1 from stage 2? Gradients of two batches that add up before one step (**accumulation**). Between the two, stage 1 holds whole gradients and has sent nothing; stage 2 has sent them, and holds its slice.

# %%
def first_of_two(batch, config):
    import deepspeed

    model = models.gpt("0.3M").bfloat16()
    engine, *_ = deepspeed.initialize(model=model, config=config)
    with measure("first backward"):
        engine.backward(engine(*batch))
        dist.barrier()

# %%
for stage in (1, 2):
    accumulate = {**configuration(stage), "gradient_accumulation_steps": 2}
    run = launch(first_of_two, accumulate, **options)
    gradients = run.memory.at("first backward")["gradients"] / parameters
    sent = run.traffic["first backward"].sent_by_rank.sum() / parameters
    print(f"stage {stage}, for each parameter:", end=" ")
    print(f"gradients {gradients.round(2)} bytes by rank, {sent:.1f} bytes sent by all ranks")
    assert (gradients == 2).all() if stage == 1 else (gradients < 1).all()

# %% [markdown]
# ## A slice is not a layer
#
# Many tutorials draw ZeRO as "rank 0 has the first layers, rank 1 the next". It has not. DeepSpeed lays all parameters one after the other into **one flat buffer** and cuts that in N equal slices, whatever a border runs through. Take the second matrix of the first block's MLP:

# %%
tensor = "blocks.0.mlp.down.weight"
print(tensor, tuple(model.get_parameter(tensor).shape))

# %%
# Your prediction: the ranks that hold its optimizer states at stage 1, as a list
predicted_ranks = None

# %%
layouts = {f"stage {stage}": shards.gather(runs[stage].outputs) for stage in (1, 2, 3)}
holders = layouts["stage 1"].ranks_of(tensor, "optimizer")
print("your prediction:", predicted_ranks, "   its optimizer states lie on ranks:", holders)

# %% [markdown]
# The picture is read from the engines that ran, after their second backward. Each row is a rank, each colour a tensor. Choose a stage, point at a piece, and find the three borders.

# %%
shard_map(layouts)

# %% [markdown]
# At stages 1 and 2 three borders cut the whole buffer, and most tensors lie on one rank. At stage 3 each tensor is cut by itself, so that every rank has a quarter of each: to gather a layer, all ranks give their part at once.
#
# Why not hand out layers? Because no rank may hold more than its share. Here is what whole layers would make of it:

# %%
layers = {}
for name, count in numels.items():
    layer = ".".join(name.split(".")[:2]) if name.startswith("blocks") else name.split(".")[0]
    layers[layer] = layers.get(layer, 0) + count
largest = max(layers, key=layers.get)
print(layers)
print(f"{largest} alone is {layers[largest] / (parameters / world_size):.2f} times an equal share")

# %% [markdown]
# ## The paper's table
#
# Sizes of models that do not fit into this notebook need no run. Here is Table 1 of the paper, in GB of 10⁹ bytes on each device, by the formula that we have just held against a run:

# %%
print("   N " + "".join(f"{psi:>9} at stages 1, 2, 3     " for psi in ("7.5B", "128B", "1T")))
for n in (1, 4, 16, 64, 256, 1024):
    row = [
        memory.model_states(psi, stage=stage, world_size=n).device_bytes / 1e9
        for psi in (7.5e9, 128e9, 1e12) for stage in (1, 2, 3)
    ]
    print(f"{n:4} ", *(f"{gigabytes:9.2f}" for gigabytes in row))

# %%
published = {64: (31.4, 16.6, 1.88), 1024: (30.1, 15.1, 0.12)}  # 7.5B, stages 1, 2 and 3
for n, row in published.items():
    ours = [memory.model_states(7.5e9, stage=s, world_size=n).device_bytes / 1e9 for s in (1, 2, 3)]
    assert np.allclose(ours, row, atol=0.051), (ours, row)
print("as published")

# %% [markdown]
# Read it downwards. Stages 1 and 2 meet a floor, 4Ψ and 2Ψ, which no number of ranks lowers; only stage 3 goes on falling, and lets N devices hold N times the model. A trillion parameters take 15.6 GB of each of 1024 devices.
#
# ## What it costs: traffic
#
# Reduce-scatter and all-gather each send (N − 1)/N of a tensor from each rank, and an all-reduce is one after the other ([chapter 03](03_ring_all_reduce.ipynb)). Large N makes that Ψ, Ψ and 2Ψ elements.
#
# - Plain data parallelism: an all-reduce of the gradients, **2Ψ**.
# - Stages 1 and 2: a reduce-scatter gives each rank the sum of its slice of the gradients, an all-gather hands the new parameters round. **2Ψ** again: the same two halves, with the update between them.
# - Stage 3: parameters are gathered for forward, freed, and gathered again for backward, and the gradients are reduce-scattered: **3Ψ**.
#
# So says the paper. **What do you expect of our runs at stages 0, 1, 2 and 3, over gloo?**

# %%
# Your prediction: the elements that each rank sends in a step, in Ψ, at stages 0 to 3, as a list
predicted_traffic = None

# %%
def sent_each(run):
    """Elements of 2 bytes that a rank sent in the second step, in Ψ, as if N were large."""
    sent = run.traffic["step 1"].sent_by_rank.mean()
    return sent / 2 / parameters * world_size / (world_size - 1)

measured = [sent_each(run) for run in runs.values()]
print("your prediction:", predicted_traffic, "  measured:", np.round(measured, 2))

# %% [markdown]
# Three of four are above the paper's 2, 2, 2, 3. The recorded calls tell why. In the table a call's elements are what it was given: the whole tensor, or for an all-gather the rank's slice, a quarter.

# %%
def calls_of_step(run):
    blocks = {block.rank: block for block in run.traffic["step 1"].blocks}
    elements = {}
    for call in run.calls:
        if call.rank == 0 and blocks[0].start_s <= call.start_s <= blocks[0].end_s:
            elements[call.op] = elements.get(call.op, 0) + call.bytes / 2 / parameters
    return {op: f"{amount:.2f} Ψ" for op, amount in elements.items() if amount > 0.01}

for stage, run in runs.items():
    print(f"stage {stage}:", calls_of_step(run))

# %% [markdown]
# - Stages 1 and 2 make no reduce-scatter: DeepSpeed **all-reduces** its buckets, 2Ψ, and each rank keeps a slice. That is its default over NCCL, too (`use_multi_rank_bucket_allreduce`).
# - Stage 3 does call reduce-scatter, but **gloo runs that as an all-reduce** (chapter 03). NCCL does not.
# - The matrix that reads tokens in also writes the output ("tied"), so stage 3 gathers it twice in each direction.
#
# With these three said, formula and wire agree again. Small messages add a few per cent.

# %%
methods = ("ddp", "zero1", "zero2", "zero3")
def predicted_sent(method, reduce_scatter):
    tied = 2 * numels["token.weight"] / parameters if method == "zero3" else 0
    sent = traffic.sent_bytes(method, 1, world_size, reduce_scatter=reduce_scatter)[0] / 4
    return sent * world_size / (world_size - 1) + tied

paper = [predicted_sent(method, "ring") for method in methods]
here = [predicted_sent(method, "gloo") for method in methods]
print("with a real reduce-scatter:", np.round(paper, 2), "  as it is here:", np.round(here, 2))
assert np.allclose(measured, here, rtol=0.06)

# %%
figure, axes = plt.subplots(figsize=(7, 3.2))
stages = np.arange(4)
axes.bar(stages - 0.27, paper, 0.26, color=palette.WAIT, label="with a real reduce-scatter")
axes.bar(stages, here, 0.26, color=palette.PREDICTED, label="the calls made here")
axes.bar(stages + 0.27, measured, 0.26, color=palette.MEASURED, label="measured")
axes.set(xticks=stages, xlabel="stage", ylabel="elements sent by each rank, in Ψ", ylim=(0, 5.6))
axes.legend(frameon=False, loc="upper left")
figure.tight_layout()

# %% [markdown]
# Can stage 2 come nearer to the paper's 2Ψ? One key makes DeepSpeed send each piece of a gradient to the one rank that keeps it, by the collective `reduce`:

# %%
each_to_its_owner = configuration(2, use_multi_rank_bucket_allreduce=False)
run = launch(train, each_to_its_owner, inputs=batches, device="cpu")
print(f"{sent_each(run):.2f} Ψ;", calls_of_step(run))
assert sent_each(run) < 2.5

# %% [markdown]
# ## Where memory does not fall
#
# So far the configuration was made for a small model. Here is stage 3 as it comes, with DeepSpeed's defaults. **How many bytes for each parameter do parameters take now, on each of four ranks, after backward?** (The formula says 2/N = 0.5.)

# %%
# Your prediction: bytes of parameters for each parameter, at stage 3 with defaults
predicted_default = None

# %%
as_it_comes = {**configuration(3), "zero_optimization": {"stage": 3}}
default = launch(train, as_it_comes, **options)
live = default.memory.at("after backward")
print("your prediction:", predicted_default, "  measured:", states_each(default)[0].round(2))
print("buckets on each rank:", [format_bytes(size) for size in live["buckets"]])

# %% [markdown]
# More than stage 0, which has 2. Two defaults are made for models a thousand times as large:
#
# - **Persistent parameters.** Gathering a small tensor costs more time than it saves memory, so tensors below `stage3_param_persistence_threshold`, 100,000 elements, stay whole everywhere. Here that is every one of them: 2 for the whole, 0.5 for the slice.
# - **Buckets.** Gradients are put together in a buffer of `reduce_bucket_size`, 500 million elements, which stage 3 makes at the start and keeps: 10⁹ bytes. Stages 1 and 2 make theirs for each backward pass.

# %%
persistent = zero_extras(numels, stage=3, world_size=world_size)["persistent tensors"][0]
print("persistent:", persistent / parameters, "  largest tensor:", max(numels.values()))
assert np.isclose(states_each(default)[0], 0.5 + persistent / parameters)
assert np.isclose(live["buckets"], 2 * 500_000_000, rtol=0.01).all()

# %% [markdown]
# A third default is about the time between forward and backward. Stage 3 frees a layer only if it will not be used again soon, and "soon" is counted in parameters (`stage3_max_live_parameters`, `stage3_max_reuse_distance`, 10⁹ each). Our model is small: everything that forward has gathered stays until backward. That is what `free_at_once` switched off above.

# %%
kept = launch(train, configuration(3), **options)
for name, run in (("free at once", runs[3]), ("kept", kept)):
    after_forward = states_each(run, "forward")[0]
    print(f"{name}: {after_forward:.2f} bytes after forward, {sent_each(run):.2f} Ψ sent in a step")

# %% [markdown]
# Kept parameters take memory and save a gather: on a machine with room that is a good trade.
#
# Then there is the step itself. To update in fp32, gradients are copied to fp32 first, 4Ψ bytes that "16Ψ" does not count. Stage by stage, the most that lived at one time, in which phase, and how much of it gradients were at their highest:

# %%
for stage, run in runs.items():
    rank = run.memory[0]
    most, gradients = rank.peak_bytes / parameters, rank.peak_of("gradients") / parameters
    print(f"stage {stage}: {most:5.2f} at the peak, in {rank.peak_phase}; gradients ≤ {gradients:.2f}")

# %% [markdown]
# The slices help here, too, since each rank copies only its own. And **activations are not sharded** by any of this: each rank has those of its own batch.
#
# ## The largest model for your device
#
# How many parameters fit, by stage, if model states may take all of a device's memory but a quarter, left for activations and buckets? Change the two numbers.

# %%
device_bytes, devices = 24e9, 8
if torch.cuda.is_available():
    device_bytes = torch.cuda.get_device_properties(0).total_memory
print(f"on {devices} devices of {device_bytes / 1e9:.0f} GB:")
for stage in range(4):
    most = memory.largest_model(0.75 * device_bytes, stage=stage, world_size=devices)
    print(f"stage {stage}: {most / 1e9:5.1f} billion parameters")

# %%
memory_bars(7e9, devices, stage=3, capacity_bytes=device_bytes)

# %% [markdown]
# Move the slider of Ψ until a bar crosses the line. At stage 0 more devices train no larger a model, since each needs room for all of it.
#
# ## In real life
#
# A configuration for a model of some billions, as it is given to `deepspeed --num_gpus 8 train.py`. `"auto"` is for Hugging Face's Trainer, which fills it in:

# %%
auto = dict.fromkeys(["stage3_param_persistence_threshold", "reduce_bucket_size"], "auto")
real = configuration(3, overlap_comm=True, **auto)
real |= {"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0}
real["optimizer"] = {"type": "AdamW", "params": {"lr": 2e-5}}
print(json.dumps(real, indent=2))

# %% [markdown]
# Which stage? The lowest that fits. Stage 1 slices the largest part and, by the paper's count, sends no more than plain data parallelism. Stage 2 slices gradients, and sends them for every batch that it accumulates. Stage 3 sends more in every step, and is for models whose parameters do not fit.
#
# PyTorch's own stage 3 is **FSDP2**, one line for each unit that is gathered as a whole. It cuts each tensor between rows. With no optimizer in this run, what is left on each rank is its slice of parameters and gradients:

# %%
def with_fsdp2(batch):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = models.gpt("0.3M").bfloat16()
    for unit in (*model.blocks, model):
        fully_shard(unit)
    model(*batch).backward()
    with measure("after backward"):
        dist.barrier()

# %%
fsdp2 = launch(with_fsdp2, **options)
print("parameters and gradients after backward:", states_each(fsdp2)[:2].round(2))
print("the most that parameters took, gathered ones included:", round(fsdp2.memory.peak_of("parameters")[0] / parameters, 2))

# %% [markdown]
# ## Where GPUs differ
#
# - NCCL has a real reduce-scatter: stage 3 sends 3Ψ there.
# - On a GPU gathers run beside the computation (`overlap_comm`, prefetching): bytes are hidden behind time, as long as the links are fast enough.
# - `torch.cuda.max_memory_allocated()` shows what we counted here plus what the allocator rounds up. The process's size, as `top` or `nvidia-smi` has it, shows neither: allocators keep what is freed.
#
# ## What to keep
#
# - 16 bytes for each parameter: 2 + 2 + 12. Stage 1 slices the 12, stage 2 the gradients' 2, stage 3 the parameters' 2.
# - Slices of a flat buffer, not layers. Stage 3 slices each tensor.
# - The paper's traffic is 2Ψ, 2Ψ, 3Ψ. A library and a backend may send more: count.
# - Buckets, persistent and kept parameters, padding, fp32 copies: what a small test shows may be these, not the states.
#
# Now build all three stages: [Lab 04](../../labs/04_zero/04_zero.ipynb).
#
# ## Sources
#
# - S. Rajbhandari, J. Rasley, O. Ruwase, Y. He: *ZeRO: memory optimizations toward training trillion parameter models.* [arXiv 1910.02054](https://arxiv.org/abs/1910.02054), 2020. Table 1; section 5 for memory, section 7 for traffic.
# - P. Micikevicius et al.: *Mixed precision training.* [arXiv 1710.03740](https://arxiv.org/abs/1710.03740), 2018.
# - DeepSpeed 0.19.8: [configuration](https://www.deepspeed.ai/docs/config-json/), for its keys and defaults, and the code of its stages 1 to 3.
# - PyTorch 2.13: [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
