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
# # 10 · Activation checkpointing
#
# The forward pass creates tensors that the backward pass needs again: **activations**. They accumulate from the first layer to the last, and grow with every sequence and every token of the batch. ZeRO does not shard them ([chapter 04](04_zero.ipynb)), and more data-parallel ranks do not shrink them.
#
# The question of this chapter: what if a layer keeps only its input, and the backward recomputes the rest? What does that save, what does it cost, and what can go wrong?
#
# The method has three names: **activation checkpointing** (PyTorch, DeepSpeed), **gradient checkpointing** (Hugging Face), **activation recomputation** (Megatron). It has nothing to do with checkpoints on disk.
#
# **After this chapter you can**
#
# - compute which activations a transformer layer keeps for the backward, in bytes;
# - choose what to recompute, and say what that saves and costs;
# - recognize when a second forward does not repeat the first, and what that breaks.
#
# **You need:** [01 One device](01_one_device.ipynb) and [08 Tensor parallel](08_tensor_parallel.ipynb).

# %% [markdown]
# <details open><summary>Keep every activation, or keep a few and compute the rest again</summary>
#
# [![Animation: Keep every activation, or keep a few and compute the rest again](openers/10_activation_checkpointing.svg)](openers/10_activation_checkpointing.svg)
#
# Above, forward keeps all activations until backward needs them: they pile up to 6.9 MiB. Below, each block keeps only its input, and backward computes the rest again, one block at a time: 1.7 MiB, for more operators. (Recorded from real processes.)
#
# </details>

# %% jupyter={"source_hidden": true}
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

from dataclasses import replace
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.tensor.parallel as tp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from shardlab import data, holds, launch, measure, models, show_table
from shardlab.estimate import activations, model_traffic
from shardlab.placement import Pools
from shardlab.trace import lifetimes
from shardlab.widgets import activation_timeline, format_bytes, palette, predict

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)
torch.set_num_threads(1)  # small tensors: a second thread would only wait

# %% [markdown]
# ## What the forward keeps for the backward
#
# We take a GPT of four blocks and a batch of four sequences. `lifetimes.record` runs a step and tracks every tensor in it: which module created it, how large it is, when it was freed. One process is enough for this; most of the chapter needs no ranks.

# %%
config, batch_size, tokens = models.SIZES["1M"], 4, 64
batch = data.batch(0, batch_size, tokens)

def gpt(**changes):
    torch.manual_seed(0)
    return models.GPT(replace(config, **changes))

def record(model, batch=batch):
    return lifetimes.record(model, lambda: model(*batch).backward())

uncheckpointed = record(gpt())

# %% [markdown]
# The input of a block is s tokens of b sequences, each a vector of h numbers: sbh numbers in, and as many out. **For each number of its input, how many numbers does a block keep for the backward?**

# %%
predicted_kept = predict("Numbers that a block keeps, for each number of its input")
predicted_kept

# %%
sbh_bytes = batch_size * tokens * config.width * 4  # fp32

def kept_by(part, recorded):
    return [life for life in recorded.lives if (life.kind, life.part) == ("kept", part)]

lives = kept_by("blocks.1", uncheckpointed)
measured_kept = sum(life.bytes for life in lives) / sbh_bytes
largest = max(life.bytes for life in lives) / sbh_bytes

# %%
predicted_kept.compare(measured_kept, {"its largest tensor alone": largest})

# %%
show_table(
    {"kept by a block": "", "numbers for each of its input": ".2f"},
    [(life.name.removeprefix("blocks.1."), life.bytes / sbh_bytes) for life in lives],
)

# %% [markdown]
# Slightly more than sixteen. Each line is a tensor, with the module and the operator that created it (`addmm` is a matmul plus a bias). Each is kept because some derivative needs it:
#
# - a matmul $y = xW$ needs $\mathbf{x}$ for the gradient of $W$. That is the output of each layer norm (1 + 1), of the attention (1) and of GELU (4);
# - GELU needs **its input** (4), and so does a layer norm (1 + 1): the block's own input, which the previous block computed, and the sum of input and attention (`add`; the last `add` is the next block's input);
# - attention needs queries, keys and values (3), which `qkv` computes as one tensor.
#
# The derivative of a sum needs neither summand, so the outputs of `attention.out` and `mlp.down` are not in the list. The small tensors are two numbers for each token and layer norm, and one for each token and attention head.
#
# ### The formula
#
# For 16-bit training, Korthikanti et al. (2022) count $\mathbf{34\,sbh + 5\,a s^2 b}$ bytes for a layer with $a$ heads. For our model this is $32\,sbh$, because it has no dropout yet (two masks, one byte for each element), and its attention never stores the scores (more on that below). `activations` has their formula tensor by tensor:

# %%
kernels = activations.cpu_kernels(element_bytes=4, dropout=False)
predicted = activations.gpt_terms(config, batch_size, tokens, kernels)
total = sum(predicted.values())
show_table({"kept": "", "size": format_bytes}, [*predicted.items(), ("total", total)])
holds("kept by the forward", uncheckpointed.kept_bytes, total, rtol=0.05, unit="bytes")

# %% [markdown]
# The formula leaves out a few small tensors. With them, every byte is accounted for:

# %%
small = activations.small_terms(config, batch_size, tokens, kernels)
show_table({"kept as well": "", "size": format_bytes}, small.items())
batch_bytes, loss_bytes = sum(part.nbytes for part in batch), 4  # the batch already existed
with_small = total + sum(small.values()) - batch_bytes + loss_bytes
holds("kept by the forward", uncheckpointed.kept_bytes, with_small, unit="bytes")

# %% [markdown]
# ### Attention scores grow with s²
#
# Dropout within attention changes this count. Fused attention on a CPU does not support dropout, so PyTorch falls back to separate operators: it stores the softmax of all scores, a mask, and the scores after dropout, each $a s^2 b$ numbers. This is the second term of the paper's formula. (On a CPU a mask takes as many bytes as its tensor; in the paper it takes one byte for each number.)

# %%
def numbers_kept(dropout, tokens):
    recorded = record(gpt(dropout=dropout), data.batch(0, batch_size, tokens))
    size = sum(life.bytes for life in kept_by("blocks.1", recorded))
    return size / (batch_size * tokens * config.width * 4)

lengths = (16, 32, 64, 96, 128)
measured = {p: [numbers_kept(p, s) for s in lengths] for p in (0.0, 0.1)}

# %%
figure, axes = plt.subplots(figsize=(7, 3))
for dropout, label in ((0.0, "fused attention, no dropout"), (0.1, "with dropout: scores are stored")):
    how = activations.cpu_kernels(4, dropout=dropout > 0)
    shape = (batch_size, config.width, config.heads)
    inputs = [s * batch_size * config.width * 4 for s in lengths]
    line = [activations.layer_bytes(s, *shape, kernels=how) / i for s, i in zip(lengths, inputs)]
    axes.plot(lengths, line, color=palette.PREDICTED, linestyle="--" if dropout else "-")
    axes.plot(lengths, measured[dropout], "o", color=palette.MEASURED)
    axes.annotate(label, (lengths[2], line[2]), xytext=(8, -16), textcoords="offset points")
    holds(f"{label}: numbers kept for each of the input", measured[dropout], line, rtol=0.05)
axes.set(xlabel="tokens s", ylabel="numbers kept for each\nnumber of input", ylim=(0, None))
figure.tight_layout()

# %% [markdown]
# Lines are the formula, dots the measurements. The longer the sequence, the more bytes each token takes: GPT-3, with $s = 2048$, keeps $80\,sbh$ bytes for the scores and $34\,sbh$ for everything else.
#
# ## Keep the input, recompute the rest
#
# `checkpoint(function, x)` runs the function and keeps only x. When the backward reaches it, it runs the function again, keeps everything this time, and backpropagates through it. We do that with every block. **By what factor do the kept bytes of a block shrink?**

# %%
predicted_factor = predict("Factor by which the kept bytes of a block shrink")
predicted_factor

# %%
plain_checkpoint = partial(checkpoint, use_reentrant=False)

def checkpoint_blocks(model, how=plain_checkpoint):
    for block in model.blocks:
        block.forward = partial(how, block.forward)
    return model

checkpointed = record(checkpoint_blocks(gpt()))
left = sum(life.bytes for life in kept_by("blocks.1", checkpointed)) / sbh_bytes
predicted_factor.compare(measured_kept / left, {"the number of layers": config.layers})

# %%
activation_timeline({"keeps everything": uncheckpointed, "checkpointed": checkpointed})

# %% [markdown]
# Each ribbon is a tensor: its length is its lifetime, its height its bytes. The circle marks the peak. Hover over a ribbon to see the tensor's name.
#
# Above: a pyramid, because the tensors created first are needed last. Below: the forward leaves thin lines, the inputs of the blocks. In the backward the blocks are recomputed (hatched) and freed one at a time. So the peak is **all inputs plus one whole block**. The head and the loss are unchanged: they are outside the checkpoints.
#
# (Temporaries are short-lived tensors: gradients of activations, or a result that only the next operator needs. Gradients of parameters are not drawn.)

# %%
full = activations.gpt_terms(config, batch_size, tokens, kernels, recompute="full")
both = {"everything": (uncheckpointed, total), "inputs of blocks": (checkpointed, sum(full.values()))}
show_table(
    {"kept": "", "by formula": format_bytes, "measured": format_bytes, "peak": format_bytes},
    [(name, formula, each.kept_bytes, each.peak_bytes) for name, (each, formula) in both.items()],
)
holds("kept if checkpointed", checkpointed.kept_bytes, sum(full.values()), rtol=0.05, unit="bytes")

# %% [markdown]
# ## What it costs: one more forward
#
# The backward computes about twice as much as the forward: a gradient for each input and one for each weight. So a step costs 1 + 2 forwards. **By what factor does its work grow if every block runs its forward once more?**

# %%
predicted_work = predict("Work of a checkpointed step, over that of a plain one")
predicted_work

# %%
def count_flops(model):
    with FlopCounterMode(display=False) as counter:
        loss = model(*batch)
        forward = counter.get_total_flops()
        loss.backward()
    return forward, counter.get_total_flops()

# %%
forward, plain = count_flops(gpt(dropout=0.1))
_, again = count_flops(checkpoint_blocks(gpt(dropout=0.1)))
named = {"as if the forward were half of a step": 3 / 2, "as if the whole step ran twice": 2}
predicted_work.compare(again / plain, named, "counted")

# %%
holds("forwards in a plain step", plain / forward, 3)
holds("work of a checkpointed step over that of a plain one", again / plain, 4 / 3, atol=0.02)

# %% [markdown]
# A third more, except for the output head, which is not checkpointed. (The counter counts matmuls, which are nearly all of the work.) Timing it on your machine shows the same, with noise.
#
# One detail: PyTorch stops a recomputation as soon as it has everything that the backward needs. Without dropout it stops before the block's last matmul, because the output of `mlp.down` is not needed:

# %%
_, plain = count_flops(gpt())
times_the_work = {}
for stops_early in (True, False):
    with torch.utils.checkpoint.set_checkpoint_early_stop(stops_early):
        _, again = count_flops(checkpoint_blocks(gpt()))
    times_the_work[str(stops_early)] = again / plain
show_table({"stops early": "", "times the work": ".3f"}, times_the_work.items())

# %% [markdown]
# ## How many checkpoints? The square root
#
# You do not need a checkpoint at every layer. Divide a chain of n equal layers, each keeping one tensor, into c **segments** of n/c layers. The forward keeps c inputs, and the backward recomputes one segment at a time. The extra work is one forward, wherever the segment boundaries are. **For 36 layers, how many tensors are live at the peak? Draw them over the number of segments.**

# %%
segments = (1, 2, 3, 6, 12, 18, 36)
predicted_peak = predict("Tensors at the peak, for 36 layers", labels=segments, over="segments c", top=40)
predicted_peak

# %%
n, x = 36, torch.randn(256, 64)
chain = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(n)))
in_segments = partial(torch.utils.checkpoint.checkpoint_sequential, chain, use_reentrant=False)

def peak_tensors(segments):
    def step():
        in_segments(segments, x).sum().backward()
    return lifetimes.record(chain, step).peak_bytes / x.nbytes

# %%
peaks = [round(peak_tensors(c), 2) for c in segments]
named = {"the kept inputs alone": segments, "the tensors of a segment alone": [n / c for c in segments]}
predicted_peak.compare(peaks, named)

# %%
by_formula = [c + n / c for c in segments]
show_table(
    {"segments c": "d", "c + n/c": ".0f", "tensors at the peak": ".2f"}, zip(segments, by_formula, peaks)
)
holds("tensors at the peak", peaks, by_formula)

# %% [markdown]
# $$\text{peak} \approx c + \frac{n}{c}, \quad \text{smallest at } c = \sqrt{n}, \text{ where it is } 2\sqrt{n} \text{ instead of } n$$
#
# Chen et al. (2016) train a chain of a thousand layers this way.

# %%
figure, axes = plt.subplots(figsize=(7, 2.8))
fine = np.linspace(1, 36, 200)
axes.plot(fine, fine + n / fine, color=palette.PREDICTED, label="c + n/c")
axes.plot(segments, peaks, "o", color=palette.MEASURED, label="measured")
axes.set(xlabel="segments c", ylabel="tensors at the peak", ylim=(0, None))
axes.legend(frameon=False)
figure.tight_layout()

# %% [markdown]
# A GPT block keeps not one tensor but 16 times its input. L blocks in segments of k blocks have a peak of about $L/k + 16k$ inputs, smallest at $k = \sqrt{L/16}$. Up to 16 blocks, larger segments gain nothing; with 126 blocks (Llama 3 405B) the best k is 2 or 3. That is why the usual choice is one checkpoint for each block:

# %%
lengths_k = (1, 2, 3, 4, 8)
show_table(
    {"blocks": "d", **{f"k = {k}": ".0f" for k in lengths_k}},
    [(layers, *(layers / k + 16 * k for k in lengths_k)) for layers in (4, 16, 126)],
    caption="the peak, in inputs of a block",
)

# %% [markdown]
# ## Which tensors? Selective recomputation
#
# The output of a matmul is expensive to recompute; the output of softmax, dropout, layer norm or GELU is cheap to recompute, and just as large. **Selective** checkpointing keeps the expensive ones. In PyTorch you list the operators whose outputs are kept:

# %%
aten = torch.ops.aten
keep = [aten.mm.default, aten.addmm.default]  # matmuls with weights; attention's matmuls are recomputed
contexts = partial(torch.utils.checkpoint.create_selective_checkpoint_contexts, keep)
selective = partial(checkpoint, use_reentrant=False, context_fn=contexts)

# %%
print("recording a step of three models, and counting its FLOPs: a few seconds …")
makers = {
    "everything kept": lambda: gpt(dropout=0.1),
    "selective": lambda: checkpoint_blocks(gpt(dropout=0.1), selective),
    "every block": lambda: checkpoint_blocks(gpt(dropout=0.1)),
}
steps = {name: record(make()) for name, make in makers.items()}
work = {name: count_flops(make())[1] for name, make in makers.items()}

# %%
all_bytes, plain_work = steps["everything kept"].kept_bytes, work["everything kept"]
show_table(
    {"checkpoints": "", "bytes kept": ".0%", "times the work": ".3f"},
    [(name, each.kept_bytes / all_bytes, work[name] / plain_work) for name, each in steps.items()],
)

# %%
activation_timeline(steps)

# %% [markdown]
# More than half of the bytes are saved. The extra work is attention's core, queries times keys and scores times values: for each token $4sh$ of the $24h^2 + 4sh$ FLOPs of a block's forward (an addition and a multiplication count as two). A step costs three forwards, so recomputing the core adds this fraction:

# %%
def core_again(s, h):
    """Work of attention's core in one forward, over the work of a block's whole step"""
    return 4 * s * h / (3 * (24 * h**2 + 4 * s * h))

shapes = {"here": (tokens, config.width), "GPT-3": (2048, 12288)}
shapes |= {"s = h": (4096, 4096), "s = 8h": (32768, 4096)}
show_table(
    {"shape": "", "tokens s": ",d", "width h": ",d", "more work": ".1%"},
    [(name, s, h, core_again(s, h)) for name, (s, h) in shapes.items()],
)
counted = work["selective"] / plain_work - 1
holds("more work here, counted", counted, core_again(*shapes["here"]), atol=0.002)

# %% [markdown]
# That is a few percent, unless sequences are much longer than the model is wide. The paper recomputes only the operators behind the $s^2$ term: scores, softmax, dropout. FlashAttention does this inside its kernel: it keeps one number for each row of scores and recomputes the scores in the backward. Our first run already used it, which is why it kept no scores: **with fused attention you already have selective recomputation**.
#
# ## Sizes that do not fit here
#
# The paper's layer in all its variants, for GPT-3 with 175 billion parameters on 8 tensor-parallel ranks ([chapter 08](08_tensor_parallel.ipynb)): all 96 layers, one sequence, bytes on each rank:

# %%
gpt_3 = {"tokens": 2048, "batch": 1, "width": 12288, "heads": 96}
on_8_ranks = {"tensor_parallel": 8}
with_sequence = {**on_8_ranks, "sequence_parallel": True}
variants = {
    "no parallelism": {},
    "tensor parallel": on_8_ranks,
    "tensor + sequence parallel": with_sequence,
    "… and selective": {**with_sequence, "recompute": "selective"},
    "tensor parallel, every layer checkpointed": {**on_8_ranks, "recompute": "full"},
}
gib = {name: 96 * activations.layer_bytes(**gpt_3, **how) / 2**30 for name, how in variants.items()}
show_table({"GPT-3 on each rank": "", "activations, GiB": ".2f"}, gib.items())

# %% [markdown]
# Tensor parallelism alone leaves $10\,sbh$ on every rank: the tensors between the sharded matmuls are replicated. Sequence parallelism shards those as well. Compared with tensor parallelism alone, sequence parallelism and selective recomputation together save a factor of 5, as published, without recomputing the large matmuls. Two more published numbers, the fraction of a layer's bytes that selective recomputation saves:

# %%
mt_nlg = {"tokens": 2048, "batch": 1, "width": 20480, "heads": 128}
for name, shape, published in (("GPT-3, 175B", gpt_3, 70), ("MT-NLG, 530B", mt_nlg, 65)):
    kept = [activations.layer_bytes(**shape, recompute=how) for how in ("selective", "none")]
    saved = 100 * (1 - kept[0] / kept[1])
    holds(f"{name}: selective saves, as published", saved, published, atol=0.5, unit="%")
factor = gib["tensor parallel"] / gib["… and selective"]
holds("saved by both together, as published: a factor of", factor, 5, atol=0.5)

# %% [markdown]
# ## What goes wrong: the second run must repeat the first exactly
#
# Dropout draws a random mask. If the second run draws a different one, the backward differentiates a function that was never applied. So `checkpoint` saves the **state of the random number generator** before the first run and restores it for the second. You can switch that off. **Will the gradients then equal those without checkpoints? And will you see an error?**

# %%
OUTCOMES = ["equal", "different, with an error", "different, and nothing warns you"]
predicted_without_state = predict("The gradients without the saved state are", options=OUTCOMES)
predicted_without_state

# %%
def gradients(model):
    torch.manual_seed(1)
    model(*batch).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

# %%
truth, found = gradients(gpt(dropout=0.1)), []
for restores in (True, False):
    how = partial(checkpoint, use_reentrant=False, preserve_rng_state=restores)
    got = gradients(checkpoint_blocks(gpt(dropout=0.1), how))
    off = ((got - truth).norm() / truth.norm()).item()
    found.append((restores, torch.equal(got, truth), off))
predicted_without_state.compare(OUTCOMES[0] if torch.equal(got, truth) else OUTCOMES[2])

# %%
show_table({"random state restored": str, "gradients bit-equal": str, "off by": ".0%"}, found)

# %% [markdown]
# With the state restored, the gradients are bit-equal. Without it they are wrong, and nothing warns you: the loss is correct, because it comes from the first run, and training continues, badly. Your own `checkpoint` in the lab has to get this right.
#
# With GPUs there is one state for the CPU and one for each device. With tensor parallelism there are two more: in sharded parts, ranks must draw different masks; elsewhere, the same. Megatron and DeepSpeed keep a tracker of named states for that.
#
# Random numbers are not the only state. A batch norm counts its batches, and it sees each one twice:

# %%
layers = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
x = torch.randn(16, 8, requires_grad=True)
checkpoint(layers, x, use_reentrant=False).sum().backward()
print("batches seen in one step:", layers[1].num_batches_tracked.item())

# %% [markdown]
# And if a function takes a different branch the second time, PyTorch notices only if shapes differ:

# %%
class ChangesOnRecompute(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return (x if self.calls == 1 else x[:1]).sin().cos()

try:
    checkpoint(ChangesOnRecompute(), x, use_reentrant=False).sum().backward()
except RuntimeError as error:
    print(f"{type(error).__name__}: {str(error).splitlines()[0]}")

# %% [markdown]
# ## With tensor parallelism: t copies of every checkpoint
#
# Tensor-parallel ranks work on the same tokens, so all t of them have the same input for a block, and each keeps it: t copies. With DeepSpeed's **partition_activations** each rank keeps 1/t, $A[(TD)_{tp}]$ instead of $A[TD]$ in the notation of [chapter 03](03_ring_all_reduce.ipynb), and the ranks gather the whole input when the backward needs it. **cpu_checkpointing** moves each rank's 1/t to the host.
#
# Now we need two real ranks. PyTorch shards the blocks with the plan of chapter 08. DeepSpeed has its own `checkpoint`, and `configure` sets how it stores the inputs. The class states which ranks share them.

# %%
class TensorParallelRanks:
    get_model_parallel_rank = staticmethod(lambda: dist.get_rank())
    get_model_parallel_world_size = staticmethod(lambda: dist.get_world_size())
    get_model_parallel_group = staticmethod(lambda: dist.group.WORLD)

def shard(block):
    enter = tp.PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    plan = {"attention": enter, "attention.out": tp.RowwiseParallel(),
            "mlp": enter, "mlp.up": tp.ColwiseParallel(), "mlp.down": tp.RowwiseParallel()}
    plan |= {f"attention.{name}": tp.ColwiseParallel() for name in ("query", "key", "value")}
    tp.parallelize_module(block, init_device_mesh("cpu", (dist.get_world_size(),)), plan)

# %%
def checkpoint_by_deepspeed(model, partitioned):
    import deepspeed

    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    deepspeed.checkpointing.configure(TensorParallelRanks, partition_activations=partitioned)
    checkpoint_blocks(model, deepspeed.checkpointing.checkpoint)

# %%
def train(how):
    model = models.separate_projections(gpt())
    for block in model.blocks:
        shard(block)
    if how != "kept":
        checkpoint_by_deepspeed(model, partitioned=how == "partitioned")

    def step():
        loss = model(*batch)
        with measure("backward"):
            loss.backward()
    return lifetimes.record(model, step), model.token.weight.grad

# %% [markdown]
# **If the checkpoints are partitioned over two ranks, what fraction of their bytes does each rank keep? And what must the ranks send in the backward that they did not send before?**

# %%
predicted_share = predict("Fraction of the checkpoints' bytes on each rank, if partitioned", maximum=1)
predicted_share

# %%
ranks = {"world_size": 2, "device": "cpu", "quiet": True, "timeout_s": 120}
runs = {how: launch(train, how, **ranks) for how in ("kept", "checkpointed", "partitioned")}

# %%
inputs_bytes = config.layers * sbh_bytes
kept = {how: run.outputs[0][0].kept_bytes for how, run in runs.items()}
others = kept["checkpointed"] - inputs_bytes  # head and loss, the same in both runs
share = (kept["partitioned"] - others) / inputs_bytes
predicted_share.compare(share, {"a whole copy on each rank": 1})

# %%
show_table({"inputs are": "", "kept on each rank": format_bytes}, kept.items())
holds("of the checkpoints, on each rank", share, 1 / 2, atol=0.001)

# %% [markdown]
# It is 1/t, to within a few bytes. Now the cost. A layer has two all-reduces in the forward and two in the backward. The second forward **repeats** its two: checkpointing a tensor-parallel block costs traffic, too. In addition, partitioned inputs are all-gathered, once for each block:

# %%
layer = model_traffic.tensor_parallel_layer(batch_size * tokens, config.width, 2, element_bytes=4)
backward, forward = config.layers * layer.backward_bytes, config.layers * layer.forward_bytes
gathered = inputs_bytes / 2  # each rank sends its half of each input
both = backward + forward
predicted = {"kept": backward, "checkpointed": both, "partitioned": both + gathered}
for how, run in runs.items():
    sent = run.traffic["backward"].sent_by_rank
    holds(f"{how}: sent by each rank in backward", sent, predicted[how], rtol=0.02, unit="bytes")

# %%
truth = runs["kept"].outputs[0][1]  # of the embedding, which is replicated
for how, run in runs.items():
    equal = [torch.equal(gradient, truth) for _, gradient in run.outputs]
    holds(f"{how}: the same gradient, bit by bit, on both ranks", equal)

# %% [markdown]
# Korthikanti et al. (section 5) discuss partitioning and reject it because of its gathers. With sequence parallelism there is nothing to partition: a block's input is already sharded.
#
# ### Offloading to the host
#
# `cpu_checkpointing` keeps every input in host memory. In PyTorch you need two **hooks**: one runs when a tensor is saved for the backward, the other when it is needed. Within `checkpoint` the only saved tensor is the input. `Pools` counts the bytes on device and host, as in chapter 07.

# %%
pools = Pools("cpu")

def keep_on_host(function, x):
    with torch.autograd.graph.saved_tensors_hooks(pools.to_host, pools.to_device):
        return plain_checkpoint(function, x)

model = checkpoint_blocks(gpt(), keep_on_host)
with pools:
    model(*batch).backward()
down, up = pools.to_host_bytes, pools.to_device_bytes
holds("to the host, and back", [down, up], inputs_bytes, unit="bytes")

# %% [markdown]
# Each input crosses the link twice in a step. In return, the device stores no checkpoint, however deep the model is.
#
# ### The configuration alone does not checkpoint
#
# DeepSpeed's configuration has a section for all this, and many believe that it switches checkpointing on. **How does it change the bytes that the forward keeps?**

# %%
predicted_effect = predict("Bytes kept with the section, over bytes kept without")
predicted_effect

# %%
section = {"activation_checkpointing": {"partition_activations": True, "cpu_checkpointing": True}}

def train_by_configuration(more, model_calls_it=False):
    import deepspeed

    config = {"train_micro_batch_size_per_gpu": batch_size, "gradient_clipping": 0.0, **more,
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}}
    engine, *_ = deepspeed.initialize(model=gpt(), config=config)
    if model_calls_it:
        deepspeed.checkpointing.configure(None, deepspeed_config=config)
        checkpoint_blocks(engine.module, deepspeed.checkpointing.checkpoint)
    recorded = lifetimes.record(engine.module, lambda: engine.backward(engine(*batch)))
    return recorded.kept_bytes

# %%
found = {}
for name, *case in (("no section", {}), ("section alone", section), ("the model calls it", section, True)):
    found[name] = launch(train_by_configuration, *case, **ranks).outputs[0]
without, alone, called = found.values()

# %%
predicted_effect.compare(alone / without, {"the effect if the model calls it": called / without})

# %%
show_table({"activation_checkpointing": "", "kept": format_bytes}, found.items())
holds("kept without the section, over kept if the model calls it", without / called, above=3)

# %% [markdown]
# It does not change a byte. The section only sets **how** `deepspeed.checkpointing.checkpoint` works. Your model has to call that function, and your code has to call `configure`.
#
# There are two more pitfalls. When it partitions or offloads an input, DeepSpeed empties the original tensor in place to free its memory. If the model uses the same tensor again, say for a skip connection around the checkpoint, it finds an empty tensor. And on CPU ranks `cpu_checkpointing` without `partition_activations` fails in the backward (0.19.8), because the inputs are not copied back. What the section's other keys do is in [keys of DeepSpeed](../../docs/deepspeed_keys.md).
#
# ## In practice
#
# You do not need to rewrite `forward`. PyTorch wraps the modules that you select, also under FSDP2 and DDP:

# %%
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrapper

model = gpt()
wrapper.apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, models.Block))
wrapped = record(model)
holds("kept, as by hand", wrapped.kept_bytes, checkpointed.kept_bytes, unit="bytes")

# %% [markdown]
# | library | what to write |
# |---|---|
# | PyTorch | `checkpoint(function, x, use_reentrant=False)`; `apply_activation_checkpointing` |
# | Hugging Face | `model.activation_checkpointing_enable()`, or `activation_checkpointing=True` for the Trainer (before transformers 5.23: `gradient_checkpointing…`, which it removes in version 6) |
# | Megatron | `--recompute-activations` (selective); `--recompute-granularity full --recompute-method uniform --recompute-num-layers 1` (every layer) |
# | DeepSpeed | `deepspeed.checkpointing.configure(…)`, then `deepspeed.checkpointing.checkpoint(function, x)` |
#
# `use_reentrant=False` selects the newer of PyTorch's two implementations, which PyTorch recommends. The older one runs the first forward without autograd: if no input requires a gradient, it computes no gradients at all, and it does not stop early. Which of the two do you get if you say nothing? Here the layer's weights need gradients, its input does not:

# %%
import warnings

layer, tokens_in = nn.Linear(8, 8), torch.randn(2, 8)
for said in ({}, {"use_reentrant": True}, {"use_reentrant": False}):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        differentiable = checkpoint(layer, tokens_in, **said).requires_grad
    print(f"{said}: gradients {differentiable}, warnings {len(caught)}")
    if not said:
        print("  ", str(caught[0].message).split(". use_reentrant=False")[0])

# %% [markdown]
# The older one. The warning announces an error from PyTorch 2.9 on, but version 2.13 still only warns. So always pass `use_reentrant`.
#
# **With FSDP the older one can lose gradients.** Some losses compare two outputs: two forwards, then one backward. FSDP ([chapter 05](05_fsdp.ipynb)) handles that: it reduces the sum of both gradients. But reentrant checkpointing runs a backward of its own for each of the two forwards. A unit inside a checkpointed block is then reduced after the first of these, and the gradient that the second one adds never reaches its shards:

# %%
def two_forwards(pair, weight, reentrant=None):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = models.gpt("0.1M")
    for block in model.blocks:
        fully_shard(block.mlp)
        if reentrant is not None:
            block.forward = partial(checkpoint, block.forward, use_reentrant=reentrant)
    fully_shard(model)
    shards = list(model.parameters())
    (weight * model(*pair[0]) + model(*pair[1])).backward()
    return [shard.grad.full_tensor() for shard in shards]

# %%
pairs = [[data.batch(step, 2, 16, rank, 2) for step in (0, 1)] for rank in (0, 1)]
on_two = {"inputs": pairs, "world_size": 2, "device": "cpu", "quiet": True}
ways = {"none": (1,), "not reentrant": (1, False), "reentrant": (1, True), "second": (0,)}
found = {way: launch(two_forwards, *how, **on_two).outputs[0] for way, how in ways.items()}

def equal_to(way, other):
    return sum(torch.allclose(*both, atol=1e-6) for both in zip(found[way], found[other]))

columns = dict.fromkeys(("gradients", "right", "of the second forward alone"), "d")
show_table(
    {"checkpointing": "", **columns},
    [
        (way, len(found[way]), equal_to(way, "none"), equal_to(way, "second"))
        for way in ("none", "not reentrant", "reentrant")
    ],
)

# %% [markdown]
# With FSDP, checkpoint a block first and shard it afterwards, with a compiler in between if you use one. The unit is then gathered once in backward, and the block is recomputed with whole parameters.
#
# What should you try first? Fused attention: it costs nothing. If activations still do not fit, add sequence parallelism where there is tensor parallelism, then selective checkpointing, and checkpoint every block when nothing else helps. If the saved memory allows a batch twice as large, that may make up for the extra third of work.
#
# ## Where GPUs differ
#
# - Dropout masks take one byte there, and fused attention has dropout built in: $34\,sbh$ bytes in 16 bit, and no $s^2$ term.
# - Offloaded inputs (`cpu_checkpointing`, or PyTorch's `torch.autograd.graph.save_on_cpu`) cross a real link, and the transfer may take longer than a block computes ([chapter 07](07_offload.ipynb)).
# - Allocators round up: `torch.cuda.max_memory_allocated()` is above the sums of this chapter.
#
# ## What to remember
#
# - The backward needs each matmul's input, GELU's and the norms' inputs, queries, keys and values: $34\,sbh$ bytes for a layer in 16 bit, and $5\,a s^2 b$ more if scores are stored.
# - A checkpoint keeps an input and recomputes the rest: the peak is all inputs plus one block, the work 4/3.
# - Use $\sqrt{n}$ segments for a chain and one checkpoint per block for a GPT. If you keep the outputs of matmuls, most of the saving costs almost nothing.
# - The second run must repeat the first exactly: random state, counters, branches. Nothing warns you of a wrong mask.
# - With tensor parallelism all ranks keep the same inputs: partition them, or use sequence parallelism.
#
# ## Sources
#
# - V. Korthikanti et al.: *Reducing activation recomputation in large transformer models.* [arXiv 2205.05198](https://arxiv.org/abs/2205.05198), 2022. Section 4 for the bytes, table 2, section 5 for selective recomputation.
# - T. Chen, B. Xu, C. Zhang, C. Guestrin: *Training deep nets with sublinear memory cost.* [arXiv 1604.06174](https://arxiv.org/abs/1604.06174), 2016.
# - S. Rajbhandari et al.: *ZeRO.* [arXiv 1910.02054](https://arxiv.org/abs/1910.02054), 2020. Partitioned activation checkpointing (P_a) and its offload.
# - T. Dao et al.: *FlashAttention.* [arXiv 2205.14135](https://arxiv.org/abs/2205.14135), 2022.
# - PyTorch 2.13: [torch.utils.checkpoint](https://docs.pytorch.org/docs/stable/checkpoint.html). DeepSpeed 0.19.8: [activation checkpointing](https://deepspeed.readthedocs.io/en/latest/activation-checkpointing.html), and its code.
