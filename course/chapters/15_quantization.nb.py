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
# # 15 · Quantization: bits, blocks and formats
#
# A weight in bf16 takes 2 bytes. If nothing updates it, as in inference and in the frozen base of [QLoRA](14_lora.ipynb), it can take half a byte. **Quantization** stores a weight as a **code**, an integer of 8 or fewer bits, and one **scale** for a group of weights. Before use, a weight is computed from its code and its scale: it is **dequantized**. The values that codes stand for are the **code points**.
#
# The question of this chapter: what does a weight cost in bits, and what does it lose?
#
# **After this chapter you can**
#
# - quantize weights to 8 and 4 bits, byte for byte as GGUF does, and predict the error;
# - say what blocks, scales, outliers and code points cost and save;
# - choose a format by its bits and the loss it adds, and say when fewer bits save time.
#
# **You need:** [01 One device](01_one_device.ipynb) and [14 LoRA and QLoRA](14_lora.ipynb).

# %% [markdown]
# <details open><summary>Codes take a quarter or an eighth of the bytes, and their scales a little more</summary>
#
# [![Animation: Codes take a quarter or an eighth of the bytes, and their scales a little more](openers/15_quantization.svg)](openers/15_quantization.svg)
#
# The matrices of the same GPT, stored one after another in four formats. In int8 and in 4 bits, blocks of 64 weights share an fp32 scale, which takes half a bit for each weight. In all, 12.0 MiB in fp32, 6.0 MiB in bf16, 3.2 MiB in int8, 1.7 MiB in 4 bits. (Recorded from real processes.)
#
# </details>

# %% jupyter={"source_hidden": true}
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import logging
from statistics import NormalDist

import matplotlib.pyplot as plt
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from torch.func import functional_call

from shardlab import data, holds, show_table
from shardlab.estimate.devices import DEVICES
from shardlab.estimate.quantization import FORMATS, Format
from shardlab.models import pretrained
from shardlab.widgets import palette, predict, quantization_grid

# bitsandbytes warns of optional CPU kernels that are not installed.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# ## Bits, blocks and an outlier
#
# We quantize real weights: the matrices of a small GPT, trained on Python's documentation. (The embedding is also the output head here, and stays in fp32.) Move the sliders. Each block has one scale, its largest absolute weight. So an **outlier**, a single large weight, spreads the code points of its block, and the other weights of that block are rounded more coarsely. Smaller blocks limit the damage but store more scales.

# %%
float_gpt = pretrained.gpt().eval()
float_weights = {
    name: parameter.detach()
    for name, parameter in float_gpt.named_parameters()
    if name.startswith("blocks.") and parameter.dim() == 2
}
float_count = sum(weight.numel() for weight in float_weights.values())
mlp_up = float_weights["blocks.0.mlp.up.weight"]  # [384, 96]
quantization_grid(mlp_up)

# %% [markdown]
# ### One scale for a tensor
#
# The simplest format is **absmax int8**. The scale is $\max|w| / 127$, so that the largest weight gets the code 127 or −127. Each weight is rounded to the nearest multiple of the scale.

# %%
absmax_scale = mlp_up.abs().max() / 127
absmax_codes = torch.round(mlp_up / absmax_scale).to(torch.int8)
absmax_errors = absmax_codes * absmax_scale - mlp_up

stored_bytes = absmax_codes.nbytes + absmax_scale.nbytes
holds("codes and scale", stored_bytes, mlp_up.nbytes // 4 + 4, unit="bytes")
largest = absmax_errors.abs().max() / absmax_scale
holds("largest error, in scales", largest, below=0.501)

# %% [markdown]
# Rounding moves a weight by at most half a scale. Between these bounds, all errors are about equally frequent. A uniform distribution of width $s$ has a root mean square (rms) of $s / \sqrt{12}$:

# %%
def rms(values):
    return values.square().mean().sqrt().item()

holds("rms of the errors", rms(absmax_errors), absmax_scale / 12**0.5, rtol=0.02)
print(f"that is {rms(absmax_errors) / rms(mlp_up):.2%} of the rms of the weights")

# %% [markdown]
# What does a single large weight change? We make one weight an **outlier**, 8 times as large as the largest. **By what factor does the rms error of all other weights grow?**

# %%
predicted_factor = predict("Factor by which the rms error of the other weights grows")
predicted_factor

# %%
def quantize_absmax(weight, bits, group):
    """A scale for every ``group`` weights, not all 0. Returns them dequantized."""
    groups = weight.reshape(-1, group)
    scales = groups.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (torch.round(groups / scales) * scales).view_as(weight)

with_outlier = mlp_up.clone()
with_outlier[0, 0] = 8 * mlp_up.abs().max()

# %%
def errors_of_the_others(group):
    return (quantize_absmax(with_outlier, 8, group) - with_outlier).flatten()[1:]

factor = rms(errors_of_the_others(with_outlier.numel())) / rms(absmax_errors)
predicted_factor.compare(
    factor, {"what it is if an outlier affects only its own code": 1, "√8": 8**0.5}
)

# %% [markdown]
# The scale follows the largest weight, and the errors follow the scale. Most code points now lie where there are no weights.

# %% [markdown]
# ### More scales
#
# The remedy is to share each scale among fewer weights. A **channel** is a row of the matrix, the weights of one output. A **block** is a fixed number of consecutive weights, often 64. Then an outlier affects only its own row or block. But more scales take more bits. The scales are in fp32. **How many bits does a weight take, including its part of a scale, with codes of 8 bits?**

# %%
names = ["row of 96", "block of 64", "block of 16"]
predicted_bits = predict("Bits per weight", unit="bits", labels=names)
predicted_bits

# %%
def bits_per_weight(code_bits, group):
    return code_bits + 32 / group

sizes = (96, 64, 16)
predicted_bits.compare(
    [bits_per_weight(8, group) for group in sizes],
    {
        "what codes take without the scales": [8, 8, 8],
        "what they take with 16-bit scales": [8 + 16 / group for group in sizes],
    },
    "calculated",
)

# %% [markdown]
# An **error** is, from here on, the rms of all errors over the rms of all weights. Here it is for the matrix as trained, and with the outlier:

# %%
def row_of(name, group):
    errors = quantize_absmax(mlp_up, 8, group) - mlp_up, errors_of_the_others(group)
    percents = [100 * rms(each) / rms(mlp_up) for each in errors]
    return name, bits_per_weight(8, group), *percents

columns = ("bits per weight", "error, %", "with the outlier, %")
groups = {"tensor": mlp_up.numel(), "row": 96, "block of 64": 64}
show_table(
    {"one scale per": "", **dict.fromkeys(columns, ".2f")},
    [row_of(*each) for each in groups.items()],
)

# %% [markdown]
# With rows or blocks, the outlier adds little to the error. (Our rows are short. In a model of width 4,096, a row has 64 blocks.)
#
# Is it better to spend bits on codes or on scales? Here are all matrices together, with codes of 3 to 8 bits: their error, and the bits that a weight takes on average.

# %%
GROUPINGS = {
    "tensor": lambda weight: weight.numel(),
    "row": lambda weight: weight.shape[1],
    "block of 64": lambda weight: 64,
    "block of 16": lambda weight: 16,
}

# %%
def absmax_everywhere(bits, grouping):
    group = GROUPINGS[grouping]
    return {
        name: quantize_absmax(each, bits, group(each))
        for name, each in float_weights.items()
    }

# %%
def total_error(weights):
    """Of all matrices together. weights: {name: dequantized}."""
    errors = [(weights[n] - weight).flatten() for n, weight in float_weights.items()]
    exact = [weight.flatten() for weight in float_weights.values()]
    return rms(torch.cat(errors)) / rms(torch.cat(exact))

def mean_bits(bits, grouping):
    group = GROUPINGS[grouping]
    scales = sum(each.numel() / group(each) for each in float_weights.values())
    return bits + 32 * scales / float_count

# %%
errors = {
    grouping: [total_error(absmax_everywhere(bits, grouping)) for bits in range(3, 9)]
    for grouping in GROUPINGS
}

# %%
figure, axes = plt.subplots(figsize=(7, 3.4))
looks = {"tensor": "o-", "row": "s--", "block of 64": "D-.", "block of 16": "^:"}
labels = ((0, 9, 0, "left"), (0, -9, -4, "right"), (5, -2, -15, "right"), (0, 9, 0, "left"))
for (grouping, look), (at, *offset, side) in zip(looks.items(), labels):
    bits = [mean_bits(bits, grouping) for bits in range(3, 9)]
    percents = [100 * error for error in errors[grouping]]
    axes.semilogy(bits, percents, look, color=palette.MEASURED)
    point, words = (bits[at], percents[at]), f"per {grouping}"
    axes.annotate(words, point, offset, textcoords="offset points", ha=side)
axes.set(xlabel="bits per weight, one scale …", ylabel="error, %", xlim=(2.2, 10.4))
axes.set_yticks([0.5, 1, 2, 5, 10, 20, 50], ["0.5", "1", "2", "5", "10", "20", "50"])
axes.minorticks_off()
figure.tight_layout()

# %% [markdown]
# On every line, one more bit for the codes divides the error by about 2. So half a bit divides it by √2. Blocks of 64 cost half a bit, and divide the error by more than that. Blocks of 16 cost two bits, which are better spent on codes. (A scale per row does best here, but our rows have only 96 or 384 weights.)

# %%
fewer = np.array([errors["block of 64"], errors["block of 16"]])
halved = fewer[:, :-1] / fewer[:, 1:]
holds("error with one more bit for the codes", halved, above=2, below=2.6)
gain = np.divide(errors["tensor"], errors["block of 64"])
holds("error with one scale, over that with blocks of 64", gain, above=2**0.5)
blocks_of_64 = fewer[0, 1] / fewer[1, 0]
holds("4.5 bits in blocks of 64 over 5 bits in blocks of 16", blocks_of_64, below=1)

# %% [markdown]
# ## NF4: code points where the weights are
#
# With 4 bits there are 16 codes. Absmax uses 15 of them, at equal distances. But trained weights are not evenly distributed: most are small, roughly as in a normal distribution. **NF4** ("4-bit NormalFloat", Dettmers et al. 2023), which QLoRA uses, puts its code points at **quantiles** of the normal distribution. The p-quantile is the value that a share p of the distribution lies below. Between neighboring quantiles at equal steps of p there are equally many values.
#
# Zero has to be a code point, so that zero weights stay zero. So each side has its own steps: 8 quantiles above zero, 7 below. The outermost p is not 1, whose quantile is infinite, but the mean of 1 − 1/30 and 1 − 1/32. All are divided by the largest.

# %%
outermost = 1 - (1 / 30 + 1 / 32) / 2

def positive_quantiles(number):
    """At equal steps of p, from ``outermost`` down to, but without, 1/2."""
    steps = np.linspace(outermost, 1 / 2, number + 1)[:-1]
    return [NormalDist().inv_cdf(p) for p in steps]

above, below = positive_quantiles(8), positive_quantiles(7)
nf4_points = torch.tensor(sorted([*(-each for each in below), 0, *above])) / above[0]

# %% [markdown]
# A block of 64 weights is divided by its absmax, and each weight gets the code of the nearest code point. `bucketize` finds it from the midpoints between them. (bitsandbytes has these code points as constants.)

# %%
import bitsandbytes as bnb


def nearest(values, points):
    """The index of the nearest of increasing ``points``."""
    return torch.bucketize(values, (points[1:] + points[:-1]) / 2)

def nf4_weight(weight, block=64, scale_dtype=torch.float32):
    blocks = weight.reshape(-1, block)
    absmax = blocks.abs().amax(1, keepdim=True)
    points = nf4_points[nearest(blocks / absmax, nf4_points)]
    return (points * absmax.to(scale_dtype).float()).view_as(weight)

published = bnb.functional.get_4bit_type("nf4", device="cpu")
holds("NF4's 16 code points", nf4_points, published, atol=1e-6)

# %% [markdown]
# At the left are all weights, divided by the absmax of their block, with both sets of code points below. (The bars at −1 and 1 are the largest weights of the blocks.) At the right is how often each code is used.

# %%
scaled = torch.cat([each.reshape(-1, 64) for each in float_weights.values()])
scaled = scaled / scaled.abs().amax(1, keepdim=True)

def draw_format(left, right, name, points):
    shares = nearest(scaled, points).flatten().bincount() / scaled.numel()
    left.hist(scaled.flatten(), bins=121, color=palette.MEMORY["parameters"])
    left.plot(points, np.full(len(points), -900), "|", color=palette.PLOT_INK, ms=11)
    right.bar(range(len(points)), 100 * shares, color=palette.MEMORY["parameters"])
    left.set_ylabel("weights", size=10)
    left.set_title(f"{name}: {len(points)} code points", size=10)
    right.set_title("use of each code, %", size=10)

# %%
grid = {"width_ratios": (3, 2), "sharex": "col", "sharey": "col"}
figure, (above_axes, below_axes) = plt.subplots(2, 2, figsize=(8, 4), **grid)
draw_format(*above_axes, "absmax, 4 bits", torch.arange(-7, 8) / 7)
draw_format(*below_axes, "NF4", nf4_points)
below_axes[0].set_xlabel("weight / absmax of its block", size=10)
below_axes[1].set_xlabel("code", size=10)
below_axes[0].set_xticks([-1, -0.5, 0, 0.5, 1])
figure.tight_layout()

# %% [markdown]
# In the middle, where most weights are, NF4's code points are closer together, and it uses its codes more evenly. Does the error get smaller? We compare the weights of the GPT with evenly distributed numbers:

# %%
torch.manual_seed(0)

def nf4_over_absmax(values):
    absmax_error = rms(quantize_absmax(values, 4, 64) - values)
    return rms(nf4_weight(values) - values) / absmax_error

uniform = 2 * torch.rand(4096, 64) - 1
holds("trained weights: error of NF4 over absmax", nf4_over_absmax(scaled), below=0.9)
holds("uniform numbers: error of NF4 over absmax", nf4_over_absmax(uniform), above=1.1)

# %% [markdown]
# NF4 is better only because weights are distributed as they are.
#
# In blocks of 64, an fp32 absmax costs half a bit for each weight: NF4 takes 4.5 bits. **Double quantization** quantizes the absmax values as well: their mean is subtracted, and the rest is stored in 8 bits, in blocks of 256 with an fp32 scale each. Then $4 + \frac{8}{64} + \frac{32}{64 \cdot 256} = 4.127$ bits, and the weights change little:

# %%
def double_quantized(weight):
    absmax = weight.reshape(-1, 64).abs().amax(1, keepdim=True)
    mean = absmax.mean()
    blocks = (absmax - mean).split(256)  # the last one may be shorter
    rounded = torch.cat([quantize_absmax(each, 8, len(each)) for each in blocks]) + mean
    points = nf4_points[nearest(weight.reshape(-1, 64) / absmax, nf4_points)]
    return (points * rounded).view_as(weight)

nf4_weights = {name: nf4_weight(each) for name, each in float_weights.items()}
nf4_dq_weights = {name: double_quantized(each) for name, each in float_weights.items()}
growth = total_error(nf4_dq_weights) / total_error(nf4_weights)
holds("error, over that with absmax in fp32", growth, 1, rtol=0.01)
dq_bits = FORMATS["nf4, double quantization"].bits_per_weight
holds("bits per weight", dq_bits, 4 + 8 / 64 + 32 / (64 * 256))

# %% [markdown]
# ## FP8, MXFP4 and NVFP4: floating-point codes
#
# A code can be a small floating-point number instead of an integer. Then a GPU can multiply the codes without dequantizing them first. **FP8** has two variants (Micikevicius et al. 2022): **e4m3**, with 4 bits of exponent and 3 of mantissa, reaches 448, and **e5m2** reaches 57,344. Their code points lie close together near 0, as NF4's do. **With one scale for the tensor, by what factor does our outlier, 8 times as large as the largest weight, increase the error of e4m3?** (With int8 it was 8.)

# %%
predicted_fp8 = predict("Factor by which the error of e4m3 grows")
predicted_fp8

# %%
def e4m3(values):
    return values.to(torch.float8_e4m3fn).float()

def fp8_weight(weight):
    scale = weight.abs().max() / 448
    return e4m3(weight / scale) * scale

fp8_errors = (fp8_weight(mlp_up) - mlp_up).flatten()[1:]
fp8_outlier_errors = (fp8_weight(with_outlier) - with_outlier).flatten()[1:]
fp8_factor = round(rms(fp8_outlier_errors) / rms(fp8_errors), 2)
predicted_fp8.compare(fp8_factor, {"what it is with int8": 8})

# %% [markdown]
# A floating-point number is rounded relative to itself, so its error hardly depends on the scale. The price: without the outlier, int8 is better. Floating-point codes also exist with 4 bits: **e2m1** has the magnitudes 0, ½, 1, 1½, 2, 3, 4 and 6. They need blocks again. **MXFP4** (OCP 2023; Rouhani et al. 2023) has blocks of 32, whose scale is a power of two in 8 bits: 4.25 bits per weight. **NVFP4** (NVIDIA 2025) has blocks of 16, whose scale is an e4m3 number, and one fp32 scale for the tensor: 4.5 bits.

# %%
magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
e2m1_points = torch.cat([-magnitudes[1:].flip(0), magnitudes])

def mxfp4_weight(weight):
    blocks = weight.reshape(-1, 32)
    exponent = blocks.abs().amax(1, keepdim=True).log2().floor() - 2  # of the scale
    scale = torch.exp2(exponent)
    return (e2m1_points[nearest(blocks / scale, e2m1_points)] * scale).view_as(weight)

def nvfp4_weight(weight):
    blocks = weight.reshape(-1, 16)
    whole = weight.abs().max() / (6 * 448)  # the fp32 scale
    scale = e4m3(blocks.abs().amax(1, keepdim=True) / 6 / whole) * whole
    return (e2m1_points[nearest(blocks / scale, e2m1_points)] * scale).view_as(weight)

# %%
FP_FORMATS = {
    "int8, one scale": (8, lambda weight: quantize_absmax(weight, 8, weight.numel())),
    "FP8 e4m3, one scale": (8, fp8_weight),
    "NF4, blocks of 64": (4.5, nf4_weight),
    "NVFP4, blocks of 16": (4 + 8 / 16, nvfp4_weight),
    "MXFP4, blocks of 32": (4 + 8 / 32, mxfp4_weight),
}

# %%
fp_errors = {
    name: 100 * total_error({n: rounded(each) for n, each in float_weights.items()})
    for name, (_, rounded) in FP_FORMATS.items()
}
show_table(
    {"format": "", "bits per weight": ".2f", "error, %": ".2f"},
    [(name, FP_FORMATS[name][0], error) for name, error in fp_errors.items()],
)
over_int8 = fp_errors["FP8 e4m3, one scale"] / fp_errors["int8, one scale"]
holds("FP8 over int8", over_int8, above=2)

# %% [markdown]
# NVFP4 spends its half bit on four times as many scales, NF4 on fp32 scales and on code points that suit weights: the errors are about equal. MXFP4's powers of two waste part of each block's range. The reason to choose these formats is a GPU that multiplies them directly. On this CPU we see bytes and rounding, not speed. Two claims are often wrong: "FP8 halves the memory" (torchtitan's 8B model took 76.8 GiB instead of 77.0, since masters, gradients and states stay wide, although 6,667 tokens/s became 8,532) and "FP8 is faster" (with small matrices the casts take longer than they save: torchao measured 0.80 of bf16's speed for 1024 × 2048 × 1024, and 1.39 for 4096 × 8192 × 16384).

# %% [markdown]
# ## Activations have outliers
#
# So far, weights take less memory, and a product is computed after they are dequantized. If the activations $x$ are in int8 as well, the product itself can run in int8, which an A100 computes at twice the peak rate of bf16. Integers can be summed over the features only if the scale is the same for all features. So there is one scale $s_i$ for each row of $x$, a token, and one scale $t_j$ for each row of $W$, an output:
#
# $$y_{ij} = \sum_k x_{ik} w_{jk} \approx s_i t_j \sum_k \hat x_{ik} \hat w_{jk}$$
#
# $\hat x$ and $\hat w$ are the codes; their products are summed in int32.

# %%
def absmax_rows(rows):
    """rows [n, features] -> codes [n, features] int8, scales [n, 1]"""
    scales = rows.abs().amax(1, keepdim=True) / 127
    return torch.round(rows / scales).to(torch.int8), scales

# %%
def int8_product(x, weight):
    """x [tokens, features], weight [outputs, features] -> [tokens, outputs]"""
    (x_codes, x_scales), (codes, scales) = absmax_rows(x), absmax_rows(weight)
    return (x_codes.int() @ codes.int().T) * x_scales * scales.T

# %% [markdown]
# We record the activations that our matrix is multiplied by, on 1,024 tokens of documentation.

# %%
recorded = []
layer = float_gpt.blocks[0].mlp.up
handle = layer.register_forward_hook(
    lambda module, inputs, output: recorded.append(inputs[0])
)
with torch.no_grad():
    float_gpt(*data.batch(0, 8, 128))
handle.remove()
activations = recorded[0].flatten(0, 1)  # [tokens, features]
print(f"{tuple(activations.shape)}, largest {activations.abs().max():.1f}")

# %% [markdown]
# Large models differ from ours here: in those that Dettmers et al. (2022) studied, from 6.7 billion parameters upward, a few features have far larger values than all others, in every layer. We give our layer such an **outlier feature** without changing what it computes: one feature is scaled up to 60, and its weights are scaled down by the same factor.

# %%
exact = activations @ mlp_up.T
feature = activations.abs().amax(0).argmax()
ratio = 60 / activations[:, feature].abs().max()
outlier_x, outlier_weight = activations.clone(), mlp_up.clone()
outlier_x[:, feature] *= ratio
outlier_weight[:, feature] /= ratio

# %%
def product_error(product):
    return 100 * rms(product - exact) / rms(exact)

in_fp32 = product_error(outlier_x @ outlier_weight.T)
holds("error of the product in fp32, %", in_fp32, below=1e-3)

# %% [markdown]
# **LLM.int8()** splits the product by features. Features with a value above a threshold of 6.0 are multiplied in 16 bits, all others in int8, and the two products are added. This is a **mixed-precision decomposition**. We use the implementation in bitsandbytes, the library that the authors wrote:

# %%
def bitsandbytes_product(threshold):
    options = {"has_fp16_weights": False, "threshold": threshold}
    layer = bnb.nn.Linear8bitLt(96, 384, bias=False, **options)
    layer.weight = bnb.nn.Int8Params(outlier_weight.clone(), requires_grad=False)
    # quantizes; in training mode, a CPU would not quantize the activations
    layer.to("cpu").eval()
    return layer(outlier_x.half()).float()  # it expects fp16

# %%
int8_weight = quantize_absmax(outlier_weight, 8, 96)
products = {
    "our int8 product, no outlier": int8_product(activations, mlp_up),
    "our int8 product, one feature at 60": int8_product(outlier_x, outlier_weight),
    "bitsandbytes, threshold 0.0": bitsandbytes_product(0.0),
    "bitsandbytes, threshold 6.0": bitsandbytes_product(6.0),
    "weights in int8, activations in fp32": outlier_x @ int8_weight.T,
}
int8_errors = [(name, product_error(product)) for name, product in products.items()]
show_table({"product": "", "error, %": ".2f"}, int8_errors)

# %% [markdown]
# The outlier sets the scale of every token, so all other features are rounded to multiples of a large scale. With the threshold, its feature is left out of int8, and what remains is close to the error of the int8 weights alone. The decomposition is cheap: 1 feature of our 96 is multiplied in 16 bits, and in the paper's models fewer than 0.1% of all values.
#
# A threshold of 0.0 means *no* decomposition, and it is the default of bitsandbytes' layer. In transformers, `BitsAndBytesConfig` has a different default, 6.0. If you replace the layers of a model yourself, pass `threshold=6.0` and `has_fp16_weights=False`: by default, the weights stay in fp16 and are quantized in each forward.

# %% [markdown]
# ## Bytes in a file
#
# Models that run on a laptop are often stored as **GGUF**, the file format of llama.cpp. Its formats cut each row of a matrix into blocks. `Q8_0` has 32 int8 codes and one fp16 scale, $\max|w| / 127$, in 34 bytes. `Q4_0` has 32 codes of 4 bits in 18 bytes: the scale, and 16 bytes with two codes each. The scale $d$ is the weight of largest magnitude, *with its sign*, divided by −8. Codes are stored plus 8, so that they are 0 to 15: $w \approx d \cdot (\text{code} - 8)$. Byte j holds weight j in its low four bits and weight j + 16 in its high four. We read what `gguf`, the Python package of llama.cpp, wrote:

# %%
def unpack_q4_0(packed):
    """[blocks, 18] uint8 -> codes, 0 to 15, and weights, both [blocks, 32]."""
    scale = packed[:, :2].copy().view(np.float16).astype(np.float32)
    codes = np.hstack([packed[:, 2:] & 15, packed[:, 2:] >> 4])
    return codes, scale * (codes.astype(np.float32) - 8)

# %%
gguf_weight = float_weights["blocks.1.mlp.up.weight"].numpy()  # [384, 96]
packed_q4_0 = quants.quantize(gguf_weight, GGMLQuantizationType.Q4_0)
codes_q4_0, weights_q4_0 = unpack_q4_0(packed_q4_0.reshape(-1, 18))
largest = np.abs(gguf_weight.reshape(-1, 32)).argmax(axis=1, keepdims=True)
read_by_gguf = quants.dequantize(packed_q4_0, GGMLQuantizationType.Q4_0)
holds("the weights that gguf reads", weights_q4_0.reshape(384, 96) == read_by_gguf)
of_largest = np.take_along_axis(codes_q4_0, largest, axis=1)
holds("code of each block's largest weight", of_largest, 0)

# %% [markdown]
# The largest weight always has code 0, so $d$ is negative if that weight is positive. This makes use of the code that two's complement has on one side only: −8, but no +8. (The lab asks for the other direction: the bytes of `Q4_0` from weights.)
#
# These are the bytes of the first block of our matrix, as they are stored in a file:

# %%
def draw_bytes(axes, top, left, texts, color):
    """Cells of a byte each from ``left``, or of half a byte if a text is a pair."""
    for at, text in enumerate(texts, left):
        halves = text if isinstance(text, tuple) else (text,)
        for i, half in enumerate(halves):
            height = 0.9 / len(halves)
            box = (at, top - (i + 1) * height)
            look = {"fc": color, "ec": palette.PLOT_INK, "lw": 0.8}
            axes.add_patch(plt.Rectangle(box, 0.94, height, **look))
            ink = palette.PLOT_INK if color == "none" else palette.ink_on(color)
            middle = {"ha": "center", "va": "center", "size": 9}
            axes.text(at + 0.47, box[1] + height / 2, half, color=ink, **middle)

# %%
q4_0 = packed_q4_0.reshape(-1, 18)[0]
pairs_q4_0 = [(str(byte >> 4), str(byte & 15)) for byte in q4_0[2:]]
figure, axes = plt.subplots(figsize=(7, 1.8))
draw_bytes(axes, 2.6, 0, [f"{byte:02x}" for byte in q4_0[:2]], "none")
draw_bytes(axes, 2.6, 2, pairs_q4_0, palette.MEMORY["parameters"])
captions = {
    2.9: "Q4_0, 18 bytes: scale (hex), then 16 bytes of two codes",
    1.2: "above: high four bits, weights 16 to 31; below: low four, weights 0 to 15",
}
for height, text in captions.items():
    axes.text(0, height, text, size=9)
axes.set(xlim=(-0.1, 18.1), ylim=(1, 3.3))
axes.axis("off")
figure.tight_layout()

# %% [markdown]
# **K-quants** (`_K`) have larger blocks of 256 weights, divided into 8 or 16 small ones. Their scales are integers of 4 to 8 bits with an fp16 scale of their own: double quantization again. So `Q4_K` has room for a scale *and* a minimum for every 32 weights in the same 4.5 bits in which `Q4_0` has only a scale.

# %%
of_gguf = {
    name: GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    for name in FORMATS
    if name.startswith("Q")
}
ours = {name: (FORMATS[name].block, FORMATS[name].block_bytes) for name in of_gguf}
holds("weights and bytes of each GGUF block, as in the package", ours == of_gguf)

# %% [markdown]
# ## What a format costs
#
# Now all formats together. The error of a weight is not what we want to know: what happens to the loss? We put the dequantized matrices into the GPT and evaluate it on documentation, always on the same 4,096 tokens.

# %%
evaluation = data.batch(0, 32, 128)

def loss_with(weights):
    with torch.no_grad():
        return functional_call(float_gpt, weights, evaluation).item()

def as_gguf(name):
    """All matrices, rounded as this format rounds them."""
    kind, rounded = GGMLQuantizationType[name], {}
    for each, weight in float_weights.items():
        packed = quants.quantize(weight.numpy(), kind)
        rounded[each] = torch.from_numpy(quants.dequantize(packed, kind))
    return rounded

# %%
bf16 = {name: weight.bfloat16().float() for name, weight in float_weights.items()}
decoded = {"fp32": float_weights, "bf16": bf16}
decoded |= {"int8": absmax_everywhere(8, "block of 64")}
decoded |= {"nf4": nf4_weights, "nf4, double quantization": nf4_dq_weights}
# K-quants: only llama.cpp writes them
decoded |= {name: as_gguf(name) for name in of_gguf if not name.endswith("K")}
decoded |= {"int4": absmax_everywhere(4, "block of 64")}
decoded |= {"int4, one scale for a tensor": absmax_everywhere(4, "tensor")}
all_formats = FORMATS | {"int4": Format(64, 36)}
all_formats |= {"int4, one scale for a tensor": Format(1, 0.5)}

# %% [markdown]
# int4 and int8 are absmax in blocks of 64 with fp32 scales. (LLM.int8() has one scale for each row instead: at width 4,096, that is 8.01 bits.) **int4, NF4 and Q4_0 all take 4.5 bits. Which of them adds the least to the loss?**

# %%
options = ["int4", "NF4", "Q4_0"]
predicted_format = predict("The format of 4.5 bits with the least loss", options=options)
predicted_format

# %%
def cost_of(name):
    """Bits per weight, GB of 65 billion weights, error in % and loss, or None."""
    form, weights = all_formats[name], decoded.get(name)
    found = None, None
    if weights is not None:
        found = 100 * total_error(weights), loss_with(weights)
    return form.bits_per_weight, form.bytes_of(65e9) / 1e9, *found

# %%
by_bits = sorted(all_formats, key=lambda name: -all_formats[name].bits_per_weight)
costs = {name: cost_of(name) for name in by_bits}
added_loss = {name: costs[name][-1] - costs["fp32"][-1] for name in decoded}
best_format = min(("int4", "nf4", "Q4_0"), key=added_loss.get).replace("nf4", "NF4")
predicted_format.compare(
    best_format, {"what code points at quantiles would suggest": "NF4"}
)

# %%
columns = {"bits per weight": ".3f", "65 billion weights, GB": ".1f"}
columns |= {"error, %": ".2f", "loss": ".4f", "added loss": ".4f"}
show_table(
    {"format": "", **columns},
    [(name, *cost, added_loss.get(name)) for name, cost in costs.items()],
)
eight_bits = [abs(added_loss[name]) for name in ("int8", "Q8_0")]
holds("8 bits: change of the loss", eight_bits, below=0.005)
one_scale = added_loss["int4, one scale for a tensor"] / added_loss["int4"]
holds("4 bits: added loss with one scale, over blocks of 64", one_scale, above=4)
over_int4 = added_loss["nf4"] / added_loss["int4"]
holds("4 bits in blocks of 64: added loss of NF4 over int4", over_int4, below=0.8)
change = added_loss["nf4, double quantization"] - added_loss["nf4"]
holds("change of the loss by double quantization", abs(change), below=0.002)

# %% [markdown]
# (A dash marks K-quants, which only llama.cpp can write.) Q4_0 has smaller blocks than NF4: its scales have 16 bits, so half a bit pays for one in every 32 weights. With the same blocks and scales, NF4 is about equal to it:

# %%
nf4_in_32 = {
    n: nf4_weight(each, 32, torch.float16) for n, each in float_weights.items()
}
over_q4_0 = total_error(nf4_in_32) / total_error(decoded["Q4_0"])
holds("NF4 with Q4_0's blocks: error over Q4_0's", over_q4_0, 1, atol=0.05)

# %% [markdown]
# With 8 bits, the loss of this model hardly changes. (Changes as small as these are noise: a smaller error does not always come with a smaller loss.) With 4 bits, it matters where the scales and the code points are. Double quantization saves 0.37 bits, 3 GB of 65 billion weights, and the loss hardly changes.
#
# ## Rounding with feedback
#
# All formats so far round one weight after another to the nearest value. But what counts is the output of the layer, $XW^\top$. **GPTQ** ([Frantar et al., 2022](https://arxiv.org/abs/2210.17323)) rounds a matrix column by column. After each column it changes the columns that are *not yet rounded*, so that they make up for the error that this one adds to the output. With $H = X^\top X$ of some inputs X of the layer, if column j is off by $w_j - q_j$, the best change of the others is
#
# $$\delta = -\frac{w_j - q_j}{[H^{-1}]_{jj}} \, [H^{-1}]_{j,:}$$
#
# Afterwards column j is fixed, and $H^{-1}$ becomes the inverse without it. We take the activations recorded above: half of the tokens to compute H, the others to measure. Both ways round to the same evenly spaced values of each row. **Is the error of the weights, $\lVert W - Q\rVert$, larger or smaller with feedback?**

# %%
options = ["larger", "smaller", "equal"]
predicted_weight_error = predict("With feedback, the weights' error is", options=options)
predicted_weight_error

# %%
def round_to_nearest(weight, inputs, bits):
    return quantize_absmax(weight, bits, weight.shape[1])

def round_with_feedback(weight, inputs, bits):
    hessian = inputs.T @ inputs
    hessian += 0.01 * hessian.diagonal().mean() * torch.eye(len(hessian))
    inverse, most = hessian.inverse(), 2 ** (bits - 1) - 1
    step, rest = weight.abs().amax(1) / most, weight.clone()
    for j in range(weight.shape[1]):
        rounded = (rest[:, j] / step).round().clamp(-most, most) * step
        off = (rest[:, j] - rounded) / inverse[j, j]
        rest -= torch.outer(off, inverse[j])
        rest[:, j] = rounded
        inverse -= torch.outer(inverse[:, j], inverse[j]) / inverse[j, j]
    return rest

# %%
calibration, others = activations.chunk(2)
gptq_errors = {}
for bits in (4, 3):
    for rounding in (round_to_nearest, round_with_feedback):
        off = rounding(mlp_up, calibration, bits) - mlp_up
        of_outputs = rms(others @ off.T) / rms(others @ mlp_up.T)
        gptq_errors[bits, rounding.__name__] = rms(off) / rms(mlp_up), of_outputs
nearest_error, feedback_error = [each[0] for each in gptq_errors.values()][:2]
found = "larger" if feedback_error > nearest_error else "smaller"
predicted_weight_error.compare(found, {"what the error of the outputs is": "smaller"})

# %%
show_table(
    {"bits": "d", "": "", "error of the weights": ".1%", "of the outputs": ".1%"},
    [(*each, *errors) for each, errors in gptq_errors.items()],
)
plain, feedback = (np.array([*gptq_errors.values()])[i::2] for i in (0, 1))
of_weights, of_outputs = (feedback / plain).T
holds("feedback over plain rounding: error of the weights", of_weights, above=1.1)
holds("feedback over plain rounding: error of the outputs", of_outputs, below=0.85)

# %% [markdown]
# Rounding to nearest is by definition closest to W, so feedback can only increase the error of the weights. But the error of the outputs falls, even on inputs that were not used for calibration. So the error of the weights alone does not rank methods. (The real GPTQ has a Cholesky decomposition in place of our updates, and a scale for each group of weights. The paper quantizes 175 billion parameters in about 4 GPU-hours.)
#
# **AWQ** (Lin et al. 2023) also starts from activations, but only to choose scales. Before rounding, it multiplies the weights of the input channels with the largest activations by a factor above 1, and divides the inputs by the same factor. The product does not change, but the rounding error of these channels counts for less. **torchao**, PyTorch's own library for quantization, replaces the weights of linear layers in place: `quantize_(model, Int8WeightOnlyConfig())`. (We run neither here.)
#
# ## A kernel that dequantizes
#
# Fewer bits save memory. Do they also save time? When a model generates one token at a time, $Wx$ uses each weight once, in two operations, and a GPU reads weights far more slowly than it computes. So what counts is how many bytes are read from the GPU's memory.
#
# Our weights are int8 now, with one fp16 scale for 64 weights. Tensor cores multiply fp16 by fp16. There are two ways to use them. **Dequantize first** runs two kernels: one writes all of W in fp16 to memory, the second is the usual product. A **fused kernel** loads codes, converts them in registers, and multiplies. This is such a kernel in [Triton](https://triton-lang.org), a language in which you write what a *block* of threads does. (The kernel needs a GPU, so it does not run in this notebook; it was tested on one.)
#
# ```python
# @triton.jit
# def int8_matmul(x, codes, scales, y, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
#     """x [M, K] fp16, codes [K, N] int8, scales [K / GROUP, N] fp16 -> y [M, N] fp16"""
#     m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
#     n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
#     in_x, in_n = m[:, None] < M, n[None, :] < N
#     total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
#     for group in range(0, K // GROUP):
#         k = group * GROUP + tl.arange(0, GROUP)
#         part = tl.load(x + m[:, None] * K + k[None, :], mask=in_x, other=0.0)
#         code = tl.load(codes + k[:, None] * N + n[None, :], mask=in_n, other=0)
#         scale = tl.load(scales + group * N + n[None, :], mask=in_n, other=0.0)
#         weight = code.to(tl.float16) * scale  # fp16, in registers only
#         total = tl.dot(part, weight, total)
#     tl.store(y + m[:, None] * N + n[None, :], total.to(tl.float16), mask=in_x & in_n)
#
# grid = (triton.cdiv(M, 16), triton.cdiv(N, 64))
# int8_matmul[grid](x, codes, scales, y, M, N, K, BLOCK_M=16, BLOCK_N=64, GROUP=64)
# ```
#
# Each of the programs in `grid` computes a block of y. `x` and the others are pointers, `tl.load` reads a block from memory, and GROUP has to divide K. For each weight, the fused kernel reads 1 byte of codes. Dequantize first reads 1, writes 2 and reads 2 again: *more* than no quantization at all. If the memory's bandwidth is the limit, the time for one token follows. For 7 billion weights on an H100, whose memory moves at most 3.35 TB/s according to its data sheet:

# %%
GROUP, H100 = 64, DEVICES["H100"]
bytes_per_weight = {
    "fp16, no quantization": 2,
    "int8, dequantize first": 1 + 2 + 2 + 2 / GROUP,
    "int8, fused": 1 + 2 / GROUP,
    "4 bits, fused (Q4_0)": FORMATS["Q4_0"].bits_per_weight / 8,
}
rows = [(n, b, 1e3 * 7e9 * b / H100.memory_bytes_per_s) for n, b in bytes_per_weight.items()]
columns = {"bytes for each weight": ".2f", "minimum ms per token": ".2f"}
show_table({"weights": "", **columns}, rows, caption="Predicted from bandwidth alone")
reading_s = bytes_per_weight["int8, fused"] / H100.memory_bytes_per_s  # of one weight
computing_s = 2 / H100.flops_per_s  # one weight with one token
print(f"reading takes as long as computing with {reading_s / computing_s:.0f} tokens")

# %% [markdown]
# So quantization is faster only with a kernel that is written for it. With many tokens at once it is different, because each weight that is read is used for all of them: the same data sheet gives 989 TFLOP/s for fp16, so from about 150 tokens on arithmetic is the limit. In training, and for long prompts, there are thousands of tokens, and dequantizing is extra work. In that case a quantized base saves memory, not time.
#
# ## What to remember
#
# - Count the constants: in blocks of 64, int8 takes 8.5 bits, NF4 4.5, with double quantization 4.127. Embeddings, norms and biases stay as they are.
# - An integer's error follows the largest weight of its block, a floating-point code's error follows the weight itself.
# - Activations have outlier features: leave them out of int8, or quantize only the weights.
# - The error of the weights does not rank methods: compare outputs and the loss, on text that was not used for calibration.
# - Fewer bits save memory always, and time only with a fused kernel and few tokens.
#
# ## Sources
#
# - T. Dettmers, A. Pagnoni, A. Holtzman, L. Zettlemoyer: *QLoRA: efficient finetuning of quantized LLMs.* [arXiv 2305.14314](https://arxiv.org/abs/2305.14314), 2023. Section 3 on NF4 and double quantization.
# - T. Dettmers, M. Lewis, Y. Belkada, L. Zettlemoyer: *LLM.int8(): 8-bit matrix multiplication for transformers at scale.* [arXiv 2208.07339](https://arxiv.org/abs/2208.07339), 2022.
# - P. Micikevicius et al.: *FP8 formats for deep learning.* [arXiv 2209.05433](https://arxiv.org/abs/2209.05433), 2022.
# - B. D. Rouhani et al.: *Microscaling data formats for deep learning.* [arXiv 2310.10537](https://arxiv.org/abs/2310.10537), 2023. MXFP4 is part of the OCP Microscaling specification.
# - NVIDIA: *Pretraining large language models with NVFP4.* [arXiv 2509.25149](https://arxiv.org/abs/2509.25149), 2025.
# - E. Frantar, S. Ashkboos, T. Hoefler, D. Alistarh: *GPTQ: accurate post-training quantization for generative pre-trained transformers.* [arXiv 2210.17323](https://arxiv.org/abs/2210.17323), 2022.
# - J. Lin et al.: *AWQ: activation-aware weight quantization for LLM compression and acceleration.* [arXiv 2306.00978](https://arxiv.org/abs/2306.00978), 2023.
# - P. Tillet, H. T. Kung, D. Cox: *Triton: an intermediate language and compiler for tiled neural network computations.* MAPL 2019. The [language](https://triton-lang.org).
# - NVIDIA: data sheets of the [A100](https://www.nvidia.com/en-us/data-center/a100/) (int8 at twice bf16's peak) and the [H100](https://www.nvidia.com/en-us/data-center/h100/) SXM (3.35 TB/s, 989 TFLOP/s).
# - llama.cpp: [the GGUF format](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). FP8 in practice: [torchao](https://github.com/pytorch/ao) and its issue 1297, and [torchtitan](https://github.com/pytorch/torchtitan).
