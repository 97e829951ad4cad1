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
# # Lab 12 · LoRA and quantization
#
# Two ideas let one small machine fine-tune a large model: train two thin matrices next to each weight, and store the weights themselves in 8 or 4 bits. You will build both, and then put them together.
#
# **In this lab you**
#
# - write a linear layer with LoRA, merge and unmerge it, and count what it trains and sends;
# - quantize weights in blocks, to int8, to NF4, and to the bytes of a GGUF file;
# - multiply int8 matrices that have outliers, and train adapters on a frozen 4-bit base.
#
# **You need:** [chapter 12](../../course/chapters/12_lora_quantization.ipynb).
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
from shardlab.estimate import quantization
from shardlab.models import pretrained
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
check("lora_quantization.LoRALinear", LoRALinear)

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
check("lora_quantization.count_and_ship", count_and_ship)

# %% [markdown]
# ## 3 · `quantize_blockwise`
#
# Quantize weights in blocks. A **block** is `block` consecutive weights, in the order of `weights.flatten()`: a block may end within a row, and the last one may have fewer weights. The scale of a block is its **absmax**, the largest magnitude in it. Each weight is divided by the absmax of its block and gets the **code** whose value is nearest:
#
# - without `points`: int8. Code c, from −127 to 127, stands for c / 127.
# - with `points`, a tensor of increasing values from −1 on, such as NF4's 16: code i stands for `points[i]`.
#
# Return `(codes, absmax)`. `codes` has the shape of `weights`, and dtype int8 or, with `points`, uint8. `absmax` is fp32, [⌈n / block⌉]. Codes are not packed here: a 4-bit code takes a byte. `weights` is fp32 and must not change.
#
# In a block of zeros, absmax is 0, and each code is the one that stands for 0. All other blocks are quantized with their own absmax, however small it is: in the check down to 10⁻¹³.
#
# The spec restores the weights:

# %%
NF4 = torch.tensor(quantization.nf4_code_points())

def dequantize_spec(codes, absmax, block, points=None):
    """codes of any shape, absmax [⌈n / block⌉]  ->  fp32 weights of that shape"""
    values = codes / 127 if points is None else points[codes.long()]
    by_weight = absmax.repeat_interleave(block)[: codes.numel()]
    return values * by_weight.view(codes.shape)

NF4

# %% [markdown]
# **Budget** · no communication · exactly the nearest codes.
#
# The checked weights are never halfway between two codes. A restored int8 weight is within absmax / 254 of the original. With `points`, it is within absmax × half of the largest gap between two points.
#
# <details><summary>Hint 1 · blocks as rows</summary>
#
# If the number of weights were a multiple of `block`, the blocks would be the rows of a matrix. How many zeros are missing at the end, and do they change an absmax? Cut their codes off when you are done.
# </details>
# <details><summary>Hint 2 · zeros</summary>
#
# 0 / 0 is NaN. No point is nearest to NaN, and int8 has no NaN either. If absmax is 0, any other divisor gives what you want. Which absmax do you return?
# </details>
# <details><summary>Hint 3 · the nearest</summary>
#
# For int8, a conversion drops the fraction: what has to come before it? For `points`, scaled weights of shape [blocks, block, 1] broadcast against all points, to [blocks, block, points]. Which index along the last dimension is the code?
# </details>

# %% nbgrader={"grade_id": "quantize_blockwise", "solution": true}
def quantize_blockwise(weights, block, points=None):
    """fp32 weights of any shape  ->  codes of that shape, absmax [⌈n / block⌉]"""
    ### BEGIN SOLUTION
    flat = weights.flatten()
    padded = nn.functional.pad(flat, (0, -len(flat) % block))
    blocks = padded.view(-1, block)
    absmax = blocks.abs().amax(dim=1)
    scaled = blocks / torch.where(absmax == 0, 1.0, absmax)[:, None]
    if points is None:
        codes = (scaled * 127).round().to(torch.int8)
    else:
        codes = (scaled[..., None] - points).abs().argmin(dim=-1).to(torch.uint8)
    return codes.flatten()[: len(flat)].view(weights.shape), absmax
    ### END SOLUTION

# %% [markdown]
# Real weights, from a small GPT that was trained on Python's documentation. Left: one block of 64 weights, and what is restored from its codes. Right: smaller blocks restore all the weights better, but need more scales.

# %%
def restored(weights, block, points=None):
    return dequantize_spec(*quantize_blockwise(weights, block, points), block, points)

def plot_blocks(weights, sizes=(16, 32, 64, 128, 256, 512, 1024)):
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3))
    first = weights.flatten()[:64].sort().values
    left.plot(first, first, color=palette.PREDICTED, label="exact")
    left.plot(first, restored(first, 64, NF4), ".", color=palette.MEASURED, label="your NF4")
    left.set(xlabel="weight", ylabel="restored weight")
    left.legend(frameon=False)
    errors = [(restored(weights, size, NF4) - weights).square().mean().sqrt() for size in sizes]
    right.plot([4 + 32 / size for size in sizes], errors, "o-", color=palette.MEASURED)
    for size, error in list(zip(sizes, errors))[:4]:
        right.annotate(f" block {size}", (4 + 32 / size, error), va="bottom")
    right.set(xlabel="bits per weight", ylabel="root mean square error", xlim=(3.9, 6.9))
    figure.tight_layout()

gpt_weights = pretrained.gpt().state_dict()["blocks.0.mlp.up.weight"]
plot_blocks(gpt_weights)

# %% nbgrader={"grade_id": "check_quantize_blockwise", "grade": true}
check("lora_quantization.quantize_blockwise", quantize_blockwise)

# %% [markdown]
# ## 4 · `pack_q4_0`
#
# Write weights as the bytes of a GGUF file, in the format **Q4_0**. A block of 32 weights has one scale d and 32 **levels** from 0 to 15:
#
# 1. Find the weight of largest magnitude, with its sign (if there are several, the first). d is this weight / −8, in fp32. So that weight has level 0, and d may be negative.
# 2. The level of a weight x is x · (1/d) + 8.5, with the fraction cut off, and at most 15. It is computed with the fp32 d, and not as x / d, which can round to another level. If d is 0, use 0 instead of 1/d.
# 3. Only then is d rounded to fp16, and stored: 2 bytes, little-endian (the low byte first).
# 4. 16 bytes follow. Byte j has the level of weight j in its low 4 bits, and the level of weight j + 16 in its high 4 bits.
#
# `weights` is fp32, [n], with n a multiple of 32. Return a uint8 tensor, [n / 32, 18]. `weights` must not change. The bytes have to be those that the package `gguf` writes. One surprise follows from these rules: 0 / −8 is −0, so a block of zeros starts with the bytes 0 and 128.
#
# The spec restores the weights from the bytes:

# %%
def unpack_q4_0_spec(blocks):
    """uint8 [n / 32, 18]  ->  fp32 weights [n]"""
    d = blocks[:, :2].contiguous().view(torch.float16).float()
    low, high = blocks[:, 2:] % 16, blocks[:, 2:] // 16
    return (d * (torch.cat([low, high], dim=1).float() - 8)).flatten()

# %% [markdown]
# **Budget** · no communication · 18 bytes for 32 weights, 4.5 bits each · every byte equal to that of `gguf`.
#
# <details><summary>Hint 1 · the sign</summary>
#
# The maximum of the magnitudes has lost its sign. So find its position, and take the weight from there. `gather` does this for all blocks at once.
# </details>
# <details><summary>Hint 2 · a level of 16</summary>
#
# Suppose a block contains −1 and, later, 1. Then d is 1/8, and the level of 1 is 8 + 8.5 without its fraction: 16, which needs five bits. What would the fifth bit do to the other half of the byte?
# </details>
# <details><summary>Hint 3 · bytes</summary>
#
# `tensor.view(torch.uint8)` shows a contiguous tensor's bytes without converting numbers: a [blocks, 1] tensor of a 2-byte dtype becomes [blocks, 2]. The levels become [blocks, 16]: `<<` shifts a uint8 tensor, and `|` joins two of them.
# </details>

# %% nbgrader={"grade_id": "pack_q4_0", "solution": true}
def pack_q4_0(weights):
    """fp32 weights [n]  ->  uint8 [n / 32, 18], the bytes of Q4_0"""
    ### BEGIN SOLUTION
    blocks = weights.view(-1, 32)
    largest = blocks.abs().argmax(dim=1, keepdim=True)
    d = blocks.gather(1, largest) / -8
    inverse = torch.where(d == 0, 0.0, 1 / d)
    levels = (blocks * inverse + 8.5).to(torch.uint8).clamp(max=15)
    nibbles = levels[:, :16] | levels[:, 16:] << 4
    return torch.cat([d.half().view(torch.uint8), nibbles], dim=1)
    ### END SOLUTION

# %% [markdown]
# One block of the same weights, its 18 bytes, and what is restored from them:

# %%
def plot_block(weights):
    block = pack_q4_0(weights)
    figure, axes = plt.subplots(figsize=(7, 2.8))
    axes.plot(weights, "o", color=palette.PREDICTED, fillstyle="none", label="weights")
    axes.plot(unpack_q4_0_spec(block), ".", color=palette.MEASURED, label="restored from your bytes")
    axes.set(xlabel="position in the block", ylabel="weight")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    print(bytes(block.flatten().tolist()).hex(" "))

plot_block(gpt_weights.flatten()[:32])

# %% nbgrader={"grade_id": "check_pack_q4_0", "grade": true}
check("lora_quantization.pack_q4_0", pack_q4_0)

# %% [markdown]
# ## 5 · `outliers`
#
# In large transformers a few features of the activations are far larger than all others, in every layer (Dettmers et al., "LLM.int8()", arXiv 2208.07339). If a row of x has one value of 60, its scale is 60/127, and a regular value of 0.2 gets the code 0. LLM.int8() therefore computes those few **outlier features** in full precision, and all others in int8.
#
# `outliers(x, w, threshold)` returns approximately `x @ w.T`, fp32, for x `[rows, features]` and w `[out, features]`:
#
# - a feature is an outlier if its largest magnitude in x **exceeds** the threshold. (This is the paper's definition; bitsandbytes also includes features that just reach the threshold.) The product of the outlier features is computed in fp32, with the corresponding columns of w;
# - the other features are quantized: each row of x and each row of w has a scale. A scale is the largest magnitude **among the row's regular features**, divided by 127. A code is value / scale, rounded to the nearest, in int8. (No value in the check lies near the middle of two codes.) The codes are multiplied as integers and summed in int32, and the sums are multiplied by both scales;
# - a row of zeros gives zeros. Other rows keep their own scale, however small: in the check, magnitudes are between 10⁻¹² and 10¹²;
# - there may be no outlier; at least one feature is regular. Do not change x and w.

# %%
def outliers_spec(x, w):
    """What the result approximates: here nothing is rounded to a code."""
    return x @ w.T

outliers_spec(torch.tensor([[60.0, 0.2]]), torch.tensor([[0.0, 1.0], [0.5, 1.0]]))

# %% [markdown]
# **Budget** · each element equals the one that int8 arithmetic gives, within 10⁻⁴: an fp32 product is too exact to pass · no communication.
#
# <details><summary>Hint 1 · which features</summary>
#
# The largest magnitudes of the columns of x are a vector with one number for each feature. Compare it with the threshold: the result is a boolean mask that can index the columns of x and of w.
# </details>
# <details><summary>Hint 2 · the scales</summary>
#
# `amax(dim=1, keepdim=True)` gives a column, by which you can divide the whole matrix. A row whose scale is 0 would give 0/0, which is NaN, and int8 has no NaN. Divide such a row by another number, and only such a row.
# </details>
# <details><summary>Hint 3 · the sums</summary>
#
# torch adds int8 products in int8, where they overflow. Element (i, j) of the sums belongs to row i of x and to row j of w: which shapes do the two sets of scales need, to multiply [rows, out]?
# </details>

# %% nbgrader={"grade_id": "outliers", "solution": true}
def outliers(x, w, threshold):
    """x [rows, features], w [out, features]  ->  approximately x @ w.T [rows, out], mostly in int8"""
    ### BEGIN SOLUTION
    def quantize_rows(matrix):
        scales = matrix.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
        return (matrix / scales).round().to(torch.int8), scales

    is_outlier = x.abs().amax(dim=0) > threshold
    x_codes, x_scales = quantize_rows(x[:, ~is_outlier])
    w_codes, w_scales = quantize_rows(w[:, ~is_outlier])
    sums = x_codes.int() @ w_codes.T.int()
    return sums * x_scales * w_scales.T + x[:, is_outlier] @ w[:, is_outlier].T
    ### END SOLUTION

# %% [markdown]
# 256 features, one of them at 60: the errors of your product, first with everything in int8 (a threshold that nothing exceeds), then with the outlier feature in fp32.

# %%
torch.manual_seed(0)
x, w = torch.randn(64, 256), torch.randn(64, 256) / 16
x[:, 100] = 60
errors = {each: (outliers(x, w, each) - x @ w.T).flatten() for each in (float("inf"), 6.0)}

# %%
figure, axes = plt.subplots(figsize=(6, 2.6))
reach = errors[float("inf")].abs().max().item()
for (threshold, each), color in zip(errors.items(), (palette.ERROR, palette.MEASURED)):
    axes.hist(each, bins=60, range=(-reach, reach), color=color, label=f"threshold {threshold}")
    print(f"threshold {threshold}: the error is {each.square().mean() ** 0.5:.4f} (RMS)")
axes.set(xlabel="error of an element of the product", ylabel="elements")
axes.legend(frameon=False)
figure.tight_layout()

# %% nbgrader={"grade_id": "check_outliers", "grade": true}
check("lora_quantization.outliers", outliers)

# %% [markdown]
# ## 6 · `qlora_step`
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
check("lora_quantization.qlora_step", qlora_step)

# %% [markdown]
# ## 7 · Will it fit, and what is it worth?
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
