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
# # Lab 07 · Offload
#
# Adam's fp32 states are the largest part of a model's memory, and they are needed only once per step. You will move them to the host, count what that costs, and then configure DeepSpeed to do the same.
#
# **In this lab you**
#
# - write an Adam optimizer whose states stay on the host;
# - predict what it moves in each step;
# - write a DeepSpeed configuration that offloads, and repair one that does not.
#
# **You need:** [chapter 07](../../course/chapters/07_offload.ipynb).
#
# <!-- table of points -->
#
# Each exercise has a task, a **spec**, a **budget**, your cell, a picture of what your code did, and a check. Grading adds hidden cases: other models, other hyperparameters, other numbers of ranks. A mistake in one exercise never costs points in a later one. Checks of exercises 3 and 4 start real DeepSpeed engines; the first of them takes a few seconds longer.

# %%
import json

import torch
from torch import nn

from autograder import check
from shardlab import launch, placement, show_table, warm_up
from shardlab.placement import Pools

warm_up("deepspeed")  # loads in the background while you read

# %% [markdown]
# ## 1 · `offload_bytes_per_step`
#
# A model has Ψ = `parameters` elements on N = `world_size` ranks. How many bytes does **each rank** move in one optimizer step, down to its host and up to its device? Three values of `method`:
#
# | `method` | goes down | comes up |
# |---|---|---|
# | `"swap"` | fp32 states, after the update on the device | the same states, before it |
# | `"zero-offload"` | gradients, after each backward | new parameters, once |
# | `"parameters"` | gradients, after each backward | parameters, for each forward and again for each backward |
#
# With `"zero-offload"` and `"parameters"` the host updates the parameters; with `"parameters"` they stay there between their uses. A rank moves only its own share, Ψ/N. `precision` is `"bf16"`, `"fp16"` or `"fp32"`. The fp32 states are master, momentum and variance; in fp32 training the parameters are their own masters, so `"swap"` moves only momentum and variance. A step has `micro_batches` forward and backward passes. N divides Ψ.
#
# ZeRO-Offload's paper counts 4Ψ bytes for a step with one micro-batch: 2Ψ down and 2Ψ up, on all ranks together. You count one rank's share, 1/N of that, and gradients go down for each micro-batch. (DeepSpeed widens them to fp32 before the move, so there 4Ψ/N go down: see the chapter.)

# %%
def offload_bytes_spec(elements):
    """The smallest case, measured: gradients down, parameters up, for bf16 on one rank."""
    pools = Pools("cpu")
    with pools:
        gradients = pools.to_host(torch.ones(elements, dtype=torch.bfloat16))
        pools.to_device(torch.zeros_like(gradients))
    return pools.to_host_bytes, pools.to_device_bytes

offload_bytes_spec(1000)

# %% [markdown]
# **Budget** · no communication: this is arithmetic. The answer is in bytes: `(down, up)`.
#
# <details><summary>Hint 1 · bytes of one element</summary>
#
# Gradients and parameters have the precision of the training: 2 bytes each in bf16 and fp16, 4 in fp32.
# </details>
# <details><summary>Hint 2 · how often</summary>
#
# A step has one update and `micro_batches` backward passes. On which of the two does each entry of the table depend?
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# With `own = element_bytes * parameters / world_size`, ZeRO-Offload moves `micro_batches * own` down and `own` up. A swapped state takes 4 bytes, and there are three of them in 16-bit training.
# </details>

# %% nbgrader={"grade_id": "offload_bytes_per_step", "solution": true}
def offload_bytes_per_step(method, parameters, world_size, precision="bf16", micro_batches=1):
    """("zero-offload", 1000, 2)  ->  (1000, 1000)"""
    ### BEGIN SOLUTION
    own = parameters / world_size
    gradients = (4 if precision == "fp32" else 2) * own
    if method == "swap":
        states = (8 if precision == "fp32" else 12) * own
        return states, states
    if method == "zero-offload":
        return micro_batches * gradients, gradients
    return micro_batches * gradients, 2 * micro_batches * gradients
    ### END SOLUTION

# %% [markdown]
# Your formula for a model of 7.5 billion parameters on 8 ranks, with 4 micro-batches:

# %%
def gigabytes(method):
    return [each / 1e9 for each in offload_bytes_per_step(method, 7_500_000_000, 8, "bf16", 4)]

show_table(
    {"method": "", "GB down": ".2f", "GB up": ".2f"},
    [(method, *gigabytes(method)) for method in ("swap", "zero-offload", "parameters")],
)

# %% nbgrader={"grade_id": "check_offload_bytes_per_step", "grade": true}
check("offload.offload_bytes_per_step", offload_bytes_per_step)

# %% [markdown]
# ## 2 · `OffloadedAdam`
#
# Write ZeRO-Offload's optimizer for one device. The device holds parameters and gradients in bf16. **All fp32 tensors are on the host**: masters, momentum and variance. A step moves the gradients down, updates the masters there, and moves the new parameters up, rounded to bf16.
#
# The device and the host are two pools, as in the chapter: real on a GPU, tracked by Shardlab on a CPU. `pools.to_host(t)` and `pools.to_device(t)` copy a tensor as it is and count its bytes. An operation runs where its tensors are; mixing tensors of both pools in one operation is an error. `torch.zeros(n)` creates a tensor on the device, or on the host inside `with pools.host():`.

# %%
def offloaded_adam_spec(weights, gradients_by_step, **hyperparameters):
    """The same numbers, with everything in one place: PyTorch's AdamW on fp32 masters."""
    masters = [nn.Parameter(weight.float()) for weight in weights]
    adam = torch.optim.AdamW(masters, **hyperparameters)
    for gradients in gradients_by_step:
        for master, gradient in zip(masters, gradients):
            master.grad = gradient.float()
        adam.step()
    return [master.bfloat16() for master in masters]

ones = torch.ones(3, dtype=torch.bfloat16)
offloaded_adam_spec([ones], [[ones]] * 5, lr=0.01)

# %% [markdown]
# `parameters` is a list of bf16 parameters, and each has its `.grad` when `step()` is called. Keep the masters in `self.masters`, a list in the same order. A parameter may be transposed, so that its elements are not in order in memory, and a program may have several optimizers, even of the same parameters. Update the parameters in place: they stay in the same memory, because other code may hold views of it (DDP's buckets, for example), and are exactly the masters, rounded to bf16. Do not write into the gradients on the device, and do not keep them: the training loop sets `.grad` to `None` after each step, and you may do so, too. You may use `torch.optim.AdamW` for the update.
#
# **Budget** · moves 2Ψ bytes down and 2Ψ up in a step (Ψ: all elements) · no fp32 on the device at any time, in `__init__` either · masters and states on the host, 12Ψ bytes · between steps nothing else: no gradients on the host, and on the device only the parameters, 2Ψ bytes, once the training loop has dropped the gradients · keeps nothing that grows from step to step, not even a list of numbers.
#
# <details><summary>Hint 1 · where the masters come from</summary>
#
# `parameter.detach().float()` creates an fp32 tensor on the device. Move first, then widen: the result of `pools.to_host` is on the host, and so is its `.float()`.
# </details>
# <details><summary>Hint 2 · what to do with each tensor</summary>
#
# Move the gradient down; widen it; update the master; round it and move it up. Round on the host, or 4Ψ bytes go up.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# In `__init__`, create `self.adam = torch.optim.AdamW(self.masters, …)`. In `step()`, set `master.grad = pools.to_host(parameter.grad).float()` for all, call `self.adam.step()` and `self.adam.zero_grad()`, which frees the gradients on the host, then `parameter.data.copy_(pools.to_device(master.bfloat16()))` for all.
# </details>

# %% nbgrader={"grade_id": "OffloadedAdam", "solution": true}
class OffloadedAdam:
    """bf16 parameters on the device; fp32 masters, momentum and variance on the host."""

    def __init__(self, parameters, pools, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        ### BEGIN SOLUTION
        self.parameters, self.pools = list(parameters), pools
        self.masters = [pools.to_host(parameter.detach()).float() for parameter in self.parameters]
        self.adam = torch.optim.AdamW(
            self.masters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay
        )
        ### END SOLUTION

    def step(self):
        ### BEGIN SOLUTION
        for parameter, master in zip(self.parameters, self.masters):
            master.grad = self.pools.to_host(parameter.grad).float()
        self.adam.step()
        self.adam.zero_grad()
        for parameter, master in zip(self.parameters, self.masters):
            parameter.data.copy_(self.pools.to_device(master.detach().bfloat16()))
        ### END SOLUTION

# %% [markdown]
# Where your optimizer keeps its tensors, and what it moves, for a layer with Ψ = 65,536. A correct one has only bf16 on the device, moves 2 bytes per parameter each way, and keeps 12 bytes of fp32 per parameter on the host.

# %%
def one_step(elements=65_536):
    pools, weight = Pools("cpu"), nn.Parameter(torch.ones(elements, dtype=torch.bfloat16))
    with pools:
        optimizer = OffloadedAdam([weight], pools)
        before = pools.to_host_bytes
        weight.grad = torch.ones(elements, dtype=torch.bfloat16)
        optimizer.step()
    moved = {"moved down": pools.to_host_bytes - before, "moved up": pools.to_device_bytes}
    kept = {"on the device, at the peak": pools.peak_bytes("device"), "on the host": pools.live_bytes("host")}
    for place, sizes in kept.items():
        moved |= {f"{dtype} {place}": size for dtype, size in sizes.items() if size > 4}
    return {name: size / elements for name, size in moved.items()}

show_table({"your step": "", "bytes per parameter": ".2f"}, one_step().items())

# %% nbgrader={"grade_id": "check_OffloadedAdam", "grade": true}
check("offload.OffloadedAdam", OffloadedAdam)

# %% [markdown]
# ## 3 · `write_config`
#
# You want to train a model in bf16 with Adam, and its model states may take at most `device_bytes` on each rank's device. Return the DeepSpeed configuration for this, a dict. All counts in it are ints, and it has only keys that DeepSpeed knows: others it ignores without a warning. Use **the first row of this table that fits**; exactly `device_bytes` fits too (Ψ parameters, N ranks; where N does not divide Ψ, compare with the fraction, without padding; gradients that go to the host and layers that are gathered briefly do not count):
#
# | stage | on the host | bytes on each device |
# |---|---|---|
# | 0 | – | 16Ψ |
# | 1 | – | 4Ψ + 12Ψ/N |
# | 2 | – | 2Ψ + 14Ψ/N |
# | 3 | – | 16Ψ/N |
# | 2 | optimizer | 2Ψ |
# | 3 | optimizer | 2Ψ/N |
# | 3 | optimizer and parameters | 0 |
#
# Each rank processes `micro_batch` sequences at a time, and all ranks together process `global_batch` per step. The keys that you need:

# %%
def write_config_spec():
    """Every key that you may need, with example values."""
    return {
        "train_batch_size": 48,                   # micro-batch × accumulation × world size
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 3,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},   # only if needed
            "offload_param": {"device": "cpu"},       # only if needed
        },
    }

write_config_spec()["zero_optimization"]

# %% [markdown]
# The check starts an engine with your configuration on real ranks, takes a step, and reads the result from the engine. It also asks for configurations of other models, on up to 64 ranks, which DeepSpeed reads but does not start. It passes PyTorch's AdamW to `deepspeed.initialize`, so no `optimizer` section is needed, and adds two keys that allow that (`zero_allow_untested_optimizer`, and `zero_force_ds_cpu_optimizer` set to false).
#
# **Budget** · model states ≤ `device_bytes` on every rank, with the first row that fits.
#
# <details><summary>Hint 1 · the batch</summary>
#
# `train_batch_size` is the product of three numbers. You know two of them, the micro-batch and N; accumulation is the third.
# </details>
# <details><summary>Hint 2 · the row</summary>
#
# Write the rows as a list of `(bytes, stage, optimizer on the host?, parameters on the host?)` and take the first whose bytes fit.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `zero = {"stage": stage}`; then `zero["offload_optimizer"] = {"device": "cpu"}` if the row says so. Both offload keys belong inside `zero_optimization`.
# </details>

# %% nbgrader={"grade_id": "write_config", "solution": true}
def write_config(parameters, world_size, device_bytes, micro_batch, global_batch):
    """Bytes and counts  ->  a configuration for deepspeed.initialize"""
    ### BEGIN SOLUTION
    shard = parameters / world_size
    rows = [
        (16 * parameters, 0, False, False),
        (4 * parameters + 12 * shard, 1, False, False),
        (2 * parameters + 14 * shard, 2, False, False),
        (16 * shard, 3, False, False),
        (2 * parameters, 2, True, False),
        (2 * shard, 3, True, False),
        (0, 3, True, True),
    ]
    _, stage, optimizer_off, parameters_off = next(row for row in rows if row[0] <= device_bytes)
    zero = {"stage": stage}
    if optimizer_off:
        zero["offload_optimizer"] = {"device": "cpu"}
    if parameters_off:
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_batch_size": global_batch,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": global_batch // (micro_batch * world_size),
        "bf16": {"enabled": True},
        "zero_optimization": zero,
    }
    ### END SOLUTION

# %% [markdown]
# Start it yourself. This cell runs a configuration on real ranks and shows the resulting engine; you will need it again in exercise 4. On a CPU the device and the host are the same memory: "host" is what the engine reports, and where it would put the tensors on a GPU machine.

# %%
def start(text_or_dict):
    import deepspeed

    allowed = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    config = json.loads(text_or_dict) if isinstance(text_or_dict, str) else text_or_dict
    model = nn.Linear(64, 64, bias=False)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters()), config=config | allowed
    )
    return placement.of_deepspeed(engine)

# %%
config = write_config(4096, 2, device_bytes=10_000, micro_batch=2, global_batch=8)
engine = launch(start, config, world_size=2, device="cpu", timeout_s=60).outputs[0]
print(json.dumps(config, indent=2))
print("the resulting engine:")
engine

# %% nbgrader={"grade_id": "check_write_config", "grade": true}
check("offload.write_config", write_config)

# %% [markdown]
# ## 4 · `fix_config`
#
# Here are five configurations in the style of public tutorials. None does what its author believes. Find out why, prove it with `start`, and repair it: **change what is wrong and nothing else**. Keep every other setting and add none. What has its default value anyway may be written out or left out (`pin_memory`, for example, is true by default), and any one of the three batch sizes may be left out if the other two imply it. All five are for 2 ranks.
#
# | | the author wants |
# |---|---|
# | A | stage 3, the optimizer on the host, 2 micro-batches per step |
# | B | stage 2, the optimizer on the host, large buckets |
# | C | stage 2, the optimizer on the host, host memory that is *not* pinned (this host is small) |
# | D | stage 3, micro-batches of 4, 32 sequences per step on both ranks together |
# | E | stage 2, bf16, as the launcher's YAML says (`mixed_precision: bf16`) |
#
# The lab parses them with Python's `json`, as `accelerate` does. DeepSpeed itself uses another parser for files, which is why some of the authors saw no error.

# %%
BROKEN = {
    "A": """{
  "train_micro_batch_size_per_gpu": 2,   // for each GPU
  "gradient_accumulation_steps": 2,
  "bf16": {"enabled": true},
  "wall_clock_breakdown": false
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {"device": "cpu"}   // saves the most
  }
}""",
    "B": """{
  "train_micro_batch_size_per_gpu": 2,
  "zero_optimization": {
    "stage": 2,
    "offload_optimizer": {"device": "cpu"}
  },
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 2,
    "allgather_bucket_size": 200000000,
    "reduce_bucket_size": 200000000
  }
}""",
    "C": """{
  "train_micro_batch_size_per_gpu": 2,
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 2,
    "offload_optimizer": {"device": "cpu"},
    "pin_memory": false
  }
}""",
    "D": """{
  "train_batch_size": 32,
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 8,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3}
}""",
    "E": """{
  "train_micro_batch_size_per_gpu": 2,
  "fp16": {"enabled": true, "loss_scale": 0},
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 2}
}""",
}

# %% [markdown]
# Here is B. It starts without a warning, but where is its optimizer?

# %%
launch(start, BROKEN["B"], world_size=2, device="cpu", timeout_s=60).outputs[0]

# %% [markdown]
# Return `{letter: (name, text)}` with the repaired text and the name of the mistake, one of these:
#
# | name | what is wrong |
# |---|---|
# | `"not_json"` | the text is not valid JSON; some parsers accept it, others do not |
# | `"duplicate_key"` | a key appears twice, and one value is lost |
# | `"wrong_level"` | a valid key in the wrong place |
# | `"unknown_key"` | a key that does not exist anywhere in DeepSpeed |
# | `"batch_size"` | batch sizes that contradict each other |
# | `"two_precisions"` | two precisions are enabled |
# | `"ignored_by_stage"` | the stage ignores what is asked for |

# %%
def fix_config_spec(text):
    """A repaired text is strict JSON without duplicate keys."""
    keys = []
    config = json.loads(text, object_pairs_hook=lambda pairs: keys.append(pairs) or dict(pairs))
    return config, all(len(dict(pairs)) == len(pairs) for pairs in keys)

fix_config_spec('{"a": 1, "b": 2, "a": 3}')

# %% [markdown]
# **Budget** · each configuration starts a real engine on 2 ranks, the engine reports what the author wanted, and no other setting changes.
#
# <details><summary>Hint 1 · run all five</summary>
#
# `launch(start, BROKEN["A"], world_size=2, device="cpu")` for each letter. Four of them fail, and the last lines of the error name the key. One does not fail: compare what the engine reports with what the author wants.
# </details>
# <details><summary>Hint 2 · the quick repair is often the wrong one</summary>
#
# Deleting the line that an error complains about removes the error, but also what the author wanted. Check what the engine reports afterwards: `pinned`, `global_batch`, `precision`.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# JSON has no comments and needs commas. Of two equal keys the last wins, so merge the two. `pin_memory` is an option of the offload. Micro-batch × accumulation × 2 ranks is the whole batch.
# </details>

# %% nbgrader={"grade_id": "fix_config", "solution": true}
def fix_config():
    """for example {"A": ("not_json", repaired text), "B": …, "C": …, "D": …, "E": …}"""
    ### BEGIN SOLUTION
    return {
        "A": (
            "not_json",
            """{
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 2,
  "bf16": {"enabled": true},
  "wall_clock_breakdown": false,
  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}
}""",
        ),
        "B": (
            "duplicate_key",
            """{
  "train_micro_batch_size_per_gpu": 2,
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 2,
    "offload_optimizer": {"device": "cpu"},
    "allgather_bucket_size": 200000000,
    "reduce_bucket_size": 200000000
  }
}""",
        ),
        "C": (
            "wrong_level",
            """{
  "train_micro_batch_size_per_gpu": 2,
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 2,
    "offload_optimizer": {"device": "cpu", "pin_memory": false}
  }
}""",
        ),
        "D": (
            "batch_size",
            """{
  "train_batch_size": 32,
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 4,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3}
}""",
        ),
        "E": (
            "two_precisions",
            """{
  "train_micro_batch_size_per_gpu": 2,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 2}
}""",
        ),
    }
    ### END SOLUTION

# %% [markdown]
# The engines that your repaired configurations start, side by side:

# %%
rows = []
for letter, (name, text) in fix_config().items():
    engine = launch(start, text, world_size=2, device="cpu", timeout_s=60).outputs[0]
    settings = [engine[key] for key in ("stage", "precision", "global_batch")]
    rows.append((letter, name, *settings, engine["optimizer"]["place"]))
columns = ("configuration", "mistake", "stage", "precision", "global batch", "optimizer on")
show_table(dict.fromkeys(columns, ""), rows)

# %% nbgrader={"grade_id": "check_fix_config", "grade": true}
check("offload.fix_config", fix_config)

# %% [markdown]
# ## 5 · A laptop with a fast GPU and little memory
#
# You want to fine-tune a model with 7 billion parameters with Adam in bf16 on one GPU with 24 GB, in a host with 64 GB of memory and a link of 25 GB/s each way. Which states fit where, and how long do the moves take per step, at least, if gradients move in bf16, as in the paper? Would a batch four times as large make offload more or less expensive per token, and why? Four to eight sentences.

# %% [markdown] nbgrader={"grade_id": "small_host", "grade": true, "solution": true, "points": 2}
# ### BEGIN SOLUTION
# Without offload model states take 16Ψ = 112 GB; the GPU has 24. With the optimizer offloaded the device keeps 2Ψ = 14 GB of parameters, which leaves about 10 GB for activations. The host needs 12Ψ = 84 GB for masters, momentum and variance, and room for the gradients: more than 64 GB. (Gradients are 2Ψ = 14 GB as they arrive in bf16; DeepSpeed keeps them on the host in fp32, 4Ψ = 28 GB.) So this host is too small, and the states have to go to NVMe (or get smaller, with 8-bit Adam or an adapter such as LoRA).
#
# Between device and host 2Ψ = 14 GB move each way: 0.56 s down and 0.56 s up at 25 GB/s, less if the move down overlaps with backward. A batch four times as large moves the same bytes once for four times the tokens, so offload becomes cheaper per token (with accumulation, gradients go down for each micro-batch, and the saving is smaller).
#
# Points: 1 for 2Ψ = 14 GB on the device and 84 GB against 64 on the host; 1 for about 0.56 s each way and for "once per step, whatever the batch".
# ### END SOLUTION
