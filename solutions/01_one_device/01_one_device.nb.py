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
# # Lab 01 · One device
#
# Before training is spread over many devices, a step has to fit on one. You will predict what a step keeps in memory, byte by byte, and write three ways to fit more into that memory without changing the result: gradient accumulation, dynamic loss scaling for fp16, and SGD with fp32 master weights.
#
# **In this lab you**
#
# - predict the bytes that a training step keeps, by kind and dtype;
# - accumulate uneven micro-batches without changing the gradient;
# - write dynamic loss scaling and SGD with fp32 master weights.
#
# **You need:** [chapter 01](../../course/chapters/01_one_device.ipynb).
#
# <!-- table of points -->
#
# Each exercise has a task, a **spec** that runs, a **budget**, your cell, a picture of what your code did, and a check. Grading adds hidden cases: other sizes, other numbers of ranks, other dtypes. A mistake in one exercise never costs points in a later one.

# %%
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import inspect
import math

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from autograder import check
from shardlab import data, launch, models
from shardlab.models import bigram
from shardlab.widgets import memory_timeline, palette

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# ## 1 · `step_bytes`
#
# This model predicts each next token from one token alone: T tokens in the batch, V entries in the vocabulary, D numbers for each token.

# %%
print(inspect.getsource(bigram.BigramModel))

# %% [markdown]
# Return the bytes that one training step of this model keeps, as a dict with four entries:
#
# - `"parameters"` and `"gradients"`, as they are after the backward pass;
# - `"optimizer"`: its states after the step, and the master weights, if there are any;
# - `"activations"`: what autograd saves in the forward pass for the backward pass. The weights and the batch itself do not count here.
#
# `precision` is `"fp32"`, where every number takes 4 bytes, or `"bf16"`, where weights, gradients and activations take 2 bytes and the optimizer keeps an fp32 **master** copy of each weight and its states in fp32. `optimizer` is `"sgd"`, `"momentum"` (SGD with momentum) or `"adam"`. `activation` is `"relu"` or `"gelu"`. With `tied` the head uses the embedding's matrix. `layers` may be 0.

# %%
def step_bytes_spec(**setting):
    """Measured: live bytes of a real step, by category, when forward, backward and step end."""
    def one_step():
        bigram.train_one_step(**setting)
    memory = launch(one_step, memory=True, world_size=1, device="cpu").memory[0]
    moments = {"parameters": "backward", "gradients": "backward"}
    moments |= {"optimizer": "step", "activations": "forward"}
    return {category: memory.at(moment)[category] for category, moment in moments.items()}

# %%
small = {"vocabulary": 64, "width": 24, "layers": 3, "batch_size": 50}
plain = {"activation": "relu", "tied": False, "precision": "fp32", "optimizer": "adam"}
step_bytes_spec(**small, **plain)

# %% [markdown]
# What does autograd save? A layer saves what its backward pass needs, and a tensor that two layers need is saved once:
#
# | layer | saves |
# |---|---|
# | embedding | nothing but the tokens |
# | linear | its input |
# | ReLU | its **output** |
# | GELU | its **input** |
# | `cross_entropy` | the log-probabilities, as many as there are logits; the logits themselves are not saved |
#
# **Budget** · no communication, and no training: this is arithmetic, without `bigram` and the spec. Within 0.5%, because a step also keeps a few scalars, such as Adam's step counters.
#
# <details><summary>Hint 1 · the parameters</summary>
#
# The embedding has V·D numbers, each of the `layers` linear layers D·D weights and D biases, the head V·D, or none if it is tied. There are as many gradients as parameters.
# </details>
# <details><summary>Hint 2 · the optimizer</summary>
#
# For each parameter, SGD keeps nothing, momentum one number, Adam two. All are fp32. With bf16 add one more fp32 number, the master.
# </details>
# <details><summary>Hint 3 · the activations, nearly there</summary>
#
# Count for one token, then multiply by the batch. The embedding's output is the first linear layer's input: D. ReLU's output is the next layer's input, so each layer adds one tensor of D. With GELU each layer adds two: GELU's input, and its output, which is the next layer's input. Last, V for `cross_entropy`.
# </details>

# %% nbgrader={"grade_id": "step_bytes", "solution": true}
def step_bytes(
    vocabulary, width, layers, batch_size, activation, tied, precision, optimizer
):
    """  ->  {"parameters": bytes, "gradients": bytes, "optimizer": bytes, "activations": bytes}"""
    ### BEGIN SOLUTION
    element_bytes, master_bytes = {"fp32": (4, 0), "bf16": (2, 4)}[precision]
    states = {"sgd": 0, "momentum": 1, "adam": 2}[optimizer]
    matrices = 1 if tied else 2
    parameters = matrices * vocabulary * width + layers * (width * width + width)
    kept_per_layer = {"relu": 1, "gelu": 2}[activation] * width
    kept_per_token = width + layers * kept_per_layer + vocabulary
    return {
        "parameters": parameters * element_bytes,
        "gradients": parameters * element_bytes,
        "optimizer": parameters * (master_bytes + 4 * states),
        "activations": batch_size * kept_per_token * element_bytes,
    }
    ### END SOLUTION

# %% [markdown]
# Your prediction next to the measurement:

# %%
def plot_comparison(predicted, measured):
    figure, axes = plt.subplots(figsize=(6, 2.6))
    rows = range(len(measured))
    axes.barh([row + 0.2 for row in rows], measured.values(), 0.36, color=palette.MEASURED)
    axes.barh([row - 0.2 for row in rows], predicted.values(), 0.36, color=palette.PREDICTED)
    axes.set(yticks=list(rows), yticklabels=list(measured), xlabel="bytes")
    axes.legend(["measured", "predicted"], frameon=False)
    figure.tight_layout()

# %%
predicted = step_bytes(**small, **plain)
plot_comparison(predicted, step_bytes_spec(**small, **plain))

# %% nbgrader={"grade_id": "check_step_bytes", "grade": true}
check("one_device.step_bytes", step_bytes)

# %% [markdown]
# ## 2 · `accumulate`
#
# A batch that does not fit into memory is split into **micro-batches**. Each adds its gradients to what is already in `.grad`, and after the last one the optimizer takes **one step**. It has to be the same step as with the whole batch in one piece.
#
# `micro_batches` is a list of `(tokens, targets)`, each [sequences, tokens]. They differ in size, and a target of −100 does not count (it is padding, or part of a prompt). The loss is the mean over **all** targets that count. `model(tokens)` returns the logits [sequences, tokens, V]. Old gradients may still be in `.grad` when your function is called. The optimizer may have several parameter groups, and the model may have parameters that no micro-batch uses: as in the spec, `.grad` of these is None when the optimizer steps. In some micro-batches no target counts, but at least one target in the whole batch does.
#
# Return the loss, as a number or a tensor without a graph. Do nothing that the spec does not do: do not clip the gradients, leave the model in training mode, where it is when your function is called, and leave the micro-batches as they are, for the next epoch. You may clear `.grad` after the step as well.

# %%
def accumulate_spec(model, optimizer, tokens, targets):
    """The whole batch in one piece: one forward, one backward, one step."""
    optimizer.zero_grad()
    logits = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
    loss.backward()
    optimizer.step()
    return loss.item()

# %% [markdown]
# **Budget** · weights equal to the whole batch's within 10⁻⁶ · one optimizer step · at most one forward pass for each micro-batch, and always with all of its sequences, those of padding as well (none is needed where no target counts) · activations of one micro-batch at a time, and no logits of earlier ones: at most 1.5 × what autograd saves for the largest.
#
# <details><summary>Hint 1 · whose mean?</summary>
#
# Take two micro-batches, one with 10 targets that count and one with 30. The mean of their means gives each token of the first a weight of 1/20, and each of the second 1/60. In the whole batch each has 1/40.
# </details>
# <details><summary>Hint 2 · sums</summary>
#
# A sum over all tokens is the sum of the micro-batches' sums: `F.cross_entropy(..., ignore_index=-100, reduction="sum")`. What do you divide it by, and when do you know that number?
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Count first: `(targets != -100).sum()` over all micro-batches. Then for each: forward, divide its sum by that count, backward. Backward frees what autograd saved, so only one micro-batch's activations are live at a time. `zero_grad` comes before all of this, `step` after.
# </details>

# %% nbgrader={"grade_id": "accumulate", "solution": true}
def accumulate(model, optimizer, micro_batches):
    """One optimizer step from all micro-batches together  ->  their mean loss"""
    ### BEGIN SOLUTION
    counted = sum((targets != -100).sum().item() for _, targets in micro_batches)
    optimizer.zero_grad()
    mean_loss = 0.0
    for tokens, targets in micro_batches:
        logits = model(tokens).flatten(0, 1)
        total = F.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")
        part = total / counted
        part.backward()
        mean_loss += part.item()
    optimizer.step()
    return mean_loss
    ### END SOLUTION

# %% [markdown]
# The memory of your step, with four micro-batches of 8 sequences:

# %%
def four_micro_batches():
    torch.manual_seed(0)
    model = models.gpt("0.3M")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return accumulate(model, optimizer, [data.batch(step) for step in range(4)])

run = launch(four_micro_batches, world_size=1, memory=True, device="cpu")
memory_timeline(run)

# %% nbgrader={"grade_id": "check_accumulate", "grade": true}
check("one_device.accumulate", accumulate)

# %% [markdown]
# ## 3 · `DynamicLossScaler`
#
# In fp16 small gradients become 0 and large ones inf. So the loss is multiplied by a **scale**, as large as possible, before the backward pass, and the gradients are divided by it before the step. The right scale is not known in advance, and it changes during training. The rule is:
#
# - If a gradient is inf or nan, **skip** the step and halve the scale.
# - After `growth_interval` steps in a row that were not skipped, double it; then count from 0 again. A skipped step also resets the count to 0.
# - When **one rank** overflows, **all ranks** skip and halve. Here each rank has gradients that the others do not see, as with ZeRO (chapter 04).
#
# Below is `scale` after each step; `True` marks a step that overflowed on some rank:

# %%
def scale_spec(overflows, scale, growth_interval):
    """Whether each step overflowed on any rank  ->  the scale after each step"""
    good_steps, scales = 0, []
    for overflow in overflows:
        good_steps = 0 if overflow else good_steps + 1
        if overflow:
            scale = scale / 2
        elif good_steps == growth_interval:
            scale, good_steps = scale * 2, 0
        scales.append(scale)
    return scales

scale_spec([True, False, False, True, False, False, False, False], 65536.0, growth_interval=3)

# %% [markdown]
# The check uses it like this: `scaler.scale_loss(loss).backward()`, then `scaler.step(optimizer)`, then it reads `scaler.scale`. The gradients in `.grad` are fp32 here, cast from fp16, as with `torch.autocast`. The parameters may be in several groups. One whose `.grad` is None has no gradient: skip it. A rank may even have no gradients at all in some step, for example an expert that got no tokens; it takes part like any other rank.
#
# The rule has no limits: the scale may fall below 1, and grow beyond 2²⁴. `scale_loss` returns a new tensor and does not change the one that it is given.
#
# **Budget** · sends ≤ 1 KiB per rank and step · the scaler keeps nothing that grows from step to step, not even a list of numbers · calls: all_reduce only.
#
# <details><summary>Hint 1 · all the gradients</summary>
#
# `for group in optimizer.param_groups: for parameter in group["params"]` visits every parameter. `torch.isfinite(tensor).all()` is False for inf and for nan.
# </details>
# <details><summary>Hint 2 · one number for all ranks</summary>
#
# A rank that did not overflow cannot know that another did. So **every** rank calls `dist.all_reduce` in **every** step, on one number: 1.0 if it overflowed, 0.0 if not, with `op=dist.ReduceOp.MAX`.
# </details>
# <details><summary>Hint 3 · the order, nearly there</summary>
#
# Look for inf and nan; all_reduce; if any rank overflowed: halve, count = 0, return. Otherwise divide each gradient by the scale in place, `optimizer.step()`, and only then count, and double if it is time: these gradients were computed with the old scale.
# </details>

# %% nbgrader={"grade_id": "DynamicLossScaler", "solution": true}
class DynamicLossScaler:
    """scale_loss(loss).backward(), then step(optimizer): skips, halves and grows automatically."""

    def __init__(self, scale=2.0**16, growth_interval=2000):
        self.scale = scale
        self.growth_interval = growth_interval
        self.good_steps = 0

    def scale_loss(self, loss):
        """loss []  ->  the loss to call backward on"""
        ### BEGIN SOLUTION
        return loss * self.scale
        ### END SOLUTION

    def step(self, optimizer):
        """A step with the unscaled gradients, or a skipped one: the same on every rank."""
        ### BEGIN SOLUTION
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        overflow = torch.zeros(1)
        if not all(torch.isfinite(gradient).all() for gradient in gradients):
            overflow += 1
        dist.all_reduce(overflow, op=dist.ReduceOp.MAX)
        if overflow.item():
            self.scale /= 2
            self.good_steps = 0
            return
        for gradient in gradients:
            gradient /= self.scale
        optimizer.step()
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.scale *= 2
            self.good_steps = 0
        ### END SOLUTION

# %% [markdown]
# Your scaler on two ranks, with gradients computed in fp16. At a scale of 2²⁴ a gradient of 1/64 does not fit: how many steps overflow before the scale fits, and what happens after it grows? In step 22 only rank 1 has gradients 64 times as large; if the ranks agree, the two lines coincide.

# %%
def forty_steps():
    weights = nn.Parameter(torch.ones(64))
    optimizer = torch.optim.SGD([weights], lr=0.01)
    scaler, scales = DynamicLossScaler(scale=2.0**24, growth_interval=8), []
    for step in range(40):
        factor = 64.0 if (dist.get_rank(), step) == (1, 22) else 1.0
        optimizer.zero_grad()
        scaler.scale_loss((weights.half() * factor).float().mean()).backward()
        scaler.step(optimizer)
        scales.append(scaler.scale)
    return scales

# %%
figure, axes = plt.subplots(figsize=(6, 2.6))
for rank, scales in enumerate(launch(forty_steps, world_size=2, device="cpu").outputs):
    logs = [math.log2(scale) for scale in scales]
    axes.step(range(40), logs, label=f"rank {rank}", linewidth=5 - 3 * rank, where="post")
axes.set(xlabel="after step", ylabel="log₂ of the scale", yticks=range(18, 25))
axes.legend(frameon=False)
figure.tight_layout()

# %% nbgrader={"grade_id": "check_DynamicLossScaler", "grade": true}
check("one_device.DynamicLossScaler", DynamicLossScaler)

# %% [markdown]
# ## 4 · `sgd_with_master_weights`
#
# bf16 has 8 significant bits: the numbers nearest to 1.0 are 0.996 and 1.008. An update of 0.001 is rounded away, and so are a thousand of them. So the optimizer keeps an fp32 **master** of each weight and adds the update there; the 16-bit weight is the rounded master.

# %%
weight = torch.ones(1, dtype=torch.bfloat16)
for _ in range(1000):
    weight -= 0.001
print("1 - 1000 × 0.001 =", weight.item())

# %% [markdown]
# Write one step of SGD. `parameters` are 16-bit (bf16 or fp16) and have their gradients in `.grad`, also 16-bit. `state` is a dict for you to fill: empty in the first call, and the same dict in every later one. It needs a master and a velocity for each weight, and does not grow from step to step.
#
# Change the parameters in place: they stay 16-bit and in the same memory, because other code may hold views of it (DDP's buckets, for example). Matrices are transposed views of that memory, so they are not contiguous. Leave the gradients as they are. `lr` may change from call to call. With momentum, `velocity = momentum * velocity + gradient` starts at 0, and the update is `lr * velocity`, as in `torch.optim.SGD`.

# %%
def sgd_with_master_weights_spec(weights, gradients, lr, momentum):
    """All steps in fp32, rounded at the end  ->  the 16-bit weight"""
    parameter = nn.Parameter(weights.float())
    optimizer = torch.optim.SGD([parameter], lr=lr, momentum=momentum)
    for gradient in gradients:
        parameter.grad = gradient.float()
        optimizer.step()
    return parameter.detach().to(weights.dtype)

ones = torch.ones(1, dtype=torch.bfloat16)
sgd_with_master_weights_spec(ones, gradients=[ones] * 500, lr=0.001, momentum=0.0)

# %% [markdown]
# **Budget** · no communication · in `state`, ≤ 8 bytes for each number in the parameters, and 16 more for each parameter tensor, and nothing that grows from step to step, not even a list of numbers · the weights equal the spec's, bit for bit. (The check's inputs are chosen so that no final weight is near the middle between two 16-bit numbers, so the order of your fp32 sums makes no difference.)
#
# <details><summary>Hint 1 · once only</summary>
#
# Make the master from the weight before the first step, and never again: later the weight is rounded, and what was rounded away would be lost.
# </details>
# <details><summary>Hint 2 · where to keep it</summary>
#
# `if not state:` is true only in the first call. A list in the order of `parameters` will do: `state["masters"] = [p.detach().float() for p in parameters]`. Velocities are fp32 as well, for the same reason.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Three updates for each parameter, in this order: the velocity, the master, the weight. All are in place and under `torch.no_grad()`, and the first two are fp32. `copy_` rounds into the 16-bit tensor and keeps it the same tensor.
# </details>

# %% nbgrader={"grade_id": "sgd_with_master_weights", "solution": true}
def sgd_with_master_weights(parameters, state, lr, momentum=0.0):
    """One step, in place: parameters 16-bit with .grad, state a dict that you fill and keep"""
    ### BEGIN SOLUTION
    if not state:
        state["masters"] = [p.detach().float() for p in parameters]
        state["velocities"] = [torch.zeros_like(master) for master in state["masters"]]
    with torch.no_grad():
        for p, master, velocity in zip(
            parameters, state["masters"], state["velocities"], strict=True
        ):
            velocity.mul_(momentum).add_(p.grad.float())
            master -= lr * velocity
            p.copy_(master)
    ### END SOLUTION

# %% [markdown]
# A weight that starts at 1 and takes 500 steps of −0.001: your step next to fp32.

# %%
def path_of(steps):
    parameter, state, path = nn.Parameter(torch.ones(1, dtype=torch.bfloat16)), {}, []
    for _ in range(steps):
        parameter.grad = torch.ones_like(parameter)
        sgd_with_master_weights([parameter], state, lr=0.001)
        path.append(parameter.item())
    return path

# %%
figure, axes = plt.subplots(figsize=(6, 2.6))
fp32 = [1 - 0.001 * step for step in range(1, 501)]
axes.plot(fp32, color=palette.PREDICTED, linewidth=5, label="fp32")
axes.plot(path_of(500), color=palette.MEASURED, label="your bf16 weight")
axes.set(xlabel="step", ylabel="weight")
axes.legend(frameon=False)
figure.tight_layout()

# %% nbgrader={"grade_id": "check_sgd_with_master_weights", "grade": true}
check("one_device.sgd_with_master_weights", sgd_with_master_weights)
