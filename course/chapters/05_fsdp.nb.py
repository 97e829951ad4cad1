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
# Which parts? That choice is the subject of this chapter: it decides how many bytes are whole at a time, how many messages are sent, and what can overlap. (`fully_shard` is the second version, FSDP2. The first, the class `FullyShardedDataParallel`, is deprecated.)
#
# The question: who holds what, when, and what does it cost?

# %%
print("Loading PyTorch's parallel modules: some seconds, more the first time on a computer …")

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

# %%
from shardlab import DeadlockError, data, launch, measure, models
from shardlab.estimate import memory, traffic
from shardlab.estimate.fsdp_units import unit_step
from shardlab.widgets import memory_timeline, palette, timeline

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
# The configuration is chapter 04's, for a small model: no tensor stays whole, and a layer is freed right after use.

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
# In fp32 with AdamW a parameter takes 4 bytes, its gradient 4, and Adam's two means 8. **How many bytes per parameter does each of the four ranks hold after backward, with `fully_shard`?**

# %%
# Your prediction: bytes per parameter on each rank, with fully_shard
predicted_states = None

# %%
options = {"memory": True, "device": "cpu"}
runs = {
    "DDP": launch(with_ddp, inputs=batches, **options),
    "FSDP": launch(with_fsdp, inputs=batches, **options),
    "ZeRO-3": launch(with_zero3, zero3_config, inputs=batches, **options),
}

# %%
STATES = ("parameters", "gradients", "optimizer")
for name, run in runs.items():
    live = run.memory.at("backward")
    each = np.array([live[state].max() for state in STATES]) / parameters
    print(f"{name:7} {each.sum():5.2f} =", each.round(2))
print("your prediction for FSDP:", predicted_states)

# %% [markdown]
# With FSDP it is a quarter of everything: 16/N. (DeepSpeed holds one more number per parameter of its slice, because its optimizer updates an fp32 copy even if the parameters are fp32 already.) The formulas, held against the run:

# %%
setups = {"DDP": (0, "fp32"), "FSDP": (3, "fp32"), "ZeRO-3": (3, "fp32-master")}
for name, (stage, precision) in setups.items():
    states = memory.model_states(parameters, stage=stage, world_size=N, precision=precision)
    live = runs[name].memory.at("backward")
    measured = sum(live[state].max() for state in STATES)
    print(f"{name:7} predicted {states.device_bytes / parameters:5.2f}", end="  ")
    print(f"measured / predicted {measured / states.device_bytes:.3f}")
    assert abs(measured / states.device_bytes - 1) < 0.01

# %% [markdown]
# And it is the same training. Each rank's losses are those of its own batches, and they agree on every rank:

# %%
losses = {name: np.array(run.outputs) for name, run in runs.items()}
for name, by_rank in losses.items():
    print(f"{name:7} rank 0:", by_rank[0].round(5), "  rank 1:", by_rank[1].round(5))
farthest = max(abs(by_rank - losses["DDP"]).max() for by_rank in losses.values())
print(f"largest difference from DDP on any rank: {farthest:.1e}")
assert farthest < 1e-5

# %% [markdown]
# What differs is when memory is used. Choose a run below. DDP's parameters are a flat band; FSDP's go up and down while blocks are gathered and freed. (At the left each rank creates the whole model and then shards it. A model too large for that is created on the `meta` device, which allocates nothing, sharded, and then initialized.)

# %%
memory_timeline(runs)

# %% [markdown]
# ### What it sends
#
# DDP all-reduces its gradients, 2(N − 1)/N·Ψ elements. FSDP, like ZeRO-3, gathers parameters twice and reduce-scatters gradients: 3(N − 1)/N·Ψ, but gloo runs a reduce-scatter as an all-reduce ([chapter 03](03_ring_all_reduce.ipynb)), so here it is 4(N − 1)/N·Ψ. These are the calls of the third step on rank 0:

# %%
def within(run, label, rank=0):
    """The calls that a rank made within a measured block."""
    block = next(block for block in run.traffic[label].blocks if block.rank == rank)
    mine = [call for call in run.calls if call.rank == rank]
    return [call for call in mine if block.start_s <= call.start_s <= block.end_s]

for name, run in runs.items():
    large = [call.op for call in within(run, "step 2") if call.bytes > 1000]
    sent = run.traffic["step 2"].sent_by_rank.mean() / 4 / parameters
    print(f"{name:7} sent {sent:.2f} Ψ:", dict(Counter(large)))

# %% [markdown]
# FSDP makes 13 all-gathers, not 14: two for each block, but one for the root, which stays whole between forward and backward. Each of these seven is reduce-scattered once. DeepSpeed gathers smaller pieces: each Linear, norm and embedding separately. Predicted and measured:

# %%
units = [block] * 6
root = parameters - sum(units)
fsdp = unit_step(units, N, root=root, reduce_scatter="gloo")
sent = runs["FSDP"].traffic["step 2"].sent_by_rank.mean()
calls = Counter(call.op for call in within(runs["FSDP"], "step 2"))
predicted, measured = fsdp.sent_bytes / 4 / parameters, sent / 4 / parameters
print(f"predicted {predicted:.3f} Ψ   measured {measured:.3f} Ψ")
assert abs(sent / fsdp.sent_bytes - 1) < 0.02
assert calls["all_gather_single"] == fsdp.all_gathers
assert calls["reduce_scatter_single"] == fsdp.reduce_scatters

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

def note_shapes(module, inputs, output):
    weight = getattr(module.weight, "_local_tensor", module.weight)
    print(f"weight {tuple(weight.shape)}, tokens {inputs[0].shape[0] * inputs[0].shape[1]}")

# %% [markdown]
# `reshard_after_forward=True` treats the block as one of many; on its own it would be a root. The input counts as computed by an earlier layer, so that its gradient is needed, too.

# %%
def one_block(inputs, method):
    layer = sharded_block(method)
    watch = layer.mlp.up.register_forward_hook(note_shapes)
    for x in inputs:
        x = x.requires_grad_() + 0
        with measure(f"{x.shape[0] * x.shape[1]} tokens"):
            layer(x).square().mean().backward()
        watch.remove()

# %% [markdown]
# Five batches, each twice as large as the one before. With FSDP a rank gets a quarter of each, with tensor parallelism all of it. **If the batch has 16 times as many tokens, by what factor do the bytes grow that each rank sends, with FSDP and with tensor parallelism?**

# %%
# Your prediction: two factors as a list, first for FSDP, then for tensor parallelism
predicted_growth = None

# %%
token_counts = [128, 256, 512, 1024, 2048]  # of the whole batch
whole = [torch.randn(tokens // 32, 32, D) for tokens in token_counts]
own = [[x.chunk(N)[rank].clone() for x in whole] for rank in range(N)]
inputs = {"FSDP": own, "tensor parallel": [whole] * N}
block_runs = {
    method: launch(one_block, method, inputs=inputs[method], device="cpu", quiet=True)
    for method in inputs
}
for method, run in block_runs.items():
    print(f"{method:15} rank 0 multiplies by:", run.stdout[0].strip())

# %% [markdown]
# The matrix is (384, 96). With FSDP each rank multiplies 32 of the 128 tokens by all of it, with tensor parallelism 128 tokens by a quarter of it. The same number of operations, and nothing else in common:

# %%
def sent_by_tokens(method):
    """[batches] bytes that a rank sent."""
    of_a_rank = [tokens // N if method == "FSDP" else tokens for tokens in token_counts]
    traffic = block_runs[method].traffic
    return [traffic[f"{tokens} tokens"].sent_by_rank.mean() for tokens in of_a_rank]

sent = {method: sent_by_tokens(method) for method in block_runs}
growth = [float(round(each[-1] / each[0], 1)) for each in sent.values()]
print("your prediction:", predicted_growth, "  measured:", growth)

# %% [markdown]
# FSDP sends parameters and gradients: 3(N − 1)/N·Ψ of the layer (4 with gloo), whatever the tokens. Tensor parallelism sends activations: 8·T·D·(N − 1)/N elements for T tokens (chapter 07), whatever the parameters.

# %%
def formula(method, tokens, reduce_scatter="gloo"):
    """Bytes that each rank sends for one block."""
    if method == "FSDP":
        return unit_step([block], N, reduce_scatter=reduce_scatter).sent_bytes
    return traffic.tensor_parallel_layer(tokens, D, N, element_bytes=4).total_bytes

for method, measured in sent.items():
    predicted = [formula(method, tokens) for tokens in token_counts]
    print(f"{method:15} measured / predicted:", np.divide(measured, predicted).round(3))
    assert np.allclose(measured, predicted, rtol=0.05)

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
# The lines cross where 8·T·D = 3Ψ. A block has about 12·D² parameters, so that is at T = 4.5·D tokens in the whole batch:

# %%
for width in (D, 4096, 12_288):
    print(f"D = {width:6,}: FSDP sends fewer bytes from {4.5 * width:8,.0f} tokens per batch")

# %% [markdown]
# Large batches favour FSDP, and its gathers need no results of earlier layers, so they can overlap with computation. But FSDP needs a whole layer on every rank, with all activations of the rank's tokens. Tensor parallelism also works for a layer that does not fit, or with fewer sequences than ranks. Large models use both, on a mesh (chapter 07).

# %% [markdown]
# ## A unit's life
#
# Each call of `fully_shard` makes one **unit** from the module's parameters that no earlier call took. All parameters of a unit are gathered in one message, used, and freed together. So inner modules must come first, and the root last.
#
# To see it happen, we mark when each block computes its forward, and run a single step with more tokens, on two ranks, so that each has a processor of its own on most machines.

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
# Six blocks and the root. **How many all-gathers and how many reduce-scatters will this step make?**

# %%
# Your prediction: all-gathers and reduce-scatters of one step, as a list
predicted_messages = None

# %%
two_batches = [data.batch(0, 8, 64, rank, 2) for rank in range(2)]
two = {"inputs": two_batches, "world_size": 2, "device": "cpu"}
life = launch(one_step, memory=True, **two)

# %%
timeline(life)

# %% [markdown]
# Rows are ranks; the marks above name the blocks that compute in forward. In the left half, each block waits for its gather. In the right half, the backward pass, gathers and reduce-scatters alternate. The same in words, for rank 0:

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
print("your prediction:", predicted_messages, "  made:", list(made.values()))
assert list(made.values()) == [fsdp.all_gathers, fsdp.reduce_scatters]

# %% [markdown]
# - **Forward**: gather the root (the embedding is needed first), then gather a block, compute, free it, gather the next one. The root stays whole: the last norm and the logits need it, and backward begins with them.
# - **Backward**: gather the last block and, before it computes, also the one before it. So that one's parameters arrive while the last block computes: **prefetching**. Then free the last block, reduce-scatter its gradients, gather the next one, and so on. The root's gradients are reduced last, because the embedding is used first.
#
# An **all-gather** brings a unit's parameters to all ranks; a **reduce-scatter** sums its gradients over the ranks and leaves each rank with its own slice. So each rank's optimizer sees slices only: of parameters, gradients and its own states.
#
# While a block computes, its rank holds a slice of everything, the root, and this one block; all earlier blocks are free again:

# %%
expected = unit_step(units, 2, root=root).peak_parameter_bytes
for phase in life.memory[0].phases:
    if phase.name.startswith("block"):
        held = phase.at_end["parameters"]
        print(f"{phase.name}: {held / parameters:.2f} bytes per parameter", end="; ")
        assert held == expected
print(f"predicted {expected / parameters:.2f}")

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
# We look at the second step; in the first, each rank still creates the model. DDP keeps 4 bytes per parameter whole. **If the root is the only unit, how many bytes does a rank hold at most per parameter, counting parameters alone?**

# %%
# Your prediction: bytes per parameter, of parameters alone, at their highest, with the root only
predicted_root_only = None

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

# %% [markdown]
# The formula: a rank holds its slice of everything, the root, and the largest unit. The number of messages is two gathers and a reduce-scatter for each unit, less the root's second gather.

# %%
def unit_size(unit):
    return sum(map(models.count_parameters, unit if isinstance(unit, list) else [unit]))

model, predicted = fresh_model(), {}
for choice in choices:
    sizes = [unit_size(unit) for unit in choose_units(model, choice)]
    predicted[choice] = unit_step(sizes, N, root=parameters - sum(sizes), reduce_scatter="gloo")

# %%
print(" " * 16 + "messages   largest, KiB   parameters: predicted, measured   sent")
for choice, run in by_choice.items():
    calls = within(run, "step 1")
    largest = N * max(call.bytes for call in calls if call.op.startswith("all_gather"))
    peaks = predicted[choice].peak_parameter_bytes, highest(run, "parameters")
    sent = run.traffic["step 1"].sent_by_rank.mean() / 4 / parameters
    print(f"{choice:16} {len(calls):6} {largest / 1024:13.0f}", end=" ")
    print("{:21.2f} {:8.2f}".format(*np.divide(peaks, parameters)), f"{sent:9.2f} Ψ")
    assert len(calls) == predicted[choice].messages and np.isclose(*peaks, rtol=0.01)
print("your prediction for the root only:", predicted_root_only)

# %%
messages = [predicted[choice].messages for choice in choices]
formula_bytes = [predicted[choice].peak_parameter_bytes / parameters for choice in choices]
alone, together = (
    [highest(run, *categories) / parameters for run in by_choice.values()]
    for categories in (["parameters"], ["parameters", "gradients", "buckets"])
)

# %%
figure, axes = plt.subplots(figsize=(7, 3.6))
axes.axhline(4, color=palette.WAIT, linestyle=":", label="a whole copy of the parameters")
axes.plot(messages, formula_bytes, color=palette.PREDICTED, label="parameters, formula")
axes.plot(messages, alone, "o", color=palette.MEASURED, label="parameters, measured")
blue = {"color": palette.MEASURED, "mfc": "none"}
axes.plot(messages, together, "s:", **blue, label="with gradients and buckets")
for x, y, choice in zip(messages, together, choices, strict=True):
    axes.annotate(choice, (x, y), (4, 5), textcoords="offset points", size=8)
axes.set(xlabel="messages in a step", ylabel="highest bytes per parameter", xscale="log", ylim=0)
axes.set_xticks(messages, messages)
axes.minorticks_off()
axes.legend(frameon=False, fontsize=8)
figure.tight_layout()

# %% [markdown]
# With the root alone, a rank has its slice *and* the whole model at the same time, 5 bytes per parameter: more than without sharding. Smaller units lower the peak, but units of half the size need about twice as many messages. The bytes stay the same. (The root alone sends fewer, as it is gathered only once.) Messages have a fixed cost (chapter 03), so many small ones are slow. On their GPUs, the authors of FSDP saw all-gathers of less than 33 million elements lose bandwidth quickly (Zhao et al. 2023, Figure 2b).
#
# The upper line adds gradients and communication buffers, which are as large as a unit each: a gathered unit arrives in a flat buffer before its parameters are copied out of it, and gradients are copied into one before they are reduced. With prefetching, one more unit is on its way.
#
# A block is the usual choice: among dozens of them, one is a small part of the model, its messages are large, and while it computes, the next one arrives. (`quiet` hid a warning: the output of a Linear is a view, and an in-place operation on it would skip FSDP's backward hook.)
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
# The root is special because backward begins right after its forward ends: it would be freed and gathered again at once. **How many elements does each of the four ranks send per step with True, with False, and with 2?** (Over gloo, where a reduce-scatter sends 2(N − 1)/N.)

# %%
# Your prediction: elements that each rank sends with True, False and 2, in Ψ, as a list
predicted_reshard = None

# %%
by_reshard = {True: by_choice["6 blocks"]}
for reshard in (False, 2):
    by_reshard[reshard] = launch(two_steps, "6 blocks", reshard, inputs=batches, **options)

# %%
for reshard, run in by_reshard.items():
    how = {"reshard_after_forward": reshard, "reduce_scatter": "gloo"}
    expected = unit_step(units, N, root=root, **how)
    sent = run.traffic["step 1"].sent_by_rank.mean()
    gathers = sum(call.op == "all_gather_single" for call in within(run, "step 1"))
    print(f"{reshard!s:6} {gathers} gathers, sent: predicted", end=" ")
    print(f"{expected.sent_bytes / 4 / parameters:.2f} Ψ, measured {sent / 4 / parameters:.2f} Ψ")
    assert gathers == expected.all_gathers and abs(sent / expected.sent_bytes - 1) < 0.02
print("your prediction:", predicted_reshard)

# %% [markdown]
# What is not gathered again has to stay. Here is what a rank holds at the end of forward, beyond what it holds with `True`:

# %%
def held_after_forward(run):
    return sum(run.memory[0].at("forward pass").values())

for reshard in (False, 2):
    kept = unit_step(units, N, root=root, reshard_after_forward=reshard).kept_bytes
    expected = (kept - fsdp.kept_bytes) / parameters
    more = held_after_forward(by_reshard[reshard]) - held_after_forward(by_reshard[True])
    measured = more / parameters
    print(f"{reshard!s:5} predicted {expected:.2f}, measured {measured:.2f} bytes per parameter")
    assert np.isclose(expected, measured, rtol=0.01)

# %% [markdown]
# `False` saves a third of the traffic (a quarter with gloo) for a whole copy of the parameters between forward and backward: a choice for models that fit. `2` keeps half. Its second gather comes from only two ranks, neighbours in rank order. Make m the number of GPUs in a node, and no parameter crosses between nodes in backward.

# %%
again = [call for call in within(by_reshard[2], "step 1") if len(call.group) == 2]
print(len(again), "gathers in the group", {call.group for call in again})
print("sent in a step, from row to column, in Ψ:")
print((by_reshard[2].traffic["step 1"].sent_bytes / 4 / parameters).round(2))

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

print("gathers begun before the previous block computed, by default:", begun_early(life))
print("gathers begun before the previous block computed, one ahead:", begun_early(ahead))
assert (begun_early(life), begun_early(ahead)) == (0, len(units) - 1)

# %% [markdown]
# The price is memory: each unit that is prefetched is one more that is whole or on its way.
#
# ## What goes wrong
#
# The first three mistakes give no error. We train on the same batch in each step, so that the loss should fall.
#
# **The optimizer comes first.** `fully_shard` replaces each parameter by a new one, a DTensor that holds the rank's slice. An optimizer that was created before has the old ones, which nothing uses anymore.

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
for sharded_first in (True, False):
    run = launch(train_in_order, sharded_first, **small)
    print("optimizer", "after: " if sharded_first else "before:", np.round(run.outputs[0], 4))

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

for rank, (own_slice, over_all) in enumerate(launch(norms, **small).outputs):
    print(f"rank {rank}: its slice {own_slice:.3f}, all ranks {over_all:.3f}")

# %% [markdown]
# **Only rank 0 evaluates.** With DDP that works, because a forward pass sends nothing. With FSDP each forward gathers, so all ranks must take part. What will happen here?

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
