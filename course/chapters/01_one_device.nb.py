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
# # 01 · One device
#
# Before training is spread over many devices, a **step** has to fit on one: a forward pass that computes the loss, a backward pass that computes a gradient for each parameter, and an optimizer that updates the parameters.
#
# The questions of this chapter: what fills memory during a step, and when? And what can be made smaller without changing what the model learns?
#
# **After this chapter you can**
#
# - say what fills a device's memory during a training step, and at which moment;
# - train in 16 bits without losing small gradients or small updates;
# - accumulate micro-batches of different lengths and get the gradient of the whole batch.
#
# **You need:** [00 Start here](00_start_here.ipynb).

# %% [markdown]
# <details open><summary>The memory of one training step rises in forward and falls in backward</summary>
#
# [![Animation: The memory of one training step rises in forward and falls in backward](openers/01_one_device.svg)](openers/01_one_device.svg)
#
# The parameters and the optimizer's states stay in memory. Forward adds activations, layer by layer; backward frees them as it computes the gradients. At most 28.2 MiB are live at one time. (Recorded from real processes.)
#
# </details>

# %% jupyter={"source_hidden": true}
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

from shardlab import data, holds, launch, models, show_table
from shardlab.estimate import memory
from shardlab.widgets import format_bytes, memory_timeline, palette, predict

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# Our model is a small GPT that reads text byte by byte: plain PyTorch, in `shardlab/models/decoder.py`. The text is Python's own language reference, which ships with every Python. **Ψ** is the number of parameters.

# %%
config = models.SIZES["1M"]
parameters = models.count_parameters(models.gpt("1M"))
print(config)
print(f"Ψ = {parameters:,}")

# %% [markdown]
# ## First: does it learn?
#
# We train the smallest GPT for 300 steps. An untrained model considers all 256 bytes equally likely, so its loss is ln 256 = 5.5.

# %%
def learn(steps):
    torch.manual_seed(0)
    model, losses = models.gpt("0.1M"), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        loss = model(*data.batch(step, batch_size=4, context=64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()

# %%
run = launch(learn, 300, world_size=1, device="cpu", timeout_s=100)
losses, learned = run.outputs[0]
holds("the loss starts at ln 256", losses[0], np.log(256), atol=0.2)
holds("it learns: mean loss of the last 20 steps", np.mean(losses[-20:]), below=4)

# %%
figure, axes = plt.subplots(figsize=(7, 3))
axes.plot(losses, color=palette.MEASURED, linewidth=1)
axes.axhline(np.log(256), color=palette.PREDICTED, linestyle="--", label="untrained: ln 256")
axes.set(xlabel="step", ylabel="loss")
axes.legend(frameon=False)
figure.tight_layout()

# %% [markdown]
# ## Where a step's memory goes
#
# `train` takes two steps with Adam. Everything is fp32, 4 bytes per number, until we say otherwise.

# %%
def train(size="1M", batch_size=8, context=64, dtype=torch.float32, autocast=None, steps=2):
    torch.manual_seed(0)
    model = models.gpt(size).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        tokens, targets = data.batch(step, batch_size, context)
        optimizer.zero_grad()
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
    return model

# %% [markdown]
# We run it on one rank and count its live tensors. Each byte belongs to one **category**: parameters, gradients, the optimizer's states, or **activations**, which the forward pass computes and the backward pass needs again. **In which phase will memory be highest?**

# %%
predicted_phase = predict("The phase with the highest memory", options=["forward", "backward", "step"])
predicted_phase

# %%
def measure(**setting):
    def without_result():
        train(**setting)
    return launch(without_result, world_size=1, memory=True, device="cpu")

run = measure()

# %%
predicted_phase.compare(run.memory[0].peak_phase)

# %%
memory_timeline(run)

# %% [markdown]
# Activations accumulate during the forward pass, layer by layer. The backward pass goes through the layers in reverse, uses activations to compute gradients, and frees them. So the peak is where forward ends and backward begins. The optimizer's states appear in the first step and stay: that is why we need at least two steps.

# %%
def row(moment, live):
    return moment, *(live[name] if live[name] > 999 else None for name in palette.MEMORY)

moments = ("forward", "backward", "step")
show_table(
    {"after": "", **dict.fromkeys(palette.MEMORY, format_bytes)},
    [row(moment, run.memory[0].at(moment)) for moment in moments],
)

# %% [markdown]
# ## What stays: 16 bytes for each parameter
#
# Parameters, gradients and optimizer states are the **model states**. Adam keeps two numbers for each parameter, a running mean of its gradients and one of their squares. In fp32 that is 4Ψ + 4Ψ + 8Ψ:

# %%
predicted = memory.model_states(parameters, precision="fp32", optimizer="adam").device
measured = run.memory[0].at("step")
pairs = {category: (expected, measured[category]) for category, expected in predicted.items()}
show_table(
    {"model states": "", "predicted, bytes": ",.0f", "measured, bytes": ",d"},
    [(category, *pair) for category, pair in pairs.items()],
)
holds("each kind takes 4Ψ, 4Ψ and 8Ψ bytes", [m for _, m in pairs.values()], list(predicted.values()), rtol=0.01)

# %% [markdown]
# The optimizer's few extra bytes are Adam's step counters, one for each tensor. The token embedding and the output head of this GPT are one **tied** tensor: it has one storage, one gradient, one pair of states, and is counted once. None of this depends on the batch.
#
# ## What comes and goes: activations
#
# **By which factor does the peak grow** when the batch is twice as large?

# %%
predicted_factor = predict("Factor by which the peak grows")
predicted_factor

# %%
larger = measure(batch_size=16)
factor = larger.memory[0].peak_bytes / run.memory[0].peak_bytes
activations = [each.memory[0].at("forward")["activations"] for each in (run, larger)]

# %%
predicted_factor.compare(factor, {"by how much the activations grow": activations[1] / activations[0]})

# %%
memory_timeline({"batch 8": run, "batch 16": larger})

# %% [markdown]
# Less than twice, because the model states do not grow. Only the activations are twice as large. Can they be predicted as well?
#
# The backward pass of a matrix product needs its inputs, so autograd saves them. Go through one block of the GPT (`models.py`) and count what is saved for each token. D is the width:
#
# | saved | numbers |
# |---|---|
# | the input of both layer norms | 2 D |
# | the output of both: input of the next matrix | 2 D |
# | queries, keys and values | 3 D |
# | attention's output: input of its last matrix | D |
# | the input of GELU, four times as wide | 4 D |
# | the output of GELU: input of the last matrix | 4 D |
# | a mean and an inverse standard deviation for each layer norm; one number for each attention head | 4 + heads |
#
# That is 16 D and a little more. After the last block come one more layer norm, 2 D + 2, and the log-probabilities that the loss saves, V of them, one for each entry of the vocabulary.

# %%
def activation_bytes(config, tokens, element_bytes=4):
    per_block = 16 * config.width + 4 + config.heads
    after_blocks = 2 * config.width + 2 + config.vocabulary
    return tokens * (config.layers * per_block + after_blocks) * element_bytes

# %%
runs = {(8, 64): run, (16, 64): larger, (8, 128): measure(context=128)}
runs[4, 32] = measure(batch_size=4, context=32)
rows = [
    (batch_size, context, activation_bytes(config, batch_size * context),
     each.memory[0].at("forward")["activations"])
    for (batch_size, context), each in runs.items()
]
show_table({"batch": "d", "tokens": "d", "predicted, bytes": ",d", "measured, bytes": ",d"}, rows)
*_, predicted, measured = zip(*rows)
holds("activations after forward", measured, predicted, rtol=0.001, unit="bytes")

# %% [markdown]
# Korthikanti et al. (2022) count the same for 16-bit training: 34 bytes for each token, layer and unit of width. Those are our 16 numbers of 2 bytes, and 2 more bytes for dropout masks, which this model does not use. Their additional term, 5·*a*·*s*/*h* for *a* heads, *s* tokens and width *h*, is the attention scores, *s* of them for each token and head. With this term, attention grows with the square of the sequence length. Fused attention, `scaled_dot_product_attention`, recomputes the scores in the backward pass. So here twice the batch and twice the sequence length cost the same memory:

# %%
figure, axes = plt.subplots(figsize=(7, 3.4))
tokens = np.array([batch_size * context for batch_size, context in runs])
line = np.linspace(0, 1100)
states_bytes = 12 * parameters  # gradients appear as activations are freed
axes.plot(line, (states_bytes + activation_bytes(config, line)) / 2**20, color=palette.PREDICTED)
peaks = [each.memory[0].peak_bytes / 2**20 for each in runs.values()]
axes.plot(tokens, peaks, "o", color=palette.MEASURED)
axes.set(xlabel="tokens in the batch: sequences × length", ylabel="peak, MiB", ylim=(0, None))
axes.legend(["12Ψ + activations", "measured peak"], frameon=False)
figure.tight_layout()

# %% [markdown]
# The points lie a little above the line: at the peak, the first steps of the backward pass need temporary tensors, such as the gradient of all logits. The timeline shows them as "other".

# %%
at_peak = [each.memory[0].at("peak") for each in runs.values()]
rest = [sum(live.values()) - live["other"] - live["activations"] for live in at_peak]
show_table(
    {"batch": "d", "tokens": "d", "peak": format_bytes, "of which other": format_bytes},
    [(*size, sum(live.values()), live["other"]) for size, live in zip(runs, at_peak)],
)
holds("bytes of gradients at the peak: hardly any exist", [live["gradients"] for live in at_peak], below=parameters)
holds("without activations and other, the peak is 12Ψ bytes", rest, states_bytes, atol=parameters)

# %% [markdown]
# ## Half the bytes for each number
#
# A 16-bit number needs half the memory, and GPUs multiply matrices of them faster. What shrinks depends on what is 16-bit. Here are two ways, both with **bf16**, one of the two 16-bit formats (more on them below):
#
# - the whole model in bf16, `model.to(torch.bfloat16)`;
# - **autocast**: the parameters stay fp32, and matrix products and their results are 16-bit.
#
# **How many bytes for each parameter will the model states take under autocast?** In fp32 it was 16.

# %%
predicted_bytes = predict("Bytes of model states for each parameter, under autocast", unit="bytes")
predicted_bytes

# %%
precisions = {
    "fp32": run,
    "bf16 autocast": measure(autocast=torch.bfloat16),
    "bf16": measure(dtype=torch.bfloat16),
}

# %%
def states_and_activations(log):
    states = sum(log.at("step")[category] for category in ("parameters", "gradients", "optimizer"))
    return states / parameters, log.at("forward")["activations"]

# %%
states_bytes = {name: states_and_activations(each.memory[0])[0] for name, each in precisions.items()}
named = {"what the whole model takes in bf16": states_bytes["bf16"]}
predicted_bytes.compare(states_bytes["bf16 autocast"], named)

# %%
show_table(
    {"precision": "", "model states, bytes for each parameter": ".2f", "activations": format_bytes},
    [(name, *states_and_activations(each.memory[0])) for name, each in precisions.items()],
)

# %%
memory_timeline(precisions)

# %% [markdown]
# Autocast shrinks only the activations, and by less than half: layer norms and the sums along the residual path stay fp32, and the backward pass needs 16-bit copies of the weights. With the whole model in bf16, everything is halved, including the optimizer's states. The next sections ask whether that still trains.
#
# Large models usually train in a third way: parameters and gradients are 16-bit, and the optimizer keeps fp32 **master weights** and fp32 states, 2 + 2 + (4 + 8) bytes for each parameter. That is 16 again! The savings are in the activations, and in every byte that is sent (chapters 02 and 04).

# %%
mixed = memory.model_states(parameters, precision="bf16", optimizer="adam").device
show_table(
    {"with master weights": "", "bytes for each parameter": ".0f"},
    [(category, size / parameters) for category, size in mixed.items()],
)
holds("bytes for each parameter", sum(mixed.values()) / parameters, 16)

# %% [markdown]
# ## Two 16-bit formats: range versus precision
#
# A floating-point number has a sign, an exponent, which sets its magnitude, and a mantissa, its digits. fp16 gives 5 bits to the exponent and 10 to the mantissa; bf16 has 8 and 7: the same exponent as fp32.

# %%
limits = [torch.finfo(dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)]
show_table(
    {"format": "", "largest": ".5g", "smallest above 0": ".2g", "from 1 to the next": ".2g"},
    [(each.dtype, each.max, each.smallest_normal * each.eps, each.eps) for each in limits],
)

# %% [markdown]
# ### fp16: small gradients become 0
#
# The loss is a mean over all tokens, so each token's gradient is divided by their number: gradients are small. Take the trained model, a batch of 8 × 64, and look at the gradient of the logits, the first that the backward pass computes. **What fraction of it is 0 in fp16?**

# %%
predicted_fraction = predict("Fraction of the logits' gradient that is 0 in fp16", maximum=1)
predicted_fraction

# %%
def gradients(dtype, scale):
    """Multiply the loss by scale before the backward pass, divide the gradients after it."""
    model = models.gpt("0.1M")
    model.load_state_dict(learned)
    tokens, targets = data.batch(1000)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    logits_grad, *rest = torch.autograd.grad(loss * scale, [logits, *model.parameters()])
    return logits_grad, torch.cat([gradient.flatten() for gradient in rest]) / scale

# %%
SETTINGS = {
    "fp32": (torch.float32, 1.0),
    "fp16": (torch.float16, 1.0),
    "fp16, gradients 1024 times smaller": (torch.float16, 2.0**-10),
    "fp16, loss times 4096": (torch.float16, 2.0**12),
    "bf16": (torch.bfloat16, 1.0),
}
run = launch(lambda: [gradients(*each) for each in SETTINGS.values()], world_size=1, device="cpu")

# %%
logits_grads, parameter_grads = zip(*run.outputs[0], strict=True)
zeros = [(gradient == 0).float().mean().item() for gradient in logits_grads]
exact = parameter_grads[0]
errors = [((gradient - exact).norm() / exact.norm()).item() for gradient in parameter_grads]

# %%
predicted_fraction.compare(zeros[1])

# %%
show_table(
    {"computed in": "", "zeros in the logits' gradient": ".1%", "error of the parameters' gradient": ".2%"},
    zip(SETTINGS, zeros, errors, strict=True),
)
holds("the share of zeros in fp16", zeros[1], above=0.2)
holds("the error of the scaled gradient, below that of the plain one", errors[3], below=errors[1])

# %% [markdown]
# A large part of the logits' gradient is 0 in fp16 but not in fp32: that information is lost. The smallest gradients are lost first, so the parameters' gradient, which sums them up, is still nearly right. That changes when gradients are 1024 times smaller, as in a batch of 1024 times as many tokens.
#
# The fix is simple: the chain rule is linear, so multiplying the loss by a **scale** multiplies every gradient by it and lifts them into the range of fp16. Before the optimizer's step they are divided by it again, in fp32. bf16 has the range of fp32, so nothing underflows to 0; its error comes from having fewer digits.
#
# ### fp16: large gradients become inf
#
# Why not use a huge scale? Because the largest fp16 number is 65,504; anything beyond becomes inf. One inf in a gradient would turn the parameters into inf or nan, permanently. So the scale is adjusted **dynamically** during training: if a gradient is inf or nan, skip the step and halve the scale; after a number of steps without overflow, double it. `torch.amp.GradScaler` does this. We start with a scale that is far too high and let it grow after 5 good steps (the default is 2000):

# %%
def with_grad_scaler(steps):
    torch.manual_seed(0)
    model = models.gpt("0.1M")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=5)
    batches = [data.batch(step, 2, 32) for step in range(steps)]
    return [scaled_step(model, optimizer, scaler, batch) for batch in batches]

# %%
def max_or_nan(gradients):
    return torch.stack([gradient.abs().max() for gradient in gradients]).max().item()

# %%
def scaled_step(model, optimizer, scaler, batch):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = model(*batch)
    scaler.scale(loss).backward()
    largest = max_or_nan(parameter.grad for parameter in model.parameters())
    scale, before = scaler.get_scale(), model.norm.bias.detach().clone()
    scaler.step(optimizer)  # divides the gradients by the scale, or skips
    scaler.update()
    return scale, largest, torch.equal(before, model.norm.bias)

# %%
history = launch(with_grad_scaler, 24, world_size=1, device="cpu").outputs[0]
show_table(
    {"step": "d", "log₂ of the scale": ".0f", "largest gradient": ".3g", "the step is": ""},
    [
        (step, np.log2(scale), largest, "skipped" if unchanged else "updated")
        for step, (scale, largest, unchanged) in enumerate(history[:8])
    ],
)

# %%
scales = np.log2([scale for scale, _, _ in history])
skipped = np.array([unchanged for _, _, unchanged in history])
figure, axes = plt.subplots(figsize=(7, 3))
axes.step(range(24), scales, where="post", color=palette.MEASURED, label="scale")
skipped_steps = np.flatnonzero(skipped)
axes.plot(skipped_steps, scales[skipped_steps], "x", color=palette.ERROR, label="overflow: skipped")
axes.set(xlabel="step", ylabel="log₂ of the scale")
axes.legend(frameon=False)
figure.tight_layout()

# %%
overflowed = ~np.isfinite([largest for _, largest, _ in history])
holds("a step is skipped where a gradient overflowed, and only there", skipped == overflowed)
holds("a skipped step changes log₂ of the scale by", np.diff(scales)[skipped[:-1]], -1)

# %% [markdown]
# At first the gradients overflow, and the scale is halved until they fit. Later it grows until they overflow again, and is halved again: a lost step now and then is the price of keeping the scale as large as possible.
#
# ### When one rank overflows
#
# With DDP (chapter 02), gradients are summed over ranks before the scaler looks at them: an inf on one rank is an inf on all, and all skip. When each rank keeps only its own part of the gradients (its **shard**), as with ZeRO, the others do not see the inf. Below, only rank 1 overflows, in its second step:

# %%
def own_scaler_on_each_rank():
    rank = torch.distributed.get_rank()
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    for step in range(4):
        optimizer.zero_grad()
        factor = 1000.0 if (rank, step) == (1, 1) else 1.0
        scaler.scale((weight.half() * factor).float()).backward()
        scaler.step(optimizer)
        scaler.update()
    return weight.item(), scaler.get_scale()

# %%
run = launch(own_scaler_on_each_rank, world_size=2, device="cpu")
show_table(
    {"rank": "d", "weight after 4 steps": ".1f", "scale": ".0f"},
    [(rank, weight, scale) for rank, (weight, scale) in enumerate(run.outputs)],
)

# %% [markdown]
# The ranks now have different scales and have taken different numbers of steps: their shards no longer belong to one model. The ranks have to agree before every step. That costs one all-reduce of one number. DeepSpeed's fp16 optimizers do this, and so does `ShardedGradScaler` of FSDP1, the older of PyTorch's two FSDPs. With its successor FSDP2 the plain `GradScaler` is enough: there gradients are **DTensors**, tensors that know how they are split, and for these PyTorch all-reduces the result of the check (`found_inf_reduce_handler` in `torch/distributed/tensor/_dispatch.py`). In the lab you will do it yourself.
#
# ### bf16: small updates vanish
#
# bf16 pays for its range with precision. Between 1 and 2 its numbers are 2⁻⁷ = 0.0078 apart, just below 1 half as far. What happens to a weight near 1 when each Adam step moves it by about the learning rate, 0.001? Layer-norm weights start at exactly 1. **How many of the model's 320 layer-norm weights have moved after 10 steps, in bf16?**

# %%
predicted_moved = predict("Layer-norm weights, of 320, that have moved after 10 steps in bf16", maximum=320)
predicted_moved

# %%
def norm_weights_after(dtype, steps):
    model = train(size="0.1M", dtype=dtype, batch_size=2, steps=steps)
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    return torch.cat([norm.weight.detach() for norm in norms])

# %%
after = {
    dtype: launch(norm_weights_after, dtype, 10, world_size=1, device="cpu").outputs[0]
    for dtype in (torch.bfloat16, torch.float32)
}

# %%
in_bf16, in_fp32 = ((weights != 1).sum().item() for weights in after.values())
predicted_moved.compare(in_bf16, {"how many move in fp32": in_fp32}, source="counted")

# %%
show_table(
    {"format": str, "weights": "d", "moved": "d", "largest change": ".4f"},
    [(dtype, len(w), (w != 1).sum().item(), (w - 1).abs().max().item()) for dtype, w in after.items()],
)

# %% [markdown]
# The gradients exist and the updates are computed, but 1 − 0.001 is rounded back to 1, step after step. That is what fp32 master weights are for: the update is added to the master, and the 16-bit weight is the rounded master.

# %%
ends = {}
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    weight = torch.ones((), dtype=dtype)
    for _ in range(1000):
        weight -= 0.0005
    ends[dtype] = weight.item()
show_table({"format": str, "1 − 1000 · 0.0005": ".4f"}, ends.items())

# %% [markdown]
# fp16 has more digits than bf16, so its weight moves, but in rounded steps: it ends up somewhere else. Both formats need master weights; only fp16 needs a loss scale.

# %%
holds("in bf16 the weight has not moved", ends[torch.bfloat16], 1)
holds("in fp32 the weight has reached 0.5", ends[torch.float32], 0.5, atol=1e-4)

# %% [markdown]
# ## A batch that does not fit: accumulation
#
# Activations grow with the batch, and the backward pass adds to what is already in `.grad`. So a batch can be split into **micro-batches**: forward and backward for each, one optimizer step at the end. Only one micro-batch's activations are live at a time. Here are eight sequences, in one piece and in four pieces of two:

# %%
def gradient_of(model, parts):
    """The mean of the parts' gradients, one after the other  ->  [Ψ]"""
    model.zero_grad()
    for tokens, targets in parts:
        loss = model(tokens, targets)
        (loss / len(parts)).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

# %%
def accumulate(pieces):
    torch.manual_seed(0)
    tokens, targets = data.batch(0, batch_size=8, context=64)
    parts = zip(tokens.chunk(pieces), targets.chunk(pieces), strict=True)
    return gradient_of(models.gpt("1M"), list(parts))

# %%
pieces = {"1 × 8": 1, "4 × 2": 4}
runs = {
    name: launch(accumulate, count, world_size=1, memory=True, device="cpu")
    for name, count in pieces.items()
}
memory_timeline(runs)

# %%
whole, split = runs.values()
difference = (whole.outputs[0] - split.outputs[0]).abs().max()
show_table(
    {"pieces": "", "activations at most": format_bytes},
    [(name, each.memory[0].peak_of("activations")) for name, each in runs.items()],
)
holds("largest difference between the two gradients", difference, below=1e-6)

# %% [markdown]
# The same gradient with a quarter of the activations. The price is time: the matrix products are smaller, and there are more of them.
#
# ### Uneven micro-batches
#
# Often not all targets count. Padding does not, and in instruction tuning the prompt does not: their targets are set to −100, which the loss ignores. Micro-batches then have different numbers of tokens that count. Here the sequences of the four parts keep 64, 48, 16 and 4 targets each:

# %%
tokens, targets = data.batch(0, batch_size=8, context=64)
for part, keep in zip(targets.chunk(4), (64, 48, 16, 4), strict=True):
    part[:, keep:] = models.IGNORE
parts = list(zip(tokens.chunk(4), targets.chunk(4), strict=True))
counted = torch.tensor([(part != models.IGNORE).sum().item() for _, part in parts])
print("targets that count:", counted.tolist())

# %%
torch.manual_seed(0)
model = models.gpt("0.1M")
right = gradient_of(model, [(tokens, targets)])
mean_of_means = gradient_of(model, parts)
print(f"mean of means: off by {(mean_of_means - right).norm() / right.norm():.0%}")

# %% [markdown]
# The loss is a mean over tokens, and a **mean of means is a different number**: it gives a token of the last part 16 times the weight of a token of the first. There is no error and no warning, and training goes on with wrong gradients. Several libraries did exactly that until 2024 (see [Unsloth's note](https://unsloth.ai/blog/gradient)). The right weight of part i is its share of the tokens, nᵢ/n:

# %%
shares = counted / counted.sum()
gradients_of_parts = [gradient_of(model, [part]) for part in parts]
by_tokens = sum(share * each for share, each in zip(shares, gradients_of_parts, strict=True))
off = (by_tokens - right).norm() / right.norm()
holds("weighted by tokens: off by", off, below=1e-5)

# %% [markdown]
# ## In practice
#
# | here | usual calls |
# |---|---|
# | 16-bit activations | `with torch.autocast("cuda", dtype=torch.bfloat16):` around the forward pass and the loss |
# | a loss scale for fp16 | `torch.amp.GradScaler("cuda")`: `scale`, `step`, `update` as above |
# | 16-bit weights with masters | DeepSpeed's `"bf16": {"enabled": true}`; FSDP2's `MixedPrecisionPolicy` keeps fp32 shards and gathers 16-bit copies |
# | accumulation | a loop, as above; `gradient_accumulation_steps` in DeepSpeed, `accelerator.accumulate(model)` in Accelerate: check how each weights micro-batches |
# | the peak | `torch.cuda.max_memory_allocated()` |
#
# What differs on a GPU: autocast defaults to fp16 there, to bf16 on a CPU. PyTorch caches freed memory for reuse, so `nvidia-smi` shows more than is live, and CUDA itself needs memory as well. A GPU has 16-bit matrix units; on many CPUs 16-bit arithmetic is slower than 32-bit, which is why we looked at bytes here and not at seconds.
