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
# - choose the units that FSDP gathers as a whole, and when to free and prefetch them;
# - decide when hybrid sharding sends less between nodes, and what it costs in memory;
# - set precision, accumulation and checkpoints so that FSDP does what you intend.
#
# **You need:** [04 ZeRO memory math](04_zero.ipynb).

# %% [markdown]
# <details open><summary>Each unit of the model is whole only while it computes</summary>
#
# [![Animation: Each unit of the model is whole only while it computes](openers/05_fsdp.svg)](openers/05_fsdp.svg)
#
# One of two ranks: each bar shows how long a unit's parameters are gathered. Forward goes down the blocks and backward comes back up; the root, which contains the others, stays whole. (Recorded from real processes. [Play it again](openers/05_fsdp.svg))
#
# </details>

# %%
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np

# %%
print("Loading PyTorch's parallel modules: a few seconds, longer the first time on a computer …")

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor import parallel as tp
from torch.nn.parallel import DistributedDataParallel

# %%
from shardlab import DeadlockError, data, holds, launch, measure, models, show_table
from shardlab.estimate import hybrid_sharding, memory, traffic
from shardlab.estimate.fsdp_units import unit_step
from shardlab.widgets import memory_timeline, palette, predict, timeline, traffic_map, unit_life
from shardlab.widgets.memory_log import thin

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

parameters = models.count_parameters(fresh_model())
block = models.count_parameters(fresh_model().blocks[0])
print(f"Ψ = {parameters:,} parameters, {block:,} of them in each block")

# %% [markdown]
# ## What it is
#
# We train this model three times, on the same ranks and the same batches: with DDP, where every rank has a whole copy, with `fully_shard`, and with stage 3 of DeepSpeed. `batches[r]` are the three batches of rank r.

# %%
batches = [[data.batch(step, 2, 16, rank, N) for step in range(3)] for rank in range(N)]

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
# DDP wraps the model. `fully_shard` changes the modules in place, from the inside out: first each block, then the model, the **root**, which gets what is left: embeddings and the last norm.

# %%
def with_ddp(batches):
    return train(DistributedDataParallel(fresh_model()), batches)

def with_fsdp(batches):
    model = fresh_model()
    for unit in (*model.blocks, model):
        fully_shard(unit)
    return train(model, batches)

# %%
def with_zero3(batches, config):
    import deepspeed

    model = fresh_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    losses = []
    for step, batch in enumerate(batches):
        with measure(f"step {step}"):
            loss = engine(*batch)
            engine.backward(loss)
            engine.step()
        losses.append(loss.item())
    return losses

# %% [markdown]
# The configuration is chapter 04's, for a small model: no parameter stays gathered, and a layer is freed right after use.

# %%
zero = {"stage": 3, "reduce_bucket_size": 2**15, "stage3_param_persistence_threshold": 0}
zero |= {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
zero3_config = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 0.0,
    "zero_allow_untested_optimizer": True,
    "zero_optimization": zero,
}

# %% [markdown]
# In fp32 with AdamW a parameter takes 4 bytes, its gradient 4, and Adam's two means 8. These are its *model states*. **How many bytes of them per parameter does each of the four ranks hold at the end of a step in `train`, with DDP and with `fully_shard`?**

# %%
predicted_states = predict("Model states per parameter at the end of a step", unit="bytes", labels=["DDP", "FSDP"])
predicted_states

# %%
options = {"memory": True, "device": "cpu"}
runs = {
    "DDP": launch(with_ddp, inputs=batches, **options),
    "FSDP": launch(with_fsdp, inputs=batches, **options),
    "ZeRO-3": launch(with_zero3, zero3_config, inputs=batches, **options),
}

# %%
STATES = ("parameters", "gradients", "optimizer")

def states_at(moment):
    """{method: [3] bytes per parameter, on the rank with the most}"""
    return {
        name: np.array([run.memory.at(moment)[state].max() for state in STATES]) / parameters
        for name, run in runs.items()
    }

each, between = states_at("backward"), states_at("step 2")
named = {
    "what it holds after backward, before zero_grad": [each[name].sum() for name in ("DDP", "FSDP")],
    "all of it, not divided by N": [between["DDP"].sum()] * 2,
}
predicted_states.compare([between[name].sum() for name in ("DDP", "FSDP")], named)

# %% [markdown]
# `zero_grad` has freed the gradients. After backward, when all of them exist, each rank holds:

# %%
show_table(
    {"bytes per parameter": "", **dict.fromkeys(STATES, ".2f"), "together": ".2f"},
    [(name, *held, held.sum()) for name, held in each.items()],
)

# %% [markdown]
# With FSDP it is a quarter of everything: 16/N. (DeepSpeed holds one more number per parameter of its slice, because its optimizer updates an fp32 copy even if the parameters are fp32 already.) The formulas, compared with the run:

# %%
setups = {"DDP": (0, "fp32"), "FSDP": (3, "fp32"), "ZeRO-3": (3, "fp32-master")}
for name, (stage, precision) in setups.items():
    states = memory.model_states(parameters, stage=stage, world_size=N, precision=precision)
    predicted = states.device_bytes / parameters
    holds(f"{name}: bytes per parameter", each[name].sum(), predicted, rtol=0.01)

# %% [markdown]
# The training itself is the same. Each rank's losses are those of its own batches, and they agree on every rank:

# %%
losses = {name: np.array(run.outputs) for name, run in runs.items()}
steps = {f"rank {rank}, step {step}": (rank, step) for rank in (0, 1) for step in range(3)}
show_table(
    {"losses": "", **dict.fromkeys(steps, ".5f")},
    [(name, *(by_rank[at] for at in steps.values())) for name, by_rank in losses.items()],
)
farthest = max(abs(by_rank - losses["DDP"]).max() for by_rank in losses.values())
holds("largest difference from DDP on any rank", farthest, below=1e-5)

# %% [markdown]
# What differs is when memory is used. Here are all live bytes of rank 0 during the third step. The three runs share one scale of bytes; each has its own time axis:

# %%
def third_step(run):
    """Times in ms since the step began, and {category: bytes per parameter} from each time on."""
    log = run.memory[0]
    (step,) = (phase for phase in log.phases if phase.name == "step 2")
    first, last = np.searchsorted(log.times_s, (step.start_s, step.end_s), side="right")
    span = slice(max(first - 1, 0), last)  # with the entry that holds when the step begins
    live = {name: log.live_bytes[name][span] / parameters for name in palette.MEMORY}
    return 1000 * (log.times_s[span].clip(step.start_s) - step.start_s), live

# %%
figure, panels = plt.subplots(1, 3, figsize=(8, 3.6), sharey=True)
for axes, (name, run) in zip(panels, runs.items()):
    times_ms, live = third_step(run)
    kept = thin(sum(live.values()), 100)  # fewer points, but every peak
    drawn = [amounts[kept] for amounts in live.values()]
    axes.stackplot(times_ms[kept], *drawn, colors=palette.MEMORY.values(), step="post", labels=live)
    axes.set(title=name, xlabel="ms", xlim=(0, times_ms[-1]))
panels[0].set_ylabel("live bytes per parameter")
figure.legend(*panels[0].get_legend_handles_labels(), loc="lower center", ncols=6, frameon=False)
figure.tight_layout(rect=(0, 0.08, 1, 1))

# %%
highest_and_lowest = [(name, sum(third_step(run)[1].values())) for name, run in runs.items()]
show_table(
    {"live bytes per parameter": "", "least": ".1f", "most": ".1f"},
    [(name, live.min(), live.max()) for name, live in highest_and_lowest],
)

# %% [markdown]
# DDP's parameters are a flat band, and so are its buckets, which are as large as all gradients. FSDP's parameters go up and down while blocks are gathered and freed. Below is everything that was recorded, for each rank: choose a run. (At the left of the picture each rank creates the whole model and then shards it. A model too large for that is created on the `meta` device, which allocates nothing, sharded, and then initialized.)

# %%
memory_timeline(runs)

# %% [markdown]
# ### What it sends
#
# DDP all-reduces its gradients, $\frac{2(N-1)}{N} \Psi$ elements. FSDP, like ZeRO-3, gathers parameters twice and reduce-scatters gradients: $\frac{3(N-1)}{N} \Psi$, but gloo runs a reduce-scatter as an all-reduce ([chapter 03](03_ring_all_reduce.ipynb)), so here it is $\frac{4(N-1)}{N} \Psi$. These are the calls of the third step on rank 0:

# %%
ops = ("all_reduce", "all_gather_single", "reduce_scatter_single")

def sent_and_calls(run):
    large = Counter(call.op for call in run.calls_in("step 2") if call.bytes > 1000)
    return run.traffic["step 2"].sent_by_rank.mean() / 4 / parameters, *map(large.get, ops)

show_table(
    {"method": "", "sent, in Ψ": ".2f", **dict.fromkeys(ops, "d")},
    [(name, *sent_and_calls(run)) for name, run in runs.items()],
)

# %% [markdown]
# FSDP makes 13 all-gathers, not 14: two for each block, but one for the root, which stays whole between forward and backward. Each unit's gradients are reduce-scattered once. DeepSpeed gathers smaller pieces: each Linear, norm and embedding separately. Predicted and measured:

# %%
units = [block] * 6
root = parameters - sum(units)
fsdp = unit_step(units, N, root=root, reduce_scatter="gloo")
sent = runs["FSDP"].traffic["step 2"].sent_by_rank.mean()
calls = Counter(call.op for call in runs["FSDP"].calls_in("step 2"))
predicted, measured = fsdp.sent_bytes / 4 / parameters, sent / 4 / parameters
holds("sent by each rank, in Ψ", measured, predicted, rtol=0.02)
holds("all-gathers", calls["all_gather_single"], fsdp.all_gathers)
holds("reduce-scatters", calls["reduce_scatter_single"], fsdp.reduce_scatters)

# %% [markdown]
# These formulas have no padding, and our model needs none. But `fully_shard` splits dimension 0 and pads it to a multiple of N: a layer of 50 rows has 52 on 4 ranks, and 64 on 64 ranks, 28 % more to gather and to keep.

# %%
def one_layer():
    layer = fully_shard(nn.Linear(130, 50))
    layer(torch.ones(1, 130)).sum().backward()

gather, *_ = launch(one_layer, world_size=N, device="cpu", quiet=True).calls
holds("bytes gathered, over those of the layer", N * gather.bytes / (4 * 131 * 50), 52 / 50)

# %% [markdown]
# ### What it is not
#
# FSDP shards parameters, and so does tensor parallelism ([chapter 07](07_tensor_parallel.ipynb)); the two are often confused. FSDP is **data parallelism**: a rank gathers a *whole* layer and computes all of it, for its own tokens. Tensor parallelism leaves each part of the matrix where it is: a rank computes with its part, for *all* tokens. Let us look at one matrix product in one block, done both ways by four ranks.
#
# The plan is chapter 07's: matrices split by columns, then by rows; attention in whole heads.

# %%
enter = tp.PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
columns, rows = tp.ColwiseParallel(), tp.RowwiseParallel()
layer_plan = {
    "attention": enter, "mlp": enter,
    "attention.query": columns, "attention.key": columns, "attention.value": columns,
    "mlp.up": columns,
    "attention.out": rows, "mlp.down": rows,
}

# %%
def sharded_block(method):
    layer = models.separate_projections(fresh_model()).blocks[0]
    if method == "tensor parallel":
        return tp.parallelize_module(layer, init_device_mesh("cpu", (N,)), layer_plan)
    return fully_shard(layer, reshard_after_forward=True)

def print_shapes(module, inputs, output):
    weight = getattr(module.weight, "_local_tensor", module.weight)
    print(f"weight {tuple(weight.shape)}, tokens {inputs[0].shape[0] * inputs[0].shape[1]}")

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
predicted_growth = predict("Factor by which the bytes grow", labels=["FSDP", "tensor parallel"])
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
# FSDP sends parameters and gradients: $\frac{3(N-1)}{N} \Psi$ of the layer (4 with gloo), however many tokens there are. Tensor parallelism sends activations: $8\,T D\,\frac{N-1}{N}$ elements for $T$ tokens (chapter 07), however many parameters there are.

# %%
def formula(method, tokens, reduce_scatter="gloo"):
    """Bytes that each rank sends for one block."""
    if method == "FSDP":
        return unit_step([block], N, reduce_scatter=reduce_scatter).sent_bytes
    return traffic.tensor_parallel_layer(tokens, D, N, element_bytes=4).total_bytes

for method, measured in sent.items():
    predicted = [formula(method, tokens) for tokens in token_counts]
    holds(f"{method}, for each batch", measured, predicted, rtol=0.05, unit="bytes")

# %%
figure, axes = plt.subplots(figsize=(7, 3.4))
lines = [("FSDP", "gloo", "-"), ("FSDP", "ring", ":"), ("tensor parallel", "gloo", "--")]
for method, how, style in lines:
    predicted = [formula(method, tokens, how) / 2**20 for tokens in token_counts]
    name = f"{method}, with a real reduce-scatter" if how == "ring" else f"{method}, formula"
    axes.plot(token_counts, predicted, style, color=palette.PREDICTED, label=name)
for method, marker in (("FSDP", "o"), ("tensor parallel", "s")):
    mebibytes = np.divide(sent[method], 2**20)
    axes.plot(token_counts, mebibytes, marker, color=palette.MEASURED, label=f"{method}, measured")
axes.set(xlabel="tokens in the batch", ylabel="MiB sent by each rank", xscale="log", ylim=0)
axes.set_xticks(token_counts, token_counts)
axes.minorticks_off()
axes.legend(frameon=False)
figure.tight_layout()

# %% [markdown]
# The lines cross where $8\,T D = 3\Psi$. A block has about $12 D^2$ parameters, so that is at $T = 4.5\,D$ tokens in the whole batch:

# %%
show_table(
    {"width D": ",d", "FSDP sends fewer bytes from this many tokens on": ",.0f"},
    [(width, 4.5 * width) for width in (D, 4096, 12_288)],
)

# %% [markdown]
# Large batches favor FSDP, and its gathers need no results of earlier layers, so they can overlap with computation. But FSDP needs a whole layer on every rank, with all activations of the rank's tokens. Tensor parallelism also works for a layer that does not fit, or with fewer sequences than ranks. Large models use both, on a mesh (chapter 07).

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
    model = fresh_model()
    mark_blocks(model)
    for unit in (*model.blocks, model):
        fully_shard(unit)
    model(*batch).backward()

# %% [markdown]
# The gradients of a unit are reduce-scattered as soon as backward has computed all of them. The root has the embeddings, which forward uses first, and the last norm, which it uses last. **Which unit's gradients are reduced first, and which unit's last?** (The embedding's matrix is also the head's.)

# %%
UNITS = ["block 0", "block 5", "the root"]
FIRST_AND_LAST = [f"first {first}, last {last}" for first in UNITS for last in UNITS if first != last]
predicted_order = predict("Units whose gradients are reduced", options=FIRST_AND_LAST)
predicted_order

# %%
two_batches = [data.batch(0, 8, 64, rank, 2) for rank in range(2)]
two = {"inputs": two_batches, "world_size": 2, "device": "cpu"}
life = launch(one_step, memory=True, **two)

# %%
reduces = sorted(event.start_s for event in life.memory[0].units if event.event == "reduce")
unit_at = {event.start_s: event.unit for event in life.memory[0].units}
first, *_, last = (unit_at[start].replace("blocks.", "block ") or "the root" for start in reduces)
predicted_order.compare(f"first {first}, last {last}")

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
    events = [(block.start_s, block.label) for block in run.traffic.blocks if block.rank == 0]
    for call in run.calls:
        if call.rank == 0:
            of_root = call.bytes in (4 * root, 4 * root // len(call.group))
            events.append((call.start_s, short[call.op] + (" root" if of_root else "")))
    return ", ".join(name for _, name in sorted(events))

# %%
print(order_of(life))
made = Counter(call.op for call in life.calls if call.rank == 0)
holds("all-gathers and reduce-scatters", list(made.values()), [fsdp.all_gathers, fsdp.reduce_scatters])

# %% [markdown]
# - **Forward**: gather the root (the embedding is needed first), then gather a block, compute, free it, gather the next one. The root stays whole: the last norm and the logits need it, and backward begins with them.
# - **Backward**: gather the last block and, before it computes, also the one before it. So that one's parameters arrive while the last block computes: **prefetching**. Then free the last block, reduce-scatter its gradients, gather the next one, and so on. The root's gradients are reduced last, because the embedding is used first.
#
# An **all-gather** brings a unit's parameters to all ranks; a **reduce-scatter** sums its gradients over the ranks and leaves each rank with its own slice. So each rank's optimizer sees slices only: of parameters, gradients and its own states.
#
# While a block computes, its rank holds a slice of everything, the root, and this one block; all earlier blocks are free again:

# %%
expected = unit_step(units, 2, root=root).peak_parameter_bytes
in_a_block = [phase for phase in life.memory[0].phases if phase.name.startswith("block")]
held = np.array([phase.at_end["parameters"] for phase in in_a_block])
holds("bytes per parameter, in each of the six blocks", held / parameters, expected / parameters)

# %% [markdown]
# ### Why units
#
# Why not shard the whole model in one call? Or each Linear on its own? Let us try it: the same model, with its units chosen in six ways.

# %%
def choose_units(model, choice):
    """The units of a model without the root; a list is one unit of several modules."""
    blocks = list(model.blocks)
    return {
        "root only": [],
        "2 × 3 blocks": [blocks[:3], blocks[3:]],
        "3 × 2 blocks": [blocks[:2], blocks[2:4], blocks[4:]],
        "6 blocks": blocks,
        "12 half blocks": [half for block in blocks for half in (block.attention, block.mlp)],
        "24 Linears": [layer for layer in model.blocks.modules() if isinstance(layer, nn.Linear)],
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
predicted_root_only = predict("Bytes per parameter, of parameters alone, with the root only", unit="bytes")
predicted_root_only

# %%
predicted_collectives = predict("Collectives with 24 Linears", labels=["all-gathers", "reduce-scatters"])
predicted_collectives

# %%
choices = ["root only", "2 × 3 blocks", "3 × 2 blocks"]
choices += ["6 blocks", "12 half blocks", "24 Linears"]
by_choice = {
    choice: launch(two_steps, choice, inputs=batches, quiet=True, **options) for choice in choices
}

# %%
def highest(run, *categories):
    """The most bytes that rank 0 held of these categories at one time in the second step."""
    log = run.memory[0]
    step = next(phase for phase in log.phases if phase.name == "step 1")
    within_step = (log.times_s >= step.start_s) & (log.times_s <= step.end_s)
    return sum(log.live_bytes[category] for category in categories)[within_step].max()

# %%
whole, sliced = 4, 4 / N
named = {"all parameters, without the rank's slice": whole, "the slice, without what is gathered": sliced}
predicted_root_only.compare(highest(by_choice["root only"], "parameters") / parameters, named)

# %%
made = Counter(call.op for call in by_choice["24 Linears"].calls_in("step 1"))
named = {
    "one gather for each unit": [25, 25],
    "two gathers for each unit, also for the root": [50, 25],
    "the Linears without the root": [48, 24],
}
predicted_collectives.compare([made["all_gather_single"], made["reduce_scatter_single"]], named, "counted")

# %% [markdown]
# The formula: a rank holds its slice of everything, the root, and the largest unit. The number of collectives is two gathers and a reduce-scatter for each unit, less the root's second gather.

# %%
def unit_size(unit):
    return sum(map(models.count_parameters, unit if isinstance(unit, list) else [unit]))

model, predicted = fresh_model(), {}
for choice in choices:
    sizes = [unit_size(unit) for unit in choose_units(model, choice)]
    predicted[choice] = unit_step(sizes, N, root=parameters - sum(sizes), reduce_scatter="gloo")

# %%
def cost_of(choice, run):
    calls = run.calls_in("step 1")
    largest = N * max(call.bytes for call in calls if call.op.startswith("all_gather"))
    peaks = predicted[choice].peak_parameter_bytes, highest(run, "parameters")
    sent = run.traffic["step 1"].sent_by_rank.mean() / 4
    return len(calls), largest / 1024, *np.divide((*peaks, sent), parameters)

# %%
rows = {choice: cost_of(choice, run) for choice, run in by_choice.items()}
show_table(
    {"units": "", "collectives": "d", "largest, KiB": ".0f", "formula, bytes per parameter": ".2f",
     "measured": ".2f", "sent, in Ψ": ".2f"},
    [(choice, *row) for choice, row in rows.items()],
)
counts, _, formula_peaks, measured_peaks, _ = zip(*rows.values())
holds("collectives", counts, [predicted[choice].messages for choice in choices])
holds("bytes of parameters at the peak, per parameter", measured_peaks, formula_peaks, rtol=0.01)

# %%
counts = [predicted[choice].messages for choice in choices]
formula_bytes = [predicted[choice].peak_parameter_bytes / parameters for choice in choices]
alone, together = (
    [highest(run, *categories) / parameters for run in by_choice.values()]
    for categories in (["parameters"], ["parameters", "gradients", "buckets"])
)

# %%
figure, axes = plt.subplots(figsize=(7, 3.6))
axes.axhline(4, color=palette.PLOT_INK, linestyle=":", label="a whole copy of the parameters")
axes.plot(counts, formula_bytes, color=palette.PREDICTED, label="parameters, formula")
axes.plot(counts, alone, "o", color=palette.MEASURED, label="parameters, measured")
hollow = {"color": palette.MEASURED, "mfc": "none"}
axes.plot(counts, together, "s:", **hollow, label="with gradients and buckets")
for x, y, choice in zip(counts, together, choices, strict=True):
    axes.annotate(choice, (x, y), (4, 5), textcoords="offset points", size=9)
axes.set(xlabel="collectives in a step", ylabel="highest bytes per parameter", xscale="log", ylim=(0, 12))
axes.set_xticks(counts, counts)
axes.minorticks_off()
axes.legend(frameon=False, fontsize=9)
figure.tight_layout()

# %% [markdown]
# With the root alone, a rank has its slice *and* the whole model at the same time, 5 bytes per parameter: more than without sharding. Smaller units lower the peak, but units of half the size need about twice as many collectives. The bytes stay the same. (The root alone sends fewer, as it is gathered only once.) A collective has a fixed cost (chapter 03), so many small ones are slow. On their GPUs, the authors of FSDP saw all-gathers of less than 33 million elements lose bandwidth quickly (Zhao et al. 2023, Figure 2b).
#
# The upper line adds gradients and communication buffers, which are as large as a unit each: a gathered unit arrives in a flat buffer before its parameters are copied out of it, and gradients are copied into one before they are reduced. With prefetching, one more unit is on its way.
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
# | a number m that divides N | keep 1/m | gather from m ranks, say a node's | ZeRO++ |
# | `None`, the default | `True`, but `False` for the root | | |
#
# The root is special because backward begins right after its forward ends: it would be freed and gathered again at once. **How many elements does each of the four ranks send per step with True, with False, and with 2?** (Over gloo, where a reduce-scatter sends $\frac{2(N-1)}{N}$ of a tensor.)

# %%
predicted_reshard = predict("Elements that each rank sends", unit="Ψ", labels=["True", "False", "2"])
predicted_reshard

# %%
by_reshard = {True: by_choice["6 blocks"]}
for reshard in (False, 2):
    by_reshard[reshard] = launch(two_steps, "6 blocks", reshard, inputs=batches, **options)

# %%
measured = [run.traffic["step 1"].sent_by_rank.mean() / 4 / parameters for run in by_reshard.values()]
in_a_ring = [
    unit_step(units, N, root=root, reshard_after_forward=each).sent_bytes / 4 / parameters
    for each in by_reshard
]
predicted_reshard.compare(measured, {"what they send where a reduce-scatter is a ring": in_a_ring})

# %%
for (reshard, run), sent in zip(by_reshard.items(), measured):
    how = {"reshard_after_forward": reshard, "reduce_scatter": "gloo"}
    expected = unit_step(units, N, root=root, **how)
    gathers = sum(call.op == "all_gather_single" for call in run.calls_in("step 1"))
    holds(f"{reshard}: gathers", gathers, expected.all_gathers)
    holds(f"{reshard}: sent, in Ψ", sent, expected.sent_bytes / 4 / parameters, rtol=0.02)

# %% [markdown]
# What is not gathered again has to stay. Here is what a rank holds at the end of forward, beyond what it holds with `True`:

# %%
def held_after_forward(run):
    return sum(run.memory[0].at("forward pass").values())

for reshard in (False, 2):
    kept = unit_step(units, N, root=root, reshard_after_forward=reshard).kept_bytes
    expected = (kept - fsdp.kept_bytes) / parameters
    more = held_after_forward(by_reshard[reshard]) - held_after_forward(by_reshard[True])
    holds(f"{reshard}: bytes per parameter more than with True", more / parameters, expected, rtol=0.01)

# %% [markdown]
# `False` saves a third of the traffic (a quarter with gloo) for a whole copy of the parameters between forward and backward: a choice for models that fit. `2` keeps half. Its second gather comes from only two ranks, neighbors in rank order. Make m the number of GPUs in a node, and no parameter crosses between nodes in backward.

# %%
again = [call for call in by_reshard[2].calls_in("step 1") if len(call.group) == 2]
print(len(again), "gathers in the group", {call.group for call in again})
show_table(
    {"sent in a step, in Ψ": "", **{f"to rank {rank}": ".2f" for rank in range(N)}},
    [
        (f"from rank {rank}", *row)
        for rank, row in enumerate(by_reshard[2].traffic["step 1"].sent_bytes / 4 / parameters)
    ],
)

# %% [markdown]
# Two rings go through all four ranks: gradients one way, 1.5 Ψ, and forward's gather the other way, 0.75 Ψ. To these, each pair, 0 and 1 or 2 and 3, adds its gather in backward.
#
# ## Prefetching
#
# A gather should be under way while another unit computes. In backward FSDP starts it early by default, as we saw in the order of the calls. In forward the order of units is not known in advance, so each gather starts when its unit is called. On a GPU that is early enough: the CPU runs ahead of the GPU and issues the next gather while the GPU still computes. If it does not run ahead, name the next units yourself: `block.set_modules_to_forward_prefetch([next_block])`.
#
# Our ranks have no GPU to run ahead of, and a gloo call blocks. To see the overlap here, we turn one more switch, which makes gathers asynchronous. In the picture, gathers and blocks then run at the same time, as far as your machine has processors to spare.

# %%
def one_step_with_prefetch(batch, prefetch):
    model = fresh_model()
    mark_blocks(model)
    for unit in (*model.blocks, model):
        fully_shard(unit)
    model._set_unshard_async_op(True)  # on a GPU: not needed
    for i, block in enumerate(model.blocks):
        block.set_modules_to_forward_prefetch(list(model.blocks[i + 1 : i + 1 + prefetch]))
    model(*batch).backward()

# %%
ahead = launch(one_step_with_prefetch, 1, **two)
print("default:  ", order_of(life)[:75], "…")
print("one ahead:", order_of(ahead)[:75], "…")
timeline(ahead)

# %%
def begun_early(run):
    """Gathers of a block that rank 0 began before the block before it computed."""
    blocks = sorted(block.start_s for block in run.traffic.blocks if block.rank == 0)
    gathers = [c.start_s for c in run.calls if c.rank == 0 and c.op == "all_gather_single"]
    of_next_block = gathers[2:]  # the first two: the root's and block 0's
    return sum(gather < block for gather, block in zip(of_next_block, blocks[:-1], strict=False))

holds("by default: gathers begun before the previous block computed", begun_early(life), 0)
holds("one ahead: gathers begun before the previous block computed", begun_early(ahead), len(units) - 1)

# %% [markdown]
# The price is memory: each unit that is prefetched is one more that is whole or on its way.
#
# ## What goes wrong
#
# The first four mistakes give no error. For the first we train on the same batch in each step, so that the loss should fall.
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
small = {"inputs": [of_rank[0] for of_rank in batches[:2]], "world_size": 2, "device": "cpu"}
orders = {"after fully_shard": True, "before fully_shard": False}
in_order = {name: launch(train_in_order, first, **small).outputs[0] for name, first in orders.items()}
show_table(
    {"the optimizer is created": "", **{f"loss {step}": ".4f" for step in range(3)}},
    [(name, *losses) for name, losses in in_order.items()],
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
    print("with" if with_root else "without", f"the root: embeddings differ by {differ:.1e}")

# %% [markdown]
# **A norm of the local slice.** Each rank's slice has its own norm. `clip_grad_norm_` knows DTensors and takes the norm over all ranks; code that takes `.to_local()` first clips by a different number on each rank.

# %%
def norms(batch):
    model = fresh_model()
    for unit in (*model.blocks, model):
        fully_shard(unit)
    model(*batch).backward()
    slices = [p.grad.to_local().norm() for p in model.parameters()]
    over_all = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1e9)  # clips nothing
    return torch.stack(slices).norm().item(), over_all.full_tensor().item()

show_table(
    {"rank": "d", "norm of its slice": ".3f", "norm over all ranks": ".3f"},
    [(rank, *both) for rank, both in enumerate(launch(norms, **small).outputs)],
)

# %% [markdown]
# **Two forwards before one backward**, as for a loss that compares two outputs. On its own that is right: backward gathers a unit for each forward, and reduces the sum of their gradients. But *reentrant* checkpointing calls forward again and runs a backward of its own for each of the two. A unit inside the checkpointed block is then reduced after the first of these, and the gradient that the second one adds never reaches its shards:

# %%
def two_forwards(pair, weight, reentrant=None):
    from torch.utils.checkpoint import checkpoint

    model = fresh_model()
    for block in model.blocks:
        fully_shard(block.mlp)
        if reentrant is not None:
            block.forward = partial(checkpoint, block.forward, use_reentrant=reentrant)
    fully_shard(model)
    shards = list(model.parameters())
    (weight * model(*pair[0]) + model(*pair[1])).backward()
    return [shard.grad.full_tensor() for shard in shards]

# %%
pairs = {**small, "inputs": [of_rank[:2] for of_rank in batches[:2]], "quiet": True}
ways = {"none": (1,), "not reentrant": (1, False), "reentrant": (1, True), "second alone": (0,)}
found = {way: launch(two_forwards, *how, **pairs).outputs[0] for way, how in ways.items()}

def different(way, other):
    return sum(not torch.allclose(*both, atol=1e-6) for both in zip(found[way], found[other]))

of_all = len(found["none"])
show_table(
    {"checkpointing": "", "wrong gradients": "d", "equal to those of the second forward alone": "d", "of": "d"},
    [(way, different(way, "none"), of_all - different(way, "second alone"), of_all) for way in list(ways)[:3]],
)

# %% [markdown]
# So pass `use_reentrant=False`, or both batches in one forward.
#
# **A method other than `forward`.** Units are gathered by hooks, and PyTorch calls them when you call the module: `model(x)`, not `model.forward(x)`, nor a method of your own such as `generate`. Without them the parameters are still shards:

# %%
def call_a_method(batch):
    from torch.distributed.fsdp import register_fsdp_forward_method

    model = fresh_model()
    for unit in (*model.blocks, model):
        fully_shard(unit)
    try:
        model.forward(*batch)
    except RuntimeError as error:
        print(str(error).split(",")[0])
    register_fsdp_forward_method(model, "forward")
    return model.forward(*batch).item(), model(*batch).item()

by_method = launch(call_a_method, **small)
print(by_method.stdout[0])
holds("after register_fsdp_forward_method: the loss is that of model(…)", *by_method.outputs[0])

# %% [markdown]
# **Only rank 0 evaluates.** With DDP that works if the model has no buffers. (Otherwise DDP's forward broadcasts them, in `eval()` too: with batch norm it hangs.) With FSDP each forward gathers, so all ranks must take part. What will happen here?

# %%
def evaluate_on_rank_0(batch):
    model = fresh_model()
    for unit in (*model.blocks, model):
        fully_shard(unit)
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

# %% [markdown]
# ## HSDP: shards within a node, replicas across nodes
#
# So far all N ranks shared one set of shards, so every all-gather goes over every link, including the slow ones between nodes. **HSDP** (hybrid sharded data parallel; the layout of MiCS, Zhang et al. 2022) arranges the ranks in a mesh of R rows and S columns. A row, for example the GPUs of a node, shares one set of shards. The ranks in a column hold the same shard, as in DDP.
#
# `fully_shard` does this when its mesh has two dimensions: the first replicates, the second shards. For the rest of the chapter a smaller model is enough, with two blocks: each is a unit, and so is the root.

# %%
psi = models.count_parameters(models.gpt("0.3M"))  # Ψ
in_blocks = models.count_parameters(models.gpt("0.3M").blocks)
gathers = 1 + in_blocks / psi  # of a parameter in a step: the root stays gathered

def sharded_gpt(groups=1, **policies):
    torch.manual_seed(0)  # the same parameters on every rank
    model = models.gpt("0.3M")
    shape = (groups, dist.get_world_size() // groups)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=mesh if groups > 1 else mesh["shard"], **policies)
    return model

# %%
def two_steps_on_mesh(batch, groups):
    model, losses = sharded_gpt(groups), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        with measure(f"step {step}"):
            losses.append(model(*batch))
            losses[-1].backward()
            dist.barrier()
        optimizer.step()
        optimizer.zero_grad()
    return torch.stack(losses).detach()

# %% [markdown]
# Let ranks 0 and 1 be one node, ranks 2 and 3 another. First all four ranks share one set of shards, then two groups of two. **How many elements does the first node send to the second in a step, in Ψ?** (Remember that gloo runs a reduce-scatter as an all-reduce.)

# %%
predicted_leaving = predict("Elements that leave the first node in a step", unit="Ψ", labels=["FSDP", "HSDP"])
predicted_leaving

# %%
own_batches = [data.batch(0, 2, 32, rank, 4) for rank in range(4)]
on_four = {"inputs": own_batches, "device": "cpu", "quiet": True}
mesh_runs = {
    name: launch(two_steps_on_mesh, groups, memory=True, **on_four)
    for name, groups in (("FSDP", 1), ("HSDP", 2))
}

# %%
leaving = [run.traffic["step 1"].sent_bytes[:2, 2:].sum() / 4 / psi for run in mesh_runs.values()]
predicted_leaving.compare(leaving, {"the same for both": leaving[0]})

# %%
equal = torch.allclose(*(torch.stack(run.outputs) for run in mesh_runs.values()))
holds("the losses of both are equal, on every rank and in both steps", equal)
show_table(
    {"in Ψ": "", "sent out of the node": ".2f", "gradients kept by a rank": ".2f"},
    [
        (name, amount, run.memory.at("step 1")["gradients"][0] / 4 / psi)
        for (name, run), amount in zip(mesh_runs.items(), leaving)
    ],
)

# %% [markdown]
# HSDP sends about a third of what FSDP sends to the other node, and keeps twice as much on each rank. Which collectives are they? Here are the calls of rank 0 in one step, with the ranks that take part. The bytes are those of a call's input.

# %%
def calls_of(run, label):
    """{(collective, ranks, dtype): elements of 4 bytes that rank 0 passes in, in Ψ}"""
    total = {}
    for call in run.calls_in(label):
        if call.bytes:
            key = call.op.removesuffix("_single"), call.group, call.dtype
            total[key] = total.get(key, 0) + call.bytes / 4 / psi
    return total

show_table(
    {"call": "", "of ranks": str, "elements, in Ψ": ".2f"},
    [(op, group, amount) for (op, group, _), amount in calls_of(mesh_runs["HSDP"], "step 1").items()],
)

# %% [markdown]
# - **Within the row** everything that FSDP does: the all-gathers (an all-gather's input is the rank's shard, here one half) and the reduce-scatter. After it, a rank has the sum over its row of its shard's gradients.
# - **Across, in the column**, an all-reduce of that shard, Ψ/S elements.
#
# With rings, each rank sends
#
# $$\text{within: } \frac{3(S-1)}{S}\,\Psi, \qquad \text{across: } \frac{2(R-1)}{R} \cdot \frac{\Psi}{S}$$
#
# R = 1 is FSDP, S = 1 is DDP. Our runs differ from the factor 3 in two ways: the root is gathered once, not twice, and gloo's reduce-scatter counts double. (The few bytes in the other cells below are a barrier's.)

# %%
here = {"gathers": gathers, "reduce_scatter": "gloo"}
in_row, in_column = hybrid_sharding.sent_bytes(psi, 2, 2, **here)
one, other = np.eye(2), 1 - np.eye(2)  # the same, and the other, row or column
predicted = in_row * np.kron(one, other) + in_column * np.kron(other, one)
sent_matrix = mesh_runs["HSDP"].traffic["step 1"].sent_bytes
holds("from each rank to each other", sent_matrix, predicted, rtol=0.02, atol=5000, unit="bytes")
traffic_map(mesh_runs["HSDP"], predicted, block="step 1")

# %% [markdown]
# ### What leaves a node
#
# In a ring over all N ranks, each link carries what each rank sends, including the link that leaves a node: $\frac{3(N-1)}{N} \Psi$ with a real reduce-scatter. Under HSDP each of a node's $S$ ranks sends its shard's all-reduce: $S \cdot \frac{2(R-1)}{R} \cdot \frac{\Psi}{S}$, which is $\frac{2(R-1)}{R} \Psi$. So the gain in bytes is no more than **3Ψ to 2Ψ** when there are many nodes; with our two nodes it is 9/4 to 1, and gloo adds the rest.

# %%
flat = hybrid_sharding.sent_bytes(psi, 1, 4, **here).within / 4 / psi
ring = traffic.sent_bytes("zero3", 1, 4)[0] / 4
show_table(
    {"leaves the node, in Ψ": "", "with a ring": ".2f", "with our calls": ".2f", "measured": ".2f"},
    [("FSDP", ring, flat, leaving[0]), ("HSDP", *[2 * in_column / 4 / psi] * 2, leaving[1])],
)
holds("FSDP: leaves the node, in Ψ", leaving[0], flat, rtol=0.02)

# %% [markdown]
# ### Two link speeds
#
# What is that in seconds? Take 7.5 billion parameters, 2 bytes for each element sent, and nodes of 8 A100s: 300 GB/s each way over NVLink within a node, one network card of 25 GB/s for each GPU (NVIDIA; Narayanan et al. 2021). Many clouds have less, so let us also compute one such card for the whole node. As in [chapter 07](07_tensor_parallel.ipynb), FSDP's ring uses all cards of a node and is as fast as its slowest part. This is a calculation: no latency, and nothing overlaps.

# %%
def seconds(nodes, card_bytes_per_s, micro_batches=1):
    """FSDP over all GPUs, and HSDP with a node as its row."""
    size = {"parameter_bytes": 2, "gradient_bytes": 2, "micro_batches": micro_batches}
    flat = hybrid_sharding.sent_bytes(7.5e9, 1, 8 * nodes, **size)
    ring_bytes_per_s = min(300e9, 8 * card_bytes_per_s)
    hybrid = hybrid_sharding.sent_bytes(7.5e9, nodes, 8, sync="step", **size)
    return flat.seconds(ring_bytes_per_s, ring_bytes_per_s), hybrid.seconds(300e9, card_bytes_per_s)

# %%
speeds = {"each GPU": 25e9, "the node": 25e9 / 8}
columns = {f"{name}, {nodes} nodes": (i, nodes) for nodes in (2, 16, 64) for i, name in enumerate(("FSDP", "HSDP"))}
show_table(
    {"a card for": "", "micro-batches": "d", **dict.fromkeys(columns, ".2f")},
    [
        (cards, m, *(seconds(nodes, speed, m)[i] for i, nodes in columns.values()))
        for cards, speed in speeds.items() for m in (1, 4)
    ],
    caption="communication of a step, in seconds",
)

# %% [markdown]
# - With a card for each GPU and one batch for each step, fewer bytes between nodes save no time: the ring was already as fast as two thirds of NVLink. What HSDP saves there are latencies, which we did not count: a ring over 512 ranks takes 511 messages one after another for each all-gather, a ring over 8 takes 7.
# - With a slow network it is faster, because fewer bytes leave the node.
# - With accumulation the gain grows: FSDP gathers across nodes for every micro-batch, HSDP all-reduces once. In PyTorch you have to ask for that: `model.set_requires_all_reduce(False)`, and `True` before the last micro-batch.
#
# The price of HSDP is memory, model states of $16\Psi/S$ bytes on each rank instead of $16\Psi/N$, however many nodes there are:

# %%
def states_gb(ranks):
    return memory.model_states(7.5e9, stage=3, world_size=ranks).device_bytes / 1e9

show_table(
    {"512 ranks": "", "GB of model states on each": ".2f"},
    [("HSDP, 8 ranks in a row", states_gb(8)), ("FSDP", states_gb(512))],
)

# %% [markdown]
# ## Precision
#
# Without a policy, everything is computed and sent in the dtype in which the model was loaded. `MixedPrecisionPolicy` separates three things: the **masters**, which are the shards that the optimizer updates, the copies that are gathered for computing (`param_dtype`), and the gradients on their way (`reduce_dtype`).
#
# **The model is loaded in fp32 and `param_dtype` is bf16. Which dtype do a rank's shard and its gradient have after backward?**

# %%
DTYPES = [f"{shard} and {gradient}" for shard in ("fp32", "bf16") for gradient in ("fp32", "bf16")]
predicted_dtypes = predict("Dtypes of a shard and of its gradient", options=DTYPES)
predicted_dtypes

# %%
def one_backward(batch, param_dtype, reduce_dtype):
    model = sharded_gpt(mp_policy=MixedPrecisionPolicy(param_dtype, reduce_dtype))
    with measure("step"):
        model(*batch).backward()
        dist.barrier()
    shard = next(model.parameters())
    return [str(tensor.dtype) for tensor in (shard, shard.grad)], shard.grad.full_tensor()

# %%
bf16, fp32 = torch.bfloat16, torch.float32
precision_runs = {
    reduce_dtype: launch(one_backward, bf16, reduce_dtype, **on_four)
    for reduce_dtype in (None, fp32)
}
short = {"torch.float32": "fp32", "torch.bfloat16": "bf16"}
found = [short[dtype] for dtype in precision_runs[fp32].outputs[0][0]]
predicted_dtypes.compare(" and ".join(found))

# %% [markdown]
# Both are fp32. The bf16 copies exist only while a unit is gathered, and the sum of the gradients is cast back. `reduce_dtype=None` means `param_dtype`. Which bytes does each choice save?

# %%
for reduce_dtype, run in precision_runs.items():
    size = {"parameter_bytes": 2, "gradient_bytes": 4 if reduce_dtype else 2}
    predicted = hybrid_sharding.sent_bytes(psi, 1, 4, **size, **here).within
    measured = run.traffic["step"].sent_by_rank.mean()
    dtypes = ", ".join(f"{op} in {dtype}" for op, _, dtype in calls_of(run, "step"))
    holds(dtypes, measured, predicted, rtol=0.05, unit="bytes")

# %% [markdown]
# Gradients of N ranks that are summed in bf16 are rounded in every addition, so large runs often reduce in fp32. How different are the two results here, with only four ranks?

# %%
reduced = {dtype: run.outputs[0][1] for dtype, run in precision_runs.items()}
relative = (reduced[None] - reduced[fp32]).norm() / reduced[fp32].norm()
print(f"the embedding's gradient, reduced in bf16, differs by {100 * relative:.2f} % of its norm")

# %% [markdown]
# ### A model loaded in bf16
#
# The policy casts what is gathered, never the shards: they keep the dtype that the parameters had when `fully_shard` was called. Load a model in bf16, and there are no fp32 masters: the optimizer updates bf16 numbers. (`from_pretrained` does that for every checkpoint stored in bf16, because transformers 5 defaults to `dtype="auto"`.)
#
# Let us fine-tune with a small learning rate. First we need a model to start from; its loss is computed in fp32, so that we see small changes.

# %%
def loss_of(model, tokens, targets):
    return F.cross_entropy(model(tokens).float().flatten(0, 1), targets.flatten())

torch.manual_seed(0)
pretrained = models.gpt("0.1M")
optimizer = torch.optim.AdamW(pretrained.parameters(), lr=3e-3)
for step in range(40):
    loss_of(pretrained, *data.batch(step, 4, 32)).backward()
    optimizer.step()
    optimizer.zero_grad()

# %% [markdown]
# Two ranks train it on one batch each, from the same weights, loaded once in fp32 and once in bf16. We also keep the first step's gradient, and count how many weights the step changes.

# %%
lr = 1e-5

def finetune(batch, state, loaded, param_dtype, reduce_dtype):
    model = models.gpt("0.1M")
    model.load_state_dict(state)
    model.to(loaded)
    for unit in (*model.blocks, model):
        fully_shard(unit, mp_policy=MixedPrecisionPolicy(param_dtype, reduce_dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0)
    return train_and_count(model, optimizer, batch)

# %%
def train_and_count(model, optimizer, batch, steps=20):
    shards = [parameter.to_local() for parameter in model.parameters()]
    before, losses = [shard.clone() for shard in shards], []
    for step in range(steps):
        losses.append(loss_of(model, *batch))
        losses[-1].backward()
        if step == 0:
            gradient = torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            changed = sum((shard != old).sum() for shard, old in zip(shards, before))
    return torch.stack(losses).detach(), changed / sum(map(torch.numel, shards)), gradient

# %% [markdown]
# Adam's first step moves every weight by about lr = 10⁻⁵, whatever its gradient is. **Which share of the weights does the first step change if the model was loaded in bf16?**

# %%
predicted_changed = predict("Share of the weights that the first step changes in bf16", maximum=1)
predicted_changed

# %%
text = [data.batch(500, 4, 32, rank, 2) for rank in range(2)]
weights = pretrained.state_dict()
cases = {
    "fp32, with a policy": (fp32, bf16, fp32),
    "fp32, reduced in bf16": (fp32, bf16, bf16),
    "bf16, no policy": (bf16, None, None),
    "bf16, with a policy": (bf16, bf16, fp32),
}

# %%
on_two = {"inputs": text, "world_size": 2, "device": "cpu", "quiet": True}
tuned, changed = {}, {}
for name, case in cases.items():
    (tuned[name], changed[name], gradient), _ = launch(finetune, weights, *case, **on_two).outputs
share = float(changed["bf16, no policy"])
predicted_changed.compare(share, {"the share that it changes in fp32": float(changed["fp32, with a policy"])})

# %%
show_table(
    {"loaded in": "", "share of weights that changed": ".3f", "first loss": ".4f", "last loss": ".4f"},
    [(name, changed[name].item(), tuned[name][0].item(), tuned[name][-1].item()) for name in cases],
)

# %% [markdown]
# From bf16 the loss hardly falls, and a policy for a model loaded in bf16 does not help: it sets the dtype for computing, and that was bf16 already. `reduce_dtype` is not the reason either.
#
# Why? Between $2^e$ and $2^{e+1}$ bf16 numbers are $\mathrm{ulp} = 2^{e-7}$ apart (*unit in the last place*). The updated weight is rounded to the nearest one. So **an update smaller than $\mathrm{ulp}(w)/2$ is lost**, again in every step. (One exception: below $2^e$ the numbers are half as far apart, so a weight of exactly $\pm 2^e$ moves toward zero from $\mathrm{ulp}(w)/4$ on.) With SGD the update is lr·g; with Adam it is about lr. Which weights should change, then?

# %%
def half_ulp(weights):
    exponents = torch.frexp(weights).exponent  # 2ᵉ ≤ |w| < 2ᵉ⁺¹ has exponent e + 1
    return torch.where(weights == 0, 0.0, torch.exp2(exponents - 9.0))

loaded = torch.cat([each.detach().to(bf16).float().flatten() for each in pretrained.parameters()])
shares = {each: (half_ulp(loaded) < each).float().mean().item() for each in (1e-6, 1e-5, 1e-4, 1e-3)}
show_table({"learning rate": ".0e", "share of weights that should change": ".3f"}, shares.items())
holds("share of weights that changed in bf16", changed["bf16, no policy"], shares[lr], rtol=0.05)

# %% [markdown]
# And the real updates? Each point is a weight of the bf16 run and what SGD would subtract from it at this learning rate, $\mathrm{lr} \cdot |g|$, with the gradient of the first backward. Below the orange line it is lost.

# %%
updates = {"SGD, lr · g": lr * gradient.float(), "Adam, lr": torch.full_like(loaded, lr)}
def share_above(update):
    return (update.abs() > half_ulp(loaded)).float().mean().item()

def share_that_moves(update):
    """Of the weights, counted: subtract, and round to bf16."""
    return ((loaded - update).bfloat16() != loaded).float().mean().item()

show_table(
    {"update": "", "median size": ".1e", "share above half an ulp": ".4f", "share that moves": ".4f"},
    [(name, u.abs().median().item(), share_above(u), share_that_moves(u)) for name, u in updates.items()],
)
holds("SGD: share of the weights that move", share_that_moves(updates["SGD, lr · g"]), below=0.01)

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6))
for name, style in (("fp32, with a policy", "-"), ("bf16, no policy", "--")):
    left.plot(tuned[name], style, color=palette.MEASURED, label=f"loaded in {name}")
left.set(xlabel="step", ylabel="loss on rank 0", title=f"fine-tuning with lr = {lr:.0e}")
left.legend(frameon=False)
points = slice(None, None, 199)  # of 100,000
of_sgd = updates["SGD, lr · g"][points].abs()
right.loglog(loaded[points].abs(), of_sgd, ".", ms=2, color=palette.MEASURED, label="SGD's updates, lr · |g|")
right.axhline(lr, color=palette.PLOT_INK, linestyle=":", label="Adam's updates, lr")
size = torch.logspace(-5, 0.2, 600)
right.loglog(size, half_ulp(size), color=palette.PREDICTED, label="half an ulp of bf16")
right.set(xlabel="|w|", title="which updates are lost", xlim=(1e-5, 2), ylim=(1e-13, 10))
right.legend(frameon=False, loc="upper left")
figure.tight_layout()

# %% [markdown]
# At lr = 10⁻⁵ Adam can move only weights below 2⁻⁸ = 0.004. Their ulp grows with them: one that has grown to 0.004 grows no further. SGD moves almost none.
#
# DeepSpeed trains the same bf16 model without this problem. With `"bf16": {"enabled": True}` its engine makes an fp32 master copy of the parameters ([chapter 04](04_zero.ipynb)), whatever dtype you pass in, and updates that:

# %%
def finetune_with_deepspeed(batch, state, steps=20):
    import deepspeed

    model = models.gpt("0.1M")
    model.load_state_dict(state)
    adam = {"type": "AdamW", "params": {"lr": lr, "weight_decay": 0.0, "torch_adam": True}}
    config = {"bf16": {"enabled": True}, "optimizer": adam, "gradient_clipping": 0.0}
    stage_3 = {"stage": 3, "reduce_bucket_size": 2**15}
    config |= {"train_micro_batch_size_per_gpu": 4, "zero_optimization": stage_3}
    engine, *_ = deepspeed.initialize(model=model.bfloat16(), config=config)
    losses = []
    for _ in range(steps):
        losses.append(loss_of(engine, *batch))
        engine.backward(losses[-1])
        engine.step()
    return torch.stack(losses).detach()

# %%
with_deepspeed = launch(finetune_with_deepspeed, weights, **on_two, timeout_s=90).outputs[0]
print(f"DeepSpeed, loaded in bf16: loss {with_deepspeed[0]:.4f} to {with_deepspeed[-1]:.4f}")
with_masters = tuned["fp32, with a policy"][0] - tuned["fp32, with a policy"][-1]
without_policy = tuned["bf16, no policy"][0] - tuned["bf16, no policy"][-1]
holds("FSDP in bf16: fall of the loss over that with fp32 masters", without_policy / with_masters, below=0.2)
fell = (with_deepspeed[0] - with_deepspeed[-1]) / with_masters
holds("DeepSpeed in bf16: fall of the loss over that with fp32 masters", fell, above=0.8)

# %% [markdown]
# So the same script can train under DeepSpeed and stall under FSDP. This is how the problem was found: in Accelerate's issue 2624 people first suspected `reduce_dtype`, and a learning rate that should be multiplied by the number of GPUs. Since then Accelerate casts the parameters to fp32 when mixed precision is on (issue 3979 is about a version in which it did not). In plain PyTorch it is up to you: **load in fp32, and let the policy cast**. To check it:
#
# `assert {p.dtype for p in model.parameters()} == {torch.float32}`
#
# ## Offload
#
# With `offload_policy=CPUOffloadPolicy()` shards, gradients and optimizer states live in the host's memory ([chapter 06](06_offload.ipynb) explains why). Our ranks have no other memory, so nothing really moves, and these runs can show neither the time nor the memory that it takes. But they show which copies FSDP asks for: we replace `Tensor.to` by a function that counts. (`pin_memory=False` because page-locked memory needs an accelerator.)

# %%
def count_moves(batch):
    offload = {"offload_policy": CPUOffloadPolicy(pin_memory=False)}
    model = sharded_gpt(mp_policy=MixedPrecisionPolicy(bf16), **offload)
    moved, dtypes, original = [], set(), torch.Tensor.to
    def counted(tensor, *place, **options):
        if place and isinstance(place[0], torch.device):
            moved.append(tensor.nbytes)
            dtypes.add(str(tensor.dtype))
        return original(tensor, *place, **options)
    with mock.patch.object(torch.Tensor, "to", counted):
        loss = model(*batch)
        in_forward = sum(moved)
        loss.backward()
    return in_forward, sum(moved) - in_forward, dtypes

# %%
in_forward, in_backward, dtypes = launch(count_moves, **on_four).outputs[0]
shard_bytes = 4 * psi / 4
up_again = shard_bytes * in_blocks / psi
print("moved in", *dtypes)
holds("in forward, up", in_forward, shard_bytes, unit="bytes")
holds("in backward, up and down", in_backward, up_again + shard_bytes, unit="bytes")

# %% [markdown]
# Each shard goes up before every gather, so twice per step (the root's once), and its gradient comes down. All of that is fp32, although the policy computes in bf16: a shard is cast on the device. So a rank moves $8\Psi/N$ bytes up and $4\Psi/N$ down for each batch. When DeepSpeed's stage 3 offloads the optimizer, $6\Psi/N$ bytes of gradients go down by its code, 2 in bf16 and 4 in fp32, and $2\Psi/N$ of them up again; the updated bf16 parameters take another $2\Psi/N$ up. The optimizer's step then runs on the host, with PyTorch's AdamW. It is all or nothing: DeepSpeed can offload only the optimizer, or use NVMe.
#
# ## Accumulation
#
# By default FSDP reduces gradients after every micro-batch. `set_requires_gradient_sync(False)` keeps them on the rank, until a backward with `True` reduces the sum. **With four micro-batches, what does a rank pass to reduce-scatter in a step, and what does it hold between micro-batches, without the switch and with it?**

# %%
EACH = ["reduced, without", "held, without", "reduced, with it", "held, with it"]
predicted_accumulation = predict("Elements of the gradients, with four micro-batches", unit="Ψ", labels=EACH)
predicted_accumulation

# %%
def accumulate(micro_batches, sync_every_time):
    model = sharded_gpt()
    with measure("step"):
        for i, batch in enumerate(micro_batches):
            is_last = i == len(micro_batches) - 1
            model.set_requires_gradient_sync(sync_every_time or is_last)
            with measure("last micro-batch" if is_last else "micro-batch"):
                (model(*batch) / len(micro_batches)).backward()
                dist.barrier()
    return next(model.parameters()).grad.full_tensor()

# %%
four_each = [[data.batch(i, 2, 32, rank, 4) for i in range(4)] for rank in range(4)]
four_micro_batches, sums, rows = {"inputs": four_each, "device": "cpu", "quiet": True}, [], []
for name, sync in (("reduce every time", True), ("reduce once", False)):
    run = launch(accumulate, sync, memory=True, **four_micro_batches)
    total = {op: amount for (op, *_), amount in calls_of(run, "step").items()}
    held = run.memory.at("micro-batch")["gradients"][0] / 4 / psi
    sent = run.traffic["step"].sent_by_rank.mean() / 4 / psi
    predicted = 3 / 4 * (4 * gathers + 2 * (4 if sync else 1))  # 2: gloo's reduce-scatter
    rows.append((name, total["all_gather"], total["reduce_scatter"], held, predicted, sent))
    sums.append(run.outputs[0])
found = [amount for _, _, reduced, held, *_ in rows for amount in (reduced, held)]
predicted_accumulation.compare(found, {"the two ways, exchanged": found[2:] + found[:2]})

# %%
columns = ("gathered", "reduced", "held", "sent, predicted", "sent")
show_table({"in Ψ": "", **dict.fromkeys(columns, ".2f")}, rows)
holds("sent by each rank, in Ψ", [row[-1] for row in rows], [row[-2] for row in rows], rtol=0.02)
holds("the two sums of gradients are equal", *sums, atol=1e-6)

# %% [markdown]
# The same gradients, with a quarter of the reduce-scatters, for the memory of whole gradients: $\Psi$ instead of $\Psi/N$. With a policy they are held in `reduce_dtype`. The all-gathers are not saved: each block is gathered eight times, as before. (What could save some of them, and what would that cost? That is in the lab.)
#
# What if nobody sets it back to `True`?

# %%
def never_reduced(micro_batches):
    model = sharded_gpt()
    model.set_requires_gradient_sync(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):  # the same batch in both steps
        losses.append(model(*micro_batches[0]))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    return [loss.item() for loss in losses], {parameter.grad for parameter in model.parameters()}

# %%
two_losses, gradients = launch(never_reduced, **four_micro_batches).outputs[0]
print("gradients:", gradients)
holds("the second loss equals the first", *two_losses)

# %% [markdown]
# No error: the optimizer finds no gradients and skips every parameter, so the loss stays the same.
#
# ## State dicts
#
# For a checkpoint you can collect each rank's shards, or everything on one rank. **How many elements does each rank send in each of the two cases?**

# %%
predicted_state_dicts = predict("Elements that each rank sends", unit="Ψ", labels=["shards", "full"])
predicted_state_dicts

# %%
def two_state_dicts():
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    model = sharded_gpt()
    with measure("shards"):
        shards = model.state_dict()
    with measure("full"):
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        full = get_model_state_dict(model, options=options)
    return tuple(shards["token.weight"].to_local().shape), len(shards), len(full)

# %%
state_run = launch(two_state_dicts, world_size=4, device="cpu", quiet=True)
predicted = 3 / 4 * (1 + models.gpt("0.3M").token.weight.numel() / psi)
sent = {label: state_run.traffic[label].sent_by_rank.mean() / 4 / psi for label in ("shards", "full")}
named = {"the formula without the tied matrix's second copy": [0, (4 - 1) / 4]}
predicted_state_dicts.compare(list(sent.values()), named)

# %%
show_table(
    {"state dict": "", "sent by each rank, in Ψ": ".2f", "calls": ""},
    [(label, amount, ", ".join(op for op, *_ in calls_of(state_run, label)) or "none") for label, amount in sent.items()],
)

# %%
show_table(
    {"rank": "d", "shape of a shard": str, "tensors in its shards": "d", "in its full one": "d"},
    [(rank, *output) for rank, output in enumerate(state_run.outputs)],
)
holds("sent for the full one, in Ψ", sent["full"], predicted, rtol=0.05)

# %% [markdown]
# `model.state_dict()` returns the shards that the rank has, and sends nothing. For the full one every tensor is gathered (the tied matrix twice, once for each of its names), and only rank 0 keeps it, in the host's memory. The others get an empty dictionary, but they have to call the function, or rank 0 would wait for them forever.
#
# So large models save shards. `torch.distributed.checkpoint` (DCP) writes a file for each rank, and reads from them what any other number of ranks needs. Here 2 ranks save, and 4 ranks load:

# %%
def save_shards(folder):
    import torch.distributed.checkpoint as dcp

    model = sharded_gpt()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)  # values that only this run has
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
    return [parameter.full_tensor() for parameter in model.parameters()]

def load_shards(folder):
    import torch.distributed.checkpoint as dcp

    model = sharded_gpt()
    dcp.load({"model": model.state_dict()}, checkpoint_id=folder)  # into the parameters' memory
    return [parameter.full_tensor() for parameter in model.parameters()]

# %%
folder = Path(tempfile.mkdtemp())
saved = launch(save_shards, folder, world_size=2, device="cpu", quiet=True).outputs[0]
on_four_ranks = launch(load_shards, folder, world_size=4, device="cpu", quiet=True).outputs
same = [torch.equal(*pair) for loaded in on_four_ranks for pair in zip(saved, loaded)]
holds("every tensor is bit-equal on each of the 4 ranks", same)
print("loaded from:", *sorted(path.name for path in folder.iterdir()))

# %% [markdown]
# [Chapter 10](10_save_resume.ipynb) has the rest: optimizer states, crashes in the middle of a save, and who commits.
#
# ## Which method?
#
# The fourth column counts elements in one step, for large N and without accumulation:
#
# | | sharded | when it is whole | each rank sends | choose it when |
# |---|---|---|---|---|
# | DDP | nothing | always | 2Ψ | model states fit on each device |
# | ZeRO-1 | optimizer states | parameters and gradients: always | 2Ψ | optimizer states do not fit; by the paper's count it costs no traffic |
# | ZeRO-2 | gradients as well | parameters: always | 2Ψ | gradients do not fit next to them, and you accumulate little |
# | ZeRO-3 | parameters as well | a layer, while it is used | 3Ψ | parameters do not fit; you use DeepSpeed, or its offload |
# | FSDP2 | as ZeRO-3, each tensor split by rows | a unit, while it is used; the root until backward ends | 3Ψ, or 2Ψ with `reshard_after_forward=False` | parameters do not fit; you write PyTorch |
# | HSDP | as FSDP2, over the S ranks of a row | as FSDP2 | 3Ψ within the row, 2Ψ/S across | model states fit in a node, and links between nodes are slow |
# | TP | each matrix, and the work | never | activations: grows with tokens, not with Ψ | one layer is too large or too slow for one device, and links are fast |
#
# The first six are data parallelism: each rank computes whole layers for its own tokens. Only tensor parallelism ([chapter 07](07_tensor_parallel.ipynb)) divides a layer's work and activations. Large runs combine it with one of the others.
#
# ## What to check in practice
#
# - **Masters**: before you build the optimizer, print the set of `p.dtype`. It should be fp32 unless you decided otherwise.
# - **Mesh**: the dimensions are (replicate, shard), and `init_device_mesh` numbers ranks row by row. Print `mesh` and check that a row is a node.
# - **Calls**: count the collectives of one step in a profile. Each unit has two all-gathers (the root one) and one reduce-scatter, HSDP also one all-reduce.
# - **Accumulation**: compare the gradients of m micro-batches with those of one batch m times as large, once.
# - **Save**: call it on all ranks, and load the result once with another number of ranks.
# - **Gathers of your own**: FSDP's gathers pass gradients on, `dist.all_gather` does not. A contrastive loss over all ranks' features trains without error, but no gradient goes back through the other ranks' features.
#
# ## Where GPUs differ
#
# - NCCL's reduce-scatter sends $\frac{N-1}{N}$ of a tensor, half of what gloo sends here.
# - Gathers and reductions run next to the computation, in their own streams. What counts then is not their time, but the part that is not hidden.
# - With offload, copies are real: they go over PCIe, and pinned memory lets them overlap.
#
# ## What to remember
#
# - A unit is whole only while it computes. At the peak a rank holds its slice of everything, the root, and the largest unit. Smaller units lower the peak and send the same bytes in more collectives: two all-gathers and a reduce-scatter for each unit.
# - The root stays whole from forward to backward, and backward prefetches by itself. `reshard_after_forward=False` saves the second gather, for a whole copy of the parameters between forward and backward.
# - FSDP is data parallelism: a rank computes whole layers for its own tokens, and sends parameters and gradients. What tensor parallelism sends grows with the tokens.
# - HSDP: within a row $\frac{3(S-1)}{S} \Psi$, across $\frac{2(R-1)}{R} \cdot \frac{\Psi}{S}$. From each node $2\Psi$ leave instead of $3\Psi$, for model states of $16\Psi/S$.
# - FSDP keeps masters in the dtype that you load, DeepSpeed in fp32. In bf16 an update below $\mathrm{ulp}(w)/2$ is lost.
# - Accumulation without reducing saves m − 1 reduce-scatters and keeps whole gradients.
# - A sharded state dict sends nothing, a full one gathers everything and has to be called on all ranks.
#
# ## Sources
#
# - PyTorch 2.13: [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html), and the code in `torch/distributed/fsdp/_fully_shard`; [distributed checkpoint](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html).
# - Y. Zhao et al.: *PyTorch FSDP: experiences on scaling fully sharded data parallel.* [arXiv 2304.11277](https://arxiv.org/abs/2304.11277), 2023. Figure 2b on small all-gathers, section 3.2.2 on hybrid sharding.
# - G. Wang et al.: *ZeRO++: extremely efficient collective communication for giant model training.* [arXiv 2306.10209](https://arxiv.org/abs/2306.10209), 2023. Its second partition within a node is `reshard_after_forward` with a number.
# - Z. Zhang et al.: *MiCS: near-linear scaling for training gigantic model on public cloud.* [arXiv 2205.00119](https://arxiv.org/abs/2205.00119), 2022.
# - S. Rajbhandari, J. Rasley, O. Ruwase, Y. He: *ZeRO: memory optimizations toward training trillion parameter models.* [arXiv 1910.02054](https://arxiv.org/abs/1910.02054), 2020.
# - D. Narayanan et al.: *Efficient large-scale language model training on GPU clusters using Megatron-LM.* [arXiv 2104.04473](https://arxiv.org/abs/2104.04473), 2021. Section 5: eight network cards of 200 Gbit/s on each node. NVIDIA: [NVLink](https://www.nvidia.com/en-us/data-center/nvlink/), 600 GB/s both ways together for an A100.
# - Hugging Face Accelerate: issues [2624](https://github.com/huggingface/accelerate/issues/2624) and [3979](https://github.com/huggingface/accelerate/issues/3979), and [its guide on FSDP and DeepSpeed](https://huggingface.co/docs/accelerate/concept_guides/fsdp_and_deepspeed).
