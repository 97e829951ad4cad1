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
# # 05 · FSDP
#
# Stage 3 of ZeRO shards everything: parameters, gradients and optimizer states ([chapter 04](04_zero.ipynb)). PyTorch has the same idea built in, as **FSDP**, *fully sharded data parallel*. You call `fully_shard` on the parts of a model that should be gathered as a whole, and train as before.
#
# Which parts? That choice is the subject of this chapter: it decides how many bytes are whole at a time, how many collectives are called, and what can overlap. (`fully_shard` is the second version, FSDP2. The first is the class `FullyShardedDataParallel`.)
#
# The question: who holds what, when, and what does it cost?
#
# **After this chapter you can**
#
# - say what each rank holds and sends in a step of FSDP, and how that differs from tensor parallelism;
# - choose the units that FSDP gathers as a whole, and when to free and prefetch them;
# - avoid the mistakes that give no error.
#
# **You need:** [04 ZeRO memory math](04_zero.ipynb).

# %% [markdown]
# <details open><summary>Each unit of the model is whole only while it computes</summary>
#
# [![Animation: Each unit of the model is whole only while it computes](openers/05_fsdp.svg)](openers/05_fsdp.svg)
#
# One of two ranks: each bar shows how long a unit's parameters are gathered. Forward goes down the blocks and backward comes back up; the root, which contains the others, stays whole. (Recorded from real processes.)
#
# </details>

# %% jupyter={"source_hidden": true}
print("Loading PyTorch's FSDP: a few seconds, longer the first time on a computer …")

from collections import Counter

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor import parallel as tp
from torch.nn.parallel import DistributedDataParallel

from shardlab import DeadlockError, data, holds, launch, measure, models, show_table
from shardlab.estimate import memory, traffic
from shardlab.estimate.fsdp_units import unit_step
from shardlab.widgets import memory_timeline, palette, predict, timeline, unit_life

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# As before, Ψ is the number of parameters and N the number of ranks. Our GPT has six equal blocks. All numbers are fp32, 4 bytes, and all runs use `device="cpu"`, so that we can count bytes on the wire.

# %%
N, D = 4, 96  # ranks, width
config = models.GPTConfig(layers=6, heads=4, width=D, context=64)

def fresh_model():
    torch.manual_seed(0)  # the same parameters on every rank
    return models.GPT(config)

psi = models.count_parameters(fresh_model())
block = models.count_parameters(fresh_model().blocks[0])
print(f"Ψ = {psi:,} parameters, {block:,} of them in each block")

# %% [markdown]
# ## What it is
#
# We train this model twice, on the same ranks and the same batches: with DDP, where every rank has a whole copy, and with `fully_shard`.

# %%
def train(model, batches):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step, batch in enumerate(batches):
        with measure(f"step {step}"):
            loss = model(*batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses

# %% [markdown]
# In fp32 with AdamW a parameter takes 4 bytes, its gradient 4, and Adam's two means 8. These are its *model states*. **How many bytes of them per parameter does each of the four ranks hold at the end of a step in `train`, with DDP and with `fully_shard`?**

# %%
predicted_states = predict("States per parameter", unit="bytes", labels=["DDP", "FSDP"])
predicted_states

# %% [markdown]
# DDP wraps the model. `fully_shard` changes the modules in place, from the inside out: first each block, then the model, the **root**, which gets what is left: embeddings and the last norm.

# %%
def sharded_model():
    model = fresh_model()
    for unit in (*model.blocks, model):
        fully_shard(unit)
    return model

def with_ddp(batches):
    return train(DistributedDataParallel(fresh_model()), batches)

def with_fsdp(batches):
    return train(sharded_model(), batches)

# %%
batches = [[data.batch(step, 2, 16, rank, N) for step in range(3)] for rank in range(N)]
options = {"memory": True, "device": "cpu"}
runs = {
    "DDP": launch(with_ddp, inputs=batches, **options),
    "FSDP": launch(with_fsdp, inputs=batches, **options),
}

# %%
STATES = ("parameters", "gradients", "optimizer")

def states_at(moment):
    """{method: [3] bytes per parameter, on the rank with the most}"""
    held = {name: run.memory.at(moment) for name, run in runs.items()}
    return {
        name: np.array([each[state].max() for state in STATES]) / psi
        for name, each in held.items()
    }

# %%
each, between = states_at("backward"), states_at("step 2")
with_gradients = [held.sum() for held in each.values()]
named = {
    "what it holds after backward, before zero_grad": with_gradients,
    "all of it, not divided by N": [between["DDP"].sum()] * 2,
}
predicted_states.compare([held.sum() for held in between.values()], named)

# %% [markdown]
# `zero_grad` has freed the gradients. After backward, when all of them exist, each rank holds:

# %%
show_table(
    {"bytes per parameter": "", **dict.fromkeys(STATES, ".2f"), "together": ".2f"},
    [(name, *held, held.sum()) for name, held in each.items()],
)
setup = {"world_size": N, "precision": "fp32"}
for name, stage in (("DDP", 0), ("FSDP", 3)):
    predicted = memory.model_states(psi, stage=stage, **setup).device_bytes / psi
    holds(f"{name}: bytes per parameter", each[name].sum(), predicted, rtol=0.01)

# %% [markdown]
# With FSDP it is a quarter of everything, 16/N, as in stage 3 of ZeRO. The training itself is the same. Each rank's losses are those of its own batches; on every rank, DDP and FSDP have the same:

# %%
losses = {name: np.array(run.outputs) for name, run in runs.items()}
steps = [f"rank {rank}, step {step}" for rank in (0, 1) for step in range(3)]
show_table(
    {"losses": "", **dict.fromkeys(steps, ".5f")},
    [(name, *by_rank[:2].flatten()) for name, by_rank in losses.items()],
)
difference = abs(losses["FSDP"] - losses["DDP"]).max()
holds("largest difference on any rank", difference, below=1e-5)

# %% [markdown]
# What differs is when memory is used. Below are all live bytes of each rank: choose a run. DDP's parameters are a flat band, and so are its buckets, which are as large as all gradients. FSDP's parameters go up and down while blocks are gathered and freed.

# %%
memory_timeline(runs)

# %% [markdown]
# ### A model that fits on no rank
#
# At the left of the picture each rank creates the whole model and then shards it. A model too large for that is created on the `meta` device, where tensors have shapes and no memory. `fully_shard` works as before, and `to_empty` allocates the shards. They contain arbitrary numbers, buffers too, until you load a checkpoint or initialize them: `reset_parameters` of a module does PyTorch's initialization; a model with its own, such as our GPT, has to run that. (On CPUs seed each rank differently before that: with the same seed all ranks draw the same numbers for their slices.)

# %%
def created_on(device):
    with measure("create"):
        with torch.device(device):
            model = sharded_model()
        model.to_empty(device="cpu")

# %%
def peak(run):
    (create,) = (phase for phase in run.memory[0].phases if phase.name == "create")
    return sum(create.at_peak.values()) / psi

quiet = {**options, "quiet": True}
creations = {on: launch(created_on, on, **quiet) for on in ("cpu", "meta")}
show_table(
    {"created on": "", "most bytes per parameter on a rank": ".2f"},
    [(device, peak(run)) for device, run in creations.items()],
)
holds("on meta: bytes of a slice", peak(creations["meta"]), 4 / N, rtol=0.05)

# %% [markdown]
# ### What it sends
#
# DDP all-reduces its gradients, $\frac{2(N-1)}{N} \Psi$ elements. FSDP, like stage 3 of ZeRO, gathers parameters twice and reduce-scatters gradients: $\frac{3(N-1)}{N} \Psi$, but gloo runs a reduce-scatter as an all-reduce ([chapter 03](03_ring_all_reduce.ipynb)), so here it is $\frac{4(N-1)}{N} \Psi$. These are the calls of the third step on rank 0:

# %%
ops = ("all_reduce", "all_gather_single", "reduce_scatter_single")

def sent_and_calls(run):
    large = Counter(call.op for call in run.calls_in("step 2") if call.bytes > 1000)
    sent = run.traffic["step 2"].sent_by_rank.mean() / 4
    return sent / psi, *map(large.get, ops)

show_table(
    {"method": "", "sent, in Ψ": ".2f", **dict.fromkeys(ops, "d")},
    [(name, *sent_and_calls(run)) for name, run in runs.items()],
)

# %% [markdown]
# FSDP makes 13 all-gathers, not 14: two for each block, but one for the root, which stays whole between forward and backward. Each unit's gradients are reduce-scattered once. Predicted and measured:

# %%
units = [block] * 6
root = psi - sum(units)
fsdp = unit_step(units, N, root=root, reduce_scatter="gloo")
sent = runs["FSDP"].traffic["step 2"].sent_by_rank.mean()
calls = Counter(call.op for call in runs["FSDP"].calls_in("step 2"))
predicted, measured = fsdp.sent_bytes / 4 / psi, sent / 4 / psi
holds("sent by each rank, in Ψ", measured, predicted, rtol=0.02)
holds("all-gathers", calls["all_gather_single"], fsdp.all_gathers)
holds("reduce-scatters", calls["reduce_scatter_single"], fsdp.reduce_scatters)

# %% [markdown]
# These formulas have no padding, and our model needs none. But `fully_shard` splits dimension 0 of each tensor and pads it to a multiple of the number of ranks. That matters for few rows and many ranks. A weight of 50 × 130:

# %%
ranks = (4, 8, 64)
rows = [-(-50 // n) * n for n in ranks]  # the same number on each rank, rounded up
show_table(
    {"ranks": "d", "rows with padding": "d", "more to gather and keep": ".0%"},
    [(n, padded, padded / 50 - 1) for n, padded in zip(ranks, rows)],
)

def one_layer():
    layer = fully_shard(nn.Linear(130, 50))
    layer(torch.ones(1, 130)).sum().backward()

gather, *_ = launch(one_layer, world_size=N, device="cpu", quiet=True).calls
whole_bytes = 4 * 131 * 50  # with the bias
holds("4 ranks: gathered, over unpadded", N * gather.bytes / whole_bytes, rows[0] / 50)

# %% [markdown]
# ### What it is not
#
# FSDP shards parameters, and so does tensor parallelism ([chapter 08](08_tensor_parallel.ipynb)); the two are often confused. FSDP is **data parallelism**: a rank gathers a *whole* layer and computes all of it, for its own tokens. Tensor parallelism leaves each part of the matrix where it is: a rank computes with its part, for *all* tokens. Let us look at one matrix product in one block, done both ways by four ranks.
#
# The plan of the split is chapter 08's: matrices by columns, then by rows; attention in whole heads (this cell is collapsed).

# %% jupyter={"source_hidden": true}
whole = Replicate()
enter = tp.PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole)
columns, rows = tp.ColwiseParallel(), tp.RowwiseParallel()
in_columns = ("attention.query", "attention.key", "attention.value", "mlp.up")
layer_plan = {"attention": enter, "mlp": enter, **dict.fromkeys(in_columns, columns)}
layer_plan |= {"attention.out": rows, "mlp.down": rows}

# %%
def sharded_block(method):
    layer = models.separate_projections(fresh_model()).blocks[0]
    if method == "tensor parallel":
        return tp.parallelize_module(layer, init_device_mesh("cpu", (N,)), layer_plan)
    return fully_shard(layer, reshard_after_forward=True)

def print_shapes(module, inputs, output):
    weight = getattr(module.weight, "_local_tensor", module.weight)
    print(f"weight {tuple(weight.shape)}, tokens {inputs[0][..., 0].numel()}")

# %% [markdown]
# `reshard_after_forward=True` treats the block as one of many; on its own it would be a root. We treat the input as the output of an earlier layer, so its gradient is needed, too.

# %%
def one_block(inputs, method):
    layer = sharded_block(method)
    watch = layer.mlp.up.register_forward_hook(print_shapes)
    for x in inputs:
        x = x.requires_grad_() + 0
        with measure(f"{x.shape[0] * x.shape[1]} tokens"):
            layer(x).square().mean().backward()
        watch.remove()

# %% [markdown]
# Five batches, each twice as large as the one before. With FSDP a rank gets a quarter of each, with tensor parallelism all of it. **If the batch has 16 times as many tokens, by what factor do the bytes that each rank sends grow, with FSDP and with tensor parallelism?**

# %%
methods = ["FSDP", "tensor parallel"]
predicted_growth = predict("Factor by which the bytes grow", labels=methods)
predicted_growth

# %%
token_counts = [128, 256, 512, 1024, 2048]  # of the whole batch
whole = [torch.randn(tokens // 32, 32, D) for tokens in token_counts]
own = [[x.chunk(N)[rank].clone() for x in whole] for rank in range(N)]
inputs = {"FSDP": own, "tensor parallel": [whole] * N}
block_runs = {
    method: launch(one_block, method, inputs=inputs[method], device="cpu", quiet=True)
    for method in inputs
}

# %%
def sent_by_tokens(method):
    """[batches] bytes that a rank sent."""
    of_a_rank = [tokens // N if method == "FSDP" else tokens for tokens in token_counts]
    traffic = block_runs[method].traffic
    return [traffic[f"{tokens} tokens"].sent_by_rank.mean() for tokens in of_a_rank]

sent = {method: sent_by_tokens(method) for method in block_runs}
growth = [float(round(each[-1] / each[0], 1)) for each in sent.values()]
named = {"the right factors, for the wrong methods": growth[::-1],
         "by how much the batch grows": token_counts[-1] / token_counts[0]}
predicted_growth.compare(growth, named)

# %% [markdown]
# What did `print_shapes` see, in the first batch of 128 tokens?

# %%
for method, run in block_runs.items():
    print(f"{method}: rank 0 multiplies by", run.stdout[0].strip())

# %% [markdown]
# The matrix is (384, 96). With FSDP each rank multiplies 32 of the 128 tokens by all of it, with tensor parallelism 128 tokens by a quarter of it: the same number of operations, and nothing else in common.
#
# In the notation of [chapter 03](03_ring_all_reduce.ipynb), with T tokens, a matrix W [F, D] and ranks X:
#
# | | before | during the product | after |
# |---|---|---|---|
# | FSDP | $A[T_X, D]\quad W[F_X, D]$ | $A[T_X, D]\quad W[F, D]$ | $Y[T_X, F]\quad W[F_X, D]$ |
# | tensor parallel | $A[T, D]\quad W[F_X, D]$ | the same | $Y[T, F_X]\quad W[F_X, D]$ |
#
# FSDP sends parameters and gradients: $\frac{3(N-1)}{N} \Psi$ of the layer (4 with gloo), however many tokens there are. Tensor parallelism sends activations: $8\,T D\,\frac{N-1}{N}$ elements for $T$ tokens (chapter 08), however many parameters there are.

# %%
def formula(method, tokens, reduce_scatter="gloo"):
    """Bytes that each rank sends for one block."""
    if method == "FSDP":
        return unit_step([block], N, reduce_scatter=reduce_scatter).sent_bytes
    return traffic.tensor_parallel_layer(tokens, D, N, element_bytes=4).total_bytes

for method, measured in sent.items():
    predicted = [formula(method, tokens) for tokens in token_counts]
    holds(f"{method}, for each batch", measured, predicted, rtol=0.05, unit="bytes")

# %% [markdown]
# With a ring for the reduce-scatter, both send the same where $8\,T D = 3\Psi$. A block has about $12 D^2$ parameters, so that is at $T = 4.5\,D$ tokens in the whole batch:

# %%
show_table(
    {"width D": ",d", "FSDP sends fewer bytes from this many tokens on": ",.0f"},
    [(width, 4.5 * width) for width in (D, 4096, 12_288)],
)

# %% [markdown]
# Large batches favor FSDP, and its gathers need no results of earlier layers, so they can overlap with computation. But FSDP needs a whole layer on every rank, with all activations of the rank's tokens. Tensor parallelism also works for a layer that does not fit, or with fewer sequences than ranks. Large models use both, on a mesh (chapter 08).

# %% [markdown]
# ## A unit's life
#
# Each call of `fully_shard` makes one **unit** from the module's parameters that no earlier call took. All parameters of a unit are gathered in one collective, used, and freed together. So inner modules must come first, and the root last.
#
# To see it happen, we mark when each block computes its forward, and run a single step with more tokens, on two ranks, so that each has its own core on most machines.

# %%
def marked(forward, label):
    def marked_forward(*inputs):
        with measure(label):
            return forward(*inputs)
    return marked_forward

def mark_blocks(model):
    for i, block in enumerate(model.blocks):
        block.forward = marked(block.forward, f"block {i}")

# %%
def one_step(batch):
    model = sharded_model()
    mark_blocks(model)
    model(*batch).backward()

# %% [markdown]
# The gradients of a unit are reduce-scattered as soon as backward has computed all of them. The root has the embeddings, which forward uses first, and the last norm, which it uses last. **Which unit's gradients are reduced first, and which unit's last?** (The embedding's matrix is also the head's.)

# %%
UNITS = ["block 0", "block 5", "the root"]
FIRST_AND_LAST = [f"first {a}, last {b}" for a in UNITS for b in UNITS if a != b]
predicted_order = predict("Units whose gradients are reduced", options=FIRST_AND_LAST)
predicted_order

# %%
two_batches = [data.batch(0, 8, 64, rank, 2) for rank in range(2)]
two = {"inputs": two_batches, "world_size": 2, "device": "cpu"}
life = launch(one_step, memory=True, **two)

# %%
by_time = sorted(life.memory[0].units, key=lambda event: event.start_s)
reduced = [event.unit for event in by_time if event.event == "reduce"]
first, *_, last = (unit.replace("blocks.", "block ") or "the root" for unit in reduced)
named = {
    "the order in which forward uses them": "first the root, last block 5",
    "the order of the blocks, without the root": "first block 5, last block 0",
}
predicted_order.compare(f"first {first}, last {last}", named)

# %% [markdown]
# Below is the recorded step of one rank, above it a simulation by FSDP's rules, both with their live bytes. Find the root, which is whole until backward ends, and a block that is gathered twice. Compare the order and the bytes; the times of the simulation come from its sliders. (Move "units": what happens to the peak, and to the number of collectives?)

# %%
unit_life(life)

# %% [markdown]
# In forward, each block waits for its gather. In backward, gathers and reduce-scatters alternate. The same in words, for rank 0:

# %%
def order_of(run):
    """What rank 0 began, in order."""
    short = {"all_gather_single": "gather", "reduce_scatter_single": "REDUCE"}
    blocks = [block for block in run.traffic.blocks if block.rank == 0]
    events = [(block.start_s, block.label) for block in blocks]
    for call in run.calls:
        if call.rank == 0:
            of_root = call.bytes in (4 * root, 4 * root // len(call.group))
            events.append((call.start_s, short[call.op] + (" root" if of_root else "")))
    return ", ".join(name for _, name in sorted(events))

print(order_of(life))
made = Counter(call.op for call in life.calls if call.rank == 0)
expected = [fsdp.all_gathers, fsdp.reduce_scatters]
holds("all-gathers and reduce-scatters", list(made.values()), expected)

# %% [markdown]
# - **Forward**: gather the root (the embedding is needed first), then gather a block, compute, free it, gather the next one. The root stays whole: the last norm and the logits need it, and backward begins with them.
# - **Backward**: gather the last block and, before it computes, also the one before it. So that one's parameters arrive while the last block computes: **prefetching**. Then free the last block, reduce-scatter its gradients, gather the next one, and so on. The root's gradients are reduced last, because the embedding is used first.
#
# An **all-gather** brings a unit's parameters to all ranks; a **reduce-scatter** sums its gradients over the ranks and leaves each rank with its own slice. So each rank's optimizer sees slices only: of parameters, gradients and its own states.
#
# While a block computes, its rank holds a slice of everything, the root, and this one block; all earlier blocks are free again:

# %%
expected = unit_step(units, 2, root=root).peak_parameter_bytes
phases = [each for each in life.memory[0].phases if each.name.startswith("block")]
held = np.array([phase.at_end["parameters"] for phase in phases])
holds("bytes per parameter, in each of six blocks", held / psi, expected / psi)

# %% [markdown]
# ### Why units
#
# Why not shard the whole model in one call? Or each Linear on its own? Let us try it: the same model, with its units chosen in three ways.

# %%
def choose_units(model, choice):
    """The units of a model without the root."""
    return {
        "root only": [],
        "6 blocks": list(model.blocks),
        "24 Linears": [
            each for each in model.blocks.modules() if isinstance(each, nn.Linear)
        ],
    }[choice]

# %%
def two_steps(batches, choice, reshard=True):
    model = fresh_model()
    for unit in choose_units(model, choice):
        fully_shard(unit, reshard_after_forward=reshard)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate(batches[:2]):
        with measure(f"step {step}"):
            with measure("forward pass"):
                loss = model(*batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

# %% [markdown]
# We look at the second step; in the first, each rank still creates the model. DDP keeps 4 bytes per parameter whole. **If the root is the only unit, how many bytes does a rank hold at most per parameter, counting parameters alone? And if each of the 24 Linears is a unit, how many all-gathers and how many reduce-scatters does a step make?**

# %%
predicted_root_only = predict("Bytes per parameter with the root only", unit="bytes")
predicted_root_only

# %%
both = ["all-gathers", "reduce-scatters"]
predicted_collectives = predict("Collectives with 24 Linears", labels=both)
predicted_collectives

# %%
choices = ("root only", "6 blocks", "24 Linears")
quiet = {"inputs": batches, "quiet": True, **options}
by_choice = {choice: launch(two_steps, choice, **quiet) for choice in choices}

# %%
def highest(run, *categories):
    """The most bytes of these categories on rank 0 at one time in the second step."""
    log = run.memory[0]
    step = next(phase for phase in log.phases if phase.name == "step 1")
    within_step = (log.times_s >= step.start_s) & (log.times_s <= step.end_s)
    return sum(log.live_bytes[category] for category in categories)[within_step].max()

# %%
named = {
    "all parameters, without the rank's slice": 4,
    "the slice, without what is gathered": 4 / N,
}
most = highest(by_choice["root only"], "parameters") / psi
predicted_root_only.compare(most, named)

# %%
made = Counter(call.op for call in by_choice["24 Linears"].calls_in("step 1"))
named = {
    "one gather for each unit": [25, 25],
    "two gathers for each unit, also for the root": [50, 25],
    "the Linears without the root": [48, 24],
}
counted = [made["all_gather_single"], made["reduce_scatter_single"]]
predicted_collectives.compare(counted, named, "counted")

# %% [markdown]
# The formula: a rank holds its slice of everything, the root, and the largest unit. The number of collectives is two gathers and a reduce-scatter for each unit, less the root's second gather.

# %%
model, predicted = fresh_model(), {}
for choice in choices:
    sizes = list(map(models.count_parameters, choose_units(model, choice)))
    rest = psi - sum(sizes)
    predicted[choice] = unit_step(sizes, N, root=rest, reduce_scatter="gloo")

# %%
def cost_of(choice, run):
    calls = run.calls_in("step 1")
    largest = N * max(call.bytes for call in calls if call.op.startswith("all_gather"))
    peaks = predicted[choice].peak_parameter_bytes, highest(run, "parameters")
    sent = run.traffic["step 1"].sent_by_rank.mean() / 4
    return len(calls), largest / 1024, *np.divide((*peaks, sent), psi)

# %%
rows = {choice: cost_of(choice, run) for choice, run in by_choice.items()}
show_table(
    {"units": "", "collectives": "d", "largest, KiB": ".0f",
     "bytes per parameter, formula": ".2f", "measured": ".2f", "sent, in Ψ": ".2f"},
    [(choice, *row) for choice, row in rows.items()],
)
counts, _, formula_peaks, measured_peaks, _ = zip(*rows.values())
holds("collectives", counts, [predicted[choice].messages for choice in choices])
holds("bytes per parameter at the peak", measured_peaks, formula_peaks, rtol=0.01)

# %% [markdown]
# With the root alone, a rank has its slice *and* the whole model at the same time, 5 bytes per parameter: more than without sharding. Smaller units lower the peak and need more collectives, two gathers and a reduce-scatter for each. The bytes stay the same. (The root alone sends fewer, as it is gathered only once.) A collective has a fixed cost (chapter 03), so many small ones are slow. On their GPUs, the authors of FSDP saw all-gathers of less than 33 million elements lose bandwidth quickly (Zhao et al. 2023, Figure 2b).
#
# Next to the parameters there are gradients and communication buffers, which are as large as a unit each: a gathered unit arrives in a flat buffer before its parameters are copied out of it, and gradients are copied into one before they are reduced. With prefetching, one more unit is on its way.
#
# A block is the usual choice: among dozens of them, one is a small part of the model, its collectives are large, and while it computes, the next one arrives.
#
# ## When to free
#
# `reshard_after_forward` decides what happens to a unit between its forward and its backward:
#
# | value | after forward | before backward | like |
# |---|---|---|---|
# | `True` | free it, keep 1/N | gather from N ranks | ZeRO-3 |
# | `False` | keep it whole | nothing | ZeRO-2 in traffic |
# | a number m that divides N | keep 1/m | gather from m ranks, say a node's | hpZ of ZeRO++ ([chapter 06](06_fsdp_in_practice.ipynb)) |
# | `None`, the default | `True`, but `False` for the root | | |
#
# The root is special because backward begins right after its forward ends: it would be freed and gathered again at once. **How many elements does each of the four ranks send per step with True, with False, and with 2?** (Over gloo, where a reduce-scatter sends $\frac{2(N-1)}{N}$ of a tensor.)

# %%
values = ["True", "False", "2"]
predicted_reshard = predict("Elements that each rank sends", unit="Ψ", labels=values)
predicted_reshard

# %%
by_reshard = {True: by_choice["6 blocks"]}
for reshard in (False, 2):
    by_reshard[reshard] = launch(two_steps, "6 blocks", reshard, **quiet)

# %%
traffics = [run.traffic["step 1"] for run in by_reshard.values()]
measured = [each.sent_by_rank.mean() / 4 / psi for each in traffics]
in_a_ring = [
    unit_step(units, N, root=root, reshard_after_forward=each).sent_bytes / 4 / psi
    for each in by_reshard
]
named = {"what they send where a reduce-scatter is a ring": in_a_ring}
predicted_reshard.compare(measured, named)

# %%
for (reshard, run), sent in zip(by_reshard.items(), measured):
    how = {"reshard_after_forward": reshard, "reduce_scatter": "gloo"}
    expected = unit_step(units, N, root=root, **how)
    gathers = sum(call.op == "all_gather_single" for call in run.calls_in("step 1"))
    holds(f"{reshard}: gathers", gathers, expected.all_gathers)
    in_psi = expected.sent_bytes / 4 / psi
    holds(f"{reshard}: sent, in Ψ", sent, in_psi, rtol=0.02)

# %% [markdown]
# What is not gathered again has to stay. Here is what a rank holds at the end of forward, beyond what it holds with `True`:

# %%
def held_after_forward(run):
    return sum(run.memory[0].at("forward pass").values())

for reshard in (False, 2):
    kept = unit_step(units, N, root=root, reshard_after_forward=reshard).kept_bytes
    expected = (kept - fsdp.kept_bytes) / psi
    with_it, freed = (held_after_forward(by_reshard[each]) for each in (reshard, True))
    more = (with_it - freed) / psi
    holds(f"{reshard}: more bytes per parameter", more, expected, rtol=0.01)

# %% [markdown]
# `False` saves a third of the traffic (a quarter with gloo) for a whole copy of the parameters between forward and backward: a choice for models that fit. `2` keeps half. Its second gather comes from only two ranks, neighbors in rank order. Make m the number of GPUs in a node, and no parameter crosses between nodes in backward.

# %%
again = [call for call in by_reshard[2].calls_in("step 1") if len(call.group) == 2]
print(len(again), "gathers in the group", {call.group for call in again})
matrix = by_reshard[2].traffic["step 1"].sent_bytes / 4 / psi
show_table(
    {"sent in a step, in Ψ": "", **{f"to rank {rank}": ".2f" for rank in range(N)}},
    [(f"from rank {rank}", *row) for rank, row in enumerate(matrix)],
)

# %% [markdown]
# Two rings go through all four ranks: gradients one way, 1.5 Ψ, and forward's gather the other way, 0.75 Ψ. To these, each pair, 0 and 1 or 2 and 3, adds its gather in backward.
#
# ## Prefetching
#
# A gather should be under way while another unit computes. In backward FSDP starts it early by default, as we saw in the order of the calls. In forward the order of units is not known in advance, so each gather starts when its unit is called. On a GPU that is early enough: the CPU runs ahead of the GPU and issues the next gather while the GPU still computes. If it does not run ahead, name the next units yourself: `block.set_modules_to_forward_prefetch([next_block])`.
#
# Our ranks have no GPU to run ahead of, and a gloo call blocks. To see the overlap here, we turn one more switch, which makes gathers asynchronous. In the picture, gathers and blocks (shaded) then run at the same time, as far as your machine has processors to spare.

# %%
def one_step_with_prefetch(batch, prefetch):
    model = sharded_model()
    mark_blocks(model)
    model._set_unshard_async_op(True)  # on a GPU: not needed
    for i, block in enumerate(model.blocks):
        following = model.blocks[i + 1 : i + 1 + prefetch]
        block.set_modules_to_forward_prefetch(list(following))
    model(*batch).backward()

# %%
ahead = launch(one_step_with_prefetch, 1, **two)
for name, run in {"default:  ": life, "one ahead:": ahead}.items():
    print(name, ", ".join(order_of(run).split(", ")[:7]), "…")
timeline(ahead)

# %%
def begun_early(run):
    """Gathers of a block that rank 0 began before the previous block computed."""
    blocks = sorted(block.start_s for block in run.traffic.blocks if block.rank == 0)
    own = [call for call in run.calls if call.rank == 0]
    gathers = [call.start_s for call in own if call.op == "all_gather_single"]
    of_next_block = gathers[2:]  # the first two: the root's and block 0's
    return sum(map(float.__lt__, of_next_block, blocks[:-1]))

print("gathers begun before the previous block computed:")
holds("by default", begun_early(life), 0)
holds("one ahead", begun_early(ahead), len(units) - 1)

# %% [markdown]
# The price is memory: each unit that is prefetched is one more that is whole or on its way.
#
# ## What goes wrong
#
# The first three mistakes give no error. For the first we train on the same batch in each step, so that the loss should fall.
#
# **The optimizer comes first.** `fully_shard` replaces each parameter by a new one, a DTensor that holds the rank's slice. An optimizer that was created before that still has the old ones, which nothing uses anymore. Nor may a forward pass come between the two: after it the root is whole, `model.parameters()` returns its whole tensors, and an optimizer that is built from them never updates the root.

# %%
def train_in_order(batch, sharded_first):
    model = fresh_model()
    if not sharded_first:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for unit in (*model.blocks, model):
        fully_shard(unit)
    if sharded_first:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        model.zero_grad()
        losses.append(loss.item())
    return losses

# %%
first_batches = [of_rank[0] for of_rank in batches[:2]]
small = {"inputs": first_batches, "world_size": 2, "device": "cpu"}
orders = {"after fully_shard": True, "before fully_shard": False}
in_order = {name: launch(train_in_order, how, **small) for name, how in orders.items()}
show_table(
    {"the optimizer is created": "", **{f"loss {step}": ".4f" for step in range(3)}},
    [(name, *run.outputs[0]) for name, run in in_order.items()],
)

# %% [markdown]
# **The root is left out.** Blocks are sharded, but embeddings and the last norm stay ordinary tensors, and nobody averages their gradients. Each rank trains its own embedding. (Gradient clipping, or an optimizer with `foreach=True`, would have stopped with an error: "got mixed torch.Tensor and DTensor".)

# %%
def train_without_root(batch, with_root):
    model = fresh_model()
    for unit in (*model.blocks, *([model] if with_root else [])):
        fully_shard(unit)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(*batch).backward()
    optimizer.step()
    weight = model.token.weight
    return (weight.full_tensor() if with_root else weight).detach().clone()

# %%
for with_root in (True, False):
    first, second = launch(train_without_root, with_root, **small).outputs
    differ = (first - second).abs().max().item()
    how = "with" if with_root else "without"
    print(how, f"the root: embeddings differ by {differ:.1e}")

# %% [markdown]
# **A norm of the local slice.** Each rank's slice has its own norm. `clip_grad_norm_` knows DTensors and takes the norm over all ranks; code that takes `.to_local()` first clips by a different number on each rank.

# %%
def norms(batch):
    model = sharded_model()
    model(*batch).backward()
    slices = [p.grad.to_local().norm() for p in model.parameters()]
    over_all = nn.utils.clip_grad_norm_(model.parameters(), 1e9)  # clips nothing
    return torch.stack(slices).norm().item(), over_all.full_tensor().item()

show_table(
    {"rank": "d", "norm of its slice": ".3f", "norm over all ranks": ".3f"},
    [(rank, *both) for rank, both in enumerate(launch(norms, **small).outputs)],
)

# %% [markdown]
# **A method other than `forward`.** Units are gathered by hooks, and PyTorch calls them when you call the module: `model(x)`, not `model.forward(x)`, nor a method of your own such as `generate`. Without them the parameters are still shards:

# %%
def call_a_method(batch):
    from torch.distributed.fsdp import register_fsdp_forward_method

    model = sharded_model()
    try:
        model.forward(*batch)
    except RuntimeError as error:
        print(str(error).split(",")[0])
    register_fsdp_forward_method(model, "forward")
    return model.forward(*batch).item(), model(*batch).item()

by_method = launch(call_a_method, **small)
print(by_method.stdout[0])
holds("after register_fsdp_forward_method: the same loss", *by_method.outputs[0])

# %% [markdown]
# **Tied weights in two units.** Our GPT uses one matrix for `token`, its embedding, and `head`, its last layer. So far both were in the root. If each is a unit of its own, the matrix is taken twice:

# %%
def train_tied(batch, in_one_unit):
    model = fresh_model()
    tied = [model.token, model.head]
    for unit in ([tied] if in_one_unit else tied):
        fully_shard(unit)
    fully_shard(model)
    error = "none"
    try:
        model(*batch).backward()
    except ValueError as found:
        error = str(found).split(". ")[0].replace("a parameter already ", "one ")
    return model.head.weight is model.token.weight, error

# %%
unit_runs = [launch(train_tied, one, **small, quiet=True) for one in (False, True)]
show_table(
    {"units of the two": "", "still one parameter": str, "error": ""},
    [(name, *run.outputs[0]) for name, run in zip(("two", "one"), unit_runs)],
)

# %% [markdown]
# The error comes at the first forward; an optimizer that was built before has two parameters instead of one. Called with a list, `fully_shard([model.token, model.head])` makes one unit of both.
#
# **The order of wrappers.** Checkpoint a block first, then compile it, then shard it, as torchtitan does. FSDP's hooks are then outside: in backward the unit is gathered once, and it is whole while the block is recomputed ([chapter 10](10_activation_checkpointing.ipynb)). Compile each block, `block.compile()`: the gathers stay between the compiled regions. (FSDP's hooks are excluded from compilation.)
#
# **Only rank 0 evaluates.** With DDP that works if the model has no buffers. (Otherwise DDP's forward broadcasts them, in `eval()` too: with batch norm it hangs.) With FSDP each forward gathers, so all ranks must take part. What will happen here?

# %%
def evaluate_on_rank_0(batch):
    model = sharded_model()
    model(*batch).backward()
    if dist.get_rank() == 0:
        with torch.no_grad():
            print("evaluation:", model(*batch))

# %%
try:
    launch(evaluate_on_rank_0, **small)
except DeadlockError as error:
    hang = error
    print(error)

# %% [markdown]
# With NCCL, rank 0 would wait until the process group's timeout. The same happens with everything that calls the model or gathers its parameters on some ranks only: generating a sample, saving a whole checkpoint, a last batch that one rank does not have.
#
# ## Where GPUs differ
#
# - NCCL's reduce-scatter sends $\frac{N-1}{N}$ of a tensor, half of what gloo sends here.
# - Gathers and reductions run next to the computation, in their own streams. What counts then is not their time, but the part that is not hidden.
#
# ## What to remember
#
# - A unit is whole only while it computes. At the peak a rank holds its slice of everything, the root, and the largest unit. Smaller units lower the peak and send the same bytes in more collectives: two all-gathers and a reduce-scatter for each unit.
# - The root stays whole from forward to backward, and backward prefetches by itself. `reshard_after_forward=False` saves the second gather, for a whole copy of the parameters between forward and backward.
# - FSDP is data parallelism: a rank computes whole layers for its own tokens, and sends parameters and gradients. What tensor parallelism sends grows with the tokens.
# - Create large models on `meta`, shard them, then build the optimizer. Every rank takes part in every forward.
#
# ## Sources
#
# - PyTorch 2.13: [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html), and the code in `torch/distributed/fsdp/_fully_shard`. [torchtitan](https://github.com/pytorch/torchtitan), `parallelize_llama`: checkpointing, then compile, then `fully_shard`.
# - Y. Zhao et al.: *PyTorch FSDP: experiences on scaling fully sharded data parallel.* [arXiv 2304.11277](https://arxiv.org/abs/2304.11277), 2023. Figure 2b on small all-gathers.
# - G. Wang et al.: *ZeRO++: extremely efficient collective communication for giant model training.* [arXiv 2306.10209](https://arxiv.org/abs/2306.10209), 2023. Its second partition within a node is `reshard_after_forward` with a number.
# - S. Rajbhandari, J. Rasley, O. Ruwase, Y. He: *ZeRO: memory optimizations toward training trillion parameter models.* [arXiv 1910.02054](https://arxiv.org/abs/1910.02054), 2020.
