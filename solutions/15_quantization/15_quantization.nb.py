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
# # Lab 15 · Quantization
#
# A weight in 4 bits is a code and a share of a scale. You will quantize weights in blocks, write the bytes of a file that llama.cpp can read, and multiply matrices in int8 although some of their features are far larger than the others.
#
# **In this lab you**
#
# - quantize weights in blocks, to int8 and to NF4;
# - write the bytes of a GGUF file, equal to those of `gguf`;
# - multiply int8 matrices that have outliers.
#
# **You need:** [chapter 15](../../course/chapters/15_quantization.ipynb).
#
# <!-- table of points -->
#
# Each exercise has a task, a **spec** that runs, a **budget**, your cell, a picture of what your code did, and a check. Grading adds hidden cases: other sizes and other values. A mistake in one exercise never costs points in a later one.

# %%
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import matplotlib.pyplot as plt
import torch
from torch import nn

from autograder import check
from shardlab.estimate import quantization
from shardlab.models import pretrained
from shardlab.widgets import palette

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# ## 1 · `quantize_blockwise`
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
check("quantization.quantize_blockwise", quantize_blockwise)

# %% [markdown]
# ## 2 · `pack_q4_0`
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
check("quantization.pack_q4_0", pack_q4_0)

# %% [markdown]
# ## 3 · `outliers`
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
check("quantization.outliers", outliers)

# %% [markdown]
# ## 4 · What to ship?
#
# A colleague wants to serve a model of the shape of LLaMA 7B: 6.48 billion weights in the matrices of its blocks, and 0.26 billion in embedding and head, which stay in bf16. The colleague writes:
#
# 1. "NF4 has 4 bits, so the model takes 3.4 GB. With double quantization it is the same."
# 2. "The code points of NF4 are the best for weights. So of all formats with 4.5 bits per weight, it loses the least."
# 3. "We quantize activations to int8 as well, with one scale for each token. One feature is at 60 and all others are below 1, but int8 has 255 codes, so it cannot matter much."
# 4. "The matrices are four times smaller than in bf16. So the model writes each token four times faster, and reads prompts four times faster, too."
# 5. "Of two files of the same size, we ship the one whose weights are closer to the original."
#
# Judge each claim: what is right, what is wrong, and what would you measure? Give the bytes of the model in NF4 (blocks of 64 with an fp32 absmax), with double quantization (8-bit codes for the absmax, in blocks of 256 with an fp32 scale), and in Q4_0. Write five to eight sentences.

# %% [markdown] nbgrader={"grade_id": "what_to_ship", "grade": true, "solution": true, "points": 2}
# ### BEGIN SOLUTION
# 1\. Wrong: scales and embeddings are missing. An fp32 absmax for 64 weights adds half a bit: 4.5 bits · 6.48 · 10⁹ / 8 = 3.65 GB, and 0.26 · 10⁹ · 2 bytes = 0.52 GB for embedding and head, together 4.2 GB. Double quantization takes 4 + 8/64 + 32/(64 · 256) = 4.127 bits: 3.34 + 0.52 = 3.9 GB. Q4_0 takes 18 bytes for 32 weights, 4.5 bits again: 4.2 GB.
#
# 2\. Not in general: at the same bits, Q4_0 has blocks of 32 with fp16 scales, and smaller blocks can gain as much as better code points. Compare the loss on your own text.
#
# 3\. Wrong, and silent: the scale of each token is 60/127 = 0.47, so every value below 0.24 becomes 0 and all others become 1 or 2 steps. Keep such features out of int8 (LLM.int8() with a threshold), or quantize only the weights.
#
# 4\. Only with a kernel that dequantizes while it multiplies, and only one token at a time: then the bytes of the weights that are read limit the time, 0.56 bytes instead of 2, at most 3.6 times faster. A kernel that writes the weights in 16 bits first moves more bytes than bf16 does. For prompts arithmetic is the limit, and dequantizing is extra work.
#
# 5\. Wrong: what counts is the error of the outputs. GPTQ and AWQ make the weights' error larger and the outputs' smaller. Compare the loss, on text that was not used for calibration.
#
# Points: 1 for the bytes (4.2, 3.9 and 4.2 GB; 0.5 if one is missing or the embeddings are), 0.5 for claim 3, 0.5 for two of the claims 2, 4 and 5.
# ### END SOLUTION
