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
# # 08 · Tensor parallel
#
# ZeRO and FSDP ([chapter 05](05_fsdp.ipynb)) slice what a rank *keeps*. To compute, they gather whole layers again, so every rank does the work of a whole layer for its own part of the batch. **Tensor parallelism** splits the *computation*: all ranks work on the same tokens, each with its own part of every matrix, and no rank ever holds a whole one.
#
# The question of this chapter: how should we split a matrix so that ranks communicate little, and how much is "little"?
#
# **After this chapter you can**
#
# - split a layer's matrices by columns and by rows, with one all-reduce per half layer;
# - compute the traffic of tensor parallelism, with and without sequence parallelism;
# - combine tensor and data parallelism on a mesh that fits the network.
#
# **You need:** [03 Ring all-reduce](03_ring_all_reduce.ipynb).

# %% [markdown]
# <details open><summary>Two ranks compute one layer together, and add up their halves</summary>
#
# [![Animation: Two ranks compute one layer together, and add up their halves](openers/08_tensor_parallel.svg)](openers/08_tensor_parallel.svg)
#
# Each rank has half of the columns of W₁ and half of the rows of W₂, so it can compute both products without the other. Its result is a partial sum; one all-reduce in forward and one in backward complete it. (Recorded from real processes.)
#
# </details>

# %% jupyter={"source_hidden": true}
print("Loading PyTorch's parallel modules: a few seconds, longer the first time on a computer …")

from collections import Counter

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import parallel as tp

from shardlab import data, holds, launch, measure, models, show_table
from shardlab.estimate import activations, ring_sent_bytes, scatter_or_gather_sent_bytes, traffic
from shardlab.widgets import format_bytes, palette, predict, tensor_split, traffic_map

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# Below, T is the number of tokens in a batch, D the width of the model, N the number of ranks. S is the size of one layer's output, T·D numbers: this chapter's unit of traffic. All runs use `device="cpu"`, so that we can count bytes on the wire.

# %%
T, D, N = 512, 96, 4
S = T * D * 4  # bytes: our numbers are fp32
options = {"world_size": N, "device": "cpu"}
print("S =", format_bytes(S))

# %% [markdown]
# ## A matrix product, split two ways
#
# Take $Y = XW$, with $X\,[T, D]$ and $W\,[D, 4D]$. Each of N ranks should hold 1/N of W. We can split W by columns or by rows. Rows of W multiply columns of X, so then X is split as well.

# %%
torch.manual_seed(0)
x, w = torch.randn(T, D), torch.randn(D, 4 * D) / D**0.5
by_columns = [x @ part for part in w.chunk(N, dim=1)]
by_rows = [own @ part for own, part in zip(x.chunk(N, dim=1), w.chunk(N, dim=0), strict=True)]
print("each rank's result:", tuple(by_columns[0].shape), "and", tuple(by_rows[0].shape))
holds("the columns, side by side, and XW", torch.cat(by_columns, dim=1), x @ w, rtol=1e-6, atol=1e-5)
holds("the partial sums, added up, and XW", sum(by_rows), x @ w, rtol=1e-4, atol=1e-4)

# %% [markdown]
# - **By columns** each rank has some finished *columns* of Y. It needs all of X.
# - **By rows** each rank has a *partial sum* of all of Y. It needs only its columns of X, but Y is complete only when all partial sums are added up.
#
# Step through both with the arrow keys; the lower row is the backward pass. Watch what is whole, what is split and what is a partial sum. (In the column split the picture also gathers Y, in case all of it is needed. In this chapter it never is.)

# %%
tensor_split("columns", tokens=T, width=D, world_size=N)

# %% [markdown]
# Backward is the mirror image. Where forward needs all of X, backward gives partial sums of dX: each rank has only the part from its own columns. Where forward gives partial sums, all ranks start backward from the same dY.
#
# | W split by | needs | gives | sent in forward | sent in backward |
# |---|---|---|---|---|
# | columns | all of X | its columns of Y | nothing | all-reduce of dX |
# | rows | its columns of X | a partial sum of Y | all-reduce of Y | nothing |
#
# The same in the notation of [chapter 03](03_ring_all_reduce.ipynb), with F = 4D and the ranks called tp:
#
# - by columns: $X[T, D] \cdot W[D, F_{tp}] \to Y[T, F_{tp}]$;
# - by rows: $X[T, D_{tp}] \cdot W[D_{tp}, F] \to Y[T, F]\,\{U_{tp}\}$, and an all-reduce gives $Y[T, F]$.
#
# ## Two products: columns, then rows
#
# An MLP is two matrix products with a GELU in between: $H = \mathrm{GELU}(X W_1)$, $Y = H W_2$. The column split gives exactly what the row split needs. **How many all-reduces does the whole MLP make in forward, if W₁ is split by columns and W₂ by rows?**

# %%
predicted_all_reduces = predict("All-reduces in the MLP's forward pass")
predicted_all_reduces

# %% [markdown]
# In this run each rank gets its own parts of W₁ and W₂, the same X, and the same dY, the gradient with respect to Y.

# %%
w1, w2 = torch.randn(D, 4 * D) / D**0.5, torch.randn(4 * D, D) / (4 * D) ** 0.5
dy = torch.randn(T, D)
parts = list(zip(w1.chunk(N, dim=1), w2.chunk(N, dim=0), strict=True))

# %%
def mlp(part, x, dy):
    w1, w2, x = (each.clone().requires_grad_() for each in (*part, x))
    with measure("forward"):
        partial = F.gelu(x @ w1) @ w2
        y = partial.detach().clone()
        dist.all_reduce(y)
    with measure("backward"):
        partial.backward(dy)
        dist.all_reduce(x.grad)
    return y, x.grad, w1.grad, w2.grad

# %%
def calls_of(run, label):
    """Collectives of rank 0 within a measured block, by their name."""
    return Counter(call.op for call in run.calls_in(label))

def show_calls(run, labels=("forward", "backward")):
    made = {label: calls_of(run, label) for label in labels}
    show_table(
        {"collectives of rank 0": "", "forward": "d", "backward": "d"},
        [(op, made["forward"][op], made["backward"][op]) for op in made["forward"] | made["backward"]],
    )

# %%
run = launch(mlp, x, dy, inputs=parts, **options)
made = calls_of(run, "forward")["all_reduce"]
predicted_all_reduces.compare(made, {"one for each matrix": len(parts[0])}, "counted")

# %%
show_calls(run)

# %% [markdown]
# One in forward and one in backward. On every rank the result equals that of one process, and each rank's gradients are its parts of the whole gradients:

# %%
whole = [each.clone().requires_grad_() for each in (x, w1, w2)]
y = F.gelu(whole[0] @ whole[1]) @ whole[2]
y.backward(dy)
dx, dw1, dw2 = (each.grad for each in whole)
ys, dxs, dw1_parts, dw2_parts = zip(*run.outputs)
close = {"rtol": 1e-4, "atol": 1e-4}
holds("Y on every rank, and in one process", torch.stack(ys), y, **close)
holds("dX on every rank, and in one process", torch.stack(dxs), dx, **close)
holds("dW₁: the ranks' columns, and in one process", torch.cat(dw1_parts, dim=1), dw1, **close)
holds("dW₂: the ranks' rows, and in one process", torch.cat(dw2_parts, dim=0), dw2, **close)

# %%
tensor_split("mlp", tokens=T, width=D, world_size=N, measured=run)

# %% [markdown]
# In an all-reduce of $S$ bytes each rank sends $\frac{2(N-1)}{N} S$ ([chapter 03](03_ring_all_reduce.ipynb)), and that is all. The hidden width 4D does not matter: H stays where it is.
#
# Why not split W₁ by rows, too? Then GELU would be applied to partial sums, and it is not linear:

# %%
one, other = torch.randn(1000), torch.randn(1000)
gelu = F.gelu
sum_of_gelus = gelu(one) + gelu(other)
holds("largest difference", (sum_of_gelus - gelu(one + other)).abs().max(), above=0.5)

# %% [markdown]
# The partial sums would have to be added up *before* GELU, in an extra all-reduce.
#
# ## Attention: whole heads
#
# Attention has the same structure. The matrices for queries, keys and values are split by columns; the output matrix takes their results and is split by rows. In between, heads are independent. So each rank gets **whole heads**, and N must divide their number.
#
# Our GPT computes queries, keys and values with one matrix [D, 3D]. What would each rank get if we just split that into four?

# %%
columns = np.repeat(["query", "key", "value"], D)
shares = [Counter(share.tolist()) for share in np.split(columns, N)]
show_table(
    {"rank": "d", **{f"columns of {kind}": "d" for kind in ("query", "key", "value")}},
    [(rank, *(share[kind] for kind in ("query", "key", "value"))) for rank, share in enumerate(shares)],
)

# %% [markdown]
# Rank 0 would have only queries. Each of the three must be split separately. `models.separate_projections` replaces the one matrix with three that have the same numbers.
#
# ## A whole layer, with DTensor
#
# PyTorch's tensor parallelism leaves the model's code unchanged and takes a **plan**: for each module, how to split its matrix. `parallelize_module` turns the parameters into **DTensors**, which record their placement on the ranks: `Shard(0)`, split along dimension 0, $A[I_{tp}, J]$; `Replicate()`, the same everywhere, $A[I, J]$; or `Partial()`, unreduced, $A[I, J]\,\{U_{tp}\}$. A `Linear` stores its matrix transposed, so `ColwiseParallel` splits dimension 0.

# %%
def layer_plan(outside):
    """``outside``: the placement of activations between attention and MLP."""
    enter = tp.PrepareModuleInput(input_layouts=outside, desired_input_layouts=Replicate())
    by_columns, by_rows = tp.ColwiseParallel(), tp.RowwiseParallel(output_layouts=outside)
    return {
        "attention": enter, "mlp": enter,
        "attention.query": by_columns, "attention.key": by_columns, "attention.value": by_columns,
        "attention.out": by_rows,
        "mlp.up": by_columns,
        "mlp.down": by_rows,
    }

# %%
def fresh_layer():
    torch.manual_seed(0)  # the same parameters on every rank
    return models.separate_projections(models.gpt("0.3M")).blocks[0]

def as_whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

# %%
def one_layer(x, plan):
    layer = fresh_layer()
    tp.parallelize_module(layer, init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    x = x.requires_grad_() + 0  # as if an earlier layer had computed it
    with measure("forward"):
        y = layer(x)
    with measure("backward"):
        y.square().sum().backward()
    return y.detach(), {name: as_whole(p.grad) for name, p in layer.named_parameters()}

# %% [markdown]
# The two halves of a layer, attention and MLP, make one all-reduce each in forward. **How many does the layer make in backward?** (`memory=True` is for later.)

# %%
predicted_backward = predict("All-reduces of one layer in backward")
predicted_backward

# %%
batch = torch.randn(4, T // 4, D)  # 4 sequences of 128 tokens
plain = launch(one_layer, layer_plan(Replicate()), inputs=[batch] * N, memory=True, **options)
made = calls_of(plain, "backward")["all_reduce"]
predicted_backward.compare(made, {"the number of an MLP alone": calls_of(run, "backward")["all_reduce"]}, "counted")

# %%
show_calls(plain)

# %% [markdown]
# Two and two: for each half's output in forward and for its input's gradient in backward, $\frac{2(N-1)}{N} S$ each. In elements that is $8\,T D\,\frac{N-1}{N}$ per layer, as in Narayanan et al. (2021, section 3.2).

# %%
def compare(run, predicted):
    passes = {"forward": predicted.forward_bytes, "backward": predicted.backward_bytes}
    for label, expected in passes.items():
        measured = run.traffic[label].sent_by_rank.mean()
        holds(f"sent in {label}, in S", measured / S, expected / S, rtol=0.02)

compare(plain, traffic.tensor_parallel_layer(T, D, N, element_bytes=4))

# %% [markdown]
# And on every rank the layer computes what one process computes, gradients included:

# %%
whole_layer = fresh_layer()
y_whole = whole_layer(batch)
y_whole.square().sum().backward()
gradients_whole = {name: p.grad for name, p in whole_layer.named_parameters()}

def same_as_one_process(run, dim=None):
    """``dim``: along which each rank has its own part of the output."""
    outputs, gradients = zip(*run.outputs)
    y = torch.stack(outputs) if dim is None else torch.cat(outputs, dim)
    holds("output on every rank, and in one process", y, y_whole, rtol=1e-4, atol=1e-4)
    flat = [torch.cat([each[name].flatten() for name in gradients_whole]) for each in gradients]
    right = torch.cat([each.flatten() for each in gradients_whole.values()])
    holds("gradients on every rank, and in one process", torch.stack(flat), right, rtol=1e-4, atol=1e-3)

same_as_one_process(plain)

# %% [markdown]
# ## Sequence parallelism
#
# Each rank now holds 1/N of the matrices. But around them are norms, residuals and dropout, which every rank computes for all tokens, keeping everything that backward needs. These treat each token independently. So between the halves we can split the tokens: each rank takes T/N of them. That is **sequence parallelism**.
#
# Then a half begins with an **all-gather** of tokens, and ends with a **reduce-scatter**: the ranks sum, but each keeps only its own tokens: $X[T_{tp}, D] \to X[T, D]$ before a half, $Y[T, D]\,\{U_{tp}\} \to Y[T_{tp}, D]$ after it. Step through it:

# %%
tensor_split("sequence", tokens=T, width=D, world_size=N)

# %% [markdown]
# **How many bytes does it send, as a multiple of what the all-reduces sent, if all collectives run as rings?**

# %%
predicted_ratio = predict("Bytes with sequence parallelism, over those of plain tensor parallelism")
predicted_ratio

# %%
predicted = {
    how: traffic.tensor_parallel_layer(
        T, D, N, element_bytes=4, sequence_parallel=True, reduce_scatter=how
    )
    for how in ("ring", "gloo")
}
without = traffic.tensor_parallel_layer(T, D, N, element_bytes=4)
ratios = {how: sent.total_bytes / without.total_bytes for how, sent in predicted.items()}

# %%
named = {"what gloo sends": ratios["gloo"], "as if each half cost as much as an all-reduce": 2}
predicted_ratio.compare(ratios["ring"], named, "calculated")

# %%
show_table(
    {"reduce-scatter as": "", "bytes over those of the all-reduces": ".2f"}, ratios.items()
)

# %% [markdown]
# Equal: reduce-scatter and all-gather *are* the two halves of an all-reduce. But gloo runs a reduce-scatter as a whole all-reduce (chapter 03), so here we will measure 1.5 times as many. Two things change in the plan: activations outside are `Shard(1)`, split along the tokens, and the norms become `SequenceParallel`.

# %%
in_sequence = layer_plan(Shard(1)) | dict.fromkeys(["norm_1", "norm_2"], tp.SequenceParallel())
tokens = [part.clone() for part in batch.chunk(N, dim=1)]
sequence = launch(one_layer, in_sequence, inputs=tokens, memory=True, **options)

# %%
show_calls(sequence)
compare(sequence, predicted["gloo"])
same_as_one_process(sequence, dim=1)
later = [c.bytes for c in sequence.calls if c.rank == 0 and c.op == "all_reduce"]
print("all-reduces afterwards, in bytes:", later)

# %% [markdown]
# Those four small ones come from `as_whole`: each rank has the norms' gradients only for its own tokens, and `full_tensor` sums them.
#
# The point of sequence parallelism is memory: what each rank keeps for its backward pass. By the formulas of Korthikanti et al. (2022) our layer, without dropout and with attention in one kernel, keeps this much in addition to its output:

# %%
layer = {"tokens": T // 4, "batch": 4, "width": D, "heads": 4, "tensor_parallel": N}
kernels = activations.cpu_kernels(4, dropout=False)
def formula_and_measured(run, n):
    formula = activations.layer_bytes(**layer, sequence_parallel=n > 1, kernels=kernels) / S
    return formula, run.memory.at("forward")["activations"].max() / S - 1 / n  # less its output

kept = {
    "tensor parallel": formula_and_measured(plain, 1),
    "with sequence parallelism": formula_and_measured(sequence, N),
}
show_table({"kept, in S": "", "formula": ".2f", "measured": ".2f"}, [(name, *two) for name, two in kept.items()])

# %% [markdown]
# The second measurement is above its formula. The formula is for Megatron, which keeps only a rank's own tokens of each half's input and gathers them *again* in backward: one more all-gather per half. DTensor keeps both inputs whole, $2\,(1 - \frac{1}{N})\,S$ more:

# %%
formula, measured = kept["with sequence parallelism"]
holds("kept above the formula, in S", measured - formula, 2 * (1 - 1 / N), atol=0.05)
again = traffic.tensor_parallel_layer(
    T, D, N, element_bytes=4, sequence_parallel=True, gather_inputs_again=True
)
show_table({"backward": "", "sent, in S": ".1f"}, [
    ("gathering again", again.backward_bytes / S),
    ("without gathering again", without.backward_bytes / S),
])

# %% [markdown]
# ## Both ends of the model: splitting the vocabulary
#
# The largest matrices may be at the ends of a model: the embedding [V, D], and the matrix that computes V logits for each token. (Llama 3 405B has D = 16,384, an MLP 53,248 wide, and V = 128,256: the 128,000 of its paper, Table 3, and 256 special tokens of the released tokenizer.) Both are split by vocabulary.
#
# - **Embedding**: a rank looks up the tokens in its own part of the vocabulary and takes zero for the others; an all-reduce adds up the results.
# - **Logits**: split by columns, so each rank gets the logits of its own part of the vocabulary. The loss of a token with logits $z_1, \dots, z_V$ and target $k$ is $-\log \left( e^{z_k} / \sum_i e^{z_i} \right)$. Do we have to gather all logits for it?
#
# No: three numbers per token are enough, the largest logit (so that no exponential overflows), the sum of exponentials, and the target's logit, which only one rank has. **How many bytes does each rank send in these three all-reduces, for a batch of T tokens?** (4 bytes per number.)

# %%
predicted_loss = predict(f"Bytes that each rank sends for the loss, with T = {T} and N = {N}", unit="B")
predicted_loss

# %%
def model_plan(logits):
    """``logits``: their placement; with Shard(-1) each rank keeps its own."""
    local = isinstance(logits, Replicate)
    return {
        "token": tp.RowwiseParallel(input_layouts=Replicate()),
        "head": tp.ColwiseParallel(output_layouts=logits, use_local_output=local),
    }

# %%
def fresh_model(tp_mesh, plan):
    torch.manual_seed(0)
    model = models.separate_projections(models.gpt("0.3M"))
    for block in model.blocks:
        tp.parallelize_module(block, tp_mesh, layer_plan(Replicate()))
    return tp.parallelize_module(model, tp_mesh, plan) if plan else model

# %%
def train(batch, plan, tie, steps):
    model = fresh_model(init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    if tie:
        model.head.weight = model.token.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    with tp.loss_parallel():
        for step in range(steps):
            with measure(f"forward {step}"):
                loss = model(*batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(as_whole(loss.detach())))
    return losses

# %% [markdown]
# Our GPT uses one matrix at both ends ("tied"); `tie` restores that after the split. Why it is needed is explained below. We run this on real text, once with all logits gathered and once with split logits.

# %%
text = data.batch(0, 4, T // 4)
gathered = launch(train, text, model_plan(Replicate()), True, 1, **options)
split = launch(train, text, model_plan(Shard(-1)), True, 2, **options)

# %%
def all_reduces_of_loss(run):
    """The number of all-reduces of one number per token in a forward pass, and the bytes they send."""
    small = [call for call in run.calls_in("forward 0") if call.bytes == 4 * T]
    return len(small), sum(ring_sent_bytes(call.bytes, N) for call in small)

# %%
calls, sent = all_reduces_of_loss(split)
V = 256
all_logits = scatter_or_gather_sent_bytes(4 * T * V, N)
named = {"the numbers themselves: an all-reduce sends 2(N − 1)/N of them": calls * 4 * T,
         "one all-reduce": sent / calls, "gathering all logits": all_logits}
predicted_loss.compare(sent, named, "counted")

# %%
print(f"first loss: {gathered.outputs[0][0]:.5f} gathered, {split.outputs[0][0]:.5f} split")
print(f"{calls} all-reduces of one number per token; gathering all logits: {all_logits:,.0f} bytes")

# %% [markdown]
# Three all-reduces, and their bytes do not depend on V. The whole forward pass sends what we predict for the layers, the embedding, and the three numbers:

# %%
forward = traffic.tensor_parallel_layer(T, D, N, element_bytes=4) * 2
forward += traffic.vocabulary_parallel_embedding_and_loss(T, D, N, element_bytes=4)
for name, run in (("gathered", gathered), ("split", split)):
    print(f"{name}: forward sent {format_bytes(run.traffic['forward 0'].sent_by_rank.mean())}")
measured = split.traffic["forward 0"].sent_by_rank.mean()
holds("split", measured, forward.forward_bytes, rtol=0.02, unit="bytes")

# %% [markdown]
# The larger gain is memory. With these 128,256 entries and 8192 tokens, fp32 logits and their gradients take, whole and on each of 8 ranks:

# %%
logits_bytes = 2 * 4 * 8192 * 128_256
print(f"{logits_bytes / 1e9:.1f} GB whole, {logits_bytes / 8 / 1e9:.2f} GB split")

# %% [markdown]
# ## Why it stays on fast links
#
# Each all-reduce sits *between* two matrix products: the next cannot start before it is done. And it does not shrink. With more ranks each rank computes less, while what it sends grows toward $8\,T D$ elements. A layer computes $72\,T D^2 \left(1 + \frac{s}{6D}\right) / N$ operations on each rank, forward and backward (Narayanan et al. 2021, appendix, without recomputation). T counts all tokens of the batch, s those of **one sequence**: attention relates a token only to its own sequence.
#
# Here is a layer of that paper's model with 175 billion parameters (D = 12,288, one sequence of 2048 tokens, 2 bytes per element), on A100s at 140 TFLOP/s, as measured in the paper. Within a node NVLink moves 300 GB/s each way; between nodes each of a node's 8 GPUs has a 25 GB/s network card. Change the numbers to match your machine. (A "node" below means the GPUs that NVLink joins, its **domain**. On these A100s that is one computer; in NVIDIA's GB200 NVL72 it is a rack of 72 GPUs.)
#
# If a group spans whole nodes, NCCL runs a ring through each of the 8 cards, and each ring carries an eighth of the bytes (Hu et al. 2025). **Is one group over two nodes, N = 16, slower than N = 8 in one?**

# %%
predicted_slowdown = predict("Time with N = 16 over two nodes, over time with N = 8 in one")
predicted_slowdown

# %%
flops_per_s, nvlink_bytes_per_s, network_bytes_per_s = 140e12, 300e9, 25e9
sequence, width = 2048, 12_288
tokens = 1 * sequence  # one sequence in the batch
layer_flops = 72 * tokens * width**2 * (1 + sequence / (6 * width))

def layer_ms(t, in_a_node):
    """(ms computing, ms sending) of a group of t ranks, ``in_a_node`` of them in each node"""
    network = min(nvlink_bytes_per_s, in_a_node * network_bytes_per_s)
    link = nvlink_bytes_per_s if t == in_a_node else network
    sent = traffic.tensor_parallel_layer(tokens, width, t).total_bytes
    return 1e3 * layer_flops / t / flops_per_s, 1e3 * sent / link

# %%
groups = {
    "N = 2": (2, 2), "N = 4": (4, 4), "N = 8": (8, 8),
    "N = 16, two nodes": (16, 8), "N = 8, eight nodes": (8, 1),
}
times = {name: layer_ms(*group) for name, group in groups.items()}
busy = {name: computes / (computes + sends) for name, (computes, sends) in times.items()}

# %%
one_node, two_nodes = sum(times["N = 8"]), sum(times["N = 16, two nodes"])
alone = times["N = 16, two nodes"][0] / times["N = 8"][0]
predicted_slowdown.compare(two_nodes / one_node, {"what computing alone would give": alone}, "calculated")

# %%
show_table(
    {"group": "", "computes, ms": ".1f", "sends, ms": ".1f", "busy": ".0%"},
    [(name, *each, busy[name]) for name, each in times.items()],
)

# %%
figure, axes = plt.subplots(figsize=(7, 3))
compute_ms, sends_ms = zip(*times.values(), strict=True)
axes.bar(list(times), compute_ms, 0.6, color=palette.PHASES["forward"])
axes.bar(list(times), sends_ms, 0.6, bottom=compute_ms, color=palette.op_color("all_reduce"))
for at, (name, total) in enumerate(zip(times, map(sum, times.values()), strict=True)):
    axes.text(at, total + 1, f"busy {busy[name]:.0%}", ha="center", size=9)
axes.set(ylabel="ms for one layer")
axes.tick_params(axis="x", labelsize=9)
axes.legend(["computes", "sends"], frameon=False)
figure.tight_layout()

# %% [markdown]
# Sixteen GPUs over two nodes are faster than eight in one, but not twice as fast: they compute for 84% of the time, the eight for 95%. The last bar shows a mistake: the same eight ranks, one in each of eight nodes, where all of a rank's bytes go through its own card.
#
# Another way to use 16 GPUs is one group per node, with two micro-batches at the same time: **data parallelism**. It has its own cost, the gradients, which cross between nodes once per step:

# %%
gradient_bytes = 2 * 12 * width**2 / 8  # per layer, on each of 8 ranks
gradients_ms = 1e3 * ring_sent_bytes(gradient_bytes, 2) / network_bytes_per_s
saved_ms = 2 * two_nodes - one_node  # two micro-batches, in sequence or in parallel
print(f"gradients: {gradients_ms:.1f} ms per step; saved: {saved_ms:.1f} ms per micro-batch")
holds("micro-batches that save as much", gradients_ms / saved_ms, above=6, below=7)
boundary_ms = 1e3 * 2 * tokens * width / network_bytes_per_s
print(f"a layer's output to the next node: {boundary_ms:.1f} ms")

# %% [markdown]
# So with 7 or more micro-batches per step on each node, groups within a node win; with even fewer if gradients are sent during the backward pass, as in DDP. (Or the second node takes the other half of the layers. Such a pipeline sends one layer's output to the next node, and its gradient back, once for *all* layers of a node; its cost is idle time at the beginning and the end of a step: chapter 09.)
#
# This is a calculation, not a measurement: no latency, no overlap. The paper measured, and found the best throughput with N equal to the number of GPUs in a node (section 5.4.1).
#
# ## Two dimensions
#
# So tensor parallelism stays within a node, and other kinds of parallelism use more GPUs. With data parallelism on top, ranks form a **mesh**: a table in which a row works on the same batch with different parts of the model, and a column has the same part and different batches. Ranks in a row communicate all the time and should also be neighbors on the machine, so `tp` is the last dimension:

# %%
ranks = np.arange(8).reshape(2, 4)  # dp × tp
print(ranks)
print("tensor-parallel groups:", ranks.tolist())
print("data-parallel groups:  ", ranks.T.tolist())

# %% [markdown]
# Now a real run with four ranks, 2 × 2. Tensor parallelism uses one dimension of the mesh, FSDP2 the other: along the columns it shards each rank's part of the model, as in ZeRO's stage 3. So a rank has tokens $X[T_{dp}, D]$, and of an MLP's first matrix, in `nn.Linear`'s order, $W[F_{tp,dp}, D]$. **Which ranks will rank 0 send to, and which not?**

# %%
predicted_peers = predict("Rank 0 sends to", options=["rank 1", "rank 2", "rank 3"], several=True)
predicted_peers

# %%
def model_on_a_mesh(ranks):
    """``ranks``: rows × columns; also returns this rank's row and column"""
    mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("dp", "tp"))
    model = fresh_model(mesh["tp"], plan={})
    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=mesh["dp"])
    return model, mesh.get_coordinate()

# %%
def train_on_a_mesh(batch):
    model, coordinate = model_on_a_mesh([[0, 1], [2, 3]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for step in range(2):
        with measure(f"step {step}"):
            loss = model(*batch)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return coordinate, losses

# %% [markdown]
# Ranks in a row get the same batch; different rows get different batches.

# %%
batches = [data.batch(0, 4, 64, rank=rank // 2, world_size=2) for rank in range(4)]
mesh_run = launch(train_on_a_mesh, inputs=batches, world_size=4, device="cpu")

# %%
sent = mesh_run.traffic["step 1"].sent_bytes[0]
peers = [f"rank {rank}" for rank in range(4) if sent[rank] > 0.01 * sent.max()]
predicted_peers.compare(peers, {"all of them": ["rank 1", "rank 2", "rank 3"]})

# %%
traffic_map(mesh_run, block="step 1")

# %%
show_table(
    {"rank": "d", "dp": "d", "tp": "d", "loss 0": ".4f", "loss 1": ".4f"},
    [(rank, *coordinate, *losses) for rank, (coordinate, losses) in enumerate(mesh_run.outputs)],
)

# %% [markdown]
# Rank 0 sends nothing to rank 3. Each of the other pairs has its own purpose and its own formula:

# %%
in_a_row = traffic.tensor_parallel_layer(4 * 64, D, 2, element_bytes=4) * 2  # two layers
whole_names = ("norm", "attention.out.bias", "mlp.down.bias")  # the others are split
one_block = sum(
    p.numel() / (1 if name.startswith(whole_names) else 2)
    for name, p in fresh_layer().named_parameters()
)
blocks_bytes = 4 * 2 * one_block
parameters = models.gpt("0.3M").named_parameters()
rest_bytes = 4 * sum(p.numel() for name, p in parameters if not name.startswith("blocks"))

# %% [markdown]
# Along a row, the all-reduces of two layers. Along a column, FSDP2's gathers and reduce-scatters of each rank's part: blocks are gathered for forward and for backward, the rest (embeddings, last norm) once, since FSDP2 keeps the outermost unit gathered; gloo's reduce-scatter counts as an all-reduce.

# %%
gather = scatter_or_gather_sent_bytes
in_a_column = 2 * gather(blocks_bytes, 2) + gather(rest_bytes, 2)
in_a_column += ring_sent_bytes(blocks_bytes + rest_bytes, 2)
sent = mesh_run.traffic["step 1"].sent_bytes[0]
for peer, expected in ((1, in_a_row.total_bytes), (2, in_a_column), (3, 0)):
    holds(f"rank 0 to {peer}", sent[peer], expected, rtol=0.02, unit="bytes")

# %% [markdown]
# And the training matches one process with the whole batch, twice as large:

# %%
torch.manual_seed(0)
model = models.gpt("0.3M")
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(2):
    loss = model(*data.batch(0, 8, 64))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    mean = np.mean([losses[step] for _, losses in mesh_run.outputs])
    holds(f"loss {step}: mean over the mesh, and one process", mean, loss.item(), atol=1e-5)

# %% [markdown]
# Traffic along a row occurs in every micro-batch, and the next matrix product waits for it. Traffic along a column occurs once per step (with plain data parallelism) and can overlap with the backward pass ([chapter 02](02_dp_vs_ddp.ipynb)). This is another reason to give `tp` the fast links.
#
# ### Across a slow link
#
# Now the same mesh on two nodes with 100 Mbit/s between them, once with a row in each node, and once with its rows **across** them: [0, 2] and [1, 3], which is just another order of the ranks. In the run above, rank 0 sent fewer bytes along its row than along its column. A batch now has 16 sequences instead of 4. **How many times as much leaves a node with rows across the nodes as with rows in them?**

# %%
predicted_across = predict("Bytes that leave a node, rows across the nodes over rows in them")
predicted_across

# %%
def steps_on_each_mesh(placements, sizes):
    for name, ranks in placements.items():
        model, (row, _) = model_on_a_mesh(ranks)
        for sequences in sizes:
            batch = data.batch(0, sequences, 64, rank=row, world_size=2)
            for label in ("first step", f"{name}, {sequences} sequences"):
                with measure(label):
                    model(*batch).backward()
                    dist.barrier()

# %%
placements = {"rows in nodes": [[0, 1], [2, 3]], "rows across nodes": [[0, 2], [1, 3]]}
on_nodes = {"nodes": 2, "link_bits_per_s": 100e6, "recorded": "08_two_nodes"}
run = launch(steps_on_each_mesh, placements, (4, 16), world_size=4, device="cpu", **on_nodes)
cases = [(sequences, name) for sequences in (4, 16) for name in placements]
blocks = [run.traffic[f"{name}, {sequences} sequences"] for sequences, name in cases]
leaving = [block.between_nodes[0, 1] for block in blocks]
named = {"with 4 sequences": leaving[1] / leaving[0], "how much larger the batch is": 4}
predicted_across.compare(leaving[3] / leaving[2], named)

# %%
link_s = [8 * sent / on_nodes["link_bits_per_s"] for sent in leaving]
step_s = [max(each.end_s - each.start_s for each in block.blocks) for block in blocks]
show_table(
    {"sequences": "d", "mesh": "", "leaves a node": format_bytes, "link alone, s": ".2f", "a step, s": ".2f"},
    [(*case, *row) for case, row in zip(cases, zip(leaving, link_s, step_s), strict=True)],
)
for (sequences, name), sent in zip(cases, leaving, strict=True):
    each_rank = in_a_column if name == "rows in nodes" else sequences / 4 * in_a_row.total_bytes
    holds(f"{name}, {sequences} sequences: two ranks send", sent, 2 * each_rank, rtol=0.02, unit="bytes")

# %% [markdown]
# Along a row, bytes grow with the tokens; along a column, only with the parameters. So our small model with a small batch sends *less* over the link with its rows across the nodes. With four times as many tokens the same mesh sends almost three times as much as the other, and needs the link longest. (The rest of a step's time is this machine computing, and gloo within the nodes.) As with the micro-batches above, it matters how many tokens are computed for each time the gradients are sent. Nothing warns you of the wrong order of ranks.
#
# ## What goes wrong in practice
#
# **A bias on every rank.** In a row split each rank has a partial sum of Y. If each adds the bias to its own, the total contains it N times:

# %%
bias = torch.randn(4 * D)
each_adds_it = sum(part + bias for part in by_rows)
excess = (each_adds_it - (x @ w + bias)) / bias
holds("excess, as a multiple of the bias", excess.median(), N - 1, rtol=1e-3)

# %% [markdown]
# **Three inputs instead of one.** Our plan has entries for the modules `attention` and `mlp`: the input becomes a DTensor *once*, and the gradients from queries, keys and values are added up before the all-reduce. Plans that only name the matrices are correct, too, but:

# %%
matrices_only = {k: v for k, v in layer_plan(Replicate()).items() if k not in ("attention", "mlp")}
three_times = launch(one_layer, matrices_only, inputs=[batch] * N, **options)
show_calls(three_times)
same_as_one_process(three_times)
ratio = three_times.traffic["backward"].sent_by_rank / plain.traffic["backward"].sent_by_rank
holds("bytes in backward, relative to our plan", ratio, 2, rtol=0.01)

# %% [markdown]
# **Tied weights become untied.** `parallelize_module` makes a new parameter from each weight. If a weight was used in two places, there are now two, and each learns only from its own use. There is no error, and the first loss is right:

# %%
untied = launch(train, text, model_plan(Shard(-1)), False, 2, **options)
show_table(
    {"weights": "", "loss 0": ".4f", "loss 1": ".4f"},
    [("tied", *split.outputs[0]), ("untied", *untied.outputs[0])],
)

# %% [markdown]
# **A different batch on each rank**, as in data parallelism. All ranks of a tensor-parallel group must see the same tokens. Otherwise there is no error, but the sum mixes different batches:

# %%
own_batches = [torch.randn_like(batch) for _ in range(2)]
two = {"world_size": 2, "device": "cpu"}
mixed = launch(one_layer, layer_plan(Replicate()), inputs=own_batches, **two)
right = fresh_layer()(own_batches[0])
off = (mixed.outputs[0][0] - right).abs().max().item()
print("rank 0, largest difference from what its own batch gives:", round(off, 3))

# %% [markdown]
# **Different dropout masks.** Outside the split parts all ranks must drop the same elements, or tensors that should be equal on all ranks will differ. So they need the same random state there (and different ones for the split parts: Shoeybi et al. 2019, appendix B).

# %%
def with_dropout(x):
    config = models.GPTConfig(layers=1, heads=4, width=D, context=128, dropout=0.1)
    torch.manual_seed(0)
    layer = models.separate_projections(models.GPT(config)).blocks[0]
    tp.parallelize_module(layer, init_device_mesh("cpu", (2,)), layer_plan(Replicate()))
    outputs = []
    for seed in (dist.get_rank(), 7):
        torch.manual_seed(seed)
        outputs.append(layer(x).detach())
    return outputs

# %%
first, second = launch(with_dropout, batch, **two).outputs
names = ("its own seed", "the same seed")
show_table(
    {"each rank with": "", "elements that differ": ".0%"},
    [(name, (a != b).float().mean().item()) for name, a, b in zip(names, first, second, strict=True)],
)

# %% [markdown]
# ## In practice
#
# - **PyTorch**: the plan, as above. [torchtitan](https://github.com/pytorch/torchtitan) trains Llama with such plans, on meshes with `fully_shard`.
# - **Megatron** has `ColumnParallelLinear`, `RowParallelLinear` and `VocabParallelEmbedding` in the model's code, and `--tensor-model-parallel-size`, `--sequence-parallel`.
# - **DeepSpeed** splits models automatically, with `"tensor_parallel": {"autotp_size": 8}` in the configuration, along with ZeRO of any stage (0.19.8).
# - **Hugging Face** models come with a plan: `config.base_model_tp_plan`.
#
# How large should N be? At most the number of GPUs that NVLink joins, in most clusters a node; N must divide the number of heads, including key and value heads if there are fewer of them. Llama 3 405B has 8 of those, and was trained with N = 8 (Llama team 2024, tables 3 and 4).
#
# ## Where GPUs differ
#
# - NCCL has a real reduce-scatter: sequence parallelism sends no more bytes there than plain tensor parallelism.
# - Matrix products get thinner as N grows. A GPU needs large ones to reach full speed (Narayanan et al. 2021, section 3.3.2); our CPU ranks do not show this.
# - Create the mesh with `init_device_mesh("cuda", …)`; plans are the same.
#
# ## What to remember
#
# - By columns: needs all of X, gives finished columns. By rows: gives partial sums. Columns, then rows: one all-reduce forward, one backward; a layer has two such halves.
# - $8\,T D\,\frac{N-1}{N}$ elements per layer and micro-batch, whatever the hidden width. This does not shrink with N.
# - Sequence parallelism: the same bytes on a ring, and 1/N of the activations in between.
# - Logits stay where they are: three numbers per token are enough.
# - On a mesh, `tp` gets the fast links.
#
# ## Sources
#
# - M. Shoeybi, M. Patwary, R. Puri, P. LeGresley, J. Casper, B. Catanzaro: *Megatron-LM: training multi-billion parameter language models using model parallelism.* [arXiv 1909.08053](https://arxiv.org/abs/1909.08053), 2019. Section 3 on splitting both halves, the embedding and the loss.
# - D. Narayanan et al.: *Efficient large-scale language model training on GPU clusters using Megatron-LM.* [arXiv 2104.04473](https://arxiv.org/abs/2104.04473), 2021. Section 3.2 for bytes, 5 for the cluster and its throughput, the appendix for operations.
# - V. Korthikanti et al.: *Reducing activation recomputation in large transformer models.* [arXiv 2205.05198](https://arxiv.org/abs/2205.05198), 2022. Section 4 for sequence parallelism and activations.
# - Llama team: *The Llama 3 herd of models.* [arXiv 2407.21783](https://arxiv.org/abs/2407.21783), 2024. Tables 3 and 4.
# - Z. Hu et al.: *Demystifying NCCL.* [arXiv 2507.04786](https://arxiv.org/abs/2507.04786), 2025. Rings, channels and network cards.
# - NVIDIA: [NVLink](https://www.nvidia.com/en-us/data-center/nvlink/): an A100 has 600 GB/s, both ways together. [GB200 NVL72](https://www.nvidia.com/en-us/data-center/gb200-nvl72/).
# - PyTorch 2.13: [tensor parallelism](https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html), [DeviceMesh](https://docs.pytorch.org/docs/stable/distributed.html). DeepSpeed: [AutoTP](https://www.deepspeed.ai/tutorials/autotp-training). Hugging Face: [tensor parallelism](https://huggingface.co/docs/transformers/tensor_parallelism).
