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
# # 12 · LoRA and quantization
#
# Training took 16 bytes for each parameter ([chapter 01](01_one_device.ipynb)), and every chapter since then has divided these bytes among ranks. This chapter reduces their number. **LoRA** freezes the weights and trains two small matrices next to each of them: gradients, optimizer states and messages shrink by a factor of hundreds. **Quantization** stores frozen weights in 8 or 4 bits. Together, as **QLoRA**, they can fine-tune a 65-billion-parameter model on one 48 GB GPU.
#
# The question of this chapter: what is saved, in bytes that you can count, and what does it cost in loss?
#
# **The short route**: *LoRA: train two thin matrices* to *What DDP sends*, then *Fewer bits* to *More scales*, *What a format costs*, *QLoRA: adapters on a 4-bit base* to *Training*, *Gradients have to be added*, and *Which method?* Run all cells, and come back to the rest when you need a format, a pitfall or a kernel.
#
# **After this chapter you can**
#
# - say what LoRA trains, stores and sends, and choose rank and modules for a task;
# - quantize weights to 8 and 4 bits, byte for byte as bitsandbytes and GGUF do, and predict the error;
# - fine-tune with QLoRA, and say which bytes it removes and which it leaves.
#
# **You need:** [05 FSDP](05_fsdp.ipynb) and [09 Activation checkpointing](09_activation_checkpointing.ipynb).

# %% [markdown]
# <details open><summary>LoRA leaves almost no gradients and optimizer states, and QLoRA shrinks the weights</summary>
#
# [![Animation: LoRA leaves almost no gradients and optimizer states, and QLoRA shrinks the weights](openers/12_lora_quantization.svg)](openers/12_lora_quantization.svg)
#
# The memory of one training step of the same GPT, three times. Full fine-tuning keeps a gradient and two optimizer states for each parameter. LoRA freezes the parameters, so that only its small matrices have them. QLoRA also stores the frozen matrices in 4 bits. Activations remain. Peak memory is 49.5 MiB, 21.5 MiB and 11.0 MiB. (Recorded from real processes. [Play it again](openers/12_lora_quantization.svg))
#
# </details>

# %%
import copy
import functools
import inspect
import logging
import math
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from statistics import NormalDist
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np

# %%
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import torch
import torch.distributed as dist
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

# %%
from shardlab import data, holds, launch, measure, models, show_table
from shardlab.estimate import collectives, lora, memory, quantization
from shardlab.estimate.quantization import FORMATS
from shardlab.models import pretrained
from shardlab.widgets import lora_shapes, palette, predict, quantization_grid

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# ## LoRA: train two thin matrices
#
# Fine-tuning adds a change $\Delta W$ to each weight matrix $W$ of a trained model. **LoRA**, *low-rank adaptation*, writes the change as a product of two thin matrices: $W + \frac{\alpha}{r} B A$. For $W$ with the shape (rows, columns), $B$ has the shape (rows, $r$) and $A$ has ($r$, columns). The **rank** $r$ of this **adapter** is small. It has nothing to do with the N ranks of a process group.
#
# $W$ is **frozen**: `requires_grad` is `False`. Only $A$ and $B$ are trained. $\frac{\alpha}{r}$ is a constant factor. The paper sets $\alpha$ to the first rank it tries, and keeps it when the rank changes.

# %%
class LoRALinear(nn.Module):
    """base(x) + α/r · B(A x), with the base frozen: x [..., columns] -> [..., rows]"""

    def __init__(self, base, r, alpha):
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), alpha / r
        self.A = nn.Parameter(torch.empty(r, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))  # as peft and nn.Linear do

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.A.T @ self.B.T)

# %% [markdown]
# $x A^\top B^\top$ is computed from the left, so that no matrix of the size of $W$ is formed. We give an adapter to every linear layer in the blocks of a GPT that was trained on Python's documentation. The embeddings and the head, which share one matrix, and the norms are frozen without an adapter.

# %%
ATTENTION = ("attention.qkv", "attention.out")
ALL_LINEARS = (*ATTENTION, "mlp.up", "mlp.down")
LORA_ALPHA = 16

def replace_linears(gpt, make, targets=ALL_LINEARS):
    """Replaces these layers of each block by ``make(layer)``."""
    for block in gpt.blocks:
        for target in targets:
            block.set_submodule(target, make(block.get_submodule(target)))

# %%
def with_lora(r, targets=ALL_LINEARS, alpha=LORA_ALPHA):
    """The trained GPT with adapters; with r=None, no adapters and nothing frozen."""
    torch.manual_seed(0)  # the same A on every process
    gpt = pretrained.gpt()
    if r is not None:
        gpt.requires_grad_(False)
        replace_linears(gpt, lambda linear: LoRALinear(linear, r, alpha), targets)
    return gpt

def trainable(module):
    return [parameter for parameter in module.parameters() if parameter.requires_grad]

# %% [markdown]
# $A$ is random and $B$ is 0, so the product is 0: training starts exactly at the trained model.

# %%
lora_batch = data.batch(0, 8, 64, text="code")
with torch.no_grad():
    before, after = pretrained.gpt()(lora_batch[0]), with_lora(r=4)(lora_batch[0])
holds("logits with new adapters are bit-equal", torch.equal(before, after))

# %% [markdown]
# If both factors started at 0, they would never learn. The gradient of $B$ contains $A$ as a factor, and that of $A$ contains $B$. So in the first step only $B$ gets a nonzero gradient:

# %%
first = with_lora(r=4)
first(*lora_batch).backward()
gradients = {name: parameter.grad for name, parameter in first.named_parameters() if parameter.requires_grad}
largest = {end: max(g.abs().max().item() for name, g in gradients.items() if name.endswith(end)) for end in "AB"}
holds("largest gradient of any A", largest["A"], 0)
holds("largest gradient of any B", largest["B"], above=0)

# %% [markdown]
# The other two initializations go wrong. With both factors at 0 no adapter gets a nonzero gradient, and with both random the model has changed before the first step:

# %%
both_zero, both_random = with_lora(r=4), with_lora(r=4)
with torch.no_grad():
    for parameter in trainable(both_zero):
        parameter.zero_()
    for parameter in trainable(both_random):
        nn.init.kaiming_uniform_(parameter, a=math.sqrt(5))
both_zero(*lora_batch).backward()
loss_at_start = [gpt(*lora_batch).item() for gpt in (pretrained.gpt(), both_random)]
holds("both 0: largest gradient of any adapter", max(p.grad.abs().max() for p in trainable(both_zero)), 0)
holds("both random: loss before the first step, minus the model's", loss_at_start[1] - loss_at_start[0], above=0.1)

# %% [markdown]
# ### What is trained, stored and held
#
# An adapter has $r \cdot (\text{rows} + \text{columns})$ elements, where $W$ has $\text{rows} \cdot \text{columns}$. For each trained element a step holds the element, its gradient and Adam's two states, all in fp32. We take one step of Adam and count the bytes of each:

# %%
def bytes_of(tensors):
    return sum(tensor.nbytes for tensor in tensors)

def bytes_after_a_step(model, loss_of=lambda gpt: gpt(*lora_batch)):
    """Bytes of: all weights, the trained ones (which a checkpoint stores), gradients, Adam's states."""
    trained = trainable(model)
    adam = torch.optim.AdamW(trained, lr=1e-3)
    loss_of(model).backward()
    adam.step()
    states = [state[name] for state in adam.state.values() for name in ("exp_avg", "exp_avg_sq")]
    return bytes_of(model.parameters()), bytes_of(trained), bytes_of(p.grad for p in trained), bytes_of(states)

# %%
shapes = [linear.weight.shape for linear in pretrained.gpt().blocks.modules() if isinstance(linear, nn.Linear)]
psi = models.count_parameters(pretrained.gpt())
held = {"full": bytes_after_a_step(with_lora(None))}
held |= {f"LoRA, r {r}": bytes_after_a_step(with_lora(r)) for r in (1, 4, 16)}
held_columns = ("all weights", "trained, stored", "gradients", "Adam's states")
show_table(
    {"bytes": "", **dict.fromkeys(held_columns, ",d"), "share trained": ".2%"},
    [(name, *each, each[1] / 4 / psi) for name, each in held.items()],
)
for r in (1, 4, 16):
    _, *of_adapters = held[f"LoRA, r {r}"]
    predicted = lora.trained_bytes(lora.adapter_parameters(shapes, r))
    holds(f"r {r}: adapters, gradients and states", sum(of_adapters), predicted, unit="bytes")

# %% [markdown]
# All weights remain in memory, and the adapters are added to them. What shrinks are the gradients, the optimizer states, and the file that is stored for each task. (In a small model the share is large, because $r \cdot (\text{rows} + \text{columns})$ grows with the width and $\text{rows} \cdot \text{columns}$ with its square.)
#
# ### Published counts
#
# GPT-3 has 96 layers of width 12,288. The LoRA paper gives adapters to its query and value matrices, each 12,288 × 12,288, and reports 4.7M trained parameters for r 1 and 37.7M for r 8, of 175,255.8M (Hu et al. 2021, table 4).

# %%
gpt3_shapes = [(12_288, 12_288)] * 2 * 96  # W_q and W_v of each layer
gpt3 = {r: lora.adapter_parameters(gpt3_shapes, r) for r in (1, 2, 4, 8)}
show_table(
    {"r": "d", "trained parameters": ",d", "share of 175,255.8M": ".4%", "bytes held by training them": ",d"},
    [(r, count, count / 175_255.8e6, lora.trained_bytes(count)) for r, count in gpt3.items()],
)
holds("r 1 and r 8, in millions", [gpt3[1] / 1e6, gpt3[8] / 1e6], [4.7, 37.7], atol=0.05)

# %% [markdown]
# And the arithmetic? For each token, a matrix of n elements takes 2n floating-point operations in forward. Backward takes 2n for the gradient of the input and 2n for the gradient of the matrix. A frozen matrix does not need the latter: 4n instead of 6n. We check this on our model with PyTorch's own FLOP counter:

# %%
def matrix_flops(gpt):
    """Floating-point operations of a step in linear layers."""
    with FlopCounterMode(display=False) as counter:
        gpt(*lora_batch).backward()
    return sum(flops for op, flops in counter.get_flop_counts()["Global"].items() if op in (torch.ops.aten.mm, torch.ops.aten.addmm))

flops = {r: matrix_flops(with_lora(r)) for r in (None, 1, 16)}
in_matrices = sum(rows * columns for rows, columns in shapes) + pretrained.gpt().head.weight.numel()
formula = [lora.training_flops(in_matrices, lora_batch[0].numel(), is_frozen) for is_frozen in (False, True)]
holds("full: operations of a step", flops[None], formula[0])
show_table(
    {"LoRA": "", "operations, over full training's": ".2f"},
    [*((f"r {r}", flops[r] / flops[None]) for r in (1, 16)), ("formula", formula[1] / formula[0])],
)

# %% [markdown]
# So LoRA saves about a third of the arithmetic at most, and less with a larger r. (The formula leaves out the adapters' own products, and counts a gradient that the first layer's input, a frozen embedding, does not need.) The gain is in memory and messages.
#
# ### What DDP sends
#
# **With r = 4 on two ranks with DDP, by what factor does LoRA reduce the bytes that each rank sends per step, compared with full fine-tuning?**

# %%
predicted_lora_ratio = predict("Bytes sent, full over LoRA, r 4")
predicted_lora_ratio

# %%
def lora_on_ddp(batch):
    for name, r in (("full", None), ("LoRA", 4)):
        ddp = DistributedDataParallel(with_lora(r))
        for step in range(2):  # after the first, DDP rebuilds its buckets
            with measure(f"{name}, step {step}"):
                ddp(*batch).backward()

# %%
lora_batches = [data.batch(0, 2, 32, rank, 2, text="code") for rank in range(2)]
on_two_ranks = {"inputs": lora_batches, "world_size": 2, "device": "cpu", "quiet": True}
ddp_run = launch(lora_on_ddp, **on_two_ranks)
trained = {"full": psi, "LoRA": lora.adapter_parameters(shapes, 4)}
ddp_sent = {name: ddp_run.traffic[f"{name}, step 1"].sent_by_rank.mean() for name in trained}

# %%
linear_weights = sum(rows * columns for rows, columns in shapes)
predicted_lora_ratio.compare(
    float(round(ddp_sent["full"] / ddp_sent["LoRA"], 1)),
    {"the same bytes": 1, "the linear layers alone": round(linear_weights / trained["LoRA"], 1)},
)

# %%
for name, count in trained.items():
    holds(f"{name}: sent by each rank", ddp_sent[name], lora.sent_bytes(count, 2), rtol=0.03, unit="bytes")

# %% [markdown]
# DDP all-reduces gradients, and ignores parameters that are frozen when it wraps the model. So what remains is the adapters' share of Ψ: for GPT-3 with r 8, the 0.0215% in the table of published counts.
#
# ### To scale
#
# $W$, $A$ and $B$ are drawn to scale. Change r, the width and the modules, and compare what is trained, held and sent with full fine-tuning. The frozen weights (hatched) remain in memory; later in this chapter, quantization makes them smaller.

# %%
lora_shapes(models.SIZES["0.3M"].width, models.SIZES["0.3M"].layers, r=8, world_size=4, modules="all linear")

# %% [markdown]
# ### LoRA under FSDP and ZeRO-3
#
# Both shard frozen parameters as well. **Which calls will get smaller with LoRA under FSDP?**

# %%
predicted_smaller = predict("Smaller with LoRA, under FSDP", options=["all-gathers", "reduce-scatters", "both", "neither"])
predicted_smaller

# %%
def lora_on_fsdp(batch):
    for name, r in (("full", None), ("LoRA", 4)):
        gpt = with_lora(r)
        for unit in (*gpt.blocks, gpt):
            fully_shard(unit)
        with measure(name):
            gpt(*batch).backward()

# %%
def lora_on_zero3(batch, config):
    import deepspeed

    for name, r in (("full", None), ("LoRA", 4)):
        gpt = with_lora(r)
        adam = torch.optim.AdamW(trainable(gpt), lr=1e-3)
        engine, *_ = deepspeed.initialize(model=gpt, optimizer=adam, config=config)
        with measure(name):
            engine.backward(engine(*batch))
        engine.step()

# %% [markdown]
# The configuration of ZeRO-3 is that of [chapter 05](05_fsdp.ipynb): no parameter stays gathered between uses. We add up the tensors that rank 0 passes to each call: its half of a tensor to an all-gather, and all gradients of a unit to a reduce-scatter.

# %%
lora_zero = {"stage": 3, "reduce_bucket_size": 2**15, "stage3_param_persistence_threshold": 0}
lora_zero |= {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
lora_zero3 = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.0}
lora_zero3 |= {"zero_allow_untested_optimizer": True, "zero_optimization": lora_zero}
sharded_runs = {
    "FSDP": launch(lora_on_fsdp, **on_two_ranks),
    "ZeRO-3": launch(lora_on_zero3, lora_zero3, **on_two_ranks, timeout_s=90),
}

# %%
def passed_bytes(run, label, op):
    return sum(call.bytes for call in run.calls_in(label) if call.op.startswith(op))

passed = {
    (method, name): [passed_bytes(run, name, op) for op in ("all_gather", "reduce_scatter")]
    for method, run in sharded_runs.items() for name in ("full", "LoRA")
}
shrinks = {op: passed["FSDP", "LoRA"][i] < passed["FSDP", "full"][i] / 2 for i, op in enumerate(("all-gathers", "reduce-scatters"))}
smaller = [op for op, shrank in shrinks.items() if shrank]
found = smaller[0] if len(smaller) == 1 else "both" if smaller else "neither"
predicted_smaller.compare(found, {"what would hold if frozen weights were not gathered": "both"})

# %%
show_table(
    {"method": "", "training": "", "all-gather": ",d", "reduce-scatter": ",d"},
    [(*of, *found) for of, found in passed.items()], caption="bytes that rank 0 passes in",
)
for method in sharded_runs:
    holds(f"{method}: reduce-scatters, full", passed[method, "full"][1], 4 * psi, unit="bytes")
    holds(f"{method}: reduce-scatters, LoRA", passed[method, "LoRA"][1], 4 * trained["LoRA"], unit="bytes")

# %%
in_blocks = models.count_parameters(pretrained.gpt().blocks)
root = psi - in_blocks  # whole from forward to backward, so gathered once
gathered = [4 / 2 * (root + 2 * (in_blocks + adapters)) for adapters in (0, trained["LoRA"])]
holds("FSDP: all-gathers, full and LoRA", [passed["FSDP", name][0] for name in trained], gathered, unit="bytes")

# %% [markdown]
# Reduce-scatters shrink to the adapters' gradients; all-gathers do not, because frozen weights are still gathered for forward and, for the gradient of its input, for backward. Under FSDP they grow by the adapters; DeepSpeed gathers somewhat less than before. This is the share of full fine-tuning's traffic that remains:

# %%
remains = {}
for method, run in sharded_runs.items():
    full_sent, lora_sent = (run.traffic[name].sent_by_rank.mean() for name in ("full", "LoRA"))
    remains[method] = lora_sent / full_sent
remains["DDP"] = ddp_sent["LoRA"] / ddp_sent["full"]
show_table({"method": "", "bytes sent, LoRA over full": ".2f"}, list(remains.items()))
holds("FSDP and ZeRO-3", [remains["FSDP"], remains["ZeRO-3"]], above=0.45, below=0.6)
holds("DDP", remains["DDP"], below=0.1)

# %% [markdown]
# These shares are for gloo, which sends twice the bytes for a reduce-scatter. With NCCL, all-gathers are two thirds of the traffic of full fine-tuning, so LoRA leaves two thirds. If the frozen model fits on each device, DDP sends far less.
#
# ### Rank and modules: loss on another text
#
# The model knows English documentation. We fine-tune it on Python code: the same 40 batches for every setup, and the loss on four other batches at the end. LoRA and full training need different learning rates. We chose each from a few rates tried beforehand with this number of steps; LoRA's, ten times that of full training, is the same for every r. This is one seed, few steps and a small model, so differences as small as that between r 64 and full training are noise.

# %%
LORA_LR, FULL_LR, LORA_STEPS = 5e-3, 5e-4, 40
unseen_batches = [data.batch(1000 + i, 16, 64, text="code") for i in range(4)]

def unseen_loss(gpt):
    with torch.no_grad():
        return float(np.mean([gpt(*batch).item() for batch in unseen_batches]))

# %%
def finetune(gpt, lr):
    """The loss of each step."""
    adam = torch.optim.AdamW(trainable(gpt), lr=lr, weight_decay=0.0)
    losses = []
    for step in range(LORA_STEPS):
        loss = gpt(*data.batch(step, 8, 64, text="code"))
        loss.backward()
        adam.step()
        adam.zero_grad()
        losses.append(loss.item())
    return losses

# %%
print("Fine-tuning eight times: a few seconds …")
torch.set_num_threads(1)  # too small a model to share its work between threads
MLP, RANKS_TRIED = ("mlp.up", "mlp.down"), (1, 4, 8, 16, 64)
setups = {f"all linears, r {r}": (r, ALL_LINEARS, LORA_LR) for r in RANKS_TRIED}
setups |= {"attention, r 16": (16, ATTENTION, LORA_LR), "MLP, r 10": (10, MLP, LORA_LR), "full": (None, (), FULL_LR)}
finetuned, lora_losses, unseen, lora_counts = {}, {}, {}, {}
for name, (r, targets, lr) in setups.items():
    finetuned[name] = with_lora(r, targets)
    lora_counts[name] = sum(parameter.numel() for parameter in trainable(finetuned[name]))
    lora_losses[name] = finetune(finetuned[name], lr)
    unseen[name] = unseen_loss(finetuned[name])

# %%
untrained = unseen_loss(pretrained.gpt())
show_table(
    {"setup": "", "trained parameters": ",d", "loss on unseen code": ".3f", "share of full's gain": ".0%"},
    [("before", 0, untrained, 0.0)]
    + [(name, lora_counts[name], loss, (untrained - loss) / (untrained - unseen["full"])) for name, loss in unseen.items()],
)
by_rank = [unseen[f"all linears, r {r}"] for r in RANKS_TRIED]
holds("loss falls with r, up to r 16", np.diff(by_rank[:4]), below=0)
gains = [(untrained - loss) / (untrained - unseen["full"]) for loss in by_rank]
holds("r 1: share of full training's gain", gains[0], above=0.5)
holds("r 16 and 64: share of full training's gain", gains[3:], above=0.9)
holds("loss: r 4 in all linears, minus r 16 in attention", unseen["all linears, r 4"] - unseen["attention, r 16"], below=0)
holds("loss: r 10 in the MLP, minus r 16 in attention", unseen["MLP, r 10"] - unseen["attention, r 16"], below=0)

# %%
figure, (by_size, by_step) = plt.subplots(1, 2, figsize=(7.5, 3.4), sharey=True)
by_size.plot([lora_counts[f"all linears, r {r}"] for r in RANKS_TRIED], by_rank, "o-", color=palette.MEASURED, label="all linears, r 1 to 64")
for name, marker in (("attention, r 16", "s"), ("MLP, r 10", "^"), ("full", "D")):
    by_size.plot(lora_counts[name], unseen[name], marker, color=palette.MEASURED, fillstyle="none", label=name)
by_size.axhline(untrained, color=palette.MEASURED, ls=":", label="before")
by_size.set(xlabel="trained parameters", ylabel="loss on code", title="unseen, after 40 steps", xscale="log")
by_size.legend(frameon=False, loc="lower left")
for name, style in (("all linears, r 1", ":"), ("all linears, r 16", "-"), ("full", "--")):
    means = np.reshape(lora_losses[name], (-1, 4)).mean(axis=1)
    by_step.plot(np.arange(4, LORA_STEPS + 1, 4), means, style, color=palette.MEASURED, label=name)
by_step.set(xlabel="step", title="in training, means of 4 steps")
by_step.set_ylim(bottom=1.2)  # room for the legends
by_step.legend(frameon=False, loc="lower left")
figure.tight_layout()

# %% [markdown]
# In this run r = 1 already reaches most of the gain of full training, and a larger r nearly all of it. Where the adapters are matters as much as their size: in the MLP they do better than in attention with nearly as many parameters. And r 4 in all linear layers reaches a lower loss than r 16 in attention, with fewer parameters. The QLoRA paper finds the same for large models: adapters in all linear layers are needed to match full fine-tuning (Dettmers et al. 2023, section 4). Measure it on your own task; the LoRA paper adapts attention only.
#
# ### α when r changes
#
# In all these runs α was 16, so the factor $\frac{\alpha}{r}$ fell from 16 at r 1 to ¼ at r 64. Some recipes raise α together with r instead, to keep the factor. **Which factor gives r 64 the lowest loss, at the same learning rate?** The factor of r 4 above was 4.

# %%
predicted_alpha = predict("Lowest loss with r 64", options=["factor ¼, α 16", "factor 1, α 64", "factor 4, α 256"])
predicted_alpha

# %%
print("Fine-tuning twice more: a few seconds …")
factors = {16: "factor ¼, α 16", 64: "factor 1, α 64", 256: "factor 4, α 256"}
alpha_losses = {16: unseen["all linears, r 64"]}
for alpha in (64, 256):
    scaled_gpt = with_lora(64, alpha=alpha)
    finetune(scaled_gpt, LORA_LR)
    alpha_losses[alpha] = unseen_loss(scaled_gpt)
best_alpha = min(alpha_losses, key=alpha_losses.get)
predicted_alpha.compare(factors[best_alpha], {"the factor that suits r 4": factors[256]})

# %%
show_table(
    {"r 64, α": "d", "α/r": ".2f", "loss on unseen code": ".3f", "lower than before training by": ".3f"},
    [(alpha, alpha / 64, loss, untrained - loss) for alpha, loss in alpha_losses.items()],
)
holds("with the factor of r 4, training raises the loss by", alpha_losses[256] - untrained, above=0)

# %% [markdown]
# The factor acts like a learning rate: the change of $W$ per step grows with it, and with r as well. A factor and a learning rate that suit r 4 are too large for r 64. So after a change of r, tune one of the two again. (rsLoRA uses $\frac{\alpha}{\sqrt{r}}$ for this reason, in peft `use_rslora=True`; Kalajdzievski 2023.)
#
# ### Merging
#
# After training, $\frac{\alpha}{r} B A$ can be added to $W$. Then the model has its old shape and the old number of operations: an adapter that is merged adds no latency. Merging rounds every element once more, so the outputs agree within fp32's rounding, not bit for bit.

# %%
def merged(module):
    """A copy in which each LoRALinear is one Linear again."""
    module = copy.deepcopy(module)
    for name, adapted in list(module.named_modules()):
        if isinstance(adapted, LoRALinear):
            with torch.no_grad():
                adapted.base.weight += adapted.scale * adapted.B @ adapted.A
            module.set_submodule(name, adapted.base)
    return module

# %%
unmerged_gpt = finetuned["all linears, r 16"]
merged_gpt = merged(unmerged_gpt)
with torch.no_grad():
    unmerged_logits, merged_logits = unmerged_gpt(lora_batch[0]), merged_gpt(lora_batch[0])
farthest = (merged_logits - unmerged_logits).abs().max() / unmerged_logits.abs().max()
holds("largest difference over the largest logit", farthest.item(), below=1e-5)
holds("modules and parameters are those of the trained model", [*merged_gpt.state_dict()] == [*pretrained.gpt().state_dict()])

# %% [markdown]
# Most models are stored in bf16. Then the merged weights are rounded to the 8 significant bits of bf16, and an update much smaller than its weight is partly lost:

# %%
def relative_error(approximate, exact):
    return float((approximate - exact).norm() / exact.norm())

def to_bf16(parameters):
    """Rounds them in place, and keeps their dtype."""
    for parameter in parameters:
        parameter.data = parameter.data.bfloat16().float()

separate_gpt = copy.deepcopy(unmerged_gpt)
to_bf16(p for p in separate_gpt.parameters() if not p.requires_grad)  # the base as it is stored
fp32_gpt, bf16_gpt = merged(separate_gpt), merged(separate_gpt)
to_bf16(bf16_gpt.parameters())

# %%
rows = {"adapters separate": separate_gpt, "merged, in fp32": fp32_gpt, "merged, in bf16": bf16_gpt}
with torch.no_grad():
    logits = {name: gpt(lora_batch[0]) for name, gpt in rows.items()}
apart = {name: relative_error(each, logits["adapters separate"]) for name, each in logits.items()}
losses = {name: unseen_loss(gpt) for name, gpt in rows.items()}
show_table(
    {"base in bf16": "", "loss on unseen code": ".4f", "change of the logits": ".3%"},
    [(name, losses[name], apart[name]) for name in rows],
)
holds("change of the loss in bf16", abs(losses["merged, in bf16"] - losses["adapters separate"]), below=0.001)

# %% [markdown]
# Here the loss hardly changes. With 4-bit weights it rises: see *Merging is not lossless* below.
#
# ### peft and transformers
#
# Hugging Face's library `peft` does all this for models from transformers. `target_modules` selects linear layers by the ends of their names. We build a small Llama from a configuration, with random weights, so nothing is downloaded:

# %%
print("Loading transformers and peft: a few seconds …")
# They import bitsandbytes, which warns of optional CPU kernels that are not installed.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

import transformers
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

# peft calls methods of transformers by their old names.
warnings.filterwarnings("ignore", category=FutureWarning, module=r"transformers\.")

# %%
def small_llama(dtype=torch.float32):
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    llama_config = transformers.LlamaConfig(vocab_size=256, max_position_embeddings=64, **sizes)
    return transformers.LlamaForCausalLM(llama_config).to(dtype)

def llama_loss(llama, tokens=lora_batch[0]):
    return llama(input_ids=tokens, labels=tokens, use_cache=False).loss

# %%
def lora_config(**options):
    return LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"], **options)

def with_peft(dtype=torch.float32, **options):
    return get_peft_model(small_llama(dtype), lora_config(**options))

adapter_count, _ = with_peft().get_nb_trainable_parameters()
holds("adapters of two layers, 64 × 64", adapter_count, lora.adapter_parameters([(64, 64)] * 2 * 2, r=4))

# %% [markdown]
# We count the bytes held as above, and measure the bytes sent with DDP on two ranks, which load both libraries too. The bytes stored are those of the file that `save_pretrained` writes.

# %%
def llama_on_ddp(batch):
    for name, make in (("full", small_llama), ("LoRA by peft", with_peft)):
        ddp = DistributedDataParallel(make())
        for step in range(2):
            with measure(f"{name}, step {step}"):
                llama_loss(ddp, batch[0]).backward()

llama_run = launch(llama_on_ddp, **on_two_ranks, timeout_s=120)

# %%
llamas = {"full": small_llama(), "LoRA by peft": with_peft()}
llama_held = {name: bytes_after_a_step(llama, llama_loss) for name, llama in llamas.items()}
llama_sent = {name: llama_run.traffic[f"{name}, step 1"].sent_by_rank.mean() for name in llamas}
show_table(
    {"bytes": "", **dict.fromkeys((*held_columns, "sent by each rank"), ",.0f")},
    [(name, *llama_held[name], llama_sent[name]) for name in llamas],
)

# %%
_, *of_adapters = llama_held["LoRA by peft"]
with tempfile.TemporaryDirectory() as folder:
    llamas["LoRA by peft"].save_pretrained(folder)
    file_bytes = Path(folder, "adapter_model.safetensors").stat().st_size
holds("adapters, gradients and states", sum(of_adapters), lora.trained_bytes(adapter_count), unit="bytes")
holds("stored file, with its header", file_bytes, 4 * adapter_count, atol=1500, unit="bytes")
holds("sent, with the headers of messages", llama_sent["LoRA by peft"], lora.sent_bytes(adapter_count, 2), atol=1500, unit="bytes")

# %% [markdown]
# Do peft and our `LoRALinear` compute the same? We copy the initial values of peft's adapters into ours, train both on the same batches, and compare logits:

# %%
ours, peft_llama = small_llama().requires_grad_(False), with_peft()
for block in ours.model.layers:
    for name in ("q_proj", "v_proj"):
        block.self_attn.set_submodule(name, LoRALinear(block.self_attn.get_submodule(name), 4, 16))
with torch.no_grad():
    for mine, theirs in zip(trainable(ours), trainable(peft_llama), strict=True):
        mine.copy_(theirs)

# %%
def logits_after_training(llama):
    adam = torch.optim.AdamW(trainable(llama), lr=LORA_LR)
    for step in range(10):
        llama_loss(llama, data.batch(step, 4, 32)[0]).backward()
        adam.step()
        adam.zero_grad()
    with torch.no_grad():
        return llama(input_ids=lora_batch[0]).logits

# %%
ours_logits, peft_logits = logits_after_training(ours), logits_after_training(peft_llama)
with torch.no_grad():
    peft_merged = peft_llama.merge_and_unload()(input_ids=lora_batch[0]).logits
    changed = (peft_logits - small_llama()(input_ids=lora_batch[0]).logits).abs().max().item()
largest_logit = peft_logits.abs().max()
holds("ours and peft: largest difference over the largest logit", (ours_logits - peft_logits).abs().max() / largest_logit, below=1e-5)
holds("before and after merge_and_unload: the same quotient", (peft_merged - peft_logits).abs().max() / largest_logit, below=1e-5)
holds("before and after training: the same quotient", changed / largest_logit, above=0.1)

# %% [markdown]
# If the base is in bf16, peft still holds the adapters in fp32 (`autocast_adapter_dtype=True`), since small updates are lost in bf16 ([chapter 05](05_fsdp.ipynb)):

# %%
on_bf16 = with_peft(torch.bfloat16)
dtypes = [{p.dtype for p in on_bf16.parameters() if p.requires_grad is trains} for trains in (True, False)]
holds("adapters in fp32, base in bf16", dtypes == [{torch.float32}, {torch.bfloat16}])

# %% [markdown]
# ### What typically goes wrong
#
# **The wrong order.** `prepare_model_for_kbit_training` prepares a quantized base: it freezes *every* parameter, and casts 16-bit ones to fp32. Called after `get_peft_model`, it freezes the adapters as well. There is no error until backward:

# %%
prepared_last = prepare_model_for_kbit_training(on_bf16)
prepared_first = get_peft_model(prepare_model_for_kbit_training(small_llama(torch.bfloat16)), lora_config())
in_both_orders = [each.get_nb_trainable_parameters()[0] for each in (prepared_first, prepared_last)]
holds("trained parameters, prepared before and after", in_both_orders, [adapter_count, 0])

# %% [markdown]
# **Checkpointing without gradients.** Reentrant activation checkpointing ([chapter 09](09_activation_checkpointing.ipynb)) asks whether an *input* of a layer needs a gradient. If none does, the layer's output does not either, whatever is trained in it. transformers can checkpoint a model's layers, and so can we, by hand:

# %%
def by_transformers(llama, use_reentrant):
    llama.get_base_model().activation_checkpointing_enable({"use_reentrant": use_reentrant})

def by_hand(llama, use_reentrant, layers=slice(None)):
    def checkpointed(forward):
        return lambda x, **others: checkpoint(functools.partial(forward, **others), x, use_reentrant=use_reentrant)
    for block in llama.get_base_model().model.layers[layers]:
        block.forward = checkpointed(block.forward)

# %%
def adapters_with_gradient(checkpoint_layers, use_reentrant, prepare=lambda llama: None, **options):
    """How many of the adapters' tensors got a gradient, and the error or else the warning."""
    llama = with_peft(**options).train()
    checkpoint_layers(llama, use_reentrant)
    prepare(llama)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            llama_loss(llama).backward()
            reported = f"warns: {caught[0].message}" if caught else "nothing"
        except RuntimeError as error:
            reported = f"raises: {error}".split(" and ")[0]
    return sum(p.grad is not None for name, p in llama.named_parameters() if "lora_" in name), reported

# %% [markdown]
# Our Llama has 8 adapter tensors, A and B of two matrices in two layers. Its embedding is frozen. **If we wrap only one of the layers, with `use_reentrant=True`, how many of the 8 get a gradient?**

# %%
predicted_adapters = predict("Adapter tensors with a gradient, of 8", labels=["first layer wrapped", "second layer wrapped"])
predicted_adapters

# %%
one_wrapped = [functools.partial(by_hand, layers=layers) for layers in (slice(1), slice(1, 2))]
predicted_adapters.compare(
    [adapters_with_gradient(way, True)[0] for way in one_wrapped],
    {"what it is if every wrapped layer gets none": [4, 4], "what it is if checkpointing changes only memory": [8, 8]},
)

# %% [markdown]
# The first layer's input comes from the frozen embedding. The second layer's comes from adapters, if the first layer is not wrapped. If both are:

# %%
attempts = {
    "by transformers, reentrant": adapters_with_gradient(by_transformers, True),
    "by hand, reentrant": adapters_with_gradient(by_hand, True),
    'by hand, reentrant, modules_to_save=["norm"]': adapters_with_gradient(by_hand, True, modules_to_save=["norm"]),
    "by hand, reentrant, enable_input_require_grads()": adapters_with_gradient(by_hand, True, lambda llama: llama.enable_input_require_grads()),
    "by hand, use_reentrant=False": adapters_with_gradient(by_hand, False),
}
show_table({"checkpointing": "", "adapter tensors with a gradient": "d", "reported": ""}, [(name, *found) for name, found in attempts.items()])
holds("of 8", [found for found, _ in attempts.values()], [8, 0, 0, 8, 8])

# %% [markdown]
# transformers 5.23 calls `enable_input_require_grads()` itself: the embedding's output then requires a gradient, although the embedding does not. If you wrap layers yourself, nothing does this for you. The third row is the dangerous one: training runs and the norm changes, but the adapters never do, and PyTorch only warns. Use `use_reentrant=False`. After the first backward, check that every trained parameter has a gradient: `assert all(p.grad is not None for p in trainable(model))`. (peft's issues 137 and 1142 report this from earlier versions.)

# %% [markdown]
# ## Fewer bits
#
# LoRA only reads the frozen weights, so they do not need 16 or 32 bits each. **Quantization** stores a weight as a **code**, an integer of 8 or fewer bits, and one **scale** for a group of weights. Before use, a weight is computed from its code and its scale: it is **dequantized**. The values that codes stand for are the **code points**.
#
# We quantize real weights: the matrices of a small GPT, trained on Python's documentation. The embedding is also the output head here, and stays in fp32.

# %%
float_gpt = pretrained.gpt().eval()
float_weights = {
    name: parameter.detach()
    for name, parameter in float_gpt.named_parameters()
    if name.startswith("blocks.") and parameter.dim() == 2
}
float_count = sum(weight.numel() for weight in float_weights.values())
parameters = models.count_parameters(float_gpt)
print(f"{len(float_weights)} matrices with {float_count:,} of Ψ = {parameters:,} parameters")

# %% [markdown]
# ### One scale for a tensor
#
# The simplest format is **absmax int8**. The scale is $\max|w| / 127$, so that the largest weight gets the code 127 or −127. Each weight is rounded to the nearest multiple of the scale.

# %%
mlp_up = float_weights["blocks.0.mlp.up.weight"]  # [384, 96]
absmax_scale = mlp_up.abs().max() / 127
absmax_codes = torch.round(mlp_up / absmax_scale).to(torch.int8)
absmax_errors = absmax_codes * absmax_scale - mlp_up

stored_bytes = absmax_codes.nbytes + absmax_scale.nbytes
holds("codes and scale", stored_bytes, mlp_up.nbytes // 4 + 4, unit="bytes")
holds("largest error, in scales", absmax_errors.abs().max() / absmax_scale, below=0.501)

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
    """Every ``group`` consecutive weights, not all 0, share a scale. Returns them dequantized."""
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
# The scale follows the largest weight, and the errors follow the scale. Most code points now lie where there are no weights: see *Bits, blocks and an outlier* below.

# %% [markdown]
# ### More scales
#
# The remedy is to share each scale among fewer weights. A **channel** is a row of the matrix, the weights of one output. A **block** is a fixed number of consecutive weights, often 64. Then an outlier affects only its own row or block. But more scales take more bits. The scales are in fp32. **How many bits does a weight take, including its part of a scale, with codes of 8 bits?**

# %%
predicted_bits = predict("Bits per weight", unit="bits", labels=["row of 96", "block of 64", "block of 16"])
predicted_bits

# %%
def bits_per_weight(code_bits, group):
    return code_bits + 32 / group

# %%
sizes = (96, 64, 16)
predicted_bits.compare(
    [bits_per_weight(8, group) for group in sizes],
    {
        "the codes without the scales": [8, 8, 8],
        "with 16-bit scales": [8 + 16 / group for group in sizes],
    },
    "calculated",
)

# %% [markdown]
# An **error** is, from here on, the rms of all errors over the rms of all weights. Here it is for the matrix as trained, and with the outlier:

# %%
def percent(errors):
    return 100 * rms(errors) / rms(mlp_up)

# %%
show_table(
    {"one scale per": "", "bits per weight": ".2f", "error, %": ".2f", "with the outlier, %": ".2f"},
    [
        (
            name,
            bits_per_weight(8, group),
            percent(quantize_absmax(mlp_up, 8, group) - mlp_up),
            percent(errors_of_the_others(group)),
        )
        for name, group in {"tensor": mlp_up.numel(), "row": 96, "block of 64": 64}.items()
    ],
)

# %% [markdown]
# With rows or blocks, the outlier adds little to the error. (Our rows are short. In a model of width 4,096, a row has 64 blocks.)
#
# Is it better to spend bits on codes or on scales? Here are all matrices, with codes of 3 to 8 bits:

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
    return {name: quantize_absmax(each, bits, group(each)) for name, each in float_weights.items()}

# %%
def total_error(weights):
    """Of all matrices together. weights: {name: dequantized}."""
    errors = [(weights[name] - weight).flatten() for name, weight in float_weights.items()]
    return rms(torch.cat(errors)) / rms(torch.cat([each.flatten() for each in float_weights.values()]))

def mean_bits(bits, grouping):
    group = GROUPINGS[grouping]
    return bits + 32 * sum(each.numel() / group(each) for each in float_weights.values()) / float_count

# %%
errors = {
    grouping: [total_error(absmax_everywhere(bits, grouping)) for bits in range(3, 9)]
    for grouping in GROUPINGS
}

# %%
figure, axes = plt.subplots(figsize=(7, 3.4))
for (grouping, each), look in zip(errors.items(), ("o-", "s--", "D-.", "^:"), strict=True):
    bits = [mean_bits(bits, grouping) for bits in range(3, 9)]
    axes.semilogy(bits, [100 * error for error in each], look, color=palette.MEASURED, label=grouping)
axes.set(xlabel="bits per weight", ylabel="error, %", yticks=[0.5, 1, 2, 5, 10, 20, 50])
axes.set_yticklabels(["0.5", "1", "2", "5", "10", "20", "50"])
axes.minorticks_off()
axes.legend(title="one scale per", frameon=False)
figure.tight_layout()

# %% [markdown]
# On every line, one more bit for the codes divides the error by about 2. So half a bit divides it by √2. Blocks of 64 cost half a bit, and divide the error by more than that. Blocks of 16 cost two bits, which are better spent on codes.

# %%
fewer = np.array([errors["block of 64"], errors["block of 16"]])
holds("error with one more bit for the codes", fewer[:, :-1] / fewer[:, 1:], above=2, below=2.6)
gain = np.divide(errors["tensor"], errors["block of 64"])
holds("error with one scale, over that with blocks of 64", gain, above=2**0.5)
holds("4.5 bits in blocks of 64 over 5 bits in blocks of 16", fewer[0, 1] / fewer[1, 0], below=1)

# %% [markdown]
# ### Activations have outliers
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
handle = layer.register_forward_hook(lambda module, inputs, output: recorded.append(inputs[0]))
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

holds("error of the product in fp32, %", product_error(outlier_x @ outlier_weight.T), below=1e-3)

# %% [markdown]
# **LLM.int8()** splits the product by features. Features with a value above a threshold of 6.0 are multiplied in 16 bits, all others in int8, and the two products are added. This is a **mixed-precision decomposition**. We use the implementation in bitsandbytes, the library that the authors wrote:

# %%
print("Loading bitsandbytes: a few seconds …")
import bitsandbytes as bnb
from transformers import BitsAndBytesConfig

outlier_x_fp16 = outlier_x.half()  # bitsandbytes expects fp16

# %%
def bitsandbytes_product(threshold):
    layer = bnb.nn.Linear8bitLt(96, 384, bias=False, has_fp16_weights=False, threshold=threshold)
    layer.weight = bnb.nn.Int8Params(outlier_weight.clone(), requires_grad=False)
    layer.to("cpu").eval()  # quantizes; in training mode, a CPU would not quantize the activations
    return layer(outlier_x_fp16).float()

# %%
int8_weight = quantize_absmax(outlier_weight, 8, 96)
products = {
    "our int8 product, no outlier": int8_product(activations, mlp_up),
    "our int8 product, one feature at 60": int8_product(outlier_x, outlier_weight),
    "bitsandbytes, threshold 0.0": bitsandbytes_product(0.0),
    "bitsandbytes, threshold 6.0": bitsandbytes_product(6.0),
    "weights in int8, activations in fp32": outlier_x @ int8_weight.T,
}
int8_errors = {name: product_error(product) for name, product in products.items()}
show_table({"product": "", "error, %": ".2f"}, int8_errors.items())

# %% [markdown]
# The outlier sets the scale of every token, so all other features are rounded to multiples of a large scale. With the threshold, its feature is left out of int8, and what remains is close to the error of the int8 weights alone. The decomposition is cheap: 1 feature of our 96 is multiplied in 16 bits, and in the paper's models fewer than 0.1% of all values.
#
# A threshold of 0.0 means *no* decomposition, and it is the default of bitsandbytes' layer. In transformers, `BitsAndBytesConfig` has a different default:

# %%
layer_defaults = inspect.signature(bnb.nn.Linear8bitLt).parameters
holds("bitsandbytes.nn.Linear8bitLt: threshold", layer_defaults["threshold"].default, 0.0)
holds("transformers.BitsAndBytesConfig: llm_int8_threshold", BitsAndBytesConfig().llm_int8_threshold, 6.0)

# %% [markdown]
# If you replace the layers of a model yourself, pass `threshold=6.0` and `has_fp16_weights=False`: by default, the weights stay in fp16 and are quantized in each forward.
#
# ### NF4: code points where the weights are
#
# With 4 bits there are 16 codes. Absmax uses 15 of them, at equal distances. But trained weights are not evenly distributed: most are small, roughly as in a normal distribution. **NF4** ("4-bit NormalFloat", Dettmers et al. 2023) puts its code points at **quantiles** of the normal distribution. The p-quantile is the value that a share p of the distribution lies below. Between neighboring quantiles at equal steps of p there are equally many values.
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
# These are the values in bitsandbytes' source code:

# %%
published = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]
holds("NF4's 16 code points", nf4_points, published, atol=1e-6)

# %% [markdown]
# A block of 64 weights is divided by its absmax, and each weight gets the code of the nearest code point. `bucketize` finds it from the midpoints between them:

# %%
nf4_midpoints = (nf4_points[1:] + nf4_points[:-1]) / 2

def nf4_codes(weight, block=64):
    """Codes 0 to 15 and absmax of each block: weight [...] -> [blocks, block], [blocks, 1]"""
    blocks = weight.reshape(-1, block)
    absmax = blocks.abs().amax(1, keepdim=True)
    return torch.bucketize(blocks / absmax, nf4_midpoints), absmax

# %%
def nf4_weight(weight, block=64, scale_dtype=torch.float32):
    codes, absmax = nf4_codes(weight, block)
    return (nf4_points[codes] * absmax.to(scale_dtype).float()).view_as(weight)

# %% [markdown]
# At the left are all weights, divided by the absmax of their block, with both sets of code points below. (The bars at −1 and 1 are the largest weights of the blocks.) At the right is how often each code is used.

# %%
scaled = torch.cat([each.reshape(-1, 64) for each in float_weights.values()])
scaled = scaled / scaled.abs().amax(1, keepdim=True)

# %%
int4_points = torch.arange(-7, 8) / 7

def shares_of_codes(points):
    codes = torch.bucketize(scaled, (points[1:] + points[:-1]) / 2)
    return (codes.flatten().bincount() / codes.numel()).numpy()

nf4_shares, int4_shares = shares_of_codes(nf4_points), shares_of_codes(int4_points)

# %%
figure, all_axes = plt.subplots(2, 2, figsize=(8, 4), width_ratios=(3, 2), sharex="col", sharey="col")
formats = (("absmax, 4 bits", int4_points, int4_shares), ("NF4", nf4_points, nf4_shares))
for (left, right), (name, points, shares) in zip(all_axes, formats, strict=True):
    left.hist(scaled.flatten(), bins=121, color=palette.MEMORY["parameters"])
    left.plot(points, np.full(len(points), -900), "|", color=palette.PLOT_INK, markersize=11)
    right.bar(range(len(shares)), 100 * shares, color=palette.MEMORY["parameters"])
    left.set_ylabel("weights", size=10)
    left.set_title(f"{name}: {len(points)} code points", size=10)
    right.set_title("use of each code, %", size=10)
left.set_xlabel("weight / absmax of its block", size=10)
right.set_xlabel("code", size=10)
left.set_xticks([-1, -0.5, 0, 0.5, 1])
figure.tight_layout()

# %% [markdown]
# In the middle, where most weights are, NF4's code points are closer together, and it uses its codes more evenly. Does the error get smaller? We compare the weights of the GPT with evenly distributed numbers:

# %%
torch.manual_seed(0)

def nf4_over_absmax(values):
    return rms(nf4_weight(values) - values) / rms(quantize_absmax(values, 4, 64) - values)

uniform = 2 * torch.rand(4096, 64) - 1
holds("trained weights: error of NF4 over that of absmax", nf4_over_absmax(scaled), below=0.9)
holds("uniform numbers: error of NF4 over that of absmax", nf4_over_absmax(uniform), above=1.1)

# %% [markdown]
# NF4 is better only because weights are distributed as they are.
#
# ### Double quantization
#
# In blocks of 64, an fp32 absmax costs half a bit for each weight: NF4 takes 4.5 bits. **Double quantization** quantizes the absmax values as well: their mean is subtracted, and the rest is stored in 8 bits, in blocks of 256 with an fp32 scale each. Then $4 + \frac{8}{64} + \frac{32}{64 \cdot 256} = 4.127$ bits. We do it with our absmax int8 (bitsandbytes uses its own 8-bit code points):

# %%
def quantize_absmax_values(absmax):
    """absmax [blocks, 1] -> dequantized [blocks, 1], and the bits of its codes, scales and mean"""
    mean = absmax.mean()
    blocks = (absmax - mean).split(256)  # the last one may be shorter
    dequantized = torch.cat([quantize_absmax(block, 8, len(block)) for block in blocks])
    return dequantized + mean, 8 * absmax.numel() + 32 * (len(blocks) + 1)

# %%
def double_quantized(weight):
    """The dequantized weight, and all bits that are stored for it."""
    codes, absmax = nf4_codes(weight)
    absmax, absmax_bits = quantize_absmax_values(absmax)
    return (nf4_points[codes] * absmax).view_as(weight), 4 * codes.numel() + absmax_bits

# %%
doubled = {name: double_quantized(weight) for name, weight in float_weights.items()}
measured_bits = sum(bits for _, bits in doubled.values()) / float_count
predicted_nf4_bits = 4 + 8 / 64 + 32 / (64 * 256)
holds("bits per weight", measured_bits, predicted_nf4_bits, rtol=0.001)

# %%
nf4_weights = {name: nf4_weight(weight) for name, weight in float_weights.items()}
nf4_dq_weights = {name: weight for name, (weight, _) in doubled.items()}
growth = total_error(nf4_dq_weights) / total_error(nf4_weights)
holds("error, over that with absmax in fp32", growth, 1, rtol=0.01)

# %% [markdown]
# ### Bits, blocks and an outlier
#
# Move the sliders. Each block has one scale, its largest absolute weight. So an outlier spreads the code points of its block, and the other weights of that block are rounded more coarsely. Smaller blocks limit the damage but store more scales.

# %%
quantization_grid(mlp_up)

# %% [markdown]
# ## Bytes in a file
#
# Models that run on a laptop are often stored as **GGUF**, the file format of llama.cpp. Its formats cut each row of a matrix into **blocks**. In `Q8_0`, 32 weights share one scale: $d = \max|w| / 127$, stored in fp16. Each weight is one int8 **code**, $\mathrm{round}(w/d)$. So a block takes 2 + 32 = 34 bytes.
#
# We pack a matrix of our trained GPT by hand. `gguf` is the Python package of llama.cpp, and its quantizer should give the same bytes.

# %%
gguf_model = pretrained.gpt()
gguf_matrices = {
    name: parameter.detach().numpy()
    for name, parameter in gguf_model.named_parameters()
    if parameter.ndim == 2
}
gguf_weight = gguf_matrices["blocks.1.mlp.up.weight"]  # [384, 96]

# %%
def pack_q8_0(weight):
    """[rows, columns] fp32, 32 divides columns -> [blocks, 34] uint8: a scale and 32 codes each."""
    blocks = weight.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / 127
    exact = blocks * np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    whole = np.trunc(exact)
    codes = whole + np.trunc(2 * (exact - whole))  # halves round away from 0, as in C
    fields = scale.astype(np.float16), codes.astype(np.int8)
    return np.hstack([field.view(np.uint8) for field in fields])

# %%
by_hand = [pack_q8_0(weight) for weight in gguf_matrices.values()]
by_gguf = [quants.quantize(weight, GGMLQuantizationType.Q8_0) for weight in gguf_matrices.values()]
different = sum((hand.ravel() != other.ravel()).sum() for hand, other in zip(by_hand, by_gguf))
holds("bytes per block", [packed.shape[1] for packed in by_hand], 34)
holds("bytes that differ from gguf's, in all matrices", different, 0)

# %% [markdown]
# Now we multiply the whole matrix by 2 and pack it again. **How many of the 34 bytes of a block change?**

# %%
predicted_changed_bytes = predict("Bytes of a block that change", unit="bytes", maximum=34)
predicted_changed_bytes

# %%
changed_bytes = (pack_q8_0(2 * gguf_weight) != pack_q8_0(gguf_weight)).sum(axis=1)
named = {"all bytes of the block": 34, "the scale, byte for byte": 2, "the codes": 32}
predicted_changed_bytes.compare(int(changed_bytes[0]), named)

# %%
holds("the same number in every block", changed_bytes == changed_bytes[0])

# %% [markdown]
# The codes are the weights divided by the largest weight of the block, so they do not change. Only the scale doubles, and in fp16 that adds 1 to the exponent, which lies in the second of its two bytes. So the error of a block grows with its largest weight; relative to that weight it stays the same.
#
# ### Four bits
#
# `Q4_0` has 16 codes for 32 weights in 18 bytes: the scale, and 16 bytes with two codes each. The scale is the weight of largest magnitude, *with its sign*, divided by −8. Codes are stored plus 8, so that they are 0 to 15: $w \approx d \cdot (\text{code} - 8)$. Byte j holds weight j in its low four bits and weight j + 16 in its high four. To read them:

# %%
def unpack_q4_0(packed):
    """[blocks, 18] uint8 -> codes [blocks, 32], 0 to 15, and weights [blocks, 32] fp32."""
    scale = packed[:, :2].copy().view(np.float16).astype(np.float32)
    codes = np.hstack([packed[:, 2:] & 15, packed[:, 2:] >> 4])
    return codes, scale * (codes.astype(np.float32) - 8)

# %%
packed_q4_0 = quants.quantize(gguf_weight, GGMLQuantizationType.Q4_0)
codes_q4_0, weights_q4_0 = unpack_q4_0(packed_q4_0.reshape(-1, 18))
largest = np.abs(gguf_weight.reshape(-1, 32)).argmax(axis=1, keepdims=True)
read_by_gguf = quants.dequantize(packed_q4_0, GGMLQuantizationType.Q4_0)
holds("the weights that gguf reads", weights_q4_0.reshape(384, 96) == read_by_gguf)
holds("code of each block's largest weight", np.take_along_axis(codes_q4_0, largest, axis=1), 0)

# %% [markdown]
# The largest weight always has code 0, so $d$ is negative if that weight is positive. This makes use of the code that two's complement has on one side only: −8, but no +8. (The lab asks for the other direction: the bytes of `Q4_0` from weights.)
#
# These are the bytes of the first block of our matrix, as they are stored in a file:

# %%
def draw_bytes(axes, top, left, texts, color):
    """Cells of one byte each from ``left``, or of half a byte where a text is a pair."""
    for at, text in enumerate(texts, left):
        halves = text if isinstance(text, tuple) else (text,)
        for i, half in enumerate(halves):
            height = 0.9 / len(halves)
            box = (at, top - (i + 1) * height)
            axes.add_patch(plt.Rectangle(box, 0.94, height, fc=color, ec=palette.PLOT_INK, lw=0.8))
            ink = palette.PLOT_INK if color == "none" else palette.ink_on(color)
            middle = {"ha": "center", "va": "center", "size": 9}
            axes.text(at + 0.47, box[1] + height / 2, half, color=ink, **middle)

# %%
q8_0, q4_0 = pack_q8_0(gguf_weight)[0], packed_q4_0.reshape(-1, 18)[0]
codes_q8_0 = [str(code) for code in q8_0[2:].view(np.int8)]
pairs_q4_0 = [(str(byte >> 4), str(byte & 15)) for byte in q4_0[2:]]
code_color = palette.MEMORY["parameters"]
captions = {
    6.3: "Q8_0, 34 bytes: scale (hex), then 32 int8 codes, in two lines here",
    2.9: "Q4_0, 18 bytes: scale (hex), then 16 bytes of two codes",
    1.2: "above: high four bits, weights 16 to 31; below: low four bits, weights 0 to 15",
}

# %%
figure, axes = plt.subplots(figsize=(7, 3.6))
for top, block in ((6, q8_0), (2.6, q4_0)):
    draw_bytes(axes, top, 0, [f"{byte:02x}" for byte in block[:2]], "none")
draw_bytes(axes, 6, 2, codes_q8_0[:16], code_color)
draw_bytes(axes, 5, 2, codes_q8_0[16:], code_color)
draw_bytes(axes, 2.6, 2, pairs_q4_0, code_color)
for height, text in captions.items():
    axes.text(0, height, text, size=9)
axes.set(xlim=(-0.1, 18.1), ylim=(1, 6.7))
axes.axis("off")
figure.tight_layout()

# %% [markdown]
# **K-quants** (`_K`) have larger blocks of 256 weights, divided into 8 or 16 small ones. Their scales are integers of 4 to 8 bits with an fp16 scale of their own: double quantization again. So `Q4_K` has room for a scale *and* a minimum for every 32 weights in the same 4.5 bits in which `Q4_0` has only a scale:

# %%
two_fp16_scales, scales_and_minima, codes = 2 * 2, 2 * 8 * 6 / 8, 256 * 4 / 8
holds("Q4_K's block", two_fp16_scales + scales_and_minima + codes, FORMATS["Q4_K"].block_bytes, unit="bytes")
of_gguf = {name: GGML_QUANT_SIZES[GGMLQuantizationType[name]] for name in FORMATS if name.startswith("Q")}
ours_of_gguf = {name: (FORMATS[name].block, FORMATS[name].block_bytes) for name in of_gguf}
holds("weights and bytes of each GGUF block, as in the package", ours_of_gguf == of_gguf)

# %% [markdown]
# ## What a format costs
#
# Now all formats together. The error of a weight is not what we want to know: what happens to the loss? We put the dequantized matrices into the GPT and evaluate it on documentation, always on the same 4,096 tokens.

# %%
evaluation = data.batch(0, 32, 128)

def loss_with(weights):
    with torch.no_grad():
        return functional_call(float_gpt, weights, evaluation).item()

# %%
def as_gguf(name):
    """All matrices, rounded as this format rounds them."""
    kind = GGMLQuantizationType[name]
    rounded = {each: quants.dequantize(quants.quantize(weight.numpy(), kind), kind) for each, weight in float_weights.items()}
    return {each: torch.from_numpy(weight) for each, weight in rounded.items()}

# %%
decoded = {"fp32": float_weights, "bf16": {name: weight.bfloat16().float() for name, weight in float_weights.items()}}
decoded |= {"int8": absmax_everywhere(8, "block of 64")}
decoded |= {"nf4": nf4_weights, "nf4, double quantization": nf4_dq_weights}
decoded |= {name: as_gguf(name) for name in of_gguf if not name.endswith("K")}  # K-quants: only llama.cpp writes them
decoded |= {"int4": absmax_everywhere(4, "block of 64"), "int4, one scale for a tensor": absmax_everywhere(4, "tensor")}
all_formats = FORMATS | {"int4": quantization.Format(64, 36), "int4, one scale for a tensor": quantization.Format(1, 0.5)}

# %% [markdown]
# int4 and int8 are absmax in blocks of 64 with fp32 scales. (LLM.int8() has one scale for each row instead: at width 4,096, that is 8.01 bits.) **int4, NF4 and Q4_0 all take 4.5 bits. Which of them adds the least to the loss?**

# %%
predicted_format = predict("The format of 4.5 bits that adds the least loss", options=["int4", "NF4", "Q4_0"])
predicted_format

# %%
def cost_of(name):
    """Bits per weight, GB of 65 billion weights; on our matrices the error in % and the loss, or None."""
    form, weights = all_formats[name], decoded.get(name)
    found = (None, None) if weights is None else (100 * total_error(weights), loss_with(weights))
    return form.bits_per_weight, form.bytes_of(65e9) / 1e9, *found

costs = {name: cost_of(name) for name in sorted(all_formats, key=lambda name: -all_formats[name].bits_per_weight)}
added_loss = {name: costs[name][-1] - costs["fp32"][-1] for name in decoded}
best_format = min(("int4", "nf4", "Q4_0"), key=added_loss.get).replace("nf4", "NF4")
predicted_format.compare(best_format, {"what code points at quantiles would suggest": "NF4"})

# %%
show_table(
    {"format": "", "bits per weight": ".3f", "65 billion weights, GB": ".1f", "error, %": ".2f", "loss": ".4f", "added loss": ".4f"},
    [(name, *cost, added_loss.get(name)) for name, cost in costs.items()],
)

# %%
eight_bits = [abs(added_loss[name]) for name in ("int8", "Q8_0")]
holds("8 bits: change of the loss", eight_bits, below=0.005)
holds("4 bits: added loss with one scale, over blocks of 64", added_loss["int4, one scale for a tensor"] / added_loss["int4"], above=4)
holds("4 bits in blocks of 64: added loss of NF4 over int4", added_loss["nf4"] / added_loss["int4"], below=0.8)
change = added_loss["nf4, double quantization"] - added_loss["nf4"]
holds("change of the loss by double quantization", abs(change), below=0.002)

# %% [markdown]
# (A dash marks K-quants, which only llama.cpp can write.) Q4_0 has smaller blocks than NF4: its scales have 16 bits, so half a bit pays for one in every 32 weights. With the same blocks and scales, NF4 is about equal to it:

# %%
nf4_in_32 = {name: nf4_weight(weight, 32, torch.float16) for name, weight in float_weights.items()}
holds("NF4 with Q4_0's blocks: error over Q4_0's", total_error(nf4_in_32) / total_error(decoded["Q4_0"]), 1, atol=0.05)

# %% [markdown]
# With 8 bits, the loss of this model hardly changes. (Changes as small as these are noise: a smaller error does not always come with a smaller loss.) With 4 bits, it matters where the scales and the code points are. Double quantization saves 0.37 bits, 3 GB of 65 billion weights, and the loss hardly changes.

# %% [markdown]
# ## Rounding with feedback
#
# All formats so far round one weight after another to the nearest value. But what counts is the output of the layer, $XW^\top$. **GPTQ** ([Frantar et al., 2022](https://arxiv.org/abs/2210.17323)) rounds a matrix column by column. After each column it changes the columns that are *not yet rounded*, so that they make up for the error that this one adds to the output.
#
# For that it needs inputs of the layer. We run the trained GPT on a few batches of the documentation and keep what each Linear gets.

# %%
gptq_model = pretrained.gpt()
gptq_layers = {n: m for n, m in gptq_model.blocks.named_modules() if isinstance(m, nn.Linear)}
gptq_original = {name: layer.weight.detach().clone() for name, layer in gptq_layers.items()}

# %%
@torch.no_grad()
def inputs_of_layers(steps):
    """{layer: [tokens, in]} for batches of the documentation."""
    seen = {layer: [] for layer in gptq_layers.values()}

    def note(layer, args):
        seen[layer].append(args[0].flatten(0, 1))

    hooks = [layer.register_forward_pre_hook(note) for layer in seen]
    for step in steps:
        gptq_model(data.batch(step, 8, 128)[0])
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(seen[layer]) for name, layer in gptq_layers.items()}

# %%
calibration, other_inputs = inputs_of_layers(range(4)), inputs_of_layers(range(4, 6))

# %% [markdown]
# Plain rounding first: each row of W has $2^b$ evenly spaced values, `step` apart.

# %%
def row_steps(weight, bits):
    """[out, in] -> [out, 1]"""
    return weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)

def to_grid(weight, step, bits):
    most = 2 ** (bits - 1)
    return (weight / step).round().clamp(-most, most - 1) * step

def round_to_nearest(weight, inputs, bits):
    return to_grid(weight, row_steps(weight, bits), bits)

# %% [markdown]
# With $H = X^\top X$, a change $e$ of one row of W changes the squared error of its outputs by $e H e^\top$. If column j is off by $w_j - q_j$, the change of the others that keeps this error smallest is
#
# $$\delta = -\frac{w_j - q_j}{[H^{-1}]_{jj}} \, [H^{-1}]_{j,:}$$
#
# Afterwards column j is fixed, and $H^{-1}$ becomes the inverse without it. A small value is added to H's diagonal, because inputs may be linearly dependent.

# %%
def round_with_feedback(weight, inputs, bits, damping=0.01):
    """weight [out, in], inputs [tokens, in] -> [out, in], on the grid of `round_to_nearest`."""
    hessian = inputs.T @ inputs
    hessian += damping * hessian.diagonal().mean() * torch.eye(len(hessian))
    inverse = hessian.inverse()
    step, rest, rounded = row_steps(weight, bits), weight.clone(), torch.empty_like(weight)
    for j in range(weight.shape[1]):
        rounded[:, j] = to_grid(rest[:, j], step[:, 0], bits)
        off = (rest[:, j] - rounded[:, j]) / inverse[j, j]
        rest -= torch.outer(off, inverse[j])
        inverse -= torch.outer(inverse[:, j], inverse[j]) / inverse[j, j]
    return rounded

# %% [markdown]
# Both round to the same values, in 4 bits and in 3. **Is the error of the weights, $\lVert W - Q\rVert$, larger or smaller with feedback?**

# %%
predicted_weight_error = predict("With feedback, the weights' error is", options=["larger", "smaller", "equal"])
predicted_weight_error

# %%
ways = {"to nearest": round_to_nearest, "with feedback": round_with_feedback}
layer_name = "1.mlp.up"
exact, x = gptq_original[layer_name], other_inputs[layer_name]  # not used for calibration
gptq_errors = {}
for bits in (4, 3):
    for way, rounding in ways.items():
        rounded = rounding(exact, calibration[layer_name], bits)
        gptq_errors[bits, way] = relative_error(rounded, exact), relative_error(x @ rounded.T, x @ exact.T)

# %%
nearest, feedback = (gptq_errors[4, way][0] for way in ways)
found = "larger" if feedback > nearest else "smaller"
predicted_weight_error.compare(found, {"what the error of the outputs is": "smaller"})

# %%
show_table(
    {"bits": "d", "rounded": "", "error of the weights": ".1%", "error of the outputs": ".1%"},
    [(bits, way, *errors) for (bits, way), errors in gptq_errors.items()],
)
for bits in (4, 3):
    plain, feedback = (gptq_errors[bits, way] for way in ways)
    of_weights, of_outputs = np.divide(feedback, plain)
    holds(f"{bits} bits, over plain rounding: error of the weights", of_weights, above=1.3)
    holds(f"{bits} bits, over plain rounding: error of the outputs", of_outputs, below=0.75)

# %% [markdown]
# Rounding to nearest is by definition closest to W, so feedback can only increase the error of the weights. But the error of the outputs falls, even on inputs that were not used for calibration: feedback moves the errors into directions in which the inputs are small. So the error of the weights alone does not rank methods.

# %% [markdown]
# Now the whole model: all eight Linears of its blocks in 3 bits (embeddings, norms and biases stay), and the loss on text that was not used to calibrate.

# %%
print("Rounding eight layers in two ways: a few seconds …")

@torch.no_grad()
def gptq_loss():
    return sum(gptq_model(*data.batch(step, 8, 128)).item() for step in range(100, 104)) / 4

gptq_losses = {"fp32": gptq_loss()}
for way, rounding in ways.items():
    for name, layer in gptq_layers.items():
        layer.weight.data = rounding(gptq_original[name], calibration[name], 3)
    gptq_losses[f"3 bits, {way}"] = gptq_loss()
show_table({"weights": "", "loss": ".3f"}, list(gptq_losses.items()))

# %%
unrounded, nearest, feedback = gptq_losses.values()
regained = (nearest - feedback) / (nearest - unrounded)
holds("share of the added loss that feedback recovers", regained, above=0.5)

# %% [markdown]
# The real GPTQ has a Cholesky decomposition in place of our updates of $H^{-1}$, batches of 128 columns, a scale for each group of weights, and inputs from the *rounded* earlier layers. The paper quantizes 175 billion parameters in about 4 GPU-hours.
#
# **AWQ** (Lin et al. 2023) also starts from activations, but only to choose scales. Before rounding, it multiplies the weights of the input channels with the largest activations by a factor above 1, and divides the inputs by the same factor. The product does not change, but the rounding error of these channels counts for less.
#
# **torchao**, PyTorch's own library for quantization, replaces the weights of linear layers in place: `quantize_(model, Int8WeightOnlyConfig())`. The new weight is a [tensor subclass](https://docs.pytorch.org/ao/stable/subclass_basic.html), which holds codes and scales and dequantizes where an operation needs it. (We run neither AWQ nor torchao here.)
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
# Each of the programs in `grid` computes a block of y. `x` and the others are pointers, `tl.load` reads a block from memory, and GROUP has to divide K. Here are the same steps on a CPU, for all N columns at once. `load` and `store` stand for reads and writes of the GPU's memory, and count bytes:

# %%
moved_bytes = Counter()

def load(block):
    moved_bytes["read"] += block.nbytes
    return block

def store(destination, block):
    moved_bytes["written"] += block.nbytes
    destination.copy_(block)

# %% [markdown]
# We take the second Linear of an MLP, with 384 inputs and 96 outputs, and one token. Weights are stored as [in, out], with a scale for every 64 inputs of each output.

# %%
GROUP = 64
kernel_weight = pretrained.gpt().blocks[1].mlp.down.weight.detach().T  # [K, N]
K, N_out = kernel_weight.shape
grouped = kernel_weight.reshape(K // GROUP, GROUP, N_out)
int8_scales = (grouped.abs().amax(1) / 127).half()  # [K / GROUP, N]
int8_codes = (grouped / int8_scales[:, None]).round().clamp(-127, 127).to(torch.int8)
int8_codes = int8_codes.reshape(K, N_out)
one_token = other_inputs["1.mlp.down"][:1].half()  # [1, K]

# %%
def fused(x):
    """Reads codes and scales; fp16 weights exist for one group at a time."""
    total = torch.zeros(len(x), N_out)
    for group in range(K // GROUP):
        rows = slice(group * GROUP, (group + 1) * GROUP)
        weight = load(int8_codes[rows]).half() * load(int8_scales[group])
        total += load(x[:, rows]).float() @ weight.float()
    y = torch.empty(len(x), N_out, dtype=torch.float16)
    store(y, total.half())
    return y

# %%
def dequantize_first(x):
    """The first kernel writes W in fp16, the second one multiplies."""
    whole = torch.empty(K, N_out, dtype=torch.float16)
    for group in range(K // GROUP):
        rows = slice(group * GROUP, (group + 1) * GROUP)
        store(whole[rows], load(int8_codes[rows]).half() * load(int8_scales[group]))
    y = torch.empty(len(x), N_out, dtype=torch.float16)
    store(y, (load(x).float() @ load(whole).float()).half())
    return y

# %% [markdown]
# With fp16 weights, $Wx$ moves 2 bytes for each weight. **How many bytes per weight does each of the two ways move?** (Round down to whole bytes: the scales, x and y add a little.)

# %%
predicted_moved = predict("Whole bytes for each weight", unit="bytes", labels=["fused", "dequantize first"])
predicted_moved

# %%
moved, results = {}, {}
for way in (fused, dequantize_first):
    moved_bytes.clear()
    results[way.__name__] = way(one_token)
    moved[way.__name__] = moved_bytes.total() / kernel_weight.numel()
whole_bytes = [math.floor(each) for each in moved.values()]
named = {"what is stored, in both": [1, 1], "the second way without writing W": [1, 3]}
predicted_moved.compare(whole_bytes, named)

# %%
small = 2 / GROUP + 2 / N_out + 2 / K  # scales, x and y, for each weight
product = one_token.float() @ kernel_weight
holds("both give the same", torch.equal(*results.values()))
holds("error, over the product in fp32", relative_error(results["fused"].float(), product), below=0.02)
holds("fused, bytes for each weight", moved["fused"], 1 + small)
holds("dequantize first, bytes for each weight", moved["dequantize_first"], 1 + 2 + 2 + small)

# %% [markdown]
# Dequantize first moves *more* than no quantization at all: one byte read, two written, two read again. If the memory's bandwidth is the limit, the time for one token follows. For 7 billion weights on an H100, whose memory moves at most 3.35 TB/s according to its data sheet:

# %%
H100_BYTES_PER_S = 3.35e12
bytes_per_weight = {
    "fp16, no quantization": 2,
    "int8, dequantize first": 5 + 2 / GROUP,
    "int8, fused": 1 + 2 / GROUP,
    "4 bits, fused (Q4_0)": FORMATS["Q4_0"].bits_per_weight / 8,
}
show_table(
    {"weights": "", "bytes for each weight": ".2f", "minimum ms per token": ".2f"},
    [(name, each, 1e3 * 7e9 * each / H100_BYTES_PER_S) for name, each in bytes_per_weight.items()],
    caption="Predicted from bandwidth alone",
)

# %% [markdown]
# So quantization is faster only with a kernel that is written for it. With many tokens at once it is different, because each weight that is read is used for all of them. The same data sheet gives 989 TFLOP/s for fp16:

# %%
H100_FLOPS_PER_S = 989e12
reading_s = bytes_per_weight["int8, fused"] / H100_BYTES_PER_S  # of one weight
computing_s = 2 / H100_FLOPS_PER_S  # one weight with one token
print(f"reading takes as long as computing with {reading_s / computing_s:.0f} tokens")

# %% [markdown]
# In training, and for long prompts, there are thousands of tokens: arithmetic is the limit, and dequantizing is extra work. In that case a quantized base saves memory, not time.

# %% [markdown]
# ## QLoRA: adapters on a 4-bit base
#
# With LoRA the base stays in memory, and nothing updates it, so it can be quantized. **QLoRA** (Dettmers et al. 2023) stores the frozen matrices in NF4 and trains adapters in higher precision. The library is bitsandbytes, which has kernels for CPUs too.

# %%
from bitsandbytes.functional import dequantize_4bit

# %% [markdown]
# `Linear4bit` stores a matrix in 4 bits. It quantizes when it is moved to a device, even to the CPU. By default its blocks have 64 weights. Our rows have 96 weights, so we take blocks of 32: three fill a row, and none crosses its end. (The end of this section shows why that matters here.)

# %%
BLOCK = 32

def quantized(linear, block=BLOCK):
    """The same layer, with its weight in NF4 and double quantization."""
    shape = linear.in_features, linear.out_features
    layer = bnb.nn.Linear4bit(*shape, quant_type="nf4", compute_dtype=torch.float32)
    layer.load_state_dict(linear.state_dict())
    layer.weight.blocksize = block
    return layer.to("cpu").requires_grad_(False)  # the new layer's bias would be trained

# %%
up = pretrained.gpt().blocks[0].mlp.up
packed_up = quantized(up).weight
state_up = packed_up.quant_state
print("weight", tuple(up.weight.shape), "->", packed_up.dtype, tuple(packed_up.shape))

# %% [markdown]
# We pack this matrix ourselves: each weight gets the nearest of NF4's code points, and two codes make a byte, the first in the high bits.

# %%
holds("the 16 code points", state_up.code, nf4_points, atol=1e-6)
codes_up, _ = nf4_codes(up.weight.detach(), BLOCK)
codes_up = codes_up.flatten()
by_hand = (codes_up[0::2] << 4 | codes_up[1::2]).to(torch.uint8)
holds("packed bytes that differ", (by_hand != packed_up.flatten()).sum(), 0)

# %% [markdown]
# `state_up` has the rest: an 8-bit code for each block's scale (that is the double quantization), an fp32 scale for 256 of these codes, and an fp32 mean, which was subtracted from all scales before.

# %%
def stored(weight):
    """{part: bytes} of a 4-bit weight, without its two lookup tables."""
    state = weight.quant_state
    parts = {"codes": weight, "codes of scales": state.absmax, "scales of scales": state.state2.absmax}
    return {name: part.nbytes for name, part in (parts | {"mean": state.offset}).items()}

# %%
bytes_up = stored(packed_up)
show_table({"part": "", "bytes": ",d"}, list(bytes_up.items()))
code_bits = 4 * BLOCK + quantization.DOUBLE_QUANTIZED_BITS  # of a block and its scale
in_blocks_of_32 = quantization.Format(BLOCK, code_bits / 8)
predicted = in_blocks_of_32.bytes_of(up.weight.numel())
holds("all but the mean", sum(bytes_up.values()) - 4, predicted, rtol=0.001, unit="bytes")

# %% [markdown]
# Now the whole model. We quantize the matrices of all blocks. Embeddings, norms and biases stay in fp32. The head stays too: it is tied to the token embedding.
#
# In blocks of 32, a quantized weight takes 4.254 bits. **How many bits per parameter does the whole model take, on average?** The model has 260,736 parameters, and 221,184 of them are in these matrices.

# %%
predicted_model_bits = predict("Bits for each parameter of the whole model", unit="bits")
predicted_model_bits

# %%
def base_bytes(model):
    """Bytes of all parameters; of 4-bit weights with their scales."""
    sizes = [sum(stored(p).values()) if isinstance(p, bnb.nn.Params4bit) else p.nbytes for p in model.parameters()]
    return sum(sizes)

# %%
four_bit_gpt = pretrained.gpt()
replace_linears(four_bit_gpt, quantized)
four_bit_bytes = base_bytes(four_bit_gpt)

# %%
wrong_bits = {"what a quantized weight takes": in_blocks_of_32.bits_per_weight, "what it takes in fp32": 32}
predicted_model_bits.compare(8 * four_bit_bytes / psi, wrong_bits)

# %%
predicted = in_blocks_of_32.bytes_of(linear_weights) + 4 * (psi - linear_weights)
holds("bytes of the base", four_bit_bytes, predicted, rtol=0.001, unit="bytes")

# %% [markdown]
# More than half of the bytes are now in what was not quantized. In a large model this part is small: see below.
#
# ### The backward pass
#
# No gradient is computed for 4-bit codes. But the gradient has to pass *through* the layer to the adapters below: $\partial L / \partial x = (\partial L / \partial y)\, W$. For this, bitsandbytes keeps the packed matrix and dequantizes it again in backward:

# %%
layer = quantized(up)
torch.manual_seed(0)
x = torch.randn(8, up.in_features, requires_grad=True)
upstream = torch.randn(8, up.out_features)
with mock.patch.object(bnb.functional, "dequantize_4bit", wraps=dequantize_4bit) as dequantize:
    y = layer(x)  # one operation of the library
    in_forward = dequantize.call_count
    y.backward(upstream)
dequantized = dequantize_4bit(layer.weight, layer.weight.quant_state)
holds("gradient of x, against the dequantized matrix", x.grad, upstream @ dequantized, atol=1e-4)
holds("the packed matrix has no gradient", layer.weight.grad is None)
holds("calls of dequantize_4bit, in forward and in backward", [in_forward, dequantize.call_count - in_forward], [0, 1])

# %% [markdown]
# So QLoRA's adapters are trained for the dequantized matrices, with their errors, and not for the original ones.
#
# ### Training
#
# We repeat the fine-tuning from above with r 8 on the 4-bit base, with the same batches.

# %%
def with_qlora(r):
    """The trained GPT with a 4-bit base and the same adapters as with_lora(r)."""
    gpt = with_lora(r)
    for adapted in [module for module in gpt.modules() if isinstance(module, LoRALinear)]:
        adapted.base = quantized(adapted.base)
    return gpt

# %% [markdown]
# (We keep the models in training mode, in which this GPT computes the same as in evaluation: in evaluation mode, bitsandbytes repacks 4-bit weights on CPUs with bf16 instructions.)

# %%
torch.set_num_threads(1)  # too small a model to share its work between threads
print("Training for 40 steps: a few seconds …")
qlora_gpt = with_qlora(8)
before = {"fp32": untrained, "4 bits": unseen_loss(qlora_gpt)}
finetune(qlora_gpt, LORA_LR)
after = {"fp32": unseen["all linears, r 8"], "4 bits": unseen_loss(qlora_gpt)}

# %%
sizes = {"fp32": 4 * psi, "4 bits": four_bit_bytes}
show_table(
    {"base": "", "bytes of the base": ",d", "loss on code, before": ".3f", "after": ".3f"},
    [(base, sizes[base], before[base], after[base]) for base in sizes],
)
holds("fine-tuning lowers the loss by", before["4 bits"] - after["4 bits"], above=0.15)
holds("loss added by 4 bits, before training", before["4 bits"] - before["fp32"], below=0.05)
holds("difference after training", abs(after["4 bits"] - after["fp32"]), below=0.05)

# %% [markdown]
# Quantizing the base costs about 0.02 of loss before training, and after training the two models are just as close.
#
# ### Merging is not lossless
#
# After LoRA, $W + \frac{\alpha}{r} B A$ replaces $W$, and the outputs stay the same. Here $W$ is in 4 bits. You can dequantize, add, and keep the result in fp32, which gives up the memory that 4 bits saved. Or you can quantize the sum again, which rounds it to the code points a second time.

# %%
@torch.no_grad()
def merged_linear(adapted):
    """A LoRALinear with a 4-bit base -> a Linear in fp32"""
    weight = adapted.base.weight
    linear = nn.Linear(adapted.base.in_features, adapted.base.out_features)
    linear.weight.copy_(dequantize_4bit(weight, weight.quant_state) + adapted.scale * adapted.B @ adapted.A)
    linear.bias.copy_(adapted.base.bias)
    return linear

def merged_loss(gpt, make):
    gpt = copy.deepcopy(gpt)
    replace_linears(gpt, make)
    return unseen_loss(gpt)

# %%
in_fp32 = merged_loss(qlora_gpt, merged_linear)
again_in_4_bits = merged_loss(qlora_gpt, lambda adapted: quantized(merged_linear(adapted)))
show_table(
    {"QLoRA": "", "loss on code": ".4f"},
    [("adapters separate", after["4 bits"]),
     ("merged, in fp32", in_fp32),
     ("merged, quantized again", again_in_4_bits)],
)
holds("merging in fp32 keeps the loss", in_fp32, after["4 bits"], atol=1e-4)
holds("quantizing again raises it by", again_in_4_bits - after["4 bits"], above=0.005)

# %% [markdown]
# Evaluate the model that you will deploy, not the one that you trained.
#
# ### What a real model takes
#
# The paper's example: fine-tuning a 65-billion-parameter model in 16 bits takes more than 780 GB, with QLoRA less than 48 GB. The first is 2 bytes for a parameter, 2 for its gradient and 8 for Adam's states. For the second we need the shapes of LLaMA's matrices (Touvron et al. 2023), and adapters with 0.2% of the parameters:

# %%
def llama(layers, width, hidden):
    """The elements of its matrices, and of its embedding and head."""
    block = 4 * width * width + 3 * width * hidden
    return layers * block, 2 * 32_000 * width

# %%
def qlora_gb(matrices, embeddings, trained_share=0.002):
    """The base with 16-bit embeddings, and the adapters with their gradients and Adam's states."""
    base = FORMATS["nf4, double quantization"].bytes_of(matrices) + 2 * embeddings
    return base / 1e9, lora.trained_bytes(round(trained_share * (matrices + embeddings))) / 1e9

# %%
llama_sizes = {"7B": llama(32, 4096, 11008), "65B": llama(80, 8192, 22016)}

# %%
full_bytes = 2 + 2 + memory.STATE_BYTES["adam"]
rows = [(name, sum(size) / 1e9, full_bytes * sum(size) / 1e9, *qlora_gb(*size)) for name, size in llama_sizes.items()]
columns = {"model": "", "billion parameters": ".2f", "16 bit, GB": ".0f", "QLoRA: base, GB": ".1f", "adapters, GB": ".1f"}
show_table(columns, rows)
(*_, full_gb, base_gb, adapters_gb) = rows[-1]
holds("65B, 16 bit", full_gb, above=780, unit="GB")
holds("65B, QLoRA: base and adapters", base_gb + adapters_gb, below=48, unit="GB")

# %% [markdown]
# What remains of the 48 GB is for activations. For LLaMA 7B and a batch of one sequence, the paper reports 26 MB for the LoRA parameters (0.2%, in 16 bits), 567 MB for the gradients of their inputs (18 MB with checkpointing, [chapter 09](09_activation_checkpointing.ipynb)), and 5,048 MB for the 4-bit base. The formula reproduces the first number and only part of the last one, which the paper does not itemize.

# %%
matrices, embeddings = llama_sizes["7B"]
holds("7B: LoRA in 16 bits", 26, 0.002 * (matrices + embeddings) * 2 / 1e6, rtol=0.05, unit="MB")
print(f"7B, base: {1000 * rows[0][3]:,.0f} MB by the formula, 5,048 MB in the paper")

# %% [markdown]
# ### What bitsandbytes does on this CPU and by default
#
# The CPU build of bitsandbytes has most functions of the GPU build. We try each:

# %%
def attempt(action):
    """What an action does on this CPU."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            action()
        except Exception as error:
            return f"raises {type(error).__name__}: {error}"
    return f"works, and warns: {caught[0].message}" if caught else "works"

# %%
def forward_and_backward(layer, dtype=torch.float32):
    x = torch.randn(4, 96, dtype=dtype, requires_grad=True)
    layer.to("cpu")(x).sum().backward()

# %%
def optimizer_step(make):
    weight = nn.Parameter(torch.randn(64, 256))
    weight.sum().backward()
    make([weight]).step()

# %%
int8 = {"has_fp16_weights": False, "threshold": 6.0}
tried = {
    "Linear4bit, nf4": lambda: forward_and_backward(bnb.nn.Linear4bit(96, 64, quant_type="nf4")),
    "Linear4bit, fp4": lambda: forward_and_backward(bnb.nn.Linear4bit(96, 64, quant_type="fp4")),
    "Linear8bitLt": lambda: forward_and_backward(bnb.nn.Linear8bitLt(96, 64, **int8), torch.float16),
    "Adam8bit": lambda: optimizer_step(bnb.optim.Adam8bit),
    "PagedAdamW8bit": lambda: optimizer_step(bnb.optim.PagedAdamW8bit),
    "SGD8bit without momentum": lambda: optimizer_step(lambda weights: bnb.optim.SGD8bit(weights, lr=0.1)),
    "training the codes": lambda: quantized(up).weight.requires_grad_(True),
}
show_table({"tried": "", "result": ""}, [(name, attempt(action)) for name, action in tried.items()])

# %% [markdown]
# (Paged optimizers, the third idea of the paper, move their states to the host when a GPU's memory runs out.)
#
# Not everything that runs is correct. We decode all our matrices as this version of bitsandbytes packs them, in blocks of 32 and in the default blocks of 64:

# %%
def decoding_error(linear, block):
    """The relative error of the matrix that bitsandbytes decodes."""
    weight = quantized(linear, block).weight
    return relative_error(dequantize_4bit(weight, weight.quant_state), linear.weight.detach())

linears_of_block = {target: pretrained.gpt().blocks[0].get_submodule(target) for target in ALL_LINEARS}
print(f"bitsandbytes {bnb.__version__}, CPU with {torch.backends.cpu.get_cpu_capability()}")
show_table(
    {"matrix": "", "weights in a row": "d", "error, blocks of 32": ".3f", "blocks of 64": ".3f"},
    [
        (target, linear.in_features, decoding_error(linear, 32), decoding_error(linear, 64))
        for target, linear in linears_of_block.items()
    ],
)

# %% [markdown]
# On a CPU with AVX-512 instructions, version 0.50.2 looks for a new scale at the start of each row. If a row of 96 weights ends in the middle of a block of 64, all later rows get the scales of other blocks, and nothing is reported. (The codes are right; other CPUs decode them correctly.) Widths of large models are multiples of 64, so few users run into this. Whatever you quantize, dequantize it once and look at the error.
#
# With transformers, a `BitsAndBytesConfig` selects all this. Its defaults are not QLoRA's settings. FSDP1 needs one more: it flattens a unit's parameters into one tensor of one dtype, so the packed bytes are stored under the dtype of the other parameters ([bitsandbytes on FSDP-QLoRA](https://huggingface.co/docs/bitsandbytes/fsdp_qlora)). `fully_shard` also shards uint8. A floating-point storage dtype has to equal its `param_dtype`: it would convert the packed bytes as if they were numbers.

# %%
default = BitsAndBytesConfig(load_in_4bit=True).to_dict()
qlora_paper = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16"}
qlora_paper |= {"bnb_4bit_quant_storage": "bfloat16, under FSDP1"}
show_table({"setting": "", "default": str, "QLoRA": str}, [(name, default[name], value) for name, value in qlora_paper.items()])

# %%
stored_as = [bnb.nn.Linear4bit(96, 384, quant_storage=dtype).to("cpu").weight for dtype in (torch.uint8, torch.bfloat16)]
show_table(
    {"quant_storage": str, "shape of a packed 384 × 96 weight": str, "bytes": ",d"},
    [(packed.dtype, tuple(packed.shape), packed.nbytes) for packed in stored_as],
)

# %% [markdown]
# ## Fewer bits on the wire
#
# With ZeRO-3 and FSDP, each rank gathers all weights twice in a step and reduce-scatters all gradients. These messages can be quantized too, and only while they are sent. **ZeRO++** (Wang et al. 2023) does this. Its first part, qwZ, gathers weights as int8, in blocks with a scale each:

# %%
def to_wire(x, bits=8):
    """[n] fp32 -> [n/64, bytes] uint8: the codes of 64 numbers, then their fp32 scale."""
    blocks = x.view(-1, 64)
    scale = blocks.abs().amax(1, keepdim=True).clamp(min=1e-30) / (2 ** (bits - 1) - 1)
    codes = (blocks / scale).round().to(torch.int8).view(torch.uint8)
    if bits == 4:
        codes = codes[:, 0::2] << 4 | codes[:, 1::2] & 15
    return torch.cat([codes, scale.view(torch.uint8)], 1)

# %%
def from_wire(packed, bits=8):
    codes, scale = packed[:, :-4].view(torch.int8), packed[:, -4:].contiguous().view(torch.float32)
    if bits == 4:
        codes = torch.stack([codes >> 4, codes << 4 >> 4], -1).flatten(1)  # both keep the sign
    return (codes * scale).flatten()

# %% [markdown]
# Four ranks each hold a quarter of our model's matrices, and gather them in three formats:

# %%
def gather_weights(shard):
    sent = {"fp32": shard, "bf16": shard.bfloat16(), "int8": to_wire(shard)}
    gathered = {name: part.new_empty(4 * len(part), *part.shape[1:]) for name, part in sent.items()}
    for name, part in sent.items():
        with measure(name):
            dist.all_gather_into_tensor(gathered[name], part)
    return gathered["fp32"], gathered["bf16"].float(), from_wire(gathered["int8"])

# %%
def flat_matrices(model, of=lambda parameter: parameter.detach()):
    return torch.cat([of(p).flatten() for p in model.blocks.parameters() if p.ndim == 2])

# %%
shards = list(flat_matrices(pretrained.gpt()).chunk(4))
gather_run = launch(gather_weights, inputs=shards, device="cpu", quiet=True)
exact, *rounded = gather_run.outputs[0]
errors = [0, *(relative_error(each, exact) for each in rounded)]

# %%
wire_sent = {name: gather_run.traffic[name].sent_by_rank.mean() for name in ("fp32", "bf16", "int8")}
show_table(
    {"format": "", "bytes sent by each rank": ",.0f", "relative error": ".4f"},
    [(name, amount, error) for (name, amount), error in zip(wire_sent.items(), errors)],
)
for name, amount in wire_sent.items():
    whole = FORMATS[name].bytes_of(linear_weights)
    holds(name, amount, collectives.scatter_or_gather_sent_bytes(whole, 4), rtol=0.01, unit="bytes")

# %% [markdown]
# With its scales, int8 sends 8.5 bits for each weight. The error does not add up over steps: the sharded weights stay exact, and each gather starts from them.
#
# ### Gradients have to be added
#
# Weights are only copied. Gradients are summed on the way, and codes cannot be summed. **Four ranks all-reduce an int8 tensor in which each has 100. What is the sum?**

# %%
predicted_sum = predict("The int8 sum of four times 100", options=["400", "144", "127", "-112"])
predicted_sum

# %% [markdown]
# Each rank's codes also have their own scales. A ring therefore has to dequantize, add, and quantize the partial sum again, at each hop. ZeRO++'s qgZ replaces the ring by an all-to-all: each rank quantizes its gradients once, sends each rank its part, and the receiver adds them in full precision. Both send the same number of bytes.

# %%
def ring_reduce(chunks, bits):
    """This rank's part of the sum; each hop quantizes the partial sum."""
    rank, N = dist.get_rank(), len(chunks)
    partial = chunks[rank - 1]
    for hop in range(N - 1):
        packed = to_wire(partial, bits)
        received = torch.empty_like(packed)
        sending = dist.isend(packed, (rank + 1) % N)
        dist.recv(received, (rank - 1) % N)
        sending.wait()
        partial = from_wire(received, bits) + chunks[rank - hop - 2]
    return partial

# %%
def all_to_all_reduce(chunks, bits):
    """The same sum; each rank's gradient is quantized once."""
    packed = torch.stack([to_wire(chunk, bits) for chunk in chunks])
    received = torch.empty_like(packed)
    dist.all_to_all_single(received, packed)
    return sum(from_wire(part, bits) for part in received)

# %%
def reduce_gradients(batch):
    model = pretrained.gpt()
    model(*batch).backward()
    chunks = flat_matrices(model, lambda parameter: parameter.grad).chunk(4)
    parts = {}
    for reduce in (ring_reduce, all_to_all_reduce):
        for bits in (8, 4):
            with measure(f"{reduce.__name__} {bits}"):
                parts[reduce.__name__, bits] = reduce(chunks, bits)
    exact = torch.cat(chunks)
    dist.all_reduce(exact)
    hundreds = torch.full((1,), 100, dtype=torch.int8)
    dist.all_reduce(hundreds)
    return parts, exact, hundreds.item()

# %%
batches = [data.batch(0, 4, 64, rank, 4, text="code") for rank in range(4)]
reduce_run = launch(reduce_gradients, inputs=batches, device="cpu", quiet=True)
all_parts, (exact, *_), (int8_sum, *_) = zip(*reduce_run.outputs)
predicted_sum.compare(str(int8_sum), {"the sum, which int8 cannot hold": "400", "the largest int8": "127"})

# %%
wire_formats = {8: all_formats["int8"], 4: all_formats["int4"]}
rows = []
for name, bits in all_parts[0]:
    whole = torch.cat([parts[name, bits] for parts in all_parts])
    sent = reduce_run.traffic[f"{name} {bits}"].sent_by_rank.mean()
    predicted = collectives.scatter_or_gather_sent_bytes(wire_formats[bits].bytes_of(linear_weights), 4)
    rows.append((name, bits, sent, predicted, relative_error(whole, exact)))
show_table({"sum": "", "bits": "d", "sent by each rank": ",.0f", "predicted": ",.0f", "relative error": ".4f"}, rows)
holds("bytes sent", [row[2] for row in rows], [row[3] for row in rows], rtol=0.01)

# %% [markdown]
# In fp32 each rank would send 4 bytes per element, 663,552 bytes by the formula. With 4 bits the error is about a tenth; ZeRO++ does send gradients in 4 bits. With four ranks there are three hops, and the ring's error is a little larger. Let ε be the relative error of one quantization, and assume that the gradients of all ranks are independent and equally large. **On 64 ranks, by what factor is the ring's error larger than the all-to-all's?** A sum of k such gradients is √k times as large as one.

# %%
predicted_ratio = predict("The ring's error, over the all-to-all's, on 64 ranks")
predicted_ratio

# %%
def both_errors(N, numbers=64 * 64):
    """The relative errors of N random gradients' sum: a ring's and an all-to-all's."""
    gradients = torch.randn(N, numbers)
    partial = gradients[0]
    for gradient in gradients[1:]:
        partial = from_wire(to_wire(partial)) + gradient
    once = sum(from_wire(to_wire(gradient)) for gradient in gradients)
    return [relative_error(total, gradients.sum(0)) for total in (partial, once)]

# %%
torch.manual_seed(0)
rank_counts = np.array([2, 4, 8, 16, 32, 64])
ring_errors, once_errors = np.transpose([both_errors(N) for N in rank_counts])
predicted_ratio.compare(ring_errors[-1] / once_errors[-1], {"the number of hops": 63, "the root of the number of hops": 63**0.5})

# %% [markdown]
# Hop k rounds a sum of k gradients, with an error of $\varepsilon \sqrt{k}$. Errors are independent, so their squares add up to $\varepsilon^2 (1 + 2 + \dots + (N-1)) = \varepsilon^2 N (N-1) / 2$. The all-to-all's add up to $\varepsilon^2 N$. The ratio is $\sqrt{(N-1)/2}$:

# %%
ratios = np.sqrt((rank_counts - 1) / 2)
holds("ratio on 4 to 64 ranks", (ring_errors / once_errors)[1:], ratios[1:], rtol=0.1)

# %%
once = once_errors.mean()
figure, axes = plt.subplots(figsize=(7, 3))
axes.plot(rank_counts, 100 * once * ratios, color=palette.PREDICTED, label="formula")
axes.plot(rank_counts, np.full(6, 100 * once), "--", color=palette.PREDICTED)
axes.plot(rank_counts, 100 * ring_errors, "o", color=palette.MEASURED, label="ring: each hop quantizes")
axes.plot(rank_counts, 100 * once_errors, "s", color=palette.MEASURED, label="all-to-all: quantized once")
axes.set(xlabel="ranks", ylabel="relative error of the sum, %", ylim=0)
axes.legend(frameon=False)
figure.tight_layout()

# %% [markdown]
# On several nodes, qgZ does two such all-to-alls, one within a node and one between nodes: two quantizations, for any number of ranks. The third part of ZeRO++, hpZ, keeps a second copy of the weights sharded within each node, so that the gather in backward does not leave the node ([chapter 05](05_fsdp.ipynb), `reshard_after_forward` with a number). Between nodes, a 16-bit ZeRO-3 sends 3Ψ elements for large N, and ZeRO++ 0.75Ψ:

# %%
volumes = [("ZeRO-3", 16, 16, 16), ("qwZ", 8, 8, 16), ("qwZ, hpZ", 8, 0, 16), ("qwZ, hpZ, qgZ", 8, 0, 4)]
show_table(
    {"bits, without scales": "", **dict.fromkeys(("forward", "backward", "gradients"), "d"), "between nodes, in Ψ": ".2f"},
    [(name, *bits, sum(bits) / 16) for name, *bits in volumes],
)

# %% [markdown]
# ## Which method?
#
# LLaMA 7B, with adapters of rank 8 on all matrices of the blocks. Bytes are per parameter of the model, on each of 8 ranks with DDP. Full fine-tuning is mixed precision with fp32 masters, which count as optimizer states; its gradients are sent in 16 bits:

# %%
matrix_shapes = 32 * [*[(4096, 4096)] * 4, *[(11008, 4096)] * 2, (4096, 11008)]
adapters = lora.adapter_parameters(matrix_shapes, r=8)
psi_7b = matrices + embeddings
full = memory.model_states(psi_7b, precision="bf16").device
four_bits = FORMATS["nf4, double quantization"].bytes_of(matrices) + 2 * embeddings
gradients, states = 4 * adapters, 8 * adapters

# %%
def method(name, weights, gradients, states, sent, flops):
    each = [amount / psi_7b for amount in (weights, gradients, states)]
    return name, *each, sum(each), sent / 1e6, flops / 1e9

# %%
adapters_sent = lora.sent_bytes(adapters, 8)
flops = {frozen: lora.training_flops(psi_7b, 1, is_frozen=frozen) for frozen in (True, False)}
method_rows = [
    method("full fine-tuning", *full.values(), collectives.ring_sent_bytes(2 * psi_7b, 8), flops[False]),
    method("LoRA, 16-bit base", 2 * psi_7b + gradients, gradients, states, adapters_sent, flops[True]),
    method("QLoRA", four_bits + gradients, gradients, states, adapters_sent, flops[True]),
    method("inference in 4 bits", four_bits, 0, 0, 0, 2 * psi_7b),
]

# %%
columns = ["weights", "gradients", "optimizer", "all bytes"]
show_table(
    {"method": "", **dict.fromkeys(columns, ".2f"), "MB sent in a step": ",.0f", "GFLOPs per token": ".0f"},
    method_rows,
)

# %% [markdown]
# (LoRA's weights include the adapters, in fp32. Embeddings stay in 16 bits. The table leaves out activations, and the operations of dequantizing and of the adapters.) We train our small GPT with each method in a new process, which records its live tensors, and look at the second step, in which Adam's states exist from the start:

# %%
def steps_in_memory(batch):
    methods = {"full": lambda: with_lora(None), "LoRA": lambda: with_lora(8), "QLoRA": lambda: with_qlora(8)}
    for name, make in methods.items():
        gpt = make()
        adam = torch.optim.AdamW(trainable(gpt), lr=LORA_LR)
        for step in range(2):
            adam.zero_grad()
            with measure(f"{name}, step {step}"):
                gpt(*batch).backward()
                adam.step()
        del gpt, adam

# %%
in_memory = launch(steps_in_memory, lora_batch, world_size=1, device="cpu", memory=True, quiet=True, timeout_s=120).memory[0]
phase_of = {phase.name.removesuffix(", step 1"): phase for phase in in_memory.phases if phase.name.endswith(", step 1")}
adapters_held = lora.trained_bytes(lora.adapter_parameters(shapes, r=8))
computed = {"full": 16 * psi, "LoRA": 4 * psi + adapters_held, "QLoRA": four_bit_bytes + adapters_held}
for name, phase in phase_of.items():
    live = sum(phase.at_end.values()) - bytes_of(lora_batch)
    holds(f"{name}: live at the end of the step", live, computed[name], rtol=0.02, unit="bytes")

# %%
figure, axes = plt.subplots(figsize=(7, 2.6))
bottom = np.zeros(3)
for kind in ("parameters", "gradients", "optimizer", "activations", "other"):
    mib = np.array([phase_of[name].at_peak[kind] / 2**20 for name in phase_of])
    axes.barh(list(phase_of), mib, left=bottom, color=palette.MEMORY[kind], label=kind)
    bottom += mib
axes.invert_yaxis()
axes.set(xlabel="MiB at the peak of a step")
axes.legend(frameon=False, ncols=5, loc="lower left", bbox_to_anchor=(0, 1), columnspacing=1)
figure.tight_layout()

# %% [markdown]
# Weights, gradients and Adam's states shrink as computed. (The small remainder is bitsandbytes' lookup tables. At the peak, no gradients exist yet: they appear as activations are freed.) Activations hardly shrink: the gradient still passes through every layer. In a small model with 512 tokens they are most of the peak, so LoRA saves little of it, and checkpointing ([chapter 09](09_activation_checkpointing.ipynb)) is what lowers them. With LLaMA 7B and one sequence, the states are larger by far: see *What a real model takes*.

# %% [markdown]
# | | it removes | it leaves | choose it when |
# |---|---|---|---|
# | full fine-tuning | nothing | everything | all states fit, on one GPU or divided among ranks, and the new data differ much from the old |
# | LoRA | gradients, optimizer states and messages of the base; a third of the FLOPs | the base in 16 bits, activations | the base fits on each device; you want many small checkpoints, or to merge without loss |
# | QLoRA | the same, and 70% of the base | activations; dequantizing costs time in each pass | the base fits only in 4 bits |
# | quantized inference | all but the weights | a cache of keys and values that grows with tokens | you do not train |
# | quantized messages | bytes on slow links | all memory | the base is sharded, and links between nodes limit the step |
#
# ## What to remember
#
# - LoRA trains $r\,(\text{rows} + \text{columns})$ elements per matrix. Gradients, Adam's states and messages shrink with that; activations do not, and a token costs 4Ψ operations instead of 6Ψ.
# - Count the constants: in blocks of 64, int8 takes 8.5 bits, NF4 4.5, with double quantization 4.127. Embeddings, norms and biases stay as they are.
# - QLoRA's backward pass dequantizes the frozen matrices and passes gradients through them. The codes themselves get none.
# - Merging adapters into fp32 or 16-bit weights is exact up to rounding. Quantizing the result again changes it: evaluate what you deploy.
# - Quantize copies freely, but sums only once: an all-to-all and a sum in full precision, rather than a ring that rounds at each hop.
#
# ## Sources
#
# - E. Hu et al.: *LoRA: low-rank adaptation of large language models.* [arXiv 2106.09685](https://arxiv.org/abs/2106.09685), 2021.
# - D. Kalajdzievski: *A rank stabilization scaling factor for fine-tuning with LoRA* (rsLoRA). [arXiv 2312.03732](https://arxiv.org/abs/2312.03732), 2023.
# - T. Dettmers, A. Pagnoni, A. Holtzman, L. Zettlemoyer: *QLoRA: efficient finetuning of quantized LLMs.* [arXiv 2305.14314](https://arxiv.org/abs/2305.14314), 2023. Section 3 on NF4, double quantization and paged optimizers; section 2 on the memory of the 7B model.
# - T. Dettmers, M. Lewis, Y. Belkada, L. Zettlemoyer: *LLM.int8(): 8-bit matrix multiplication for transformers at scale.* [arXiv 2208.07339](https://arxiv.org/abs/2208.07339), 2022.
# - E. Frantar, S. Ashkboos, T. Hoefler, D. Alistarh: *GPTQ: accurate post-training quantization for generative pre-trained transformers.* [arXiv 2210.17323](https://arxiv.org/abs/2210.17323), 2022.
# - J. Lin et al.: *AWQ: activation-aware weight quantization for LLM compression and acceleration.* [arXiv 2306.00978](https://arxiv.org/abs/2306.00978), 2023.
# - G. Wang et al.: *ZeRO++: extremely efficient collective communication for giant model training.* [arXiv 2306.10209](https://arxiv.org/abs/2306.10209), 2023.
# - H. Touvron et al.: *LLaMA: open and efficient foundation language models.* [arXiv 2302.13971](https://arxiv.org/abs/2302.13971), 2023.
# - P. Tillet, H. T. Kung, D. Cox: *Triton: an intermediate language and compiler for tiled neural network computations.* MAPL 2019. The [language](https://triton-lang.org).
# - NVIDIA: data sheets of the [A100](https://www.nvidia.com/en-us/data-center/a100/) (int8 at twice bf16's peak) and the [H100](https://www.nvidia.com/en-us/data-center/h100/) SXM (3.35 TB/s, 989 TFLOP/s).
# - llama.cpp: [the GGUF format](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Hugging Face: [PEFT](https://huggingface.co/docs/peft) and [bitsandbytes](https://huggingface.co/docs/bitsandbytes), 0.50.
