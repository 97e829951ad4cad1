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
# # 14 · LoRA and QLoRA
#
# Training took 16 bytes for each parameter ([chapter 01](01_one_device.ipynb)), and every chapter since then has divided these bytes among ranks. This chapter reduces their number. **LoRA** freezes the weights and trains two small matrices next to each of them: gradients, optimizer states and messages shrink by a factor of hundreds. **QLoRA** also stores the frozen weights in 4 bits, so that a 65-billion-parameter model can be fine-tuned on one 48 GB GPU.
#
# The question of this chapter: what is saved, in bytes that you can count, and what does it cost in loss?
#
# **After this chapter you can**
#
# - say what LoRA trains, stores, computes and sends, with DDP and with FSDP;
# - choose rank, α and modules, merge adapters, and avoid adapters that silently learn nothing;
# - fine-tune with QLoRA, and say which bytes it removes and which it leaves.
#
# **You need:** [05 FSDP](05_fsdp.ipynb) and [10 Activation checkpointing](10_activation_checkpointing.ipynb).

# %% [markdown]
# <details open><summary>LoRA leaves almost no gradients and optimizer states, and QLoRA shrinks the weights</summary>
#
# [![Animation: LoRA leaves almost no gradients and optimizer states, and QLoRA shrinks the weights](openers/14_lora.svg)](openers/14_lora.svg)
#
# The memory of one training step of the same GPT, three times. Full fine-tuning keeps a gradient and two optimizer states for each parameter. LoRA freezes the parameters, so that only its small matrices have them. QLoRA also stores the frozen matrices in 4 bits. Activations remain. Peak memory is 49.5 MiB, 21.5 MiB and 11.0 MiB. (Recorded from real processes.)
#
# </details>

# %% jupyter={"source_hidden": true}
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import copy
import functools
import logging
import math
import warnings
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from shardlab import data, holds, launch, measure, models, show_table
from shardlab.estimate import collectives, lora, memory, quantization
from shardlab.estimate.quantization import FORMATS
from shardlab.models import pretrained
from shardlab.widgets import lora_shapes, palette, predict

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# ## LoRA: train two thin matrices
#
# Fine-tuning adds a change $\Delta W$ to each weight matrix $W$ of a trained model. **LoRA**, *low-rank adaptation*, writes the change as a product of two thin matrices: $W + \frac{\alpha}{r} B A$. For $W$ with the shape (rows, columns), $B$ has the shape (rows, $r$) and $A$ has ($r$, columns). The **rank** $r$ of this **adapter** is small. It has nothing to do with the N ranks of a process group. $\frac{\alpha}{r}$ is a constant factor. The paper sets $\alpha$ to the first rank it tries, and keeps it when the rank changes.
#
# $W$ is **frozen**: `requires_grad` is `False`. Only $A$ and $B$ are trained. Here they are to scale. Change r, the width and the modules, and compare what is trained, held and sent with full fine-tuning. The frozen weights (hatched) remain in memory, until QLoRA makes them smaller.

# %%
size = models.SIZES["0.3M"]
lora_shapes(size.width, size.layers, r=8, world_size=4, modules="all linear")

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

# %%
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
# $A$ is random and $B$ is 0, so the product is 0: training starts exactly at the trained model. **After the first backward pass, which of them have a gradient that is not 0?**

# %%
options = ["all A", "all B", "both", "neither"]
predicted_gradients = predict("A gradient that is not 0, at first", options=options)
predicted_gradients

# %%
lora_batch = data.batch(0, 8, 64, text="code")

def largest_gradients(gpt):
    """Of any A, and of any B."""
    gpt(*lora_batch).backward()
    adapters = [m for m in gpt.modules() if isinstance(m, LoRALinear)]
    return [max(getattr(m, name).grad.abs().max() for m in adapters) for name in "AB"]

of_a, of_b = largest_gradients(with_lora(r=4))
found = {(0, 1): "all B", (1, 0): "all A", (1, 1): "both"}[bool(of_a), bool(of_b)]
predicted_gradients.compare(found, {"what holds from the second step on": "both"})

# %% [markdown]
# The gradient of $B$ contains $A$ as a factor, and that of $A$ contains $B$. So in the first step only $B$ learns. The other two initializations go wrong. With both factors at 0 no adapter ever gets a nonzero gradient, and with both random the model has changed before the first step:

# %%
both_zero, both_random = with_lora(r=4), with_lora(r=4)
with torch.no_grad():
    for parameter in trainable(both_zero):
        parameter.zero_()
    for parameter in trainable(both_random):
        nn.init.kaiming_uniform_(parameter, a=math.sqrt(5))
at_start = [
    gpt(*lora_batch).item() for gpt in (pretrained.gpt(), with_lora(4), both_random)
]
holds("B is 0: the loss is the model's", at_start[1] == at_start[0])
holds("both 0: largest gradients of A and B", largest_gradients(both_zero), [0, 0])
holds("both random: added to the loss", at_start[2] - at_start[0], above=0.1)

# %% [markdown]
# ### What is trained, stored and held
#
# An adapter has $r \cdot (\text{rows} + \text{columns})$ elements, where $W$ has $\text{rows} \cdot \text{columns}$. For each trained element a step holds the element, its gradient and Adam's two states, all in fp32. We take one step of Adam and count the bytes of each:

# %%
def bytes_of(tensors):
    return sum(tensor.nbytes for tensor in tensors)

def bytes_after_a_step(model):
    """Of all weights, the trained ones, their gradients and Adam's states."""
    trained = trainable(model)
    adam = torch.optim.AdamW(trained, lr=1e-3)
    model(*lora_batch).backward()
    adam.step()
    kinds = ("exp_avg", "exp_avg_sq")
    states = [state[kind] for state in adam.state.values() for kind in kinds]
    held = model.parameters(), trained, (p.grad for p in trained), states
    return [bytes_of(tensors) for tensors in held]

# %%
linears = [m for m in pretrained.gpt().blocks.modules() if isinstance(m, nn.Linear)]
shapes = [linear.weight.shape for linear in linears]
psi = models.count_parameters(pretrained.gpt())
held = {"full": bytes_after_a_step(with_lora(None))}
held |= {f"LoRA, r {r}": bytes_after_a_step(with_lora(r)) for r in (1, 4, 16)}
names = ("all weights", "trained, stored", "gradients", "Adam's states")
show_table(
    {"bytes": "", **dict.fromkeys(names, ",d"), "share trained": ".2%"},
    [(name, *each, each[1] / 4 / psi) for name, each in held.items()],
)
for r in (1, 4, 16):
    predicted = lora.trained_bytes(lora.adapter_parameters(shapes, r))
    of_adapters = sum(held[f"LoRA, r {r}"][1:])
    holds(f"r {r}: adapters, gradients, states", of_adapters, predicted, unit="bytes")

# %% [markdown]
# All weights remain in memory, and the adapters are added to them. What shrinks are the gradients, the optimizer states, and the file that is stored for each task. In a small model the share is large, because $r \cdot (\text{rows} + \text{columns})$ grows with the width and $\text{rows} \cdot \text{columns}$ with its square. GPT-3 has 96 layers of width 12,288. With adapters on its query and value matrices, the LoRA paper reports 4.7M trained parameters for r 1 and 37.7M for r 8, of 175,255.8M (Hu et al. 2021, table 4):

# %%
gpt3_shapes = [(12_288, 12_288)] * 2 * 96  # W_q and W_v of each layer
gpt3 = [lora.adapter_parameters(gpt3_shapes, r) / 1e6 for r in (1, 8)]
holds("r 1 and r 8, in millions", gpt3, [4.7, 37.7], atol=0.05)
print(f"with r 8, {gpt3[1] / 175_255.8:.4%} of all parameters are trained")

# %% [markdown]
# And the arithmetic? For each token, a matrix of n elements takes 2n floating-point operations in forward. Backward takes 2n for the gradient of the input and 2n for the gradient of the matrix. A frozen matrix does not need the latter: 4n instead of 6n. PyTorch counts the operations of our model:

# %%
def matrix_flops(gpt):
    """Floating-point operations of a step in linear layers."""
    with FlopCounterMode(display=False) as counter:
        gpt(*lora_batch).backward()
    found = counter.get_flop_counts()["Global"]
    return sum(
        found[op] for op in (torch.ops.aten.mm, torch.ops.aten.addmm) if op in found
    )

full, small, large = (matrix_flops(with_lora(r)) for r in (None, 1, 16))
holds("r 1, over full training", small / full, 4 / 6, rtol=0.05)
holds("r 16, over full training", large / full, above=small / full, below=1)

# %% [markdown]
# So LoRA saves at most about a third of the arithmetic, and less with a larger r, because the adapters' own products are added. The gain is in memory and messages.
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

lora_batches = [data.batch(0, 2, 32, rank, 2, text="code") for rank in range(2)]
on_two_ranks = {"inputs": lora_batches, "world_size": 2, "device": "cpu", "quiet": True}
ddp_run = launch(lora_on_ddp, **on_two_ranks)

# %%
trained = {"full": psi, "LoRA": lora.adapter_parameters(shapes, 4)}
sent = {
    name: ddp_run.traffic[f"{name}, step 1"].sent_by_rank.mean() for name in trained
}
linear_weights = sum(rows * columns for rows, columns in shapes)
alone = round(linear_weights / trained["LoRA"], 1)
predicted_lora_ratio.compare(
    float(round(sent["full"] / sent["LoRA"], 1)),
    {"what it is if both send the same": 1, "the ratio for the linear layers alone": alone},
)

# %%
for name, count in trained.items():
    predicted = lora.sent_bytes(count, 2)
    holds(f"{name}: sent by each rank", sent[name], predicted, rtol=0.03, unit="bytes")

# %% [markdown]
# DDP all-reduces gradients, and ignores parameters that are frozen when it wraps the model. So what remains is the adapters' share of Ψ: for GPT-3 with r 8, 0.0215% of the bytes.
#
# ### LoRA under FSDP
#
# FSDP shards frozen parameters as well. **Which calls will get smaller with LoRA?**

# %%
options = ["all-gathers", "reduce-scatters", "both", "neither"]
predicted_smaller = predict("Smaller with LoRA, under FSDP", options=options)
predicted_smaller

# %%
def lora_on_fsdp(batch):
    for name, r in (("full", None), ("LoRA", 4)):
        gpt = with_lora(r)
        for unit in (*gpt.blocks, gpt):
            fully_shard(unit)
        with measure(name):
            gpt(*batch).backward()

fsdp_run = launch(lora_on_fsdp, **on_two_ranks)

# %%
def passed_bytes(name, op):
    """What rank 0 passes to these calls."""
    calls = fsdp_run.calls_in(name)
    return sum(c.bytes for c in calls if c.rank == 0 and c.op.startswith(op))

OPS = {"all-gathers": "all_gather", "reduce-scatters": "reduce_scatter"}
passed = {name: [passed_bytes(name, op) for op in OPS.values()] for name in trained}
halved = [less < full / 2 for full, less in zip(passed["full"], passed["LoRA"])]
smaller = [op for op, shrank in zip(OPS, halved) if shrank]
found = smaller[0] if len(smaller) == 1 else "both" if smaller else "neither"
predicted_smaller.compare(
    found, {"what would hold if frozen weights were not gathered": "both"}
)

# %%
show_table(
    {"bytes": "", **dict.fromkeys(OPS, ",d")},
    [(n, *each) for n, each in passed.items()],
)
scattered = [each[1] for each in passed.values()]
holds("reduce-scatters", scattered, [4 * n for n in trained.values()])
fsdp_sent = {name: fsdp_run.traffic[name].sent_by_rank.mean() for name in trained}
remains = fsdp_sent["LoRA"] / fsdp_sent["full"]
holds("FSDP: sent, LoRA over full", remains, above=0.45, below=0.6)
holds("DDP: sent, LoRA over full", sent["LoRA"] / sent["full"], below=0.1)

# %% [markdown]
# Reduce-scatters shrink to the adapters' gradients. All-gathers do not, because frozen weights are still gathered for forward and, for the gradient of its input, for backward; the adapters are added. (To an all-gather a rank passes its half of the parameters, twice for a block; to a reduce-scatter the whole gradient.) ZeRO-3 gathers frozen weights in the same way. (The share sent is for gloo, which sends twice the bytes for a reduce-scatter. With NCCL, all-gathers are two thirds of the traffic of full fine-tuning, so LoRA leaves two thirds.) If the frozen model fits on each device, DDP sends far less.
#
# ### Rank and modules: loss on another text
#
# The model knows English documentation. We fine-tune it on Python code: the same 40 batches for every setup, and the loss on four other batches at the end. LoRA and full training need different learning rates. We chose each from a few rates tried beforehand; LoRA's, ten times that of full training, is the same for every r. This is one seed, few steps and a small model, so small differences are noise.

# %%
LORA_LR, FULL_LR, LORA_STEPS = 5e-3, 5e-4, 40
unseen_batches = [data.batch(1000 + i, 16, 64, text="code") for i in range(4)]

def unseen_loss(gpt):
    with torch.no_grad():
        return float(np.mean([gpt(*batch).item() for batch in unseen_batches]))

def finetune(gpt, lr):
    adam = torch.optim.AdamW(trainable(gpt), lr=lr, weight_decay=0.0)
    for step in range(LORA_STEPS):
        gpt(*data.batch(step, 8, 64, text="code")).backward()
        adam.step()
        adam.zero_grad()

# %%
print("Fine-tuning eight times: a few seconds …")
torch.set_num_threads(1)  # too small a model to share its work between threads
MLP, RANKS_TRIED = ("mlp.up", "mlp.down"), (1, 4, 8, 16, 64)
setups = {f"all linears, r {r}": (r, ALL_LINEARS, LORA_LR) for r in RANKS_TRIED}
setups |= {"attention, r 16": (16, ATTENTION, LORA_LR), "MLP, r 10": (10, MLP, LORA_LR)}
setups |= {"full": (None, (), FULL_LR)}
finetuned, unseen, lora_counts = {}, {}, {}
for name, (r, targets, lr) in setups.items():
    finetuned[name] = with_lora(r, targets)
    lora_counts[name] = sum(
        parameter.numel() for parameter in trainable(finetuned[name])
    )
    finetune(finetuned[name], lr)
    unseen[name] = unseen_loss(finetuned[name])

# %%
untrained = unseen_loss(pretrained.gpt())
gain = {
    name: (untrained - loss) / (untrained - unseen["full"])
    for name, loss in unseen.items()
}
columns = {"trained": ",d", "loss on unseen code": ".3f", "share of full's gain": ".0%"}
rows = [(name, lora_counts[name], loss, gain[name]) for name, loss in unseen.items()]
show_table({"setup": "", **columns}, [("before", 0, untrained, 0.0), *rows])

# %%
by_rank = [unseen[f"all linears, r {r}"] for r in RANKS_TRIED]
holds("loss falls with r, up to r 16", np.diff(by_rank[:4]), below=0)
holds("r 1: share of full training's gain", gain["all linears, r 1"], above=0.5)
holds("r 16: share of full training's gain", gain["all linears, r 16"], above=0.9)
other = unseen["attention, r 16"]
r_4 = unseen["all linears, r 4"]
holds("r 4 everywhere, minus r 16 in attention", r_4 - other, below=0)
holds("r 10 in the MLP, minus r 16 in attention", unseen["MLP, r 10"] - other, below=0)

# %% [markdown]
# In this run r = 1 already reaches most of the gain of full training, and a larger r nearly all of it. Where the adapters are matters as much as their size: r 4 in all linear layers reaches a lower loss than r 16 in attention, with fewer parameters. The QLoRA paper finds the same for large models: adapters in all linear layers are needed to match full fine-tuning (Dettmers et al. 2023, section 4). The LoRA paper adapts attention only. Measure it on your own task.
#
# ### α when r changes
#
# In all these runs α was 16, so the factor $\frac{\alpha}{r}$ fell from 16 at r 1 to ¼ at r 64. Some recipes raise α together with r instead, to keep the factor. **Which factor gives r 64 the lowest loss, at the same learning rate?** The factor of r 4 above was 4.

# %%
factors = {16: "factor ¼, α 16", 64: "factor 1, α 64", 256: "factor 4, α 256"}
predicted_alpha = predict("Lowest loss with r 64", options=[*factors.values()])
predicted_alpha

# %%
print("Fine-tuning twice more: a few seconds …")
alpha_losses = {16: unseen["all linears, r 64"]}
for alpha in (64, 256):
    scaled_gpt = with_lora(64, alpha=alpha)
    finetune(scaled_gpt, LORA_LR)
    alpha_losses[alpha] = unseen_loss(scaled_gpt)
best_alpha = min(alpha_losses, key=alpha_losses.get)
predicted_alpha.compare(
    factors[best_alpha], {"the factor that suits r 4": factors[256]}
)

# %%
show_table(
    {"r 64, α": "d", "α/r": ".2f", "loss on unseen code": ".3f", "gain": ".3f"},
    [(a, a / 64, loss, untrained - loss) for a, loss in alpha_losses.items()],
)
added = alpha_losses[256] - untrained
holds("with r 4's factor, training raises the loss by", added, above=0)

# %% [markdown]
# The factor acts like a learning rate: the change of $W$ per step grows with it, and with r as well. A factor and a learning rate that suit r 4 are too large for r 64. So after a change of r, tune one of the two again. (rsLoRA uses $\frac{\alpha}{\sqrt{r}}$ for this reason, in peft `use_rslora=True`; Kalajdzievski 2023.)
#
# ### Merging
#
# After training, $\frac{\alpha}{r} B A$ can be added to $W$. Then the model has its old shape and the old number of operations: an adapter that is merged adds no latency. Merging rounds every element once more. In fp32 that is hardly visible; most models are stored in bf16, with 8 significant bits, and an update much smaller than its weight is partly lost:

# %%
def relative_error(approximate, exact):
    return float((approximate - exact).norm() / exact.norm())

def merged(module, dtype=torch.float32):
    """A copy in which each LoRALinear is one Linear again, rounded to ``dtype``."""
    module = copy.deepcopy(module)
    for name, adapted in list(module.named_modules()):
        if isinstance(adapted, LoRALinear):
            base = adapted.base
            with torch.no_grad():
                whole = base.weight + adapted.scale * adapted.B @ adapted.A
                base.weight.copy_(whole.to(dtype))
            module.set_submodule(name, base)
    return module

# %%
separate_gpt = finetuned["all linears, r 16"]
rows = {"adapters separate": separate_gpt, "merged, in fp32": merged(separate_gpt)}
rows |= {"merged, in bf16": merged(separate_gpt, torch.bfloat16)}
with torch.no_grad():
    logits = {name: gpt(lora_batch[0]) for name, gpt in rows.items()}
apart = {
    name: relative_error(each, logits["adapters separate"])
    for name, each in logits.items()
}
losses = {name: unseen_loss(gpt) for name, gpt in rows.items()}
show_table(
    {"weights": "", "loss on unseen code": ".4f", "change of the logits": ".4%"},
    [(name, losses[name], apart[name]) for name in rows],
)
holds("change of the logits in fp32", apart["merged, in fp32"], below=1e-5)
holds("change of the loss", np.ptp([*losses.values()]), below=0.001)

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
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": 64}
    sizes |= {"vocab_size": 256}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).to(dtype)

# %%
def with_peft(llama, **options):
    targets = ["q_proj", "v_proj"]
    return get_peft_model(
        llama, LoraConfig(r=4, lora_alpha=16, target_modules=targets, **options)
    )

# %%
adapted = with_peft(small_llama(torch.bfloat16))
count, _ = adapted.get_nb_trainable_parameters()
dtypes = [
    {p.dtype for p in adapted.parameters() if p.requires_grad is on}
    for on in (True, False)
]
predicted = lora.adapter_parameters([(64, 64)] * 4, r=4)
holds("adapters of two layers, 64 × 64", count, predicted)
holds("adapters in fp32, base in bf16", dtypes == [{torch.float32}, {torch.bfloat16}])

# %% [markdown]
# With the base in bf16, peft still holds the adapters in fp32 (`autocast_adapter_dtype=True`), since small updates are lost in bf16. `save_pretrained` stores only the adapters, and `merge_and_unload()` merges them.
#
# ### What typically goes wrong
#
# **The wrong order.** `prepare_model_for_kbit_training` prepares a quantized base: it freezes *every* parameter, and casts 16-bit ones to fp32. Called after `get_peft_model`, it freezes the adapters as well. There is no error until backward:

# %%
prepared_first = with_peft(prepare_model_for_kbit_training(small_llama(torch.bfloat16)))
prepared_last = prepare_model_for_kbit_training(adapted)
in_both = [
    each.get_nb_trainable_parameters()[0] for each in (prepared_first, prepared_last)
]
holds("trained parameters, prepared before and after", in_both, [count, 0])

# %% [markdown]
# **Checkpointing without gradients.** Reentrant activation checkpointing ([chapter 10](10_activation_checkpointing.ipynb)) asks whether an *input* of a layer needs a gradient. If none does, the layer's output does not either, whatever is trained in it. We wrap layers, and look which adapters get a gradient and what backward reports. (The first cell is collapsed.)

# %% jupyter={"source_hidden": true}
def checkpointed(forward, use_reentrant):
    return lambda x, **others: checkpoint(
        functools.partial(forward, **others), x, use_reentrant=use_reentrant
    )

def backward_reports(llama, tokens=lora_batch[0]):
    """The error of backward, or else its warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            llama(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        except RuntimeError as error:
            return f"raises: {error}".split(" and ")[0]
    return f"warns: {caught[0].message}" if caught else "nothing"

# %%
def adapters_with_gradient(
    layers=slice(None), reentrant=True, prepare=lambda llama: None, **options
):
    """Of how many adapters' tensors; and what backward reports."""
    llama = with_peft(small_llama(), **options).train()
    prepare(llama)
    for block in llama.get_base_model().model.layers[layers]:
        block.forward = checkpointed(block.forward, reentrant)
    reported = backward_reports(llama)
    adapters = [p for name, p in llama.named_parameters() if "lora_" in name]
    return sum(p.grad is not None for p in adapters), reported

# %% [markdown]
# Our Llama has 8 adapter tensors, A and B of two matrices in two layers. Its embedding is frozen. **If we wrap only one of the layers, with `use_reentrant=True`, how many of the 8 get a gradient?**

# %%
labels = ["first layer wrapped", "second layer wrapped"]
predicted_adapters = predict("Adapter tensors with a gradient, of 8", labels=labels)
predicted_adapters

# %%
predicted_adapters.compare(
    [adapters_with_gradient(layers)[0] for layers in (slice(1), slice(1, 2))],
    {
        "what it is if every wrapped layer gets none": [4, 4],
        "what it is if checkpointing changes only memory": [8, 8],
    },
)

# %% [markdown]
# The first layer's input comes from the frozen embedding. The second layer's comes from adapters, if the first layer is not wrapped. If both are:

# %%
attempts = {
    "reentrant": adapters_with_gradient(),
    'reentrant, modules_to_save=["norm"]': adapters_with_gradient(
        modules_to_save=["norm"]
    ),
    "reentrant, enable_input_require_grads()": adapters_with_gradient(
        prepare=lambda llama: llama.enable_input_require_grads()
    ),
    "use_reentrant=False": adapters_with_gradient(reentrant=False),
}
show_table(
    {"both layers wrapped": "", "with a gradient": "d", "reported": ""},
    [(name, *found) for name, found in attempts.items()],
)
holds("of 8", [found for found, _ in attempts.values()], [0, 0, 8, 8])

# %% [markdown]
# The second row is the dangerous one: training runs and the norm changes, but the adapters never do, and PyTorch only warns. transformers calls `enable_input_require_grads()` itself when it does the checkpointing: the embedding's output then requires a gradient, although the embedding does not. If you wrap layers yourself, use `use_reentrant=False`, and check after the first backward: `assert all(p.grad is not None for p in trainable(model))`. (peft's issues 137 and 1142 report this.)

# %% [markdown]
# ## QLoRA: adapters on a 4-bit base
#
# With LoRA the base stays in memory, and nothing updates it, so it does not need 16 or 32 bits for each weight. **QLoRA** (Dettmers et al. 2023) stores the frozen matrices in 4 bits and trains adapters in higher precision.
#
# Its format is **NF4**. Weights are taken in **blocks**, often of 64. Each block has one **scale**, its largest absolute weight, its **absmax**. The weights divided by the scale lie between −1 and 1, and each becomes the **code** of the nearest of 16 **code points**. To use a weight, look up its code point and multiply by the scale: the weight is **dequantized**. The code points lie closer together where weights are frequent. [Chapter 15](15_quantization.ipynb) derives them and compares formats; here, we need what they cost.

# %%
nf4_points = torch.tensor(quantization.nf4_code_points())
blocks = torch.cat([linear.weight.detach().reshape(-1, 64) for linear in linears])
scaled = (blocks / blocks.abs().amax(1, keepdim=True)).flatten()
figure, axes = plt.subplots(figsize=(7, 2.4))
look = {"color": palette.MEMORY["parameters"], "label": "weights of the GPT"}
axes.hist(scaled, bins=121, **look)
look = {"color": palette.PLOT_INK, "label": "code points", "ms": 11}
axes.plot(nf4_points, np.full(16, -900), "|", **look)
axes.set(xlabel="weight / absmax of its block", ylabel="weights")
axes.legend(frameon=False)
figure.tight_layout()

# %% [markdown]
# A scale in fp32 would add 32/64 = 0.5 bits to the 4 of each weight. **Double quantization** stores the scales in 8 bits instead, and one more fp32 scale for 256 of them: $4 + \frac{8}{64} + \frac{32}{64 \cdot 256} = 4.127$ bits.
#
# The library is bitsandbytes, which has kernels for CPUs too. Its layer `Linear4bit` quantizes when it is moved to a device, even to the CPU. Our rows have 96 weights, so we take blocks of 32, which fill a row without crossing its end.

# %%
print("Loading bitsandbytes …")
import bitsandbytes as bnb
from bitsandbytes.functional import dequantize_4bit

BLOCK = 32

# %%
def quantized(linear, block=BLOCK):
    """The same layer, with its weight in NF4 and double quantization."""
    shape = linear.in_features, linear.out_features
    layer = bnb.nn.Linear4bit(*shape, quant_type="nf4", compute_dtype=torch.float32)
    layer.load_state_dict(linear.state_dict())
    layer.weight.blocksize = block
    # frozen: the new layer's bias would be trained
    return layer.to("cpu").requires_grad_(False)

# %%
def stored(weight):
    """{part: bytes} of a 4-bit weight, without its two lookup tables."""
    state = weight.quant_state
    parts = {
        "codes": weight,
        "8-bit scales": state.absmax,
        "their scales": state.state2.absmax,
    }
    return {
        name: part.nbytes
        for name, part in (parts | {"mean of scales": state.offset}).items()
    }

# %%
up = pretrained.gpt().blocks[0].mlp.up
packed_up = quantized(up).weight
show_table({"part": "", "bytes": ",d"}, list(stored(packed_up).items()))
code_bits = 4 * BLOCK + quantization.DOUBLE_QUANTIZED_BITS  # of a block and its scale
in_blocks_of_32 = quantization.Format(BLOCK, code_bits / 8)
predicted = in_blocks_of_32.bytes_of(up.weight.numel())
of_parts = sum(stored(packed_up).values())
holds("bytes of a 384 × 96 matrix", of_parts, predicted, rtol=0.001, unit="bytes")

# %% [markdown]
# Now the whole model. We quantize the matrices of all blocks. Embeddings, norms and biases stay in fp32. The head stays too: it is tied to the token embedding.
#
# In blocks of 32, a quantized weight takes 4.254 bits. **How many bits per parameter does the whole model take, on average?** The model has 260,736 parameters, and 221,184 of them are in these matrices.

# %%
predicted_model_bits = predict("Bits for each parameter, on average", unit="bits")
predicted_model_bits

# %%
four_bit_gpt = pretrained.gpt()
replace_linears(four_bit_gpt, quantized)
four_bit_bytes = sum(
    sum(stored(p).values()) if isinstance(p, bnb.nn.Params4bit) else p.nbytes
    for p in four_bit_gpt.parameters()
)
wrong_bits = {"what a quantized weight takes": in_blocks_of_32.bits_per_weight}
wrong_bits |= {"what it takes in fp32": 32}
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
with mock.patch.object(
    bnb.functional, "dequantize_4bit", wraps=dequantize_4bit
) as calls:
    y = layer(x)  # one operation of the library
    in_forward = calls.call_count
    y.backward(upstream)
dequantized = dequantize_4bit(layer.weight, layer.weight.quant_state)
holds("gradient of x", x.grad, upstream @ dequantized, atol=1e-4)
holds("the packed matrix has no gradient", layer.weight.grad is None)
holds("dequantize_4bit in backward: calls", calls.call_count - in_forward, 1)

# %% [markdown]
# So QLoRA's adapters are trained for the dequantized matrices, with their errors, and not for the original ones.
#
# ### Training
#
# We repeat the fine-tuning from above with r 8 on the 4-bit base, with the same batches. (The models stay in training mode, in which this GPT computes the same as in evaluation: in evaluation mode, bitsandbytes repacks 4-bit weights on CPUs with bf16 instructions.)

# %%
def with_qlora(r):
    """The trained GPT with a 4-bit base and the same adapters as with_lora(r)."""
    gpt = with_lora(r)
    for adapted in [
        module for module in gpt.modules() if isinstance(module, LoRALinear)
    ]:
        adapted.base = quantized(adapted.base)
    return gpt

# %%
print("Training for 40 steps: a few seconds …")
qlora_gpt = with_qlora(8)
before = {"fp32": untrained, "4 bits": unseen_loss(qlora_gpt)}
finetune(qlora_gpt, LORA_LR)
after = {"fp32": unseen["all linears, r 8"], "4 bits": unseen_loss(qlora_gpt)}

# %%
sizes = {"fp32": 4 * psi, "4 bits": four_bit_bytes}
show_table(
    {
        "base": "",
        "bytes of the base": ",d",
        "loss on code, before": ".3f",
        "after": ".3f",
    },
    [(base, sizes[base], before[base], after[base]) for base in sizes],
)
holds("fine-tuning lowers the loss by", before["4 bits"] - after["4 bits"], above=0.15)
holds("added by 4 bits, before training", before["4 bits"] - before["fp32"], below=0.05)
holds("difference after training", abs(after["4 bits"] - after["fp32"]), below=0.05)

# %% [markdown]
# Quantizing the base costs about 0.02 of loss before training, and after training the two models are just as close.
#
# ### Merging is not lossless
#
# After QLoRA, $W$ is in 4 bits. You can dequantize, add $\frac{\alpha}{r} B A$, and keep the result in fp32, which gives up the memory that 4 bits saved. Or you can quantize the sum again, which rounds it to the code points a second time.

# %%
@torch.no_grad()
def merged_linear(adapted):
    """A LoRALinear with a 4-bit base -> a Linear in fp32"""
    weight = adapted.base.weight
    linear = nn.Linear(adapted.base.in_features, adapted.base.out_features)
    whole = dequantize_4bit(weight, weight.quant_state)
    linear.weight.copy_(whole + adapted.scale * adapted.B @ adapted.A)
    linear.bias.copy_(adapted.base.bias)
    return linear

# %%
def merged_loss(make):
    gpt = copy.deepcopy(qlora_gpt)
    replace_linears(gpt, make)
    return unseen_loss(gpt)

# %%
in_fp32 = merged_loss(merged_linear)
again_in_4_bits = merged_loss(lambda adapted: quantized(merged_linear(adapted)))
rows = {"adapters separate": after["4 bits"], "merged, in fp32": in_fp32}
rows |= {"merged, quantized again": again_in_4_bits}
show_table({"QLoRA": "", "loss on code": ".4f"}, list(rows.items()))
holds("merging in fp32 keeps the loss", in_fp32, after["4 bits"], atol=1e-4)
holds("quantizing again raises it by", again_in_4_bits - after["4 bits"], above=0.005)

# %% [markdown]
# Evaluate the model that you will deploy, not the one that you trained.
#
# ### What bitsandbytes decodes, and its defaults
#
# Whatever you quantize, dequantize it once and look at the error. On a CPU with AVX-512 instructions, bitsandbytes 0.50.2 looks for a new scale at the start of each row. If a row of 96 weights ends in the middle of a block of 64, all later rows get the scales of other blocks, and nothing is reported. (Other CPUs decode them correctly, and widths of large models are multiples of 64.)

# %%
def decoding_error(linear, block):
    """The relative error of the matrix that bitsandbytes decodes."""
    weight = quantized(linear, block).weight
    return relative_error(
        dequantize_4bit(weight, weight.quant_state), linear.weight.detach()
    )

# %%
print(f"bitsandbytes {bnb.__version__},", torch.backends.cpu.get_cpu_capability())
show_table(
    {"matrix": "", "row": "d", "error, blocks of 32": ".3f", "blocks of 64": ".3f"},
    [
        (name, each.in_features, decoding_error(each, 32), decoding_error(each, 64))
        for name, each in (("mlp.up", linears[2]), ("mlp.down", linears[3]))
    ],
)

# %% [markdown]
# With transformers, a `BitsAndBytesConfig` selects all this. Its defaults are not QLoRA's settings:

# %%
default = transformers.BitsAndBytesConfig(load_in_4bit=True).to_dict()
paper = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
paper |= {
    "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_storage": "bfloat16, FSDP1",
}
show_table(
    {"setting": "", "default": str, "QLoRA": str},
    [(name, default[name], value) for name, value in paper.items()],
)

# %% [markdown]
# The last one is for FSDP1: it flattens a unit's parameters into one tensor of one dtype, so the packed bytes are stored under the dtype of the other parameters ([bitsandbytes on FSDP-QLoRA](https://huggingface.co/docs/bitsandbytes/fsdp_qlora)). `fully_shard` also shards uint8. The third idea of the paper, paged optimizers, moves optimizer states to the host when a GPU's memory runs out; bitsandbytes has them for GPUs only.
#
# ### What a real model takes
#
# The paper's example: fine-tuning a 65-billion-parameter model in 16 bits takes more than 780 GB, with QLoRA less than 48 GB. The first is 2 bytes for a parameter, 2 for its gradient and 8 for Adam's states. For the second we need the shapes of LLaMA's matrices (Touvron et al. 2023), and adapters with 0.2% of the parameters:

# %%
def llama(layers, width, hidden):
    """The elements of its matrices, and of its embedding and head."""
    return layers * (4 * width * width + 3 * width * hidden), 2 * 32_000 * width

def qlora_gb(matrices, embeddings, trained_share=0.002):
    """The base with 16-bit embeddings; all that adapters need."""
    base = FORMATS["nf4, double quantization"].bytes_of(matrices) + 2 * embeddings
    adapters = round(trained_share * (matrices + embeddings))
    return base / 1e9, lora.trained_bytes(adapters) / 1e9

# %%
llamas = {"7B": llama(32, 4096, 11008), "65B": llama(80, 8192, 22016)}
full_bytes = 2 + 2 + memory.STATE_BYTES["adam"]
rows = [(name, full_bytes * sum(n) / 1e9, *qlora_gb(*n)) for name, n in llamas.items()]
columns = {"16 bit, GB": ".0f", "QLoRA: base, GB": ".1f", "adapters, GB": ".1f"}
show_table({"model": "", **columns}, rows)
holds("65B, 16 bit", rows[-1][1], above=780, unit="GB")
holds("65B, QLoRA: base and adapters", sum(rows[-1][2:]), below=48, unit="GB")

# %% [markdown]
# What remains of the 48 GB is for activations. For LLaMA 7B and a batch of one sequence, the paper reports 567 MB for the gradients of the adapters' inputs, or 18 MB with checkpointing ([chapter 10](10_activation_checkpointing.ipynb)). Its base takes 5,048 MB in 4 bits; the formula gives 3,865 MB, and the paper does not itemize the rest.
#
# ## Which method?
#
# LLaMA 7B, with adapters of rank 8 on all matrices of the blocks. Bytes are per parameter of the model, on each of 8 ranks with DDP. Full fine-tuning is mixed precision with fp32 masters, which count as optimizer states; its gradients are sent in 16 bits:

# %%
matrix_shapes = 32 * [*[(4096, 4096)] * 4, *[(11008, 4096)] * 2, (4096, 11008)]
adapters = lora.adapter_parameters(matrix_shapes, r=8)
(matrices, embeddings), psi_7b = llamas["7B"], sum(llamas["7B"])
four_bits = FORMATS["nf4, double quantization"].bytes_of(matrices) + 2 * embeddings
weights, gradients, states = (4 * adapters, 4 * adapters, 8 * adapters)  # fp32
full = memory.model_states(psi_7b, precision="bf16").device
full_sent = collectives.ring_sent_bytes(2 * psi_7b, 8)
sent = lora.sent_bytes(adapters, 8)

# %%
rows = {
    "full fine-tuning": (*full.values(), full_sent, 6),
    "LoRA, 16-bit base": (2 * psi_7b + weights, gradients, states, sent, 4),
    "QLoRA": (four_bits + weights, gradients, states, sent, 4),
    "inference in 4 bits": (four_bits, 0, 0, 0, 2),
}

# %%
kinds = ["weights", "gradients", "optimizer", "all bytes"]
columns = {"method": "", **dict.fromkeys(kinds, ".2f")}
columns |= {"MB sent in a step": ",.0f", "FLOPs per token": "d"}
show_table(
    columns,
    [
        (name, *np.divide([*each[:3], sum(each[:3])], psi_7b), each[3] / 1e6, each[4])
        for name, each in rows.items()
    ],
    caption="FLOPs in Ψ, without dequantizing and the adapters' own products",
)

# %% [markdown]
# The table leaves out activations, which hardly shrink: the gradient still passes through every layer. The picture at the top of this chapter shows them. In a small model they are most of the peak, and checkpointing is what lowers them; with LLaMA 7B and one sequence, the states are larger by far.
#
# | | it removes | it leaves | choose it when |
# |---|---|---|---|
# | full fine-tuning | nothing | everything | all states fit, on one GPU or divided among ranks, and the new data differ much from the old |
# | LoRA | gradients, optimizer states and messages of the base; a third of the FLOPs | the base in 16 bits, activations | the base fits on each device; you want many small checkpoints, or to merge without loss |
# | QLoRA | the same, and 70% of the base | activations; dequantizing costs time in each pass | the base fits only in 4 bits |
#
# ## What to remember
#
# - LoRA trains $r\,(\text{rows} + \text{columns})$ elements per matrix. Gradients, Adam's states and DDP's messages shrink with that; activations do not, and a token costs 4Ψ operations instead of 6Ψ.
# - Under FSDP and ZeRO-3 the frozen weights are still gathered: only reduce-scatters shrink.
# - After a change of r, tune α or the learning rate again. After the first backward, check that every adapter has a gradient.
# - QLoRA's backward pass dequantizes the frozen matrices and passes gradients through them. The codes themselves get none. Embeddings, norms and biases stay as they are.
# - Merging adapters into fp32 or 16-bit weights is exact up to rounding. Quantizing the result again changes it: evaluate what you deploy.
#
# ## Sources
#
# - E. Hu et al.: *LoRA: low-rank adaptation of large language models.* [arXiv 2106.09685](https://arxiv.org/abs/2106.09685), 2021.
# - D. Kalajdzievski: *A rank stabilization scaling factor for fine-tuning with LoRA* (rsLoRA). [arXiv 2312.03732](https://arxiv.org/abs/2312.03732), 2023.
# - T. Dettmers, A. Pagnoni, A. Holtzman, L. Zettlemoyer: *QLoRA: efficient finetuning of quantized LLMs.* [arXiv 2305.14314](https://arxiv.org/abs/2305.14314), 2023. Section 3 on NF4, double quantization and paged optimizers; section 2 on the memory of the 7B model.
# - H. Touvron et al.: *LLaMA: open and efficient foundation language models.* [arXiv 2302.13971](https://arxiv.org/abs/2302.13971), 2023.
# - Hugging Face: [PEFT](https://huggingface.co/docs/peft) and [bitsandbytes](https://huggingface.co/docs/bitsandbytes), 0.50.
