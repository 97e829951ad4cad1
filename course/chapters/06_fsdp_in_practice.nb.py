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
# # 06 · FSDP in practice
#
# `fully_shard` gathers a model unit by unit ([chapter 05](05_fsdp.ipynb)). The defaults share every unit among all ranks, compute in the dtype in which the model was loaded, and reduce gradients after every backward. Each of these can be changed, and each default is wrong for somebody.
#
# The question: what do these settings change in bytes, in memory, and in what the model learns?
#
# **After this chapter you can**
#
# - decide when hybrid sharding sends less between nodes, and what it costs in memory;
# - set precision and accumulation so that FSDP does what you intend;
# - choose among DDP, ZeRO, FSDP, HSDP and tensor parallelism.
#
# **You need:** [05 FSDP](05_fsdp.ipynb).

# %% [markdown]
# <details open><summary>Hybrid sharding gathers within a node and sums slices of gradients between nodes</summary>
#
# [![Animation: Hybrid sharding gathers within a node and sums slices of gradients between nodes](openers/06_fsdp_in_practice.svg)](openers/06_fsdp_in_practice.svg)
#
# The collectives of rank 0 of four in one step, waits included. With FSDP all four ranks take part in each, so parameters and gradients cross between the nodes {0, 1} and {2, 3}. With HSDP rank 0 gathers and reduce-scatters with rank 1 only; each unit's slice of the gradients is then all-reduced with rank 2, on the other node. (Recorded from real processes.)
#
# </details>

# %% jupyter={"source_hidden": true}
print("Loading PyTorch's FSDP: a few seconds, longer the first time on a computer …")

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from shardlab import data, holds, launch, measure, models, show_table, warm_up
from shardlab.estimate import hybrid_sharding, memory, traffic
from shardlab.widgets import palette, predict, traffic_map

warm_up("deepspeed")  # loads in the background while you read

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# ## HSDP: shards within a node, replicas across nodes
#
# In chapter 05 all N ranks shared one set of shards, so every all-gather goes over every link, including the slow ones between nodes. **HSDP** (hybrid sharded data parallel; the layout of MiCS, Zhang et al. 2022) arranges the ranks in a mesh of R rows and S columns. A row, for example the GPUs of a node, shares one set of shards. The ranks in a column hold the same shard, as in DDP.
#
# `fully_shard` does this when its mesh has two dimensions: the first replicates, the second shards. The model of this chapter has two blocks: each is a unit, and so is the root. Ψ is its number of parameters.

# %%
psi = models.count_parameters(models.gpt("0.3M"))  # Ψ
in_blocks = models.count_parameters(models.gpt("0.3M").blocks)
gathers = 1 + in_blocks / psi  # of a parameter in a step: the root stays gathered

def sharded_gpt(rows=((0, 1, 2, 3),), **policies):
    """rows: the ranks that share one set of shards"""
    torch.manual_seed(0)  # the same parameters on every rank
    model = models.gpt("0.3M")
    mesh = DeviceMesh("cpu", rows, mesh_dim_names=("replicate", "shard"))
    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=mesh if len(rows) > 1 else mesh["shard"], **policies)
    return model

# %%
def two_steps_on_mesh(batch, rows):
    model, losses = sharded_gpt(rows), []
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
labels = ["FSDP", "HSDP"]
predicted_leaving = predict("Elements that leave a node", unit="Ψ", labels=labels)
predicted_leaving

# %%
own_batches = [data.batch(0, 2, 32, rank, 4) for rank in range(4)]
on_four = {"inputs": own_batches, "device": "cpu", "quiet": True}
mesh_runs = {
    name: launch(two_steps_on_mesh, rows, memory=True, **on_four)
    for name, rows in (("FSDP", [[0, 1, 2, 3]]), ("HSDP", [[0, 1], [2, 3]]))
}

# %%
sent_by_ranks = [run.traffic["step 1"].sent_bytes for run in mesh_runs.values()]
leaving = [sent[:2, 2:].sum() / 4 / psi for sent in sent_by_ranks]
ring_bytes = hybrid_sharding.sent_bytes(psi, 1, 4, gathers=gathers).within
named = {
    "the same for both": leaving[0],
    "what leaves it where a reduce-scatter is a ring": [ring_bytes / 4 / psi, leaving[1]],
    "what one of its ranks sends": [leaving[0], leaving[1] / 2],
}
predicted_leaving.compare(leaving, named)

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
# HSDP sends about a third of what FSDP sends to the other node, and keeps twice as much on each rank. Which collectives are they? Here are the calls of rank 0 in one step, with the ranks that take part. A call's elements are those of its input.

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
    [
        (op, group, amount)
        for (op, group, _), amount in calls_of(mesh_runs["HSDP"], "step 1").items()
    ],
)

# %% [markdown]
# In the notation of [chapter 03](03_ring_all_reduce.ipynb), where S are the ranks of a row and R those of a column, a parameter is $W[I_S]$, and its gradient takes two steps: $G[I]\,\{U_S U_R\} \to G[I_S]\,\{U_R\} \to G[I_S]$.
#
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
close = {"rtol": 0.02, "atol": 5000, "unit": "bytes"}
holds("from each rank to each other", sent_matrix, predicted, **close)
traffic_map(mesh_runs["HSDP"], predicted, block="step 1")

# %% [markdown]
# ### What leaves a node
#
# In a ring over all N ranks, each link carries what each rank sends, including the link that leaves a node: $\frac{3(N-1)}{N} \Psi$ with a real reduce-scatter. Under HSDP each of a node's $S$ ranks sends its shard's all-reduce: $S \cdot \frac{2(R-1)}{R} \cdot \frac{\Psi}{S}$, which is $\frac{2(R-1)}{R} \Psi$. So the gain in bytes is no more than **3Ψ to 2Ψ** when there are many nodes; with our two nodes it is 9/4 to 1, and gloo adds the rest.

# %%
flat = hybrid_sharding.sent_bytes(psi, 1, 4, **here).within / 4 / psi
ring = traffic.sent_bytes("zero3", 1, 4)[0] / 4
hybrid = 2 * in_column / 4 / psi
columns = dict.fromkeys(("a ring", "our calls", "measured"), ".2f")
show_table(
    {"leaves the node, in Ψ": "", **columns},
    [("FSDP", ring, flat, leaving[0]), ("HSDP", hybrid, hybrid, leaving[1])],
)
holds("FSDP: leaves the node, in Ψ", leaving[0], flat, rtol=0.02)

# %% [markdown]
# ### On two nodes
#
# Now with a real link: ranks 0 and 1 on one node, 2 and 3 on the other, and 100 Mbit/s between them. A mesh can also be placed **wrongly**: with rows [0, 2] and [1, 3], each row has a rank of each node. **How many elements leave a node then, in a step?**

# %%
predicted_wrong = predict("Elements that leave a node, with rows across the nodes", unit="Ψ")
predicted_wrong

# %%
def steps_on_each_mesh(batch, placements):
    for name, rows in placements.items():
        model = sharded_gpt(rows)
        for label in ("first step", name):
            with measure(label):
                model(*batch).backward()
                dist.barrier()

# %%
placements = {
    "FSDP": [[0, 1, 2, 3]],
    "HSDP, rows in nodes": [[0, 1], [2, 3]],
    "HSDP, rows across nodes": [[0, 2], [1, 3]],
}
on_nodes = {"nodes": 2, "link_bits_per_s": 100e6, "recorded": "06_two_nodes"}
run = launch(steps_on_each_mesh, placements, **on_four, **on_nodes)
leaving_bytes = [run.traffic[name].between_nodes[0, 1] for name in placements]

# %%
in_psi = np.array(leaving_bytes) / 4 / psi
named = {"FSDP": in_psi[0], "HSDP with a node as its row": in_psi[1], "what one of its ranks sends": in_psi[2] / 2}
predicted_wrong.compare(in_psi[2], named)

# %%
def seconds_of(name):
    return max(block.end_s - block.start_s for block in run.traffic[name].blocks)

show_table(
    {"mesh": "", "leaves a node, in Ψ": ".2f", "link alone, s": ".2f", "a step, s": ".2f"},
    [
        (name, amount, 8 * sent / on_nodes["link_bits_per_s"], seconds_of(name))
        for name, amount, sent in zip(placements, in_psi, leaving_bytes, strict=True)
    ],
)

# %%
traffic_map(run, block="HSDP, rows across nodes", mode="links")

# %% [markdown]
# A step takes longer than the link needs for what leaves a node: the ranks also compute, and share this machine's cores. With its rows in the nodes, HSDP sends the least, in a few short bursts, and its step is the shortest. With rows across the nodes it gathers every shard over the slow link, on both ranks of a node: more leaves it than with FSDP, and the link is busy for the whole step. Nothing warns you: losses are the same. (In all three, gloo's reduce-scatter sends twice what NCCL's would.)
#
# ### Two link speeds
#
# What is that in seconds? Take 7.5 billion parameters, 2 bytes for each element sent, and nodes of 8 A100s: 300 GB/s each way over NVLink within a node, one network card of 25 GB/s for each GPU (NVIDIA; Narayanan et al. 2021). Many clouds have less, so let us also compute one such card for the whole node. As in [chapter 08](08_tensor_parallel.ipynb), FSDP's ring uses all cards of a node and is as fast as its slowest part. This is a calculation: no latency, and nothing overlaps.

# %%
def seconds(nodes, card_bytes_per_s, micro_batches=1):
    """FSDP over all GPUs, and HSDP with a node as its row."""
    size = {"parameter_bytes": 2, "gradient_bytes": 2, "micro_batches": micro_batches}
    flat = hybrid_sharding.sent_bytes(7.5e9, 1, 8 * nodes, **size)
    ring_bytes_per_s = min(300e9, 8 * card_bytes_per_s)
    in_nodes = hybrid_sharding.sent_bytes(7.5e9, nodes, 8, sync="step", **size)
    in_a_ring = flat.seconds(ring_bytes_per_s, ring_bytes_per_s)
    return in_a_ring, in_nodes.seconds(300e9, card_bytes_per_s)

# %%
speeds = {"each GPU": 25e9, "the node": 25e9 / 8}
columns = {
    f"{name}, {nodes} nodes": (i, nodes)
    for nodes in (2, 16, 64) for i, name in enumerate(("FSDP", "HSDP"))
}
show_table(
    {"a card for": "", "micro-batches": "d", **dict.fromkeys(columns, ".2f")},
    [
        (cards, m, *(seconds(nodes, speed, m)[i] for i, nodes in columns.values()))
        for cards, speed in speeds.items() for m in (1, 4)
    ],
    caption="communication of a step, in seconds",
)

# %% [markdown]
# - With a card for each GPU and one batch for each step, this calculation finds no gain: the ring is already as fast as two thirds of NVLink. What HSDP saves there are latencies, which we did not count: a ring over 512 ranks takes 511 messages one after another for each all-gather, a ring over 8 takes 7.
# - With a slow network HSDP is faster, because fewer bytes leave the node, as on our two nodes.
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
# ### Fewer bits on the wire
#
# Each rank gathers all weights twice in a step and reduce-scatters all gradients. These messages can be quantized while they are sent. **ZeRO++** (Wang et al. 2023) gathers weights as int8, in blocks of 64 with a scale each (qwZ): the sharded weights stay exact, so the error does not add up over steps. Gradients are summed, and codes of different scales cannot be added. A ring has to dequantize, add and quantize again at each hop. ZeRO++ (qgZ) makes one *all-to-all* instead, in which each rank sends every other rank its part; the receiver adds the parts in fp32: every gradient is quantized once. **Four ranks all-reduce an int8 tensor in which each has 100. What is the sum?**

# %%
options = ["400", "144", "127", "-112"]
predicted_sum = predict("The int8 sum of four times 100", options=options)
predicted_sum

# %%
def to_wire(x):
    """[n] fp32 -> [n/64, 68] uint8: int8 codes of 64 numbers, and their fp32 scale"""
    blocks = x.view(-1, 64)
    scale = blocks.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    codes = (blocks / scale).round().to(torch.int8)
    return torch.cat([codes.view(torch.uint8), scale.view(torch.uint8)], 1)

# %%
def quantized_messages(numbers):
    own = torch.randn(numbers)
    for name, mine in (("fp32", own), ("int8", to_wire(own))):
        with measure(name):
            dist.all_gather([torch.empty_like(mine) for _ in range(4)], mine)
    hundreds = torch.full((1,), 100, dtype=torch.int8)
    dist.all_reduce(hundreds)
    return hundreds.item()

# %%
wire_run = launch(quantized_messages, 64 * 256, world_size=4, device="cpu", quiet=True)
wrong = {"the sum, which int8 cannot hold": "400", "the largest int8": "127"}
predicted_sum.compare(str(wire_run.outputs[0]), wrong)

# %%
sent = [wire_run.traffic[name].sent_by_rank.mean() for name in ("int8", "fp32")]
holds("all-gather: bytes sent, int8 over fp32", sent[0] / sent[1], 8.5 / 32, rtol=0.02)

# %% [markdown]
# Hop k of a ring that quantizes at each hop rounds a sum of k gradients. If these are independent and equally large, its errors add up to $\sqrt{(N-1)/2}$ times those of the all-to-all: 1.2 times on 4 ranks, and by the same formula 5.6 times on 64. qgZ sends gradients in 4 bits. The third part of ZeRO++, hpZ, keeps a second copy of the weights within each node, as `reshard_after_forward` with a number does, so that the gather in backward does not leave the node. Between nodes, a 16-bit ZeRO-3 sends 3Ψ elements for large N, and ZeRO++ 8/16 + 0 + 4/16 = 0.75Ψ.

# %% [markdown]
# ## Precision
#
# Without a policy, everything is computed and sent in the dtype in which the model was loaded. `MixedPrecisionPolicy` separates three things: the **masters**, which are the shards that the optimizer updates, the copies that are gathered for computing (`param_dtype`), and the gradients on their way (`reduce_dtype`).
#
# **The model is loaded in fp32 and `param_dtype` is bf16. Which dtype do a rank's shard and its gradient have after backward?**

# %%
both = ("fp32", "bf16")
DTYPES = [f"{shard} and {gradient}" for shard in both for gradient in both]
predicted_dtypes = predict("Dtypes of a shard and of its gradient", options=DTYPES)
predicted_dtypes

# %%
def one_backward(batch, param_dtype, reduce_dtype):
    model = sharded_gpt(mp_policy=MixedPrecisionPolicy(param_dtype, reduce_dtype))
    with measure("step"):
        model(*batch).backward()
        dist.barrier()
    shard = next(model.parameters())
    dtypes = [str(tensor.dtype) for tensor in (shard, shard.grad)]
    return dtypes, shard.grad.full_tensor()

# %%
bf16, fp32 = torch.bfloat16, torch.float32
precision_runs = {
    reduce_dtype: launch(one_backward, bf16, reduce_dtype, **on_four)
    for reduce_dtype in (None, fp32)
}
short = {"torch.float32": "fp32", "torch.bfloat16": "bf16"}
found = [short[dtype] for dtype in precision_runs[fp32].outputs[0][0]]
named = {
    "what is gathered and computed with": "bf16 and bf16",
    "the dtype in which backward computes the gradient": "fp32 and bf16",
}
predicted_dtypes.compare(" and ".join(found), named)

# %% [markdown]
# Both are fp32. The bf16 copies exist only while a unit is gathered, and the sum of the gradients is cast back. `reduce_dtype=None` means `param_dtype`. Which bytes does each choice save? And how different are the results, if gradients are rounded to bf16 in every addition?

# %%
for reduce_dtype, run in precision_runs.items():
    size = {"parameter_bytes": 2, "gradient_bytes": 4 if reduce_dtype else 2}
    predicted = hybrid_sharding.sent_bytes(psi, 1, 4, **size, **here).within
    measured = run.traffic["step"].sent_by_rank.mean()
    dtypes = ", ".join(f"{op} in {dtype}" for op, _, dtype in calls_of(run, "step"))
    holds(dtypes, measured, predicted, rtol=0.05, unit="bytes")

reduced = {dtype: run.outputs[0][1] for dtype, run in precision_runs.items()}
relative = (reduced[None] - reduced[fp32]).norm() / reduced[fp32].norm()
print(f"the embedding's gradient, reduced in bf16, differs by {100 * relative:.2f} %")

# %% [markdown]
# That is the error of four ranks. A sum over N ranks has N − 1 additions, so large runs often reduce in fp32.
#
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
# Two ranks train it on one batch each, from the same weights, loaded once in fp32 and once in bf16. We also count how many weights the first step changes.

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
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            changed = sum((shard != old).sum() for shard, old in zip(shards, before))
    return torch.stack(losses).detach(), changed / sum(map(torch.numel, shards))

# %% [markdown]
# Adam's first step moves every weight by about lr = 10⁻⁵, whatever its gradient is. **Which share of the weights does the first step change if the model was loaded in bf16?**

# %%
predicted_changed = predict("Share of weights that the first step changes", maximum=1)
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
    (tuned[name], changed[name]), _ = launch(finetune, weights, *case, **on_two).outputs
in_fp32 = {"the share that it changes in fp32": float(changed["fp32, with a policy"])}
predicted_changed.compare(float(changed["bf16, no policy"]), in_fp32)

# %%
columns = {"share that changed": ".3f", "first loss": ".4f", "last loss": ".4f"}
show_table(
    {"loaded in": "", **columns},
    [(name, changed[name].item(), *tuned[name][[0, -1]].tolist()) for name in cases],
)

# %% [markdown]
# From bf16 the loss hardly falls, and a policy for a model loaded in bf16 does not help: it sets the dtype for computing, and that was bf16 already. `reduce_dtype` is not the reason either.
#
# Why? Between $2^e$ and $2^{e+1}$ bf16 numbers are $\mathrm{ulp} = 2^{e-7}$ apart (*unit in the last place*). The updated weight is rounded to the nearest one. So **an update smaller than $\mathrm{ulp}(w)/2$ is lost**, again in every step. (One exception: below $2^e$ the numbers are half as far apart, so a weight of exactly $\pm 2^e$ moves toward zero from $\mathrm{ulp}(w)/4$ on.) With Adam the update is about lr. Which weights should change, then?

# %%
def half_ulp(weights):
    exponents = torch.frexp(weights).exponent  # 2ᵉ ≤ |w| < 2ᵉ⁺¹ has exponent e + 1
    return torch.where(weights == 0, 0.0, torch.exp2(exponents - 9.0))

loaded = torch.cat([each.detach().flatten() for each in pretrained.parameters()])
half = half_ulp(loaded.bfloat16().float())
rates = (1e-6, 1e-5, 1e-4, 1e-3)
shares = {each: (half < each).float().mean().item() for each in rates}
show_table({"learning rate": ".0e", "share that should change": ".3f"}, shares.items())
holds("share that changed in bf16", changed["bf16, no policy"], shares[lr], rtol=0.05)

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6))
looks = ("bf16, no policy", "--", "left", 18), ("fp32, with a policy", "-", "right", 14)
for name, style, side, below in looks:
    left.plot(tuned[name], style, color=palette.MEASURED)
    left.annotate(name, (9, tuned[name][9]), (-6, -below), textcoords="offset points", ha=side)
left.set(xlabel="step", ylabel="loss on rank 0", title=f"fine-tuning, lr = {lr:.0e}")
right.axhline(lr, color=palette.PLOT_INK, linestyle=":", label="Adam's updates, lr")
size = torch.logspace(-5, 0.2, 600)
right.loglog(size, half_ulp(size), color=palette.PREDICTED, label="half an ulp of bf16")
right.set(xlabel="|w|", title="which updates are lost", xlim=(1e-5, 2))
right.legend(frameon=False, loc="upper left")
figure.tight_layout()

# %% [markdown]
# On the right, an update below the orange line is lost. At lr = 10⁻⁵ Adam can move only weights below 2⁻⁸ = 0.004. Their ulp grows with them: one that has grown to 0.004 grows no further. (With SGD the update is lr · g, and the same rule decides.)
#
# DeepSpeed trains the same bf16 model without this problem. With `"bf16": {"enabled": True}` its engine makes an fp32 master copy of the parameters ([chapter 04](04_zero.ipynb)), whatever dtype you pass in, and updates that:

# %%
def finetune_with_deepspeed(batch, state, steps=20):
    import deepspeed

    model = models.gpt("0.1M")
    model.load_state_dict(state)
    adam = {"lr": lr, "weight_decay": 0.0, "torch_adam": True}
    config = {"bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": adam}}
    config |= {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.0}
    config["zero_optimization"] = {"stage": 3, "reduce_bucket_size": 2**15}
    engine, *_ = deepspeed.initialize(model=model.bfloat16(), config=config)
    losses = []
    for _ in range(steps):
        losses.append(loss_of(engine, *batch))
        engine.backward(losses[-1])
        engine.step()
    return torch.stack(losses).detach()

# %%
engine = {"engine": "deepspeed", "timeout_s": 90}
with_deepspeed = launch(finetune_with_deepspeed, weights, **on_two, **engine).outputs[0]
first, last = with_deepspeed[[0, -1]].tolist()
print(f"DeepSpeed, loaded in bf16: loss {first:.4f} to {last:.4f}")

# %%
with_masters = tuned["fp32, with a policy"][0] - tuned["fp32, with a policy"][-1]
without_policy = tuned["bf16, no policy"][0] - tuned["bf16, no policy"][-1]
print("how far the loss falls, over how far it falls with fp32 masters:")
holds("FSDP in bf16", without_policy / with_masters, below=0.2)
fell = (first - last) / with_masters
holds("DeepSpeed in bf16", fell, above=0.8)

# %% [markdown]
# So the same script can train under DeepSpeed and stall under FSDP. This is how the problem was found: in Accelerate's issue 2624 people first suspected `reduce_dtype`, and a learning rate that should be multiplied by the number of GPUs. Since then Accelerate casts the parameters to fp32 when mixed precision is on (issue 3979 is about a version in which it did not). In plain PyTorch it is up to you: **load in fp32, and let the policy cast**. To check it:
#
# `assert {p.dtype for p in model.parameters()} == {torch.float32}`
#
# ## Accumulation
#
# By default FSDP reduces gradients after every micro-batch. `set_requires_gradient_sync(False)` keeps them on the rank, until a backward with `True` reduces the sum. **With four micro-batches on each of four ranks, what does a rank pass to reduce-scatter in a step, and what does it hold between micro-batches, without the switch and with it?**

# %%
EACH = ["reduced without", "held without", "reduced with it", "held with it"]
predicted_accumulation = predict("Elements of gradients", unit="Ψ", labels=EACH)
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
four_micro_batches = {"inputs": four_each, "device": "cpu", "quiet": True}
sums, rows = [], []
for name, sync in (("reduce every time", True), ("reduce once", False)):
    run = launch(accumulate, sync, memory=True, **four_micro_batches)
    total = {op: amount for (op, *_), amount in calls_of(run, "step").items()}
    held = run.memory.at("micro-batch")["gradients"][0] / 4 / psi
    sent = run.traffic["step"].sent_by_rank.mean() / 4 / psi
    reduced = 2 * (4 if sync else 1)  # 2: gloo's reduce-scatter
    predicted = 3 / 4 * (4 * gathers + reduced)
    passed = total["all_gather"], total["reduce_scatter"]
    rows.append((name, *passed, held, predicted, sent))
    sums.append(run.outputs[0])
found = [amount for _, _, reduced, held, *_ in rows for amount in (reduced, held)]
exchanged = {"the two ways, exchanged": found[2:] + found[:2]}
predicted_accumulation.compare(found, exchanged)

# %%
columns = ("gathered", "reduced", "held", "sent, predicted", "sent")
show_table({"in Ψ": "", **dict.fromkeys(columns, ".2f")}, rows)
*_, predicted, measured = zip(*rows)
holds("sent by each rank, in Ψ", measured, predicted, rtol=0.02)
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
    gradients = {parameter.grad for parameter in model.parameters()}
    return [loss.item() for loss in losses], gradients

# %%
two_losses, gradients = launch(never_reduced, **four_micro_batches).outputs[0]
print("gradients:", gradients)
holds("the second loss equals the first", *two_losses)

# %% [markdown]
# No error: the optimizer finds no gradients and skips every parameter, so the loss stays the same.
#
# ## Checkpoints
#
# `model.state_dict()` returns the shards that a rank has, and sends nothing. A full state dict gathers every tensor onto rank 0, and all ranks have to call the function, or rank 0 would wait for them forever. So large models save shards, and `torch.distributed.checkpoint` loads them on any number of ranks: [chapter 11](11_save_resume.ipynb). What a rank loads has the same trap as above: a checkpoint stored in bf16 is fine, as long as it is copied into fp32 parameters.
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
# The first six are data parallelism: each rank computes whole layers for its own tokens. Only tensor parallelism ([chapter 08](08_tensor_parallel.ipynb)) divides a layer's work and activations. Large runs combine it with one of the others.
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
#
# ## What to remember
#
# - HSDP: within a row $\frac{3(S-1)}{S} \Psi$, across $\frac{2(R-1)}{R} \cdot \frac{\Psi}{S}$. From each node $2\Psi$ leave instead of $3\Psi$, for model states of $16\Psi/S$.
# - Quantize copies freely, but sums only once.
# - FSDP keeps masters in the dtype that you load, DeepSpeed in fp32. In bf16 an update below $\mathrm{ulp}(w)/2$ is lost.
# - Accumulation without reducing saves m − 1 reduce-scatters and keeps whole gradients.
# - A sharded state dict sends nothing, a full one gathers everything and has to be called on all ranks.
#
# ## Sources
#
# - PyTorch 2.13: [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html), and the code in `torch/distributed/fsdp/_fully_shard`.
# - Y. Zhao et al.: *PyTorch FSDP: experiences on scaling fully sharded data parallel.* [arXiv 2304.11277](https://arxiv.org/abs/2304.11277), 2023. Section 3.2.2 on hybrid sharding.
# - Z. Zhang et al.: *MiCS: near-linear scaling for training gigantic model on public cloud.* [arXiv 2205.00119](https://arxiv.org/abs/2205.00119), 2022.
# - G. Wang et al.: *ZeRO++: extremely efficient collective communication for giant model training.* [arXiv 2306.10209](https://arxiv.org/abs/2306.10209), 2023.
# - S. Rajbhandari, J. Rasley, O. Ruwase, Y. He: *ZeRO: memory optimizations toward training trillion parameter models.* [arXiv 1910.02054](https://arxiv.org/abs/1910.02054), 2020.
# - D. Narayanan et al.: *Efficient large-scale language model training on GPU clusters using Megatron-LM.* [arXiv 2104.04473](https://arxiv.org/abs/2104.04473), 2021. Section 5: eight network cards of 200 Gbit/s on each node. NVIDIA: [NVLink](https://www.nvidia.com/en-us/data-center/nvlink/), 600 GB/s both ways together for an A100.
# - Hugging Face Accelerate: issues [2624](https://github.com/huggingface/accelerate/issues/2624) and [3979](https://github.com/huggingface/accelerate/issues/3979), and [its guide on FSDP and DeepSpeed](https://huggingface.co/docs/accelerate/concept_guides/fsdp_and_deepspeed).
