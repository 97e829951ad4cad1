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
# # Lab 14 · LoRA and QLoRA
#
# Fine-tuning a large model takes little memory if almost none of it is trained: two thin matrices next to each weight, while the weights themselves stay frozen, in 4 bits. You will build both.
#
# **In this lab you**
#
# - write a linear layer with LoRA, merge and unmerge it, and train it under DDP;
# - count what adapters train, hold, send and compute;
# - train adapters on a frozen 4-bit base that is dequantized only while it is used.
#
# **You need:** [chapter 14](../../course/chapters/14_lora.ipynb).
#
# <!-- table of points -->
#
# Each exercise has a task, a **spec** that runs, a **budget**, your cell, a picture of what your code did, and a check. Grading adds hidden cases: other sizes, other numbers of ranks. A mistake in one exercise never costs points in a later one.

# %%
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autograder import check
from shardlab import launch, measure, models, show_table
from shardlab.widgets import memory_timeline, palette

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# ## 1 · `LoRALinear`
#
# **LoRA** freezes a weight W [out, in] and trains two thin matrices next to it, its **adapter**: A [r, in] and B [out, r]. The layer computes W·x + b + (α/r)·B·A·x. The number r is the adapter's rank, α a constant that you choose once.
#
# Write the class `LoRALinear(linear, r, alpha)`. It has
#
# - `linear`: the given `nn.Linear`, frozen, weight and bias (which may be `None`); and the parameters `A`, drawn at random for each layer, and `B`, zero. Nothing else is trained, and nothing else is a parameter or a buffer;
# - `forward(x)`, x [batch, in], as above. The gradient of x is that of the whole layer;
# - `merge()`: adds the adapter to `linear.weight`, so that `forward` does not compute it and costs no more than without an adapter. A second `merge()` changes nothing;
# - `unmerge()`: restores the weight, **bit for bit**, so that training can continue. Without a preceding `merge()` it changes nothing.
#
# Another base may be loaded into `linear` whenever the layer is not merged: after `__init__`, and again after `unmerge()`.
#
# The check inspects your A and B, then draws its own. It wraps layers in `DistributedDataParallel`, trains, merges, unmerges, loads another base, and continues.

# %%
@torch.no_grad()
def lora_spec(linear, a, b, alpha, x):
    """The weight after a merge, and the layer's output, merged or not."""
    weight = linear.weight + alpha / len(a) * b @ a
    return weight, F.linear(x, weight, linear.bias)

lora_spec(nn.Linear(3, 2, bias=False), torch.ones(1, 3), torch.ones(2, 1), 4, torch.ones(1, 3))

# %% [markdown]
# **Budget** · sends ≤ 1.05 × one ring all-reduce of A's and B's gradients per step · keeps nothing that grows from step to step, not even a list of numbers.
#
# <details><summary>Hint 1 · freezing</summary>
#
# `requires_grad_(False)` works on a whole module. DDP looks at `requires_grad` once, when it wraps the model: what is trainable then is in its buckets, and must get a gradient in each step.
# </details>
# <details><summary>Hint 2 · the start</summary>
#
# With B = 0, the model starts unchanged. A must not be zero as well: the gradient of B contains A, and the gradient of A contains B. `torch.empty` does not initialize. `nn.init.kaiming_uniform_(tensor)` draws the entries in place: the more inputs, the smaller the entries. The check accepts any random start.
# </details>
# <details><summary>Hint 3 · the frozen weight in backward</summary>
#
# A frozen weight has no gradient of its own, but its input has one: adapters in layers below need it. Autograd does this by itself if nothing stops it.
# </details>
# <details><summary>Hint 4 · merging</summary>
#
# In fp32, (W + ΔW) − ΔW is not W: bits that the sum rounded away do not come back. What could you keep while the weight is merged, and for how long? DDP broadcasts buffers in each forward pass, so let it be a plain tensor attribute. Merge under `torch.no_grad()`.
# </details>

# %% nbgrader={"grade_id": "LoRALinear", "solution": true}
class LoRALinear(nn.Module):
    """linear, r, α  ->  linear(x) + α/r · B·A·x, with linear frozen"""

    def __init__(self, linear, r, alpha):
        super().__init__()
        ### BEGIN SOLUTION
        self.linear = linear.requires_grad_(False)
        self.A = nn.Parameter(torch.empty(r, linear.in_features))
        self.B = nn.Parameter(torch.zeros(linear.out_features, r))
        nn.init.kaiming_uniform_(self.A)
        self.scale = alpha / r
        self.unmerged = None  # a copy of the weight, while it is merged
        ### END SOLUTION

    def forward(self, x):
        """x [batch, in]  ->  [batch, out]"""
        ### BEGIN SOLUTION
        y = self.linear(x)
        if self.unmerged is None:
            y = y + self.scale * (x @ self.A.T @ self.B.T)
        return y
        ### END SOLUTION

    @torch.no_grad()
    def merge(self):
        """Adds α/r · B·A to linear's weight."""
        ### BEGIN SOLUTION
        if self.unmerged is None:
            self.unmerged = self.linear.weight.clone()
            self.linear.weight += self.scale * (self.B @ self.A)
        ### END SOLUTION

    @torch.no_grad()
    def unmerge(self):
        """Makes linear's weight what it was before merge()."""
        ### BEGIN SOLUTION
        if self.unmerged is not None:
            self.linear.weight.copy_(self.unmerged)
            self.unmerged = None
        ### END SOLUTION

# %% [markdown]
# Two ranks train one layer for 30 steps on a task that a rank-1 change solves: `target` = W·x + u·vᵀ·x. Left: the loss. Right: the singular values of what your layer has learned, (α/r)·B·A. With r = 4, at most four of them are above zero.

# %%
def two_ranks_train():
    torch.manual_seed(0)
    linear = nn.Linear(16, 16)
    changed = linear.weight.detach() + torch.outer(torch.randn(16), torch.randn(16)) / 4
    layer = LoRALinear(linear, r=4, alpha=8)
    replica = DistributedDataParallel(layer)
    optimizer = torch.optim.Adam([p for p in layer.parameters() if p.requires_grad], lr=0.05)
    losses = []
    torch.manual_seed(dist.get_rank())
    for _ in range(30):
        x = torch.randn(32, 16)
        loss = F.mse_loss(replica(x), F.linear(x, changed, linear.bias))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    start = linear.weight.clone()
    layer.merge()
    return losses, torch.linalg.svdvals((layer.linear.weight - start).detach()).tolist()

lora_run = launch(two_ranks_train, world_size=2)

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 2.6))
for rank, (losses, _) in enumerate(lora_run.outputs):
    left.plot(losses, color=palette.rank_color(rank), label=f"rank {rank}")
left.set(xlabel="step", title="loss of each rank's batch")
left.legend()
right.bar(range(1, 17), lora_run.outputs[0][1], color=palette.MEASURED)
right.set(xlabel="index", xticks=[1, 4, 8, 12, 16], title="singular values learned")
figure.tight_layout()

# %% nbgrader={"grade_id": "check_LoRALinear", "grade": true}
check("lora.LoRALinear", LoRALinear)

# %% [markdown]
# ## 2 · `count_and_ship`
#
# Before you fine-tune a model on N ranks with DDP, you want to know what it takes. `count_and_ship(shapes, r, targets, world_size, tokens)` returns a dict:
#
# - `"adapters"`: the parameters that are trained. Each target has an adapter, A [r, in] and B [out, r];
# - `"state_bytes"`: on each rank, for each trained parameter, its gradient and Adam's two states, all in fp32. The parameters themselves are not counted;
# - `"sent_bytes"`: what each rank sends in a step, in a ring all-reduce of the gradients in fp32, not rounded;
# - `"flops"`: of the matrix products of a step with `tokens` tokens on this rank. An element of a matrix that is trained takes 6 per token: 2 in forward, 2 for the gradient of its input, 2 for its own gradient. Which of them remain for a frozen matrix?
#
# `shapes` is a dict of all parameters of the model without adapters, `{"blocks.0.query.weight": (out, in), …}`. The second-to-last word, `query`, is the module; `targets` contains such words, and a module is a target only if its word is equal to one of them. All parameters with two dimensions are matrices that are multiplied, except the embeddings `token` and `position`, which are looked up. Count as if every matrix passed a gradient to its input, including the lowest layer.

# %%
def shapes_of(size):
    """Shapes of a GPT with separate queries, keys and values; its head shares `token`'s matrix."""
    model = models.separate_projections(models.gpt(size))
    parameters = model.named_parameters(remove_duplicate=False)
    return {name: tuple(each.shape) for name, each in parameters}

show_table({"parameter": "", "shape": ""}, list(shapes_of("0.1M").items())[:18])

# %% [markdown]
# **Budget** · no communication: this is arithmetic.
#
# <details><summary>Hint 1 · what is a target</summary>
#
# `name.split(".")` gives the words. A target's bias has one dimension and gets no adapter.
# </details>
# <details><summary>Hint 2 · what a frozen parameter costs</summary>
#
# No gradient, no state, and nothing to send. It still computes in forward, and in backward it passes the gradient on to its input.
# </details>
# <details><summary>Hint 3 · FLOPs</summary>
#
# Two sums: one over the frozen matrices that are multiplied, one over the adapters, which are trained. Norms and biases are in neither. Are the frozen matrices of the targets still multiplied?
# </details>

# %% nbgrader={"grade_id": "count_and_ship", "solution": true}
def count_and_ship(shapes, r, targets, world_size, tokens):
    """{"query.weight": (3, 5)}, 2, ["query"], 2, 10  ->
    {"adapters": 16, "state_bytes": 192, "sent_bytes": 64, "flops": 1560}"""
    ### BEGIN SOLUTION
    base = adapters = 0
    for name, shape in shapes.items():
        module = name.split(".")[-2]
        if len(shape) < 2 or module in ("token", "position"):
            continue
        rows, columns = shape
        base += rows * columns
        if module in targets:
            adapters += r * (rows + columns)
    return {
        "adapters": adapters,
        "state_bytes": 12 * adapters,
        "sent_bytes": 2 * (world_size - 1) / world_size * 4 * adapters,
        "flops": (4 * base + 6 * adapters) * tokens,
    }
    ### END SOLUTION

# %% [markdown]
# Your formula for the GPT with 50 million parameters, on 8 ranks with r = 8: adapters on more and more matrices.

# %%
shapes = shapes_of("50M")
choices = [["query"], ["query", "value"], ["query", "key", "value", "out"]]
choices += [[*choices[-1], "up", "down"]]
counted = [count_and_ship(shapes, 8, targets, 8, 4096) for targets in choices]
show_table(
    {"targets": "", "adapters": ",d", "states, MB": ".1f", "sent, MB": ".1f", "GFLOPs": ".0f"},
    [
        (
            ", ".join(targets),
            each["adapters"],
            each["state_bytes"] / 1e6,
            each["sent_bytes"] / 1e6,
            each["flops"] / 1e9,
        )
        for targets, each in zip(choices, counted, strict=True)
    ],
)

# %% nbgrader={"grade_id": "check_count_and_ship", "grade": true}
check("lora.count_and_ship", count_and_ship)

# %% [markdown]
# ## 3 · `qlora_step`
#
# QLoRA (Dettmers et al., arXiv 2305.14314) trains adapters in fp32 on a base whose weights stay in 4 bits. Each layer computes
#
# $$ y = x\,W^\top + \frac{\alpha}{r}\, x\,A^\top B^\top, \qquad W = \text{dequantized}(\text{packed}, \text{absmax}) $$
#
# The adapters of the layers **below** get their gradient through the base: $\partial L/\partial x = \partial L/\partial y \cdot W + \dots$ So backward needs W again. In plain autograd, the matrix product keeps the dequantized weight of every layer above the first until backward, and the 4 bits save nothing:

# %%
NF4_VALUES = torch.tensor([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
])

def dequantize_nf4(packed, absmax, shape):
    """packed uint8 [out · in / 2], absmax fp32 [out · in / 64]  ->  fp32 [out, in]"""
    codes = torch.stack([packed >> 4, packed & 15], dim=1).int()  # the high nibble comes first
    return (NF4_VALUES[codes].view(-1, 64) * absmax[:, None]).view(shape)

def qlora_forward_spec(layers, x, alpha):
    """The right outputs and gradients, but it keeps every dequantized weight for backward."""
    for layer in layers:
        A, B = layer["A"], layer["B"]
        W = dequantize_nf4(layer["packed"], layer["absmax"], (len(B), A.shape[1]))
        x = x @ W.T + alpha / len(A) * (x @ A.T @ B.T)
    return x

# %% [markdown]
# Write `qlora_step(layers, x, loss_of, alpha, lr)`: one step of plain SGD, on several ranks.
#
# - `layers` is a list of dicts. `packed` and `absmax` are the frozen base, equal on all ranks: they never change and get no gradient. `A` `[r, in]` and `B` `[out, r]` are the adapters, `nn.Parameter`s, equal on all ranks as well, with the same r in all layers. The layers follow one another, as in the spec.
# - `loss_of(y)` is the mean loss over this rank's samples; call it once, with the output of the last layer.
# - The step takes the **mean of the ranks' gradients** and changes A and B in place: `A -= lr * gradient`, without weight decay or momentum. It is called once for each batch; gradients of the previous step must not count.
# - `dequantize_nf4` is given. You decide when to call it: use a `torch.autograd.Function` that dequantizes in forward and **again** in backward.
#
# **Budget** · between forward and backward, nothing as large as a dequantized weight is alive · sends ≤ 1.02 × the ideal + 1 kB for each all-reduce; ideal = $\frac{2(N-1)}{N}$ · bytes of the adapters in fp32 · only `all_reduce`, at most one for A and one for B of each layer · keeps nothing that grows from step to step.
#
# After each of two steps, the adapters equal those of one process within 10⁻⁵. In a third step the gradients are 0, and no adapter changes.
#
# <details><summary>Hint 1 · what the Function keeps</summary>
#
# `ctx.save_for_backward` takes any tensor that is an argument of forward, the packed codes too. The shape can be an attribute of `ctx`. It need not save x: the weight has no gradient.
# </details>
# <details><summary>Hint 2 · its backward</summary>
#
# If y is x times the transpose of W, then x's gradient is y's gradient times W, without a transpose. Return one value for each argument of forward, `None` for those without a gradient.
# </details>
# <details><summary>Hint 3 · the adapters</summary>
#
# Leave them to autograd: only the base needs your Function. Multiply x by the two thin matrices one after the other. `B @ A` is as large as the base, and autograd would keep it.
# </details>
# <details><summary>Hint 4 · the gradients</summary>
#
# `torch.autograd.grad(loss, adapters)` returns the gradients as a tuple and leaves `.grad` alone, so nothing has to be cleared. What remains is what DDP and the optimizer would do: for each adapter, two lines.
# </details>

# %% nbgrader={"grade_id": "qlora_step", "solution": true}
class PackedLinear(torch.autograd.Function):
    """x @ W.T for a frozen W that exists only while it is used."""

    @staticmethod
    def forward(ctx, x, packed, absmax, shape):
        ### BEGIN SOLUTION
        ctx.save_for_backward(packed, absmax)
        ctx.shape = shape
        return x @ dequantize_nf4(packed, absmax, shape).T
        ### END SOLUTION

    @staticmethod
    def backward(ctx, y_grad):
        ### BEGIN SOLUTION
        return y_grad @ dequantize_nf4(*ctx.saved_tensors, ctx.shape), None, None, None
        ### END SOLUTION


def qlora_step(layers, x, loss_of, alpha, lr):
    """One data-parallel SGD step of every layer's A and B, in place"""
    ### BEGIN SOLUTION
    for layer in layers:
        A, B = layer["A"], layer["B"]
        base = PackedLinear.apply(x, layer["packed"], layer["absmax"], (len(B), A.shape[1]))
        x = base + alpha / len(A) * (x @ A.T @ B.T)
    adapters = [layer[name] for layer in layers for name in "AB"]
    for adapter, grad in zip(adapters, torch.autograd.grad(loss_of(x), adapters)):
        dist.all_reduce(grad)
        with torch.no_grad():
            adapter -= lr * grad / dist.get_world_size()
    ### END SOLUTION

# %% [markdown]
# Eight layers of 512 × 512, 1 MiB each in fp32, trained for one step: first with the spec's forward, then with your step. Click to choose a run. The dashed line is what the packed base takes: an eighth of the weights in fp32, and one absmax for each 64.

# %%
def packed_layer(out_features, in_features, r=4):
    weights = out_features * in_features
    return {
        "packed": torch.randint(256, (weights // 2,), dtype=torch.uint8),
        "absmax": torch.full((weights // 64,), 1.7 / in_features**0.5),
        "A": nn.Parameter(torch.randn(r, in_features) / in_features**0.5),
        "B": nn.Parameter(torch.zeros(out_features, r)),
    }

def spec_step(layers, x, loss_of, alpha, lr):
    loss_of(qlora_forward_spec(layers, x, alpha)).backward()

def train_packed(step):
    layers = [packed_layer(512, 512) for _ in range(8)]
    x = torch.randn(4, 512)
    with measure("the step"):
        step(layers, x, lambda y: y.square().sum() / len(y), alpha=8, lr=0.01)

# %%
PACKED_BYTES = 8 * (512 * 512 // 2 + 512 * 512 // 64 * 4)
runs = {
    name: launch(train_packed, step, world_size=2, device="cpu", memory=True)
    for name, step in (("the spec's forward", spec_step), ("qlora_step", qlora_step))
}
memory_timeline(runs, predicted={"the packed base": PACKED_BYTES})

# %% nbgrader={"grade_id": "check_qlora_step", "grade": true}
check("lora.qlora_step", qlora_step)

# %% [markdown]
# ## 4 · Will it fit, and what is it worth?
#
# A colleague wants to fine-tune a 13-billion-parameter model (40 layers of width 5,120; fp32 or bf16 unless quantized) on 2 GPUs with 24 GB each, with DDP. In each layer, the query and the value projection (5,120 × 5,120) get adapters of r = 16, in fp32. The base is in NF4: blocks of 64 with an fp32 absmax. The colleague writes:
#
# 1. "4 bits per weight, so the base takes 6.5 GB on each GPU."
# 2. "Adam needs 8 bytes for each parameter: 104 GB. So we must shard it with ZeRO."
# 3. "DDP sends a gradient of every parameter, about 26 GB in bf16 per rank and step."
# 4. "A frozen base needs no backward, so a step takes a third of the time."
# 5. "At the end we merge the adapters into the 4-bit base: merging is exact, so nothing is lost."
# 6. "To save memory I wrapped each layer in `torch.utils.checkpoint` with `use_reentrant=True`. The embedding is frozen, too; the last norm, which is not wrapped, is trained. It runs without an error, so it works."
#
# Judge each claim: what is right, what is wrong, and which error would be silent? Give the bytes of the base with and without double quantization (8-bit codes for the absmax, in blocks of 256 with an fp32 scale), of the optimizer's states, and those that a rank sends in a step. Write six to ten sentences.

# %% [markdown] nbgrader={"grade_id": "will_it_fit", "grade": true, "solution": true, "points": 2}
# ### BEGIN SOLUTION
# 1\. Almost: the constants are missing. An absmax of 32 bits for each 64 weights is half a bit, so 4.5 bits · 13 · 10⁹ / 8 = 7.3 GB. With double quantization, 4 + 8/64 + 32/(64 · 256) = 4.127 bits: 6.7 GB. Either fits in 24 GB. (Embedding and norms usually stay in 16 bits, which adds some 0.5 GB.)
#
# 2\. Wrong: only trained parameters have states. The adapters have 40 · 2 · 16 · (5,120 + 5,120) = 13.1 million parameters, so Adam keeps 105 MB, and the adapters and their gradients take 52 MB each. There is almost nothing to shard; the memory goes to the base, which DDP keeps whole on each GPU.
#
# 3\. Wrong: DDP reduces gradients of parameters that require one. A ring sends $\frac{2(N-1)}{N}$ · 52 MB = 52 MB per rank and step with N = 2.
#
# 4\. Wrong: the adapters of the lower layers get their gradients through the base, so backward computes the gradients of the activations, 2Ψ per token. Only those of the weights, another 2Ψ, are saved: 4Ψ of 6Ψ FLOPs per token, two thirds and not one third. Dequantizing, in forward and again in backward, is extra work.
#
# 5\. Wrong, and silent: the sum W + (α/r) · B · A is exact in fp32 up to rounding, but it has to be rounded to 16 code points again. Small updates stay below half a gap and vanish; others are rounded. Merge into 16-bit weights, or keep the adapters separate.
#
# 6\. Wrong, and silent apart from a warning: the output of a reentrant checkpoint requires a gradient only if an input does. The frozen embedding's output does not, so no layer's output does, and no adapter gets a gradient. Only the norm is trained. (Without it, backward would raise an error.) `use_reentrant=False`, or an embedding output that requires a gradient (`enable_input_require_grads()`), fixes it; check `.grad` after the first step.
#
# Points: 1 for the numbers (7.3 and 6.7 GB, 105 MB, 52 MB; 0.5 if one is missing), 1 for claims 4, 5 and 6: two thirds, the rounding, the missing gradients (0.5 if one is missing or not called silent).
# ### END SOLUTION
