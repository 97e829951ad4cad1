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
# In data-parallel training every rank holds everything: all parameters, all gradients, all optimizer states. N ranks hold N copies of the same numbers. **ZeRO** (*zero redundancy optimizer*) keeps one copy, split into slices (**shards**), one slice per rank.
#
# The question of this chapter: how many bytes are left on each rank, and what does that cost in traffic?
#
# **After this chapter you can**
#
# - compute the bytes of model states on each rank for ZeRO stages 1, 2 and 3;
# - say what each stage costs in traffic compared with DDP;
# - explain why a real run keeps more memory than the formula says.
#
# **You need:** [01 One device](01_one_device.ipynb) and [03 Ring all-reduce](03_ring_all_reduce.ipynb).

# %% [markdown]
# <details open><summary>Each rank keeps a slice of the model, gathers a layer to use it, and frees it again</summary>
#
# [![Animation: Each rank keeps a slice of the model, gathers a layer to use it, and frees it again](openers/04_zero.svg)](openers/04_zero.svg)
#
# Four ranks, each with a quarter of the parameters. Before a layer computes, all ranks gather its parameters; afterwards they free them. In backward they gather again, and each keeps its slice of the gradients. (Recorded from real processes.)
#
# </details>

# %% jupyter={"source_hidden": true}
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import json

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist

from shardlab import data, holds, launch, measure, models, shards, show_table
from shardlab.estimate import memory, traffic
from shardlab.estimate.zero_extras import zero_extras
from shardlab.widgets import memory_bars, memory_timeline, palette, predict, shard_map

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# Below, Ψ (psi) is the number of parameters and N the number of ranks. We train a small GPT on four ranks, each with its own two sequences of text. All runs use `device="cpu"`, so that we can count bytes on the wire.

# %%
world_size = 4
model = models.gpt("0.3M")
parameters = models.count_parameters(model)
batches = [data.batch(0, 2, 32, rank, world_size) for rank in range(world_size)]
print(f"Ψ = {parameters:,} parameters, N = {world_size} ranks")

# %% [markdown]
# ## Where 16 bytes per parameter go
#
# **Mixed precision** computes in 16 bits and updates in 32. A bf16 number has only 8 significant bits, so a small update added to it is rounded away. The optimizer therefore keeps a **master copy** of each parameter in fp32 and updates that. Adam keeps two more fp32 numbers: a running mean of the gradient, and one of its square. Together these are the **model states**.

# %%
state_bytes = {
    "parameter, bf16": 2, "gradient, bf16": 2,
    "master copy, fp32": 4, "Adam's mean, fp32": 4, "Adam's mean of squares, fp32": 4,
}
show_table(
    {"model state": "", "bytes per parameter": "d"},
    [*state_bytes.items(), ("together", sum(state_bytes.values()))],
)

# %% [markdown]
# ZeRO has four stages, and stage 0 shards nothing: every GPU holds all of these. **How many parameters can a model have at most, on four GPUs with 80 GB each, at stage 0?** (1 GB is 10⁹ bytes; count only model states.)

# %%
predicted_largest = predict("Largest model at stage 0 on four GPUs with 80 GB", unit="billion parameters")
predicted_largest

# %% [markdown]
# We run it with DeepSpeed, where ZeRO was first implemented. DeepSpeed wraps the model in an **engine** that owns the optimizer; a dictionary or JSON file configures the rest:

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
# `torch_adam` selects PyTorch's Adam; otherwise DeepSpeed would compile its own. The two keys for a small model are explained below.
#
# The training loop is plain DeepSpeed. `measure` marks a block so that its bytes are counted separately. After backward, while the gradients still exist, we record the layout: which rank holds what. (gloo's threads may keep a sent tensor alive a little longer. During the `barrier` they release it.)

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
# The first run loads DeepSpeed, once per notebook. `memory=True` tracks every tensor's storage; we look at what is alive after the second backward pass.

# %%
options = {"inputs": batches, "memory": True, "device": "cpu"}
runs = {0: launch(train, configuration(0), **options)}

# %%
STATES = ("parameters", "gradients", "optimizer")

def states_per_rank(run, moment="after backward"):
    """Bytes per parameter, on the rank that holds the most."""
    live = run.memory.at(moment)
    return np.array([live[state].max() for state in STATES]) / parameters

# %%
largest = 80 / states_per_rank(runs[0]).sum()
predicted_largest.compare(largest, {"what would fit if the ranks shared the states": world_size * largest})

# %%
show_table(
    {"stage 0, on each rank": "", "bytes per parameter": ".2f"},
    zip(STATES, states_per_rank(runs[0])),
)

# %% [markdown]
# All 16, on each of the four ranks: more ranks do not make room for a larger model. A model with 7.5 billion parameters would take 120 GB on every GPU before the first activation.
#
# ## Three stages
#
# Adam updates each element independently. So a rank can update a slice of the parameters without the rest of the optimizer states: a rank needs only what it *uses*.
#
# - **Stage 1** slices the optimizer states, master copies included. Each rank updates its slice, and an all-gather distributes the new parameters.
# - **Stage 2** slices gradients as well: only the rank that will use a gradient keeps it, and the others free it as soon as it is summed.
# - **Stage 3** slices parameters as well: each layer is gathered just before it is used and freed right after.
#
# We run all three and look at the same moment as above: after the second backward pass, just before the step. **How many bytes per parameter does each of the four ranks hold then? Does each stage hold less than the one before?**

# %%
predicted_by_stage = predict("Bytes per parameter on each rank after backward", unit="bytes", labels=["stage 1", "stage 2", "stage 3"])
predicted_by_stage

# %%
free_after_use = {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
runs[1] = launch(train, configuration(1), **options)
runs[2] = launch(train, configuration(2), **options)
runs[3] = launch(train, configuration(3, **free_after_use), **options)

# %%
by_stage = [states_per_rank(runs[stage]).sum() for stage in (1, 2, 3)]
paper = [memory.model_states(1, stage=stage, world_size=world_size).device_bytes for stage in (1, 2, 3)]
whole_masters = [whole + (16 - whole) / world_size for whole in (2 + 2 + 4, 2 + 4, 4)]
named = {
    "the paper's count; at stage 1 this run has freed some gradients, see below": paper,
    "what they would hold if the master copies were not sliced": whole_masters,
}
predicted_by_stage.compare(by_stage, named)

# %% [markdown]
# The paper counts this way (Rajbhandari et al. 2020). P, G and O are all parameters, gradients and optimizer states, X is the N ranks, and the subscript says what is split over them ([chapter 03](03_ring_all_reduce.ipynb)):
#
# | stage | sliced | each rank has | bytes on each rank |
# |---|---|---|---|
# | 0 | nothing | $P[\Psi]\quad G[\Psi]\quad O[\Psi]$ | $16\Psi$ |
# | 1 | optimizer states | $P[\Psi]\quad G[\Psi]\quad O[\Psi_X]$ | $4\Psi + 12\Psi/N$ |
# | 2 | gradients as well | $P[\Psi]\quad G[\Psi_X]\quad O[\Psi_X]$ | $2\Psi + 14\Psi/N$ |
# | 3 | parameters as well | $P[\Psi_X]\quad G[\Psi_X]\quad O[\Psi_X]$ | $16\Psi/N$ |

# %%
def paper_and_measured(stage, run):
    paper = memory.model_states(parameters, stage=stage, world_size=world_size).device_bytes
    each = states_per_rank(run)
    return stage, paper / parameters, each.sum(), *each

show_table(
    {"stage": "d", "paper": ".2f", "measured": ".2f", **dict.fromkeys(STATES, ".2f")},
    [paper_and_measured(stage, run) for stage, run in runs.items()],
    caption="bytes per parameter, on each rank",
)

# %% [markdown]
# Stage 3 holds what the paper says. Stages 1 and 2 hold the same, which the paper does not say; the next section finds out why.
#
# Choose a stage below to see memory over time: parameters are at the bottom, optimizer states shrink from stage 0 to stage 1, gradients come and go. (At stage 0 there is a step before the first one: DeepSpeed runs the optimizer once on zero gradients, to create its states.)

# %%
memory_timeline({f"stage {stage}": run for stage, run in runs.items()})

# %% [markdown]
# The bars show the formula's values for our model and ranks, next to what was measured after backward. Use the sliders to try other models and other N.

# %%
memory_bars(parameters, world_size, stage=2, measured=runs[2], moment="after backward")

# %% [markdown]
# ### What the paper leaves out
#
# Formula and measurement are close, but not equal, and at stage 1 the run holds **less** than the paper says. Each difference can be computed from the tensor sizes:
#
# - **freed gradients**: after the last backward before a step, DeepSpeed frees gradients that only other ranks will use, at stage 1, too.
# - **tensors across a boundary**: if a tensor spans two ranks' slices, both ranks keep its whole gradient.
# - **padding**: slices have equal length, so the last one may extend past the last parameter.
# - **step counters**: Adam counts its steps, 4 bytes per tensor that it updates.

# %%
numels = {name: parameter.numel() for name, parameter in model.named_parameters()}
beyond_paper = {}
for stage, run in runs.items():
    setup = {"stage": stage, "world_size": world_size}
    extras = zero_extras(numels, persistence_threshold=0, **setup)
    predicted = memory.model_states(parameters, **setup).device_bytes
    predicted += sum(map(np.array, extras.values()))
    measured = sum(run.memory.at("after backward")[state] for state in STATES)
    holds(f"stage {stage}: each rank's model states", measured, predicted, rtol=0.02, unit="bytes")
    beyond_paper[stage] = {name: each[2] for name, each in extras.items()}

# %%
names = list(dict.fromkeys(name for extras in beyond_paper.values() for name in extras))
show_table(
    {"bytes beyond the paper, rank 2": "", **{f"stage {stage}": ",.0f" for stage in runs}},
    [(name, *(extras.get(name) for extras in beyond_paper.values())) for name in names],
)

# %% [markdown]
# Then how do stages 1 and 2 differ? With gradient **accumulation**: the gradients of two batches add up before one step. Between the two batches, stage 1 holds whole gradients and has sent nothing; stage 2 has sent them and holds only its slice.

# %%
def first_backward(batch, config):
    import deepspeed

    model = models.gpt("0.3M").bfloat16()
    engine, *_ = deepspeed.initialize(model=model, config=config)
    with measure("first backward"):
        engine.backward(engine(*batch))
        dist.barrier()

# %%
gradients, sent = {}, {}
for stage in (1, 2):
    accumulate = {**configuration(stage), "gradient_accumulation_steps": 2}
    run = launch(first_backward, accumulate, **options)
    gradients[stage] = run.memory.at("first backward")["gradients"] / parameters
    sent[stage] = run.traffic["first backward"].sent_by_rank.sum() / parameters
show_table(
    {"stage": "d", **{f"gradients on rank {r}": ".2f" for r in range(4)}, "sent by all ranks": ".1f"},
    [(stage, *gradients[stage], sent[stage]) for stage in gradients],
    caption="bytes per parameter",
)
holds("stage 1 holds whole gradients, in bytes per parameter", gradients[1], 2)
holds("stage 2 holds less", gradients[2], below=1)

# %% [markdown]
# ## A slice is not a layer
#
# Many tutorials draw ZeRO as "rank 0 has the first layers, rank 1 the next". That is wrong. DeepSpeed concatenates all parameters into **one flat buffer** and splits it into N equal slices, even in the middle of a tensor. Take the second matrix of the first block's MLP, and find where it is in the buffer. **Which ranks hold its optimizer states at stage 1?**

# %%
tensor = "blocks.0.mlp.down.weight"
before = list(numels)[: list(numels).index(tensor)]
start = sum(numels[name] for name in before)
print(f"{tensor}: elements {start:,} to {start + numels[tensor]:,} of {parameters:,}")

# %%
predicted_ranks = predict("Ranks that hold a part of it", options=[f"rank {r}" for r in range(4)], several=True)
predicted_ranks

# %%
layouts = {f"stage {stage}": shards.gather(runs[stage].outputs) for stage in (1, 2, 3)}
holders = layouts["stage 1"].ranks_of(tensor, "optimizer")
predicted_ranks.compare([f"rank {rank}" for rank in holders])

# %% [markdown]
# The picture shows the engines of the runs above, after the second backward pass. Each row is a rank, each color a tensor. Choose a stage, hover over a piece, and find the three borders.

# %%
shard_map(layouts, predicted=predicted_ranks)

# %% [markdown]
# At stages 1 and 2 three borders cut the whole buffer, and most tensors are on a single rank. At stage 3 each tensor is split separately, so every rank has a quarter of each: all ranks contribute equally when a layer is gathered.
#
# Why not assign whole layers? Because then some ranks would hold much more than others:

# %%
layers = {}
for name, count in numels.items():
    layer = ".".join(name.split(".")[:2]) if name.startswith("blocks") else name.split(".")[0]
    layers[layer] = layers.get(layer, 0) + count
largest = max(layers, key=layers.get)
show_table({"layer": "", "elements": ",d"}, layers.items())
print(f"{largest} alone is {layers[largest] / (parameters / world_size):.2f} times an equal share")

# %% [markdown]
# ## The paper's table
#
# For models too large for this notebook we use the formula, which we have just checked against a run. Here is Table 1 of the paper, in GB (10⁹ bytes) per device:

# %%
def gigabytes(psi, stage, n):
    return memory.model_states(psi, stage=stage, world_size=n).device_bytes / 1e9

sizes = {"7.5B": 7.5e9, "128B": 128e9, "1T": 1e12}
columns = {f"{name}, stage {stage}": (psi, stage) for name, psi in sizes.items() for stage in (1, 2, 3)}
show_table(
    {"N": "d", **dict.fromkeys(columns, ".2f")},
    [(n, *(gigabytes(*column, n) for column in columns.values())) for n in (1, 4, 16, 64, 256, 1024)],
    caption="GB of model states on each of N devices",
)

# %%
published = {64: (31.4, 16.6, 1.88), 1024: (30.1, 15.1, 0.12)}  # 7.5B, stages 1, 2 and 3
for n, row in published.items():
    ours = [gigabytes(7.5e9, stage, n) for stage in (1, 2, 3)]
    holds(f"N = {n}: as published, to its digits", ours, row, atol=0.051, unit="GB")

# %% [markdown]
# Read it from top to bottom. Stages 1 and 2 level off at 4Ψ and 2Ψ, however many ranks there are; only stage 3 keeps falling, so N devices hold a model N times as large. A trillion parameters take 15.6 GB on each of 1024 devices.
#
# ## What it costs: traffic
#
# In a reduce-scatter or an all-gather each rank sends $\frac{N-1}{N}$ of a tensor, and an all-reduce is one followed by the other ([chapter 03](03_ring_all_reduce.ipynb)). For large N that is Ψ, Ψ and 2Ψ elements.
#
# - Plain data parallelism: an all-reduce of the gradients, **2Ψ**.
# - Stages 1 and 2: a reduce-scatter gives each rank the sum of its slice of the gradients, an all-gather distributes the new parameters. **2Ψ** again: the same two halves, with the update between them.
# - Stage 3: parameters are gathered for forward, freed, and gathered again for backward, and the gradients are reduce-scattered: **3Ψ**.
#
# That is the paper's count. **What do you expect from our runs at stages 0, 1, 2 and 3, over gloo?** (For large N as well: what each of the four ranks sends, times $\frac{N}{N-1}$.)

# %%
predicted_traffic = predict("Elements that each rank sends per step", unit="Ψ", labels=[f"stage {s}" for s in range(4)])
predicted_traffic

# %%
def sent_per_rank(run):
    """Elements of 2 bytes that a rank sent in the second step, in Ψ, scaled to large N."""
    sent = run.traffic["step 1"].sent_by_rank.mean()
    return sent / 2 / parameters * world_size / (world_size - 1)

measured = [sent_per_rank(run) for run in runs.values()]
for_large_n = world_size / (world_size - 1) / 4  # and elements, not bytes
methods = ("ddp", "zero1", "zero2", "zero3")
in_theory = [traffic.sent_bytes(method, 1, world_size)[0] * for_large_n for method in methods]
named = {
    "the paper's count": in_theory,
    "the paper's count on four ranks, not for large N": [each * 3 / 4 for each in in_theory],
}
predicted_traffic.compare(measured, named)

# %% [markdown]
# Three of the four are above the paper's 2, 2, 2, 3. The recorded calls show why. Below, a call's elements are those of its input: the whole tensor, or for an all-gather the rank's slice, a quarter.

# %%
def calls_of_step(run):
    elements = {}
    for call in run.calls_in("step 1"):  # of rank 0
        elements[call.op] = elements.get(call.op, 0) + call.bytes / 2 / parameters
    return {op: amount for op, amount in elements.items() if amount > 0.01}

ops = list(dict.fromkeys(op for run in runs.values() for op in calls_of_step(run)))
show_table(
    {"elements, in Ψ": "", **dict.fromkeys(ops, ".2f")},
    [(f"stage {stage}", *map(calls_of_step(run).get, ops)) for stage, run in runs.items()],
)

# %% [markdown]
# - Stages 1 and 2 call no reduce-scatter: DeepSpeed **all-reduces** its buckets, 2Ψ, and each rank keeps a slice. That is its default over NCCL, too (`use_multi_rank_bucket_allreduce`).
# - Stage 3 does call reduce-scatter, but **gloo runs that as an all-reduce** (chapter 03). NCCL does not.
# - The embedding matrix is also the output matrix ("tied"), so stage 3 gathers it twice in each pass.
#
# With these three accounted for, formula and measurement agree again. Small messages add a few percent.

# %%
def predicted_sent(method, reduce_scatter):
    tied = 2 * numels["token.weight"] / parameters if method == "zero3" else 0
    sent = traffic.sent_bytes(method, 1, world_size, reduce_scatter=reduce_scatter)[0] / 4
    return sent * world_size / (world_size - 1) + tied

paper = [predicted_sent(method, "ring") for method in methods]
here = [predicted_sent(method, "gloo") for method in methods]
show_table(
    {"elements sent, in Ψ": "", "with a real reduce-scatter": ".2f", "with our calls": ".2f", "measured": ".2f"},
    [(f"stage {stage}", *row) for stage, row in enumerate(zip(paper, here, measured))],
)
holds("elements sent with our calls, in Ψ", measured, here, rtol=0.06)

# %%
figure, axes = plt.subplots(figsize=(7, 3.2))
stages = np.arange(4)
axes.bar(stages - 0.27, paper, 0.24, fill=False, edgecolor=palette.PREDICTED, label="with a real reduce-scatter")
axes.bar(stages, here, 0.26, color=palette.PREDICTED, label="the calls made here")
axes.bar(stages + 0.27, measured, 0.26, color=palette.MEASURED, label="measured")
axes.set(xticks=stages, xlabel="stage", ylabel="elements sent by each rank, in Ψ", ylim=(0, 5.6))
axes.legend(frameon=False, loc="upper left")
figure.tight_layout()

# %% [markdown]
# Can stage 2 get closer to the paper's 2Ψ? One key makes DeepSpeed send each piece of a gradient only to the rank that keeps it, with the collective `reduce`:

# %%
each_to_its_owner = configuration(2, use_multi_rank_bucket_allreduce=False)
run = launch(train, each_to_its_owner, inputs=batches, device="cpu")
show_table({"call": "", "elements, in Ψ": ".2f"}, calls_of_step(run).items())
holds("elements sent by each rank, in Ψ", sent_per_rank(run), below=2.5)

# %% [markdown]
# ## When memory is not saved
#
# So far the configuration was tuned for a small model. Here is stage 3 with DeepSpeed's defaults. By default, a tensor of fewer than 100,000 elements stays whole on every rank, in addition to the slices (`stage3_param_persistence_threshold`): gathering a small tensor takes time, and freeing it saves little memory. **How many bytes per parameter do the parameters take now, on each of four ranks, after backward?** (The formula says 2/N = 0.5.)

# %%
print(f"{len(numels)} tensors; the largest has {max(numels.values()):,} elements")

# %%
predicted_default = predict("Bytes per parameter that the parameters take on a rank", unit="bytes")
predicted_default

# %%
default_config = {**configuration(3), "zero_optimization": {"stage": 3}}
default_run = launch(train, default_config, **options)
live = default_run.memory.at("after backward")
named = {"the formula": 2 / world_size, "what they take at stage 0": states_per_rank(runs[0])[0]}
predicted_default.compare(states_per_rank(default_run)[0], named)

# %% [markdown]
# That is more than the 2 of stage 0. Two defaults are meant for models a thousand times as large:
#
# - **Persistent parameters**, which stay whole. Here that is all of them: 2 for the whole, 0.5 for the slice.
# - **Buckets.** Gradients are collected in a buffer of `reduce_bucket_size`, 500 million elements, which stage 3 allocates at the start and keeps: 10⁹ bytes. Stages 1 and 2 allocate theirs in each backward pass.

# %%
persistent = zero_extras(numels, stage=3, world_size=world_size)["persistent tensors"][0]
held = states_per_rank(default_run)[0]
holds("bytes per parameter: a slice and all persistent ones", held, 0.5 + persistent / parameters, rtol=1e-5)
holds("buckets on each rank", live["buckets"], 2 * 500_000_000, rtol=0.01, unit="bytes")

# %% [markdown]
# A third default matters between forward and backward. Stage 3 frees a layer only if it will not be used again soon, and "soon" is counted in parameters (`stage3_max_live_parameters`, `stage3_max_reuse_distance`, 10⁹ each). In a small model like ours everything that forward gathers stays until backward. We turned that off above with `free_after_use`.

# %%
kept = launch(train, configuration(3), **options)
show_table(
    {"parameters are": "", "bytes per parameter after forward": ".2f", "sent in a step, in Ψ": ".2f"},
    [
        (name, states_per_rank(run, "forward")[0], sent_per_rank(run))
        for name, run in (("freed after use", runs[3]), ("kept", kept))
    ],
)

# %% [markdown]
# Kept parameters take memory and save a gather: a good trade on a machine with memory to spare.
#
# ### The peak is in the step
#
# Then there is the step itself. In the timelines above, stages 1 and 2 have equal peaks, although stage 2 slices the gradients, too. Why? Here is what is alive at each stage's peak, on rank 0, in bytes per parameter:

# %%
logs = [run.memory[0] for run in runs.values()]
kinds = [kind for kind in palette.MEMORY if any(log.at("peak")[kind] for log in logs)]
show_table(
    {"stage": "d", "peak in": "", "peak": ".2f", **dict.fromkeys(kinds, ".2f")},
    [
        (stage, log.peak_phase, log.peak_bytes / parameters, *(log.at("peak")[kind] / parameters for kind in kinds))
        for stage, log in enumerate(logs)
    ],
    caption="bytes per parameter, on each rank",
)

# %% [markdown]
# The peak is in the step, and two things in these rows are not in "16Ψ":
#
# - **fp32 gradients.** To update in fp32, gradients are first copied to fp32: $4\Psi$ bytes at stage 0, and $4\Psi/N$ at the other stages, where each rank copies only its slice.
# - **"other"**, temporary tensors. Adam divides by the root of its mean of squares, so a root and a quotient in fp32 exist for a moment, 8 bytes per element of the tensor that is being updated. At stages 1 to 3 that tensor is the rank's whole slice: $8\Psi/N$ bytes. At stage 0 it is one parameter at a time, so here the largest one counts. (In the lab each rank reads the text itself; then the text is "other", too.)
#
# Before this step stage 1, too, has freed the gradients that other ranks use. So at stages 1 and 2 the step holds the same: $2\Psi + (4 + 12 + 8)\,\Psi/N$.

# %%
for stage in (1, 2):
    in_step = [sum(phase.at_peak.values()) for phase in runs[stage].memory[0].phases if phase.name == "step"]
    predicted = 2 + (4 + 12 + 8) / world_size
    holds(f"stage {stage}: bytes per parameter in the step", max(in_step) / parameters, predicted, rtol=0.01)

# %% [markdown]
# Stage 2 pays off when another moment is the highest: with accumulation, as above, or when activations and whole gradients together exceed the step. **Activations are not sharded** at any stage: each rank has those of its own batch.
#
# ### 16, 18 or 20 bytes per parameter?
#
# You will meet all three. A count of 16 leaves out the fp32 gradients, as the paper does. Stage 0 above holds 2 + (2 + 4) + 12 = **20** during its step. Some libraries keep fp32 gradients all the time, so that the gradients of many micro-batches can be added up without rounding them to 16 bits. Megatron-LM's README lists 20 bytes for fp16 parameters and gradients with an fp32 copy of each, and **18** for bf16 parameters whose gradients exist only in fp32: 2 + 4 + 12. DeepSpeed's own estimator of ZeRO-2 counts $2 + 18/N$, 20 on one rank:

# %%
def bytes_at_stage_2(n, convention):
    states = memory.model_states(parameters, stage=2, world_size=n, convention=convention)
    return states.device_bytes / parameters

counts = {"the paper's count": "paper", "DeepSpeed's estimator": "deepspeed"}
show_table(
    {"stage 2": "", "N": "d", "bytes per parameter": ".2f"},
    [(name, n, bytes_at_stage_2(n, counts[name])) for name in counts for n in (1, 8)],
)

# %% [markdown]
# ## The largest model for your device
#
# How many parameters fit at each stage, if model states may take three quarters of a device's memory and the rest is left for activations and buckets? Change the two numbers.

# %%
device_bytes, devices = 24e9, 8
if torch.cuda.is_available():
    device_bytes = torch.cuda.get_device_properties(0).total_memory
print(f"on {devices} devices of {device_bytes / 1e9:.0f} GB:")
most = [memory.largest_model(0.75 * device_bytes, stage=stage, world_size=devices) for stage in range(4)]
show_table({"stage": "d", "billion parameters": ".1f"}, enumerate(np.array(most) / 1e9))

# %%
memory_bars(7e9, devices, stage=3, capacity_bytes=device_bytes)

# %% [markdown]
# Move the Ψ slider until a bar crosses the line. At stage 0 more devices do not help: each must hold the whole model.
#
# ## In practice
#
# Here is a configuration for a model with a few billion parameters, started with `deepspeed --num_gpus 8 train.py`. Hugging Face's Trainer fills in the `"auto"` values:

# %%
auto = dict.fromkeys(["stage3_param_persistence_threshold", "reduce_bucket_size"], "auto")
real = configuration(3, overlap_comm=True, **auto)
real |= {"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0}
real["optimizer"] = {"type": "AdamW", "params": {"lr": 2e-5}}
print(json.dumps(real, indent=2))

# %% [markdown]
# Which stage? The lowest that fits. Stage 1 slices the largest part and, by the paper's count, sends no more than plain data parallelism. Stage 2 also slices gradients, but sends them for every batch that it accumulates. Stage 3 sends more in every step; use it for models whose parameters do not fit.
#
# PyTorch's version of stage 3 is **FSDP2**, the subject of [chapter 05](05_fsdp.ipynb): one call of `fully_shard` for each unit that is gathered as a whole. It splits each tensor by rows. This run has no optimizer, so each rank is left with its slice of parameters and gradients:

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
print("parameters and gradients after backward:", states_per_rank(fsdp2)[:2].round(2))
print("peak of parameters, gathered ones included:", round(fsdp2.memory.peak_of("parameters")[0] / parameters, 2))

# %% [markdown]
# ## Where GPUs differ
#
# - NCCL has a real reduce-scatter: stage 3 sends 3Ψ there.
# - On a GPU gathers overlap with computation (`overlap_comm`, prefetching), which hides their time as long as the links are fast enough.
# - `torch.cuda.max_memory_allocated()` shows what we counted here plus the allocator's rounding. The size of the process in `top` or `nvidia-smi` shows neither: allocators keep freed memory.
#
# ## What to remember
#
# - 16 bytes per parameter: 2 + 2 + 12. Stage 1 slices the 12, stage 2 the gradients' 2, stage 3 the parameters' 2.
# - Slices of a flat buffer, not layers. Stage 3 slices each tensor.
# - The paper's traffic is 2Ψ, 2Ψ, 3Ψ. A library or backend may send more: measure it.
# - In a small test, memory may go to buckets, persistent and kept parameters, padding and fp32 copies rather than model states.
#
# ## Sources
#
# - S. Rajbhandari, J. Rasley, O. Ruwase, Y. He: *ZeRO: memory optimizations toward training trillion parameter models.* [arXiv 1910.02054](https://arxiv.org/abs/1910.02054), 2020. Table 1; section 5 for memory, section 7 for traffic.
# - P. Micikevicius et al.: *Mixed precision training.* [arXiv 1710.03740](https://arxiv.org/abs/1710.03740), 2018.
# - DeepSpeed 0.19.8: [configuration](https://www.deepspeed.ai/docs/config-json/), for its keys and defaults, and the code of its stages 1 to 3 (the estimator: `estimate_zero2_model_states_mem_needs` in `stage_1_and_2.py`).
# - [Megatron-LM](https://github.com/NVIDIA/Megatron-LM), README, on the distributed optimizer: bytes per parameter.
# - PyTorch 2.13: [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
