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
# # 11 · DeepSpeed and Accelerate in practice
#
# So far you wrote the pieces of distributed training by hand: collectives, shards, units. In practice two libraries do this for you. **DeepSpeed** takes your model and a JSON file and returns an **engine** that trains. **Accelerate** takes a training loop and replaces a few of its lines. Both decide a lot for you, and both often start without an error and train something other than what you meant: another batch size, no sharding, the wrong learning rate, or each rank alone.
#
# The question of this chapter: how do you find out what really runs?
#
# The chapter is long, and you can read it in three parts, on different days: repairing an example, DeepSpeed's engine, Accelerate. Each part needs only the first two code cells.
#
# **After this chapter you can**
#
# - repair a DeepSpeed configuration, and compare what the engine does with what its author wanted;
# - read an engine's keys: precision, loss scale, buckets, schedulers, checkpoints, launchers;
# - port a hand-written DDP loop to Accelerate, and assert what Accelerate does not report.
#
# **You need:** [05 FSDP](05_fsdp.ipynb), [06 Offload](06_offload.ipynb).

# %% [markdown]
# <details open><summary>Four configurations of one loop: the same work, and four different sets of collectives</summary>
#
# [![Animation: Four configurations of one loop: the same work, and four different sets of collectives](openers/11_deepspeed_accelerate.svg)](openers/11_deepspeed_accelerate.svg)
#
# What rank 0 of two does in one step of two micro-batches: forward and backward, and below them its collectives, waits included. With DDP, Accelerate sums gradients in the second backward only. Accelerator() without cpu=True finds no GPU here and wraps nothing: no collective, no error, and each rank trains alone. DeepSpeed's stage 1 shards only the update; its stage 3 gathers each layer's parameters in every forward and backward. (The keys that let it keep a small model gathered are 0.) (Recorded from real processes. [Play it again](openers/11_deepspeed_accelerate.svg))
#
# </details>

# %%
import contextlib
import functools
import inspect
import json
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import matplotlib.pyplot as plt

# %%
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from shardlab import RankError, data, holds, launch, measure, models, placement, show_table, warm_up
from shardlab.widgets import palette, predict

warm_up("deepspeed")  # loads in the background while you read

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# ## An example, as found
#
# We wrote the example below: one script and one JSON file, with mistakes that people have published. Its author wants to train on **four ranks**:
#
# - with ZeRO stage 3, in bf16, with gradients clipped at a norm of 0.5;
# - with 4 sequences in a micro-batch and 2 micro-batches in a step, so 32 sequences on four ranks;
# - with optimizer states and parameters on the host;
# - with the activations of each block recomputed in backward instead of stored.
#
# At the end, one file should hold all the weights in 16 bits. This is the script:

# %%
def example_as_found(text, model, batches):
    from deepspeed import DeepSpeedEngine, Hparams

    engine = DeepSpeedEngine(model, Hparams(**json.loads(text)))
    for tokens, targets in batches:
        loss = engine(tokens, targets)
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint("model_checkpoint.pt")

# %% [markdown]
# And this is `ds_config.json`. How many mistakes can you find before you run it?

# %%
as_found = """{
  "train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,  // for each GPU
  "gradient_accumulation_steps": 2,
  "gradient_clipping": {"enabled": true, "value": 0.5},
  "bf16": {"enabled": true}, "fp16": {"enabled": false, "scale_window": 500},
  "wall_clock_breakdown": false
  "zero_optimization": {
    "stage": 3, "cpu_offload": true, "offload_param": true, "fast_init": true,
    "partition_activations": true, "gather_16bit_weights_on_model_save": true
  },
  "zero_optimization": {"contiguous_gradients": true, "reduce_bucket_size": 1000000}
}"""

# %% [markdown]
# We run it on four ranks. A traceback is long, but two of its lines are enough: the last one says what failed, and the last one in our own code says where.

# %%
def show_error(fn, *args):
    try:
        launch(fn, *args, world_size=4, device="cpu", timeout_s=120)
        print("no error")
    except RankError as error:
        lines = [line for line in error.message.splitlines() if "errors.pydantic.dev" not in line]
        print(f"{error.kind}:", "\n".join(lines))
        print("in", error.source)

show_error(example_as_found, as_found, None, None)  # fails before it needs a model

# %% [markdown]
# ### Repair 1: the script
#
# DeepSpeed has no `Hparams`. It has a `DeepSpeedEngine`, but you do not create one yourself: `deepspeed.initialize` starts communication, reads the configuration, and returns the engine and three more values. The two keys in `OWN_ADAM` make it accept PyTorch's AdamW ([chapter 06](06_offload.ipynb)).

# %%
OWN_ADAM = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}

def start_example(text):
    import deepspeed

    config = json.loads(text) | OWN_ADAM
    torch.manual_seed(0)
    model = models.gpt("0.1M")
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return deepspeed.initialize(model=model, optimizer=adam, config=config)[0]

# %% [markdown]
# The loop stays as it was. We add two things that we look at later: the losses, and how often each micro-batch runs through a block.

# %%
def train_example(engine, steps=6):
    losses, passes, micro_batches = [], [], 2 * steps
    engine.module.blocks[0].mlp.register_forward_hook(lambda *_: passes.append(1))
    for i in range(micro_batches):
        tokens, targets = data.batch(i, 4, 64, dist.get_rank(), world_size=4)
        loss = engine(tokens, targets)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return settings_of(engine, len(passes) // micro_batches), losses

# %% [markdown]
# `settings_of` asks the engine, not the configuration. Each row has a counterpart in what the author wanted:

# %%
def settings_of(engine, passes):
    has = placement.of_deepspeed(engine)
    return {
        "ZeRO stage": has["stage"],
        "sequences in a step": has["global_batch"],
        "precision": has["precision"],
        "gradients clipped at": engine.gradient_clipping(),
        "optimizer states on": has["optimizer"]["place"],
        "parameters on": has["parameters"]["place"],
        "whole weights on save": engine.zero_gather_16bit_weights_on_model_save(),
        "forward passes of a block": passes,
    }

# %%
wanted = {
    "ZeRO stage": 3, "sequences in a step": 32, "precision": "bfloat16", "gradients clipped at": 0.5,
    "optimizer states on": "host", "parameters on": "host", "whole weights on save": True,
    "forward passes of a block": 2,
}

def show_difference(has):
    show_table(
        {"setting": "", "wanted": "", "the engine has": "", "as wanted": ""},
        [(name, str(want), str(has[name]), "yes" if has[name] == want else "no") for name, want in wanted.items()],
    )

# %% [markdown]
# ### Repair 2: the JSON
#
# The script is right now. The next errors come from the file:

# %%
def train_as_written(text):
    return train_example(start_example(text))

show_error(train_as_written, as_found)

# %% [markdown]
# JSON has no comments: line 2, column 65 is where this one begins. Without it, the error moves to line 7, column 3:

# %%
no_comment = as_found.replace("  // for each GPU", "")
show_error(train_as_written, no_comment)

# %% [markdown]
# A missing comma is reported where the **next** key begins, so look at the line before. With the comma, Python can read the file, and DeepSpeed begins to look at its keys:

# %%
valid_json = no_comment.replace('"wall_clock_breakdown": false', '"wall_clock_breakdown": false,')
show_error(train_as_written, valid_json)

# %% [markdown]
# Sections like `fp16` accept only keys that they know, even where they are not enabled. The correct key is `loss_scale_window`.

# %%
known_keys = valid_json.replace('"scale_window"', '"loss_scale_window"')
show_error(train_as_written, known_keys)

# %% [markdown]
# This error does not name a key, and it came later than the others: the engine started, and two micro-batches ran. DeepSpeed stores this value without a check of its type. `engine.step()` is the first to use it, when it compares the dict with a number. The value of `gradient_clipping` is the norm itself:

# %%
number = known_keys.replace('{"enabled": true, "value": 0.5}', "0.5")
run = launch(train_as_written, number, world_size=4, device="cpu", timeout_s=120)
first_settings, first_losses = run.outputs[0]
print("losses on rank 0:", *(f"{loss:.2f}" for loss in first_losses))

# %% [markdown]
# No error is left, and the loss falls. Many readers of a tutorial stop here. **Which ZeRO stage does this engine run?**

# %%
predicted_stage = predict("The stage of the engine that trained without an error", options=["0", "1", "2", "3"])
predicted_stage

# %%
predicted_stage.compare(str(first_settings["ZeRO stage"]), {"what the first zero_optimization says": "3"})

# %%
show_difference(first_settings)

# %% [markdown]
# ### Repair 3: what was silently ignored
#
# Five of eight settings are not what the author wanted. The file has `zero_optimization` twice, and Python's `json` keeps the last one. It has no stage, so the stage is 0: each rank keeps the whole model and all optimizer states. There was no warning. The mistakes in the first `zero_optimization` raised no error because nothing read them.
#
# DeepSpeed has its own reader for files. If you pass the **path** instead of a dict, it reads Hjson, a more lenient form of JSON. Which reader notices what?

# %%
three_mistakes = {
    "a comment": '{"train_batch_size": 4  // on all ranks\n}',
    "a missing comma": '{"train_batch_size": 4\n "wall_clock_breakdown": false}',
    "a key twice": '{"train_batch_size": 4, "train_batch_size": 8}',
}

def result_of(read, source):
    try:
        read(source)
        return "accepted"
    except ValueError as error:
        return type(error).__name__

# %%
def both_readers():
    from deepspeed.runtime.config import DeepSpeedConfig

    rows = []
    for mistake, text in three_mistakes.items():
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            print(text, file=file, flush=True)
            rows.append((mistake, result_of(json.loads, text), result_of(DeepSpeedConfig, file.name)))
    return rows

readers = launch(both_readers, world_size=1, device="cpu", timeout_s=120).outputs[0]
show_table({"mistake": "", "json.load, and a dict": "", "the path, to DeepSpeed": ""}, readers)

# %% [markdown]
# Neither reader notices all three. Accelerate reads with `json`, so write plain JSON without duplicate keys: then both read the same. We merge the two blocks, and now the mistakes in the first one are read:

# %%
merged = number.replace("""
  },
  "zero_optimization": {""", ", ")
show_error(train_as_written, merged)

# %% [markdown]
# Inside `zero_optimization` every key is checked, and all errors come at once.
#
# - `offload_param` takes a section, such as `{"device": "cpu"}`.
# - `fast_init` belongs to `offload_optimizer` (and acts only with NVMe).
# - `partition_activations` belongs to `activation_checkpointing`, at the top level. (It splits kept activations over the ranks of tensor parallelism, so it changes nothing here.)
#
# `cpu_offload` is not among these errors, so we leave it and move the others:

# %%
moved = (
    merged.replace('"offload_param": true', '"offload_param": {"device": "cpu"}')
    .replace('"fast_init": true', '"offload_optimizer": {"device": "cpu", "fast_init": true}')
    .replace('"partition_activations": true, ', "")
    .replace("{", '{"activation_checkpointing": {"partition_activations": true},', 1)
)
show_error(train_as_written, moved)

# %% [markdown]
# `cpu_offload` is the old name. Next to the new one it is an error; on its own, DeepSpeed logs a warning and turns it into `offload_optimizer`. We remove it, and `fast_init`, which does nothing here. This is the file after all repairs:

# %%
repaired = """{
  "train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
  "gradient_clipping": 0.5, "wall_clock_breakdown": false,
  "bf16": {"enabled": true}, "fp16": {"enabled": false, "loss_scale_window": 500},
  "activation_checkpointing": {"partition_activations": true},
  "zero_optimization": {
    "stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"},
    "gather_16bit_weights_on_model_save": true,
    "contiguous_gradients": true, "reduce_bucket_size": 1000000
  }
}"""

# %% [markdown]
# Two keys need a remark. DeepSpeed's documentation writes `stage3_gather_16bit_weights_on_model_save`; version 0.19.8 accepts the name without `stage3_` as well. And `activation_checkpointing` only holds options for `deepspeed.checkpointing.checkpoint`, which the **model** has to call. So the script changes once more. (`configure` comes after `initialize`. Before it, DeepSpeed counts one rank and rejects a batch of 32.)

# %%
def recompute_blocks(engine, text):
    from deepspeed import checkpointing

    checkpointing.configure(None, json.loads(text))
    for block in engine.module.blocks:
        block.forward = functools.partial(checkpointing.checkpoint, block.forward)

# %% [markdown]
# To see that the JSON alone is not enough, we train one step before this repair. At the end the script saves: with `save_checkpoint`, as the author wrote it, and with `save_16bit_model`, which the gather key is for. **What will `model_checkpoint.pt` be?**

# %%
SAVED = ["a file with the whole model", "a file with the part of rank 0", "a folder"]
predicted_saved = predict("After save_checkpoint('model_checkpoint.pt') on four ranks there is", options=SAVED)
predicted_saved

# %%
def train_repaired(text, folder):
    engine = start_example(text)
    json_alone, _ = train_example(engine, steps=1)
    recompute_blocks(engine, text)
    settings, losses = train_example(engine)
    engine.save_checkpoint(f"{folder}/model_checkpoint.pt")
    engine.save_16bit_model(folder, "weights.pt")
    return json_alone, settings, losses

# %%
def what_is(path, whole_bytes):
    if path.is_dir():
        return SAVED[2]
    return SAVED[path.stat().st_size < whole_bytes]

# %%
with tempfile.TemporaryDirectory() as folder:
    run = launch(train_repaired, repaired, folder, world_size=4, device="cpu", timeout_s=120)
    checkpoint, whole = Path(folder, "model_checkpoint.pt"), Path(folder, "weights.pt")
    kind, weights = what_is(checkpoint, whole.stat().st_size), torch.load(whole)
    saved = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    sizes = [(re.sub(r"rank_\d_", "rank_*_", path.name), path.stat().st_size) for path in saved]
json_alone, settings, losses = zip(*run.outputs)
predicted_saved.compare(kind)

# %%
name = "forward passes of a block"
holds(f"with the JSON alone, {name}", [has[name] for has in json_alone], 1)
show_difference(settings[0])
mean_losses = torch.tensor(losses).mean(0)
holds("every rank has what the author wanted", all(has == wanted for has in settings))
holds("the mean loss of the ranks falls", mean_losses[-1] - mean_losses[0], below=-0.4)

# %%
names = [name for name, _ in sizes]
show_table(
    {"in model_checkpoint.pt": "", "files": "d", "bytes together": ",d"},
    [(name, names.count(name), sum(size for other, size in sizes if other == name)) for name in dict.fromkeys(names)],
)

# %% [markdown]
# The argument of `save_checkpoint` is a folder, whatever its name ends with, and every rank writes its own part. It is for resuming training: `load_checkpoint` reads it. The name `model_checkpoint.pt` works, and misleads everyone who tries `torch.load` on it. The weights alone are in the other file:

# %%
model = models.gpt("0.1M")
model.load_state_dict(weights)
tokens, targets = data.batch(12, 16, 64)
with torch.no_grad():
    holds("the loaded model has learned", model(tokens, targets).item(), below=losses[0][0] - 0.5)
print("saved as", weights["token.weight"].dtype)

# %% [markdown]
# What each mistake did in DeepSpeed 0.19.8. Those with a link are from public reports, the others from notes on tutorials.
#
# | mistake | what happens |
# |---|---|
# | `Hparams` | error, at the import |
# | comment, missing comma | error in `json`, accepted from a path |
# | duplicate key | **silent** in `json`, error from a path |
# | wrong key in `fp16` or `zero_optimization` ([#1935](https://github.com/deepspeedai/DeepSpeed/issues/1935)), `offload_param: true` ([Lightning #17790](https://github.com/Lightning-AI/pytorch-lightning/pull/17790)) | error, at the start |
# | `gradient_clipping` as a dict | error, at the first update |
# | `cpu_offload: true` ([GPT-NeoX #469](https://github.com/EleutherAI/gpt-neox/issues/469)) | a warning; works |
# | `gather_16bit_…` without `stage3_` | works |
# | activation checkpointing only in the JSON ([#5704](https://github.com/deepspeedai/DeepSpeed/issues/5704)) | **silent** |
# | `save_checkpoint("….pt")` | **silent**: a folder |
#
# Errors are the cheap mistakes. For the silent ones, write down what you want and compare it with the engine.

# %% [markdown]
# ## The engine
#
# `deepspeed.initialize` returns four things: the **engine**, which wraps your model, its optimizer, a data loader and a learning-rate scheduler. The last two are `None` unless you ask for them. Almost every decision comes from the configuration. This section goes through its keys one by one and shows what the engine does with them on real ranks. [Chapter 04](04_zero.ipynb) has the stages, [chapter 06](06_offload.ipynb) offload and [chapter 10](10_save_resume.ipynb) checkpoints.
#
# ### Three batch sizes, of which two are free
#
# `train_batch_size` counts the samples of one optimizer step on **all** ranks:
#
# $$\text{train} = \text{micro} \times \text{accumulation} \times \text{ranks}$$
#
# where micro is `train_micro_batch_size_per_gpu` and accumulation is `gradient_accumulation_steps`. Set one or more of them, and DeepSpeed computes the rest, or refuses to start. **Which of these start on 4 ranks?**

# %%
batch_configs = {
    "micro 2": {"train_micro_batch_size_per_gpu": 2},
    "train 16": {"train_batch_size": 16},
    "train 30": {"train_batch_size": 30},
    "train 16, micro 2": {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2},
    "train 16, micro 3": {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 3},
    "accumulation 2": {"gradient_accumulation_steps": 2},
}

# %%
predicted_starts = predict("These start on 4 ranks", options=list(batch_configs), several=True)
predicted_starts

# %%
def batch_sizes(config):
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        c = DeepSpeedConfig(config)
    except AssertionError as error:
        return str(error).replace("Check batch related parameters. ", "")
    return c.train_batch_size, c.train_micro_batch_size_per_gpu, c.gradient_accumulation_steps

def all_batch_sizes():
    import deepspeed

    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    return [batch_sizes(config) for config in batch_configs.values()]

# %%
ds_options = {"device": "cpu", "timeout_s": 60}
found = dict(zip(batch_configs, launch(all_batch_sizes, world_size=4, **ds_options).outputs[0]))
started = {name: sizes for name, sizes in found.items() if isinstance(sizes, tuple)}
predicted_starts.compare(list(started))

# %%
show_table({"given": "", "train": "d", "micro": "d", "accumulation": "d"},
           [(name, *sizes) for name, sizes in started.items()])
print(*(f"{name}: {error}" for name, error in found.items() if name not in started), sep="\n")

# %% [markdown]
# Sizes that do not divide evenly raise an error, and so does accumulation alone. Two things are not checked. If you set only `train_batch_size`, accumulation is 1, and the micro-batch may not fit in memory. And the engine never looks at the batches that you feed it. You will see that next.
#
# ### backward, step, and the accumulation boundary
#
# We train a tiny model for 8 micro-batches on two ranks, with 2 accumulation steps and a scheduler. The configuration promises micro-batches of 2 samples, and we feed 3:

# %%
def tiny_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

warmup = {"warmup_min_lr": 0.0, "warmup_max_lr": 0.1, "warmup_num_steps": 4, "warmup_type": "linear"}
engine_config = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "zero_allow_untested_optimizer": True,
    "scheduler": {"type": "WarmupLR", "params": warmup},
}

# %%
def flat(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()

# %%
def micro_batch(engine, number):
    before = flat(engine.module)
    rate, loss = engine.get_lr()[0], 10 * engine(torch.randn(3, 8)).square().mean()
    with measure(f"backward {number}"):
        returned = engine.backward(loss)
    boundary = engine.is_gradient_accumulation_boundary()
    with measure(f"step {number}"):
        engine.step()
    moved = flat(engine.module) - before
    norm = float(engine.get_global_grad_norm()) if boundary else None
    return boundary, rate, norm, moved.norm().item(), (returned / loss).item()

# %%
def drive_engine(stage):
    import deepspeed

    config = engine_config | {"zero_optimization": {"stage": stage}}
    engine, *_ = deepspeed.initialize(model=tiny_model(), config=config)
    return [micro_batch(engine, number) for number in range(8)], engine.global_samples

# %% [markdown]
# **In how many of the 8 calls of `backward` do the ranks communicate gradients, at stages 1 and 2?**

# %%
predicted_backwards = predict("Backwards that communicate, of 8", labels=["stage 1", "stage 2"])
predicted_backwards

# %%
driven = {stage: launch(drive_engine, stage, world_size=2, **ds_options) for stage in (1, 2)}

def communicating(run):
    return sum(bool(run.calls_in(f"backward {number}")) for number in range(8))

every_step = {"one in each optimizer step": [4, 4], "every backward": [8, 8]}
predicted_backwards.compare([communicating(run) for run in driven.values()], every_step)

# %% [markdown]
# Stage 1 keeps whole gradients and waits for the **boundary**, the last micro-batch of a step. Stage 2 keeps slices, so it has to send every time ([chapter 04](04_zero.ipynb)). You call `engine.step()` after every backward; between boundaries it only counts. Here is stage 1:

# %%
micro_batches, samples = driven[1].outputs[0]
show_table(
    {"micro-batch": "d", "boundary": str, "learning rate": ".3f", "gradient norm": ".2f", "moved by": ".4f"},
    [(number, *row[:4]) for number, row in enumerate(micro_batches)],
)
holds("backward returns the loss divided by accumulation", [row[4] for row in micro_batches], 0.5, rtol=1e-5)
holds("samples that the engine counted, of the 8 · 3 · 2 = 48 it was fed", samples, 32)

# %% [markdown]
# Three things to notice:
#
# - **The loss.** `engine.backward` divides by the accumulation steps. If your loop divides too, gradients are half as large. At stages 1 and 2 you can also write `engine.scale(loss).backward()`. A plain `loss.backward()` raises an error where fp16 needs a loss scale, and at stage 0 both do (`runtime/engine.py`).
# - **The schedule.** It steps once per optimizer step, not per micro-batch. But `WarmupLR` starts at its minimum **twice**: once before its first step, once for step 0. With a minimum of 0, two optimizer steps change nothing. And `warmup_type` is `log` unless you set it to `linear`, as we do. The JSON also accepts `WarmupDecayLR`, `WarmupCosineLR`, `OneCycle` and `LRRangeTest`.
# - **Clipping.** You did not ask for any. What did the last steps do?

# %%
moved = [(rate, norm, distance) for boundary, rate, norm, distance, _ in micro_batches if boundary and rate > 0]
holds("gradient norm", [norm for _, norm, _ in moved], above=2)
clipped_to = [distance / rate for rate, _, distance in moved]
holds("norm of the update / learning rate", clipped_to, 1.0, rtol=1e-3)

# %% [markdown]
# The gradient has a norm over 2, and SGD moved as if it were 1. In DeepSpeed 0.19.8 **`gradient_clipping` is 1.0 unless you set it** (`GRADIENT_CLIPPING_DEFAULT` in `runtime/constants.py`). Set it to 0.0 when you compare with a loop that does not clip.
#
# ### Your own scheduler and optimizer
#
# To use your own scheduler, pass it to `initialize` as `lr_scheduler`. This loop never calls its `step`:

# %%
def own_scheduler(steps=3):
    import deepspeed

    config = {key: value for key, value in engine_config.items() if key not in ("optimizer", "scheduler")}
    model = tiny_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(sgd, lambda step: 0.5**step)
    engine, *_ = deepspeed.initialize(model=model, optimizer=sgd, lr_scheduler=schedule, config=config)
    for _ in range(2 * steps):  # two micro-batches a step
        engine.backward(engine(torch.randn(2, 8)).square().mean())
        engine.step()
    return schedule.last_epoch, engine.get_lr()[0]

# %%
steps, rate = launch(own_scheduler, world_size=2, **ds_options).outputs[0]
holds("last_epoch of the scheduler after 3 optimizer steps", steps, 3)
holds("learning rate", rate, 0.1 * 0.5**3)

# %% [markdown]
# The engine steps it, once per optimizer step: do not step it again. Now pass a PyTorch optimizer to `initialize`, and the engine takes it over. With ZeRO it accepts Adam, AdamW and a few more, and others only with `zero_allow_untested_optimizer`. What is in your optimizer afterwards?

# %%
def give_optimizer(stage, allowed, optimizer_class=torch.optim.SGD):
    import deepspeed

    model = tiny_model()
    mine = optimizer_class(model.parameters(), lr=0.1)
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage}}
    config["zero_allow_untested_optimizer"] = allowed
    try:
        _, returned, *_ = deepspeed.initialize(model=model, optimizer=mine, config=config)
    except AssertionError as error:
        return str(error)
    return type(returned).__name__, str([tuple(p.shape) for p in mine.param_groups[0]["params"]])

# %%
def give_optimizers():
    import deepspeed

    config = engine_config | {"optimizer": {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}}}
    engine, *_ = deepspeed.initialize(model=tiny_model(), config=config)
    by_json = type(engine.basic_optimizer).__name__, engine.basic_optimizer.defaults["weight_decay"]
    given = [give_optimizer(stage, stage > 0) for stage in (0, 1, 2, 3)]
    return given, give_optimizer(1, False), by_json

# %%
given, refused, by_json = launch(give_optimizers, world_size=2, **ds_options).outputs[0]
show_table({"stage": "d", "initialize returns": "", "your SGD now holds": ""},
           [(stage, *each) for stage, each in enumerate(given)])
print("without the key:", refused)
print("type Adam in the JSON:", *by_json)

# %% [markdown]
# Stages 1 and 2 replace the four parameters in your optimizer by one flat slice, half of the 212 elements. Stage 3 removes them all, and inserts each slice only during the step. So give options per parameter group **before** `initialize`, and save through the engine: `optimizer.state_dict()` has only this rank's slice, without names.
#
# The last line is another trap. `"type": "Adam"` in the JSON runs **AdamW**; add `"adam_w_mode": false` for Adam. With `torch_adam`, as here, it is PyTorch's AdamW, with its weight decay of 0.01. Without it, it is DeepSpeed's own (`ops/adam`), with a weight decay of 0 unless you set one.
#
# ### A loader given to initialize
#
# `initialize(training_data=…)` returns a loader. First we give it a `DataLoader`, then a dataset of 10 samples, numbered 0 to 9:

# %%
def read_twice(loader, reshuffled):
    epochs = []
    for epoch in range(2):
        if reshuffled:
            loader.data_sampler.set_epoch(epoch)
        epochs.append([batch[:, 0].int().tolist() for (batch,) in loader])
    return epochs

# %%
def loader_for(training_data):
    import deepspeed

    return deepspeed.initialize(model=tiny_model(), config=engine_config, training_data=training_data)[2]

def give_loaders():
    samples = torch.utils.data.TensorDataset(torch.arange(10.0)[:, None].repeat(1, 8))
    try:
        refused = loader_for(torch.utils.data.DataLoader(samples))
    except ValueError as error:
        refused = str(error)
    warnings.filterwarnings("ignore", "'pin_memory' argument is set")  # there is no GPU
    loader = loader_for(samples)
    return read_twice(loader, False), read_twice(loader, True), refused, loader.num_local_io_workers

# %%
read = launch(give_loaders, world_size=2, **ds_options).outputs
print("a DataLoader:", read[0][2])
show_table(
    {"set_epoch": "", "rank": "d", "epoch": "d", "batches": str},
    [(called, rank, epoch, batches) for i, called in enumerate(("not called", "called"))
     for rank, each in enumerate(read) for epoch, batches in enumerate(each[i])],
)
holds("without set_epoch both epochs have the same order", [each[0][0] == each[0][1] for each in read])
holds("with set_epoch they differ", [each[1][0] != each[1][1] for each in read])
holds("worker processes of each rank", [each[3] for each in read], 2)

# %% [markdown]
# You get a `DeepSpeedDataLoader`. It shuffles, shards the dataset over the ranks, takes the micro-batch from the configuration, and starts two worker processes per rank. It never calls `set_epoch`, so **every epoch has the same order** until you call `loader.data_sampler.set_epoch(epoch)`. If you bring your own loader, give it to your loop and not to `initialize`, with a `DistributedSampler`.
#
# ### fp16: the loss scale
#
# fp16 has a small range: a gradient below 3 · 10⁻⁸ becomes 0. So DeepSpeed multiplies the loss by a **scale**, and divides the gradients by it before the update. Too large a scale overflows: the step is skipped, and the scale is halved. After a while without an overflow, it is doubled. A rare overflow should not halve it: with **hysteresis** h, the first h − 1 overflows only skip their steps, and this allowance comes back when the scale doubles. We drive DeepSpeed's scaler directly, without a model, and report overflows to it:

# %%
def drive_scaler(keys, overflows, steps):
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler
    from deepspeed.runtime.precision_config import DeepSpeedFP16Config

    arguments = DeepSpeedFP16Config(enabled=True, **keys).dynamic_loss_scale_args()
    scaler, scales = DynamicLossScaler(**arguments), []
    try:
        for step in range(steps):
            scales.append(scaler.loss_scale)
            scaler.update_scale(step in overflows)
    except Exception as error:
        scales.append(str(error))
    return scales

# %%
def drive_scalers(cases, steps):
    import deepspeed

    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    return [drive_scaler(keys, overflows, steps) for keys, overflows in cases]

# %% [markdown]
# The scale starts at $2^8$, with hysteresis 2, DeepSpeed's default. Steps 5, 6 and 9 overflow. **What is it at step 10?** (The window is 20 steps, so nothing is doubled before.)

# %%
predicted_scale = predict("The loss scale at step 10")
predicted_scale

# %%
overflows = (5, 6, 9, 36)
scaler_keys = {"initial_scale_power": 8, "loss_scale_window": 20, "min_loss_scale": 1}
cases = [(scaler_keys | {"hysteresis": hysteresis}, overflows) for hysteresis in (1, 2)]
cases.append((scaler_keys | {"initial_scale_power": 1, "hysteresis": 1}, range(80)))
at_once, patient, (*_, at_minimum) = launch(drive_scalers, cases, 80, world_size=1, **ds_options).outputs[0]
named = {"with hysteresis 1": at_once[10], "an allowance for every overflow": patient[0]}
predicted_scale.compare(patient[10], named | {"an allowance that comes back at step 7": patient[7]})

# %%
figure, axes = plt.subplots(figsize=(7, 2.8))
axes.step(range(80), at_once, where="post", color=palette.MEASURED, linestyle="--", label="hysteresis 1")
axes.step(range(80), patient, where="post", color=palette.MEASURED, label="hysteresis 2")
for step in overflows:
    axes.axvline(step, color=palette.ERROR, linewidth=1, label="overflow" if step == overflows[0] else None)
axes.set_yscale("log", base=2)
axes.set(xlabel="step", ylabel="loss scale", ylim=(16, 1024))
axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
figure.tight_layout()
print("overflows that never end:", at_minimum)

# %% [markdown]
# - `initial_scale_power` p: the scale starts at $2^p$. The default is 16.
# - `loss_scale_window`: it doubles after this many steps without an overflow. The default is 1000.
# - `hysteresis`: the overflow at step 9 halves at once, the one at step 36, after a doubling, does not. With `consecutive_hysteresis` the allowance comes back at each step without an overflow.
# - `min_loss_scale`: an overflow at the minimum ends the run, with the message above. It means that the model diverges, or that its gradients do not fit into fp16 at all.
# - `loss_scale`: 0, the default, means all this. Any other number is a fixed scale.
#
# An unknown key inside `fp16`, such as `scale_window`, is an error. Now with an engine. DeepSpeed checks whether the processor has instructions for fp16, and many processors do not. PyTorch can compute in fp16 without them, slowly, so in that case we make the check succeed. Two samples of ones go in, so each weight's gradient is 2, and SGD with a learning rate of 1 must move each weight by 2:

# %%
def say_fp16_works():
    from deepspeed.accelerator import get_accelerator

    get_accelerator().is_fp16_supported = lambda: True

# %%
def fp16_update(stage, power):
    import deepspeed

    config = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.0, "zero_allow_untested_optimizer": True,
              "optimizer": {"type": "SGD", "params": {"lr": 1.0}}, "zero_optimization": {"stage": stage},
              "fp16": {"enabled": True, "initial_scale_power": power}}
    engine, *_ = deepspeed.initialize(model=nn.Linear(8, 4, bias=False), config=config)
    before = engine.module.weight.detach().clone()
    engine.backward(engine(torch.ones(2, 8).half()).float().sum())
    engine.step()
    return (before - engine.module.weight).float().max().item(), engine.skipped_steps

# %%
def fp16_engines():
    try:
        fp16_update(1, 8)
        as_it_is = "fp16 works on this processor"
    except ValueError as error:
        as_it_is = str(error)
    say_fp16_works()
    return as_it_is, [(stage, power, *fp16_update(stage, power)) for stage in (1, 0) for power in (8, 20)]

as_it_is, updates = launch(fp16_engines, world_size=2, **ds_options).outputs[0]
print(as_it_is)
show_table({"stage": "d", "initial_scale_power": "d", "update (2 is right)": ".6f", "skipped steps": "d"}, updates)

# %% [markdown]
# At stage 1 the engine does what the picture shows: $2^8$ gives the right update, and $2^{20}$ overflows, so the step is skipped and nothing moves.
#
# At stage 0 the update is wrong, by exactly the scale. **In 0.19.8 an fp16 engine without ZeRO divides the gradients by the scale, but never multiplied the loss by it** ([DeepSpeed #8393](https://github.com/deepspeedai/DeepSpeed/pull/8393), open when this was written). No overflow is ever found either, because nothing is scaled. SGD stalls; Adam hides it, as it divides by the size of the gradient. Use bf16 or a ZeRO stage.

# %%
by_case = {(stage, power): update for stage, power, update, _ in updates}
holds("stage 0: how many times too small", by_case[1, 8] / by_case[0, 8], 2**8, rtol=0.01)

# %% [markdown]
# ### ZeRO's other keys
#
# [DeepSpeed's documentation](https://www.deepspeed.ai/docs/config-json/) says what each key is for: buckets limit the elements of one call, `allgather_partitions` chooses between all-gather and broadcasts, `reduce_scatter` between reduce-scatter and all-reduce. **Which of these change the calls of a step at stage 1, over gloo?**

# %%
stage_1_keys = {"reduce_bucket_size": 2**15, "allgather_bucket_size": 2**12, "allgather_partitions": False,
                "reduce_scatter": False, "round_robin_gradients": True}
predicted_keys = predict("These change the calls", options=list(stage_1_keys), several=True)
predicted_keys

# %%
stage_3 = {"stage": 3, "reduce_bucket_size": 2**15, "stage3_param_persistence_threshold": 0}
key_cases = {"stage 1": {"stage": 1}}
key_cases |= {name: {"stage": 1, name: value} for name, value in stage_1_keys.items()}
key_cases |= {"stage 3": stage_3}
stage_3_keys = {"sub_group_size": 10_000, "stage3_prefetch_bucket_size": 0, "reduce_scatter": False}
key_cases |= {f"stage 3, {name}": stage_3 | {name: value} for name, value in stage_3_keys.items()}

# %%
def first_tensors_and_groups(optimizer):
    order = [tuple(p.shape) for p in getattr(optimizer, "round_robin_bit16_groups", [[]])[0][:3]]
    return order, len(getattr(optimizer, "fp16_partitioned_groups_flat", []))

# %%
def try_keys():
    import deepspeed

    config, seen = engine_config | {"gradient_accumulation_steps": 1}, {}
    for name, zero in key_cases.items():
        engine, *_ = deepspeed.initialize(model=models.gpt("0.1M"), config=config | {"zero_optimization": zero})
        for step in range(2):  # the second one is measured
            with measure(name if step else "first step"):
                engine.backward(engine(*data.batch(step, 2, 32, dist.get_rank(), 2)))
                engine.step()
        seen[name] = first_tensors_and_groups(engine.optimizer)
    return seen

# %%
def count_calls(run, name):
    calls = [call.op for call in run.calls_in(name)]
    return [calls.count(op) or None for op in CALLS]

CALLS = ("all_reduce", "reduce_scatter_single", "all_gather_single")
keys_run = launch(try_keys, world_size=2, **ds_options)
plain_calls = count_calls(keys_run, "stage 1")
predicted_keys.compare([name for name in stage_1_keys if count_calls(keys_run, name) != plain_calls])

# %%
show_table({"calls in a step": "", **dict.fromkeys(CALLS, "d")},
           [(name, *count_calls(keys_run, name)) for name in key_cases])

# %% [markdown]
# Only one of the five does. The tensors passed to these calls have the same bytes in all rows of a stage; only the number of messages differs. But what a call **sends** is another matter: on a ring, an all-reduce sends twice as much as a reduce-scatter of the same tensor ([chapter 03](03_ring_all_reduce.ipynb)). So `reduce_scatter` false at stage 3 doubles what its gradients cost.

# %%
def step_bytes(name):
    return sum(call.bytes for call in keys_run.calls_in(name))

at_stage_3 = [step_bytes(name) for name in key_cases if name.startswith("stage 3")]
at_stage_1 = [step_bytes(name) for name in ("stage 1", *stage_1_keys)]
passed = "bytes of the tensors passed, in all configurations"
holds(f"stage 1: {passed}", at_stage_1, at_stage_1[0], unit="bytes")
holds(f"stage 3: {passed}", at_stage_3, at_stage_3[0], rtol=0.001, unit="bytes")

# %%
(plain_order, _), (round_robin, _) = (keys_run.outputs[0][name] for name in ("stage 1", "round_robin_gradients"))
groups = [keys_run.outputs[0][name][1] for name in ("stage 3", "stage 3, sub_group_size")]
print(f"first tensors in the flat buffer: {plain_order}, with round_robin_gradients {round_robin}")
print(f"groups that stage 3 updates one after the other: {groups[0]}, with sub_group_size {groups[1]}")

# %% [markdown]
# What each key does in 0.19.8, as seen here or read in its source (`runtime/zero`):
#
# | key | what it changes |
# |---|---|
# | `reduce_bucket_size` | messages of gradients; the memory of a bucket. The default, 5 · 10⁸ elements, was a single message here |
# | `allgather_bucket_size` | nothing, where PyTorch has `all_gather_into_tensor`, which it has had for years (`all_gather_dp_groups` in `runtime/utils.py`) |
# | `allgather_partitions` | nothing: it is read into the configuration and never used |
# | `reduce_scatter` | at stage 3 the call, reduce-scatter or all-reduce. At stages 1 and 2 nothing, while `use_multi_rank_bucket_allreduce` is on, which is the default ([chapter 04](04_zero.ipynb)) |
# | `round_robin_gradients` | the order of tensors in the flat buffer, so that ranks take turns. It helps offload at stages 1 and 2 |
# | `sub_group_size` | stage 3: elements that one part of the update handles. Without offload it limits the gradients that are in fp32 on the device at a time; with NVMe, the optimizer states in host memory (`runtime/zero/stage3.py`). One more small all-reduce, for the norm of each group |
# | `stage3_prefetch_bucket_size` | stage 3: parameters gathered in advance. With 0 there are more, smaller gathers |
# | `contiguous_gradients` | copies gradients into one buffer during backward: memory, not calls |
# | `overlap_comm` | reduces on a second CUDA stream; a CPU has none |
#
# ### Activation checkpointing's keys
#
# The section `activation_checkpointing` does nothing unless your model calls `deepspeed.checkpointing.checkpoint` ([chapter 09](09_activation_checkpointing.ipynb)). Two tensor-parallel ranks, four checkpointed layers, and six versions of the section:

# %%
partitioned = {"partition_activations": True}
contiguous = {**partitioned, "contiguous_memory_optimization": True}
checkpoint_sections = {
    "partition_activations": partitioned,
    "contiguous_memory_optimization alone": {"contiguous_memory_optimization": True},
    "both": contiguous,
    "both, number_checkpoints 4": {**contiguous, "number_checkpoints": 4},
    "both, number_checkpoints 2": {**contiguous, "number_checkpoints": 2},
    "synchronize_checkpoint_boundary, profile": {"synchronize_checkpoint_boundary": True, "profile": True},
}

# %%
class TwoTensorParallelRanks:
    get_model_parallel_rank = staticmethod(lambda: dist.get_rank())
    get_model_parallel_world_size = staticmethod(lambda: dist.get_world_size())
    get_model_parallel_group = staticmethod(lambda: dist.group.WORLD)

# %%
def four_checkpoints(checkpointing, section):
    checkpointing.reset()
    try:
        checkpointing.configure(TwoTensorParallelRanks, deepspeed_config=engine_config | section)
        x = torch.ones(4, 8, requires_grad=True)
        for _ in range(4):
            x = checkpointing.checkpoint(nn.Linear(8, 8), x)
        stored = [f", inputs in one buffer: {len(each)}" for each in checkpointing.contiguous_data_buffers]
        x.sum().backward()
        return "".join(["ok", *stored])
    except (AssertionError, IndexError) as error:
        return f"{type(error).__name__}: {str(error).split('.')[0]}"

# %%
def try_checkpoint_sections():
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.activation_checkpointing import checkpointing

    waits, seen = [], []
    get_accelerator().synchronize = lambda *_: waits.append("wait")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    for section in checkpoint_sections.values():
        waits.clear()
        found = four_checkpoints(checkpointing, {"activation_checkpointing": section})
        seen.append((found, len(waits)))
    return seen

# %%
checked = launch(try_checkpoint_sections, world_size=2, quiet=True, **ds_options)
show_table({"section": "", "four checkpoints": "", "waits for the device": "d"},
           [(name, *each) for name, each in zip(checkpoint_sections, checked.outputs[0])])
print(*checked.stdout[0].splitlines()[-2:], sep="\n")

# %% [markdown]
# - `contiguous_memory_optimization` puts the stored inputs into one buffer, against fragmentation. It needs `partition_activations`, and `number_checkpoints`: how many checkpoints a forward makes. If it is too small, the model fails in the middle of its forward.
# - `synchronize_checkpoint_boundary` waits for the device before and after each checkpoint, in forward and backward: 16 times here. That is for debugging; it costs time.
# - `profile` prints the milliseconds of every checkpoint, as in the last two lines.
#
# ### What runs, and how long: the engine's own instruments
#
# Three keys make the engine report: `comms_logger` counts the collectives that go through `deepspeed.comm`, `wall_clock_breakdown` prints times, and `flops_profiler` counts operations in one step. They print a lot, so we show only part of it:

# %%
watched_config = engine_config | {
    "gradient_accumulation_steps": 1,
    "zero_optimization": {"stage": 1},
    "wall_clock_breakdown": True,
    "comms_logger": {"enabled": True},
    "flops_profiler": {"enabled": True, "profile_step": 2, "detailed": False},
}

# %%
def watched_engine():
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from deepspeed.comm import comm

    engine, *_ = deepspeed.initialize(model=models.gpt("0.1M"), config=watched_config)
    for step in range(3):
        with measure("steps"):
            engine.backward(engine(*data.batch(step, 2, 32, dist.get_rank(), 2)))
            engine.step()
    logged = comm.comms_logger.comms_dict.items()
    counted = [(op, size, each[0]) for op, sizes in logged for size, each in sizes.items() if op != "broadcast"]
    return get_accelerator().communication_backend_name(), dist.get_backend(), counted

# %%
watched = launch(watched_engine, world_size=2, quiet=True, **ds_options)
wanted, used, counted = watched.outputs[0]
print(f"communication backend: DeepSpeed would choose {wanted}, PyTorch's group uses {used}")
printed = watched.stdout[0].splitlines()
print(next(line for line in printed if "| bwd: " in line))
flops_line = next(line for line in printed if line.startswith("fwd flops per GPU"))
print(flops_line)
show_table({"comms_logger: call": "", "bytes": ",d", "times": "d"}, counted)

# %%
tokens, parameters = 2 * 32, models.count_parameters(models.gpt("0.1M"))
counted_flops = float(flops_line.split()[-2]) * 1e6
holds("forward: about 2 · parameters · tokens", counted_flops, 2 * parameters * tokens, rtol=0.05)
recorded = [call.bytes for call in watched.calls_in("steps") if call.op == "all_reduce"]
logged = [size for op, size, times in counted if op == "all_reduce" for _ in range(times)]
holds("comms_logger and Shardlab count the same all-reduces", sorted(logged), sorted(recorded), unit="bytes")

# %% [markdown]
# Who chooses the backend? If you already have a process group, DeepSpeed uses it. Otherwise it makes one (`init_distributed` in `comm/comm.py`), and its accelerator names the backend: `gloo` for CPUs, or `ccl`, Intel's, if installed (`accelerator/cpu_accelerator.py`), `nccl` for NVIDIA GPUs (`cuda_accelerator.py`). Calls that do not go through `deepspeed.comm`, your own `dist.all_reduce` among them, do not appear in the report of `comms_logger`. All three instruments wait for the device again and again: switch them off when you measure speed.
#
# ### Checkpoints
#
# [Chapter 10](10_save_resume.ipynb) saved at stage 2 on four ranks, and two could not load it. Now stage 3 on two ranks. **All** ranks call `save_checkpoint(folder)`, with a folder and not a file; on rank 0 alone it hangs ([DeepSpeed #2993](https://github.com/deepspeedai/DeepSpeed/issues/2993), with Accelerate [#1171](https://github.com/huggingface/accelerate/issues/1171)). A checkpoint is a folder in it, named by a **tag**, such as `global_step1`; the file `latest` has the newest tag. First a new engine on the same two ranks loads it.

# %%
def stage_3_engine(**more):
    import deepspeed

    adam = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": adam, **more}
    config["zero_optimization"] = {"stage": 3, "stage3_param_persistence_threshold": 0}
    return deepspeed.initialize(model=tiny_model(), config=config)[0]

# %%
def whole_weights(engine):
    import deepspeed

    parameters = dict(engine.module.named_parameters())
    with deepspeed.zero.GatheredParameters(list(parameters.values())):
        return {name: each.detach().clone() for name, each in parameters.items()}

def load_anew(folder, tag=None, **more):
    engine = stage_3_engine(**more)
    path, client = engine.load_checkpoint(folder, tag=tag)
    return path, client, whole_weights(engine)

# %%
def convert(folder):
    from argparse import Namespace

    from deepspeed.checkpoint import ds_to_universal
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    paths = {"input_folder": f"{folder}/global_step1", "output_folder": f"{folder}/universal"}
    workers = {"num_extract_workers": 1, "num_merge_workers": 1}
    ds_to_universal.main(Namespace(**paths, **workers, keep_temp_folder=False, strict=True))
    return get_fp32_state_dict_from_zero_checkpoint(folder)

# %%
def save_and_load_engine(folder):
    engine = stage_3_engine()
    engine.backward(engine(torch.randn(2, 8)).square().mean())
    engine.step()
    engine.save_checkpoint(folder, client_state={"position": 1})
    trained, loaded = whole_weights(engine), load_anew(folder)
    return trained, loaded, convert(folder) if dist.get_rank() == 0 else None

# %%
def same(weights, others):
    return [torch.equal(weights[name], each) for name, each in others.items()]

checkpoint_folder = tempfile.mkdtemp()
run = launch(save_and_load_engine, checkpoint_folder, world_size=2, quiet=True, **ds_options)
trained, (path, client, loaded), converted = run.outputs[0]
print("read:", Path(path).relative_to(checkpoint_folder), "client_state:", client["position"])
holds("2 ranks to 2: weights are equal, bit for bit", same(loaded, trained))

# %% [markdown]
# Rank 0 has also converted the checkpoint to two portable forms. The commands for that, in the checkpoint's folder:
#
# ```
# python zero_to_fp32.py . OUT
# python -m deepspeed.checkpoint.ds_to_universal --input_folder global_step1 --output_folder universal
# ```
#
# `zero_to_fp32.py` was written by `save_checkpoint`, and merges all shards into one `state_dict` in fp32. The **universal** form has a folder for each parameter, so that any number of ranks reads its part. An engine reads it with `load_universal` in its `checkpoint` section. (A checkpoint of stage 1 or 2 converts only with `--inject_missing_state`, unless your script has put `universal_checkpoint_info` into `client_state`.)

# %%
def load_universal(folder):
    return load_anew(folder, "universal", checkpoint={"load_universal": True})

on_4 = launch(load_universal, checkpoint_folder, world_size=4, quiet=True, **ds_options)
_, client, loaded = on_4.outputs[3]
holds("zero_to_fp32: weights are equal", same(converted, trained))
holds("2 ranks to 4: weights are equal, bit for bit", same(loaded, trained))
print("position:", client["position"])

# %% [markdown]
# And a folder without a checkpoint, such as a misspelled path?

# %%
path, client, _ = launch(load_anew, f"{checkpoint_folder}/typo", world_size=2, quiet=True, **ds_options).outputs[0]
print("load_checkpoint returned", path, "and", client)

# %% [markdown]
# No error, only a warning in the log: training would start from the beginning. Check that the returned path is not `None`.
#
# ### The launcher and its hostfile
#
# `deepspeed train.py` starts one process per GPU of this machine. For several machines it reads a **hostfile**, one line per node: a name and its `slots`, the processes to start there. Normally it connects to the nodes with ssh. With `--no_ssh` you run the command yourself on each node, with that node's `--node_rank`. We do that for one node with two slots:

# %%
SCRIPT = """
import os, sys, torch.distributed as dist
dist.init_process_group("gloo")
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
sys.stdout.write(" ".join(f"{name}={os.environ[name]}" for name in names) + "\\n")
dist.barrier()  # no rank closes its connections before the other has made them
dist.destroy_process_group()
"""

# %%
files = {"train.py": SCRIPT, "hostfile": "localhost slots=2", "two_nodes": "node-a slots=2\nnode-b slots=2"}
here = Path(tempfile.mkdtemp())
for name, text in files.items():
    (here / name).write_text(text)
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]

# %%
where = ["--hostfile", "hostfile", "--no_ssh", "--node_rank=0", "--master_addr=127.0.0.1", f"--master_port={port}"]
print("deepspeed --quiet", *where, "train.py")
print("It imports DeepSpeed twice, then starts two processes: 6 s, or 15 s on a busy machine …")
environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
command = [sys.executable, "-m", "deepspeed.launcher.runner", "--quiet", *where, "train.py"]
ended = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True)
print(*sorted(line for line in ended.stdout.splitlines() if line.startswith("RANK")), sep="\n")
if ended.returncode:
    raise RuntimeError(ended.stderr)

# %% [markdown]
# The launcher sets the same variables as torchrun, and adds `--local_rank=…` to your script's arguments (not with `--no_local_rank`). For two nodes with ssh it runs one command on each, through `pdsh`. We have no second node, so this is only the command that it would run:

# %%
def command_for(hostfile):
    from deepspeed.launcher import multinode_runner, runner

    arguments = ["--hostfile", hostfile, "--master_addr", "node-a", "train.py"]
    nodes = runner.parse_inclusion_exclusion(runner.fetch_hostfile(hostfile), "", "")
    pdsh = multinode_runner.PDSHRunner(runner.parse_args(arguments), runner.encode_world_info(nodes))
    return dict(nodes), pdsh.get_cmd({}, nodes)[0], runner.fetch_hostfile(f"{hostfile}_typo")

# %%
nodes, pdsh_command, missing = launch(command_for, str(here / "two_nodes"), world_size=1, **ds_options).outputs[0]
print("nodes:", nodes)
print(*(part.replace(sys.executable, "python") for part in pdsh_command if "cd " not in part))
print("a hostfile that does not exist:", missing)

# %% [markdown]
# `pdsh` fills in `%n`, the number of the node. `--world_info` is the table of nodes and slots, in base64. Three pitfalls:
#
# - **A hostfile that does not exist is not an error.** The launcher logs a warning and starts on this machine only. Assert the world size in your script. Without `--hostfile` it looks for `/job/hostfile`.
# - **Your environment is not copied.** Only variables whose names start with `PYTHON`, `MLFLOW`, `MV2`, `UCX` and, with NVIDIA GPUs, `NCCL` are exported. Write others into `.deepspeed_env`.
# - **`train_batch_size` stays the same.** With twice the ranks, accumulation or the micro-batch is halved, or the start fails.
#
# ### ZeRO-2 and ZeRO-3 exclude pipelines
#
# A pipeline engine ([chapter 08](08_pipeline.ipynb)) accumulates the gradients of many micro-batches before it sends them. Stage 2 sends them after each one, so its saving would cost m times the messages, and stage 3 would gather all parameters for every micro-batch. DeepSpeed refuses both:

# %%
def pipeline_engine(stage):
    import deepspeed
    from deepspeed.pipe import PipelineModule

    layers = [nn.Linear(8, 8), nn.Linear(8, 8)]
    model = PipelineModule(layers, num_stages=2, loss_fn=nn.functional.mse_loss)
    config = engine_config | {"zero_optimization": {"stage": stage}}
    try:
        return type(deepspeed.initialize(model=model, config=config)[0]).__name__
    except AssertionError as error:
        return str(error)

# %%
def pipeline_engines():
    import deepspeed

    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    return [pipeline_engine(stage) for stage in range(4)]

# %%
pipelines = launch(pipeline_engines, world_size=2, quiet=True, **ds_options).outputs[0]
show_table({"stage": "d", "a PipelineModule gives": ""}, enumerate(pipelines))

# %% [markdown]
# Stage 1 works with a pipeline: it shards only the optimizer states, which nobody needs before the step.

# %% [markdown]
# ## Accelerate, piece by piece
#
# DeepSpeed takes over the step. Accelerate leaves you your loop and replaces some of its lines. We start from a loop for DDP written by hand, replace one piece after the other, and record the collectives before and after each.
#
# This is the hand-written loop, with two micro-batches per step. It has everything that such loops have: a sampler, the DDP wrapper, and `no_sync` for all micro-batches but the last. It returns the losses, the parameters, and the number of samples that this rank has seen.

# %%
def training_parts(samples=32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    inputs = torch.randn(samples, 4)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), dataset

# %%
def train_by_hand(accumulation=2):
    model, sgd, dataset = training_parts()
    model, losses, seen = nn.parallel.DistributedDataParallel(model), [], 0
    loader = DataLoader(dataset, 4, sampler=DistributedSampler(dataset, shuffle=False))
    for i, (inputs, targets) in enumerate(loader, 1):
        last = i % accumulation == 0
        with contextlib.nullcontext() if last else model.no_sync():
            loss = nn.functional.mse_loss(model(inputs), targets)
            (loss / accumulation).backward()
        if last:
            sgd.step()
            sgd.zero_grad()
        losses.append(loss.item())
        seen += len(inputs)
    return losses, [p.detach() for p in model.parameters()], seen

# %% [markdown]
# First, a helper. An `Accelerator` keeps its state in class attributes that all accelerators of a process share, and `_reset_state` forgets them: a script does not need this, but a notebook that creates several does. And `cpu=True` matters: you will soon see what happens without it.

# %%
def new_accelerator(**options):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    return Accelerator(**{"cpu": True, **options})

# %% [markdown]
# The first half of the port: we pass the model, which it wraps in DDP, and the optimizer to `prepare`. The arguments add the next pieces. `prepare` of the **loader** gives each rank its share. `accelerator.backward` divides the loss by the accumulation steps.

# %%
def half_ported(sampled=True, prepares_loader=False, divides=True, own_backward=True, accumulation=2):
    accelerator = new_accelerator(gradient_accumulation_steps=accumulation)
    model, sgd, dataset = training_parts()
    model, sgd = accelerator.prepare(model, sgd)
    loader = DataLoader(dataset, 4, sampler=DistributedSampler(dataset, shuffle=False) if sampled else None)
    loader, losses, seen = accelerator.prepare(loader) if prepares_loader else loader, [], 0
    for i, (inputs, targets) in enumerate(loader, 1):
        with contextlib.nullcontext() if i % accumulation == 0 else model.no_sync():
            loss = nn.functional.mse_loss(model(inputs), targets)
            scaled = loss / accumulation if divides else loss
            scaled.backward() if own_backward else accelerator.backward(scaled)
        if i % accumulation == 0:
            sgd.step()
            sgd.zero_grad()
        losses, seen = [*losses, loss.item()], seen + len(inputs)
    return losses, [p.detach() for p in model.parameters()], seen

# %% [markdown]
# The last piece is `accumulate`. It stands for `no_sync`, and makes `step` and `zero_grad` do nothing until the last micro-batch, so the loop no longer counts micro-batches:

# %%
def train_with_accelerate(accumulation=2):
    accelerator = new_accelerator(gradient_accumulation_steps=accumulation)
    model, sgd, dataset = training_parts()
    model, sgd, loader = accelerator.prepare(model, sgd, DataLoader(dataset, 4))
    losses, seen = [], 0
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            sgd.step()
            sgd.zero_grad()
        losses, seen = [*losses, loss.item()], seen + len(inputs)
    return losses, [p.detach() for p in model.parameters()], seen

# %% [markdown]
# Two more versions are wrong on purpose: one prepares the loader but keeps the sampler, the other lets `backward` divide the loss and divides it too. All versions run on two ranks. **Which of the two wrong ones makes as many all-reduces as the loop by hand?**

# %%
WRONG = ["loader, and the sampler kept", "backward, and divided too"]
predicted_wrong = predict("As many all-reduces as by hand", options=WRONG, several=True)
predicted_wrong

# %%
with_loader = {"sampled": False, "prepares_loader": True}
with_backward = {**with_loader, "own_backward": False}
VERSIONS = {
    "by hand": train_by_hand,
    "model and optimizer": half_ported,
    "+ loader": functools.partial(half_ported, **with_loader),
    "+ backward": functools.partial(half_ported, **with_backward, divides=False),
    "+ accumulate": train_with_accelerate,
    WRONG[0]: functools.partial(half_ported, prepares_loader=True),
    WRONG[1]: functools.partial(half_ported, **with_backward),
}

# %%
def all_versions():
    outputs = {}
    for name, train in VERSIONS.items():
        with measure(name):
            outputs[name] = train()
    return outputs

# %%
port = launch(all_versions, world_size=2, device="cpu")
trained = port.outputs[0]

def calls_of_rank_0(name):
    return [(call.op, call.bytes) for call in port.calls_in(name) if call.rank == 0]

def reductions(name):
    return sum(op == "all_reduce" for op, _ in calls_of_rank_0(name))

predicted_wrong.compare([name for name in WRONG if reductions(name) == reductions("by hand")])

# %%
def off(name):
    pairs = zip(trained["by hand"][1], trained[name][1])
    return max((a - b).abs().max().item() for a, b in pairs)

def row(name):
    return name, reductions(name), sum(size for _, size in calls_of_rank_0(name)), trained[name][2], off(name)

show_table({"version": "", "all-reduces": "d", "bytes of all calls": ",d", "samples of rank 0": "d",
            "parameters differ by": ".0e"}, map(row, VERSIONS))
right = [name for name in VERSIONS if name not in WRONG]
holds("correct versions: the collectives of the loop by hand, in order",
      [calls_of_rank_0(name) == calls_of_rank_0("by hand") for name in right])
holds("correct versions: parameters differ by", [off(name) for name in right], below=1e-6)

# %% [markdown]
# Accelerate adds no collective and leaves none out. Neither of the wrong versions raises an error. With the sampler kept, the samples are divided among the ranks **twice**: each rank sees a quarter of them, and half of the data is never used. With the loss divided twice, gradients are half as large, and not even the collectives differ: only the parameters do.
#
# These are the calls of a correct version. The first three come from wrapping the model: DDP compares the shapes of all ranks and sends rank 0's weights. Then there is one all-reduce for two micro-batches. (The two small broadcasts after the first step are DDP rebuilding its buckets.)

# %%
show_table({"call": "", "bytes": "d"}, calls_of_rank_0("+ accumulate"))
losses = [(name, [round(loss, 3) for loss in trained[name][0]]) for name in ("by hand", "+ accumulate")]
show_table({"rank 0": "", "losses": str}, losses)

# %%
def mean_losses(name):
    by_rank = torch.tensor([output[name][0] for output in port.outputs])
    return by_rank.view(2, 2, 2).mean((0, 2))  # rank, step, micro-batch

holds("loss of each step, the mean of both ranks", mean_losses("+ accumulate"), mean_losses("by hand"), atol=1e-5)

# %% [markdown]
# The weights are the same, but each rank's losses are not. `DistributedSampler` assigns single samples in turn: rank 0 gets 0, 2, 4, 6. A prepared loader assigns whole batches: rank 0 gets 0 to 3, rank 1 gets 4 to 7. Over a step it is the same set of samples, so the averaged gradient is the same. Compare the losses of two scripts only after you have averaged them over ranks.
#
# ### Seeds, print and the main process
#
# Many tutorials seed each process with `seed + accelerator.local_process_index`, so that ranks draw different dropout masks. **How many different random numbers do four ranks on two nodes draw?**

# %%
predicted_different = predict("Different random numbers on 4 ranks, 2 on each node")
predicted_different

# %% [markdown]
# We do not have two nodes, so we set the environment variables that a launcher sets there:

# %%
def pretend_two_nodes():
    rank = dist.get_rank()
    os.environ.update(LOCAL_RANK=str(rank % 2), LOCAL_WORLD_SIZE="2", MASTER_ADDR="localhost")

# %%
def draw_with_seeds(seed=7):
    from accelerate.utils import set_seed

    pretend_two_nodes()
    accelerator = new_accelerator()
    torch.manual_seed(seed + accelerator.local_process_index)
    by_local_index = torch.rand(1).item()
    set_seed(seed, device_specific=True)
    device_specific = torch.rand(1).item()
    set_seed(seed)
    return by_local_index, device_specific, torch.rand(1).item()

# %%
run = launch(draw_with_seeds, world_size=4, device="cpu")
columns = ("seed + local index", "set_seed(device_specific=True)", "set_seed")
different = [len(set(drawn)) for drawn in zip(*run.outputs)]
named = {"what different seeds on all ranks give": different[1], "what plain set_seed gives": different[2]}
predicted_different.compare(different[0], named)

# %%
show_table({"rank": "d", **dict.fromkeys(columns, ".4f")}, [(r, *drawn) for r, drawn in enumerate(run.outputs)])
holds("different numbers, by column", different, [2, 4, 1])

# %% [markdown]
# The **process index** counts all ranks, but the **local process index** starts at 0 on every node. On one node the tutorials' line is right; on two, ranks 0 and 2 draw the same numbers, without an error. `set_seed(seed, device_specific=True)` adds the global index. Call it **after** the model is built, or each rank builds a different model.
#
# Printing has the same two indices. `report` stands for someone else's function: it prints on every rank, unless you pass it `accelerator.print`.

# %%
def report(text, log=print):
    log(text)

# %%
def who_prints():
    pretend_two_nodes()
    accelerator = new_accelerator()
    report("from print")
    accelerator.wait_for_everyone()
    report("from accelerator.print", log=accelerator.print)
    if accelerator.is_main_process:
        report("from the main process")
    return accelerator.process_index, accelerator.local_process_index, accelerator.is_main_process

# %%
run = launch(who_prints, world_size=4, device="cpu", quiet=True)
texts = "from print", "from accelerator.print", "from the main process"
printed = [[text in out for text in texts] for out in run.stdout]
show_table(
    {"rank": "d", "local": "d", "main process": "", **dict.fromkeys(("print", "accelerator.print", "if main"), "")},
    [(*who, *said) for who, said in zip(run.outputs, printed)],
)
holds("accelerator.print prints on", [rank for rank in range(4) if printed[rank][1]], [0, 2])
holds("wait_for_everyone is a", [call.op for call in run.calls if call.rank == 0], ["barrier"])

# %% [markdown]
# `accelerator.print` prints once on each node, not once in the run. To write one log, or one file on a shared disk, use `is_main_process`; for a file on each node's own disk, `is_local_main_process`. Never put a collective under either: the other ranks do not join, and the run hangs. `wait_for_everyone` is a collective.
#
# ### Mixed precision: leave the inputs alone
#
# With `mixed_precision="bf16"` the prepared model runs its forward under autocast and returns fp32. The configuration says bf16, and the script still contains an old `inputs.half()`, which makes fp16. Both have 16 bits, but fp16 ends at 65,504, whereas bf16 has the range of fp32.

# %%
def inputs_in_16_bits(value=70_000.0):
    accelerator = new_accelerator(mixed_precision="bf16")
    model = accelerator.prepare(training_parts()[0])
    inputs = torch.full((1, 4), value)
    tried = {"as they are": inputs, ".bfloat16()": inputs.bfloat16(), ".half()": inputs.half()}
    outputs = {name: model(given) for name, given in tried.items()}
    try:
        accelerator.unwrap_model(model, keep_fp32_wrapper=False)(inputs.half())
    except RuntimeError as error:
        return {name: (y.item(), str(y.dtype)) for name, y in outputs.items()}, str(error)

# %%
run = launch(inputs_in_16_bits, world_size=1, device="cpu")
outputs, error = run.outputs[0]
show_table({"inputs": "", "output": ".0f", "dtype": ""}, [(name, *each) for name, each in outputs.items()])
print("without autocast:", error)
holds("only .half() gives nan", [value != value for value, _ in outputs.values()], [False, False, True])

# %% [markdown]
# No error under autocast: `.half()` turns 70,000 into infinity before autocast sees it. Delete the line.
#
# You can delete two more things from old scripts. One is `.to(device)`: a prepared loader moves its batches to `accelerator.device`, and `prepare` moves the model. The other is your own `torch.autocast(…)`: only the prepared model's forward is under autocast, and `accelerator.autocast()` is for what you compute outside of it. Autocast chooses a dtype for each operation:

# %%
def device_and_dtypes():
    accelerator = new_accelerator(mixed_precision="bf16")
    model, _, dataset = training_parts()
    model, loader = accelerator.prepare(model, DataLoader(dataset, 4))
    inputs, _ = next(iter(loader))
    devices = accelerator.device.type, next(model.parameters()).device.type, inputs.device.type
    outside = inputs @ inputs.T
    with accelerator.autocast():
        inside = inputs @ inputs.T, nn.functional.mse_loss(inputs, inputs)
    return devices, [str(each.dtype) for each in (outside, *inside)]

# %%
devices, dtypes = launch(device_and_dtypes, world_size=1, device="cpu").outputs[0]
show_table(dict.fromkeys(("accelerator.device", "model", "batch"), ""), [devices])
show_table(dict.fromkeys(("matmul", "matmul, autocast()", "mse_loss, autocast()"), ""), [dtypes])
holds("autocast changes the matmul only", [dtype == "torch.bfloat16" for dtype in dtypes], [False, True, False])

# %% [markdown]
#
# ### Metrics: the last batch is padded
#
# Four ranks evaluate ten samples, in batches of three, and collect the answers with `gather`. It is an all-gather, so every rank must call it equally often, with tensors of the same size. **How many answers does it collect?**

# %%
predicted_answers = predict("Answers that gather collects from 10 samples")
predicted_answers

# %%
def gather_both_ways(samples=10):
    accelerator = new_accelerator()
    loader = accelerator.prepare(DataLoader(torch.arange(samples), 3))
    gathered, for_metrics = [], []
    for ids in loader:
        gathered += accelerator.gather(ids).tolist()
        for_metrics += accelerator.gather_for_metrics(ids).tolist()
    return gathered, for_metrics

# %%
run = launch(gather_both_ways, world_size=4, device="cpu")
gathered, for_metrics = run.outputs[0]
predicted_answers.compare(len(gathered), {"the number of samples": 10})

# %%
print("gather:", gathered)
print("gather_for_metrics:", for_metrics)
holds("gather_for_metrics: every sample once, in order", for_metrics, list(range(10)))

# %% [markdown]
# The prepared loader starts over at the first sample to fill the last batches. With `gather` two samples count twice, and an accuracy is slightly wrong. `gather_for_metrics` drops the repeats in the last batch. It must run inside the prepared loader, and it must know how many samples there are: from the length of the dataset or, for a stream without one, because one rank reads for all (the default). The lab has a stream that every rank reads by itself.
#
# ### Schedules: how fast does the learning rate fall?
#
# A loop calls `scheduler.step()` once after each `optimizer.step()`. We prepare the scheduler like everything else and train 3 steps on 4 ranks, with a learning rate that falls by 0.001 with each step of the scheduler. **How many steps has the scheduler taken?**

# %%
predicted_schedule = predict("Steps of the scheduler after 3 optimizer steps on 4 ranks")
predicted_schedule

# %%
def epoch(accelerator, model, sgd, loader, schedule=None):
    losses = []
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        sgd.step()
        if schedule is not None:
            schedule.step()
        sgd.zero_grad()
        losses.append(loss.item())
    return losses

# %%
def schedule_steps(**options):
    accelerator = new_accelerator(**options)
    model, sgd, dataset = training_parts(samples=48)
    schedule = torch.optim.lr_scheduler.LinearLR(sgd, 1.0, 0.0, total_iters=100)
    model, sgd, loader, schedule = accelerator.prepare(model, sgd, DataLoader(dataset, 4), schedule)
    epoch(accelerator, model, sgd, loader, schedule)
    return schedule.scheduler.last_epoch, schedule.get_last_lr()[0]

def both_schedules():
    return schedule_steps(), schedule_steps(step_scheduler_with_optimizer=False)

# %%
run = launch(both_schedules, world_size=4, device="cpu")
fast, slow = run.outputs[0]
predicted_schedule.compare(fast[0], {"one for each optimizer step": 3})

# %%
show_table(
    {"scheduler": "", "steps": "d", "learning rate": ".3f"},
    [("prepared", *fast), ("step_scheduler_with_optimizer=False", *slow)],
)
holds("steps of the scheduler", [fast[0], slow[0]], [3 * 4, 3])

# %% [markdown]
# The prepared scheduler takes one step **for each process**: it assumes that you planned it for one process, which would need four times as many steps for the same data. If you computed its length from `len(loader)` of the prepared loader, the learning rate reaches its final value after a quarter of the training, without an error. Either plan in steps of one process, or create the accelerator with `step_scheduler_with_optimizer=False` and count your own steps.
#
# ### Save and load
#
# `save_state` writes model, optimizer, prepared schedulers and the random states of each rank, and whatever you register, such as a moving average of the weights. It has to be called on **all** ranks: with DeepSpeed or FSDP, it hangs inside `if is_main_process` (Accelerate [#1171](https://github.com/huggingface/accelerate/issues/1171), [#2000](https://github.com/huggingface/accelerate/issues/2000)). We train one epoch over a shuffled loader, save, train a second one, load, and train the second one again.

# %%
def save_and_load(folder):
    accelerator = new_accelerator()
    model, sgd, dataset = training_parts()
    model, sgd, loader = accelerator.prepare(model, sgd, DataLoader(dataset, 4, shuffle=True))
    epoch(accelerator, model, sgd, loader)
    accelerator.register_for_checkpointing(torch.optim.swa_utils.AveragedModel(accelerator.unwrap_model(model)))
    accelerator.save_state(f"{folder}/safe")
    accelerator.save_state(f"{folder}/pickled", safe_serialization=False)
    saved = accelerator.unwrap_model(model)[0].weight.clone()
    first = epoch(accelerator, model, sgd, loader)
    accelerator.load_state(f"{folder}/safe")
    restored = torch.equal(saved, accelerator.unwrap_model(model)[0].weight)
    again = epoch(accelerator, model, sgd, loader)
    accelerator.save({"note": "mine", "rank": accelerator.process_index}, f"{folder}/other.pt")
    accelerator.wait_for_everyone()
    return restored, first == again, torch.load(f"{folder}/other.pt")

# %%
accelerate_disk = tempfile.TemporaryDirectory()  # removed when the kernel ends
folder = Path(accelerate_disk.name)
run = launch(save_and_load, str(folder), world_size=2, device="cpu")
for name in ("safe", "pickled"):
    print(f"{name}:", *sorted(path.name for path in (folder / name).iterdir()))
print("saved by accelerator.save:", run.outputs[1][2])

# %%
holds("the weights are those that were saved", [restored for restored, *_ in run.outputs], [True, True])
holds("are the losses of the second epoch equal, by rank", [same for _, same, _ in run.outputs], [False, False])

# %% [markdown]
# The weights were restored, and yet the losses of the second epoch differ. The order of the samples was not restored: `prepare` gave the loader's sampler a random generator of its own, and that is in none of the files. The lab fixes this. Other things to know:
#
# - `safe_serialization` decides between `model.safetensors` (the default: numbers only, nothing is executed when it is read) and a pickled `pytorch_model.bin`.
# - `accelerator.save` writes any object, by default on the main process of the whole run: rank 0's, as the output shows.
# - Objects of your own are included by `register_for_checkpointing`: the file `custom_checkpoint_0.pkl`. They need `state_dict` and `load_state_dict`.
#
# For a model that is too large to be built first and filled later, there is `load_checkpoint_and_dispatch`. It loads the weights layer by layer onto the devices you name. Here one weight is missing from the file:

# %%
def load_with_a_missing_key(folder):
    from accelerate import load_checkpoint_and_dispatch

    trained, _, _ = training_parts()
    kept = {name: value for name, value in trained.state_dict().items() if name != "2.weight"}
    torch.save(kept, f"{folder}/lacks_one.bin")
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    random = model[2].weight.clone()
    load_checkpoint_and_dispatch(model, f"{folder}/lacks_one.bin", device_map={"": "cpu"})
    load_checkpoint_and_dispatch(model, f"{folder}/lacks_one.bin", device_map={"": "cpu"}, strict=True)
    try:
        model.load_state_dict(kept)
    except RuntimeError as error:
        return torch.equal(model[2].weight, random), str(error)

# %%
still_random, error = launch(load_with_a_missing_key, str(folder), world_size=1, device="cpu").outputs[0]
holds("the missing weight is still random, and nothing was raised", still_random)
print("PyTorch's load_state_dict:", error)

# %% [markdown]
# The model would run, with a random last layer. In version 1.15 not even `strict=True` raises an error here. So compare the names yourself: `set(model.state_dict()) - set(file)` must be empty.
#
# ### The configuration file
#
# `accelerate config` asks questions and writes a YAML file. Its answers become a `ClusterConfig` (`commands/config/cluster.py`), which we fill in directly. (`write_basic_config()` writes one without questions: `NO`, one process, on a machine without GPUs.)

# %%
def write_yaml(name, **answers):
    from accelerate.commands.config.config_args import ClusterConfig

    common = {"compute_environment": "LOCAL_MACHINE", "debug": False, "mixed_precision": "no", "use_cpu": False}
    always = {"same_network": True, "downcast_bf16": "no", "tpu_env": []}  # without a question on one machine
    config = ClusterConfig(**common | always | {"num_processes": 2} | answers)
    config.to_yaml_file(str(folder / name))
    return (folder / name).read_text()

# %%
print("Loading Accelerate: a few seconds …")
cpu_yaml = write_yaml("cpu.yaml", distributed_type="MULTI_CPU", use_cpu=True)
print(cpu_yaml)

# %% [markdown]
# Most keys are what their names say; `downcast_bf16` and those with `tpu_` are for TPUs, and `main_training_function` is for notebooks. Mind two: `num_processes` counts all machines, so with two machines of eight GPUs it is 16, on both; `machine_rank` differs on each.
#
# ### Did it run as I meant?
#
# Nearly all mistakes with Accelerate are silent: the script trains, and the loss falls. This function reports what runs. Copy it into your projects; call it on all ranks after some steps, and compare it with what you wanted.

# %%
def what_runs(accelerator, model, optimizer, loader, scheduler, steps):
    sums = torch.stack([p.detach().double().sum() for p in model.parameters()])
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer  # out of its wrappers
    by_rank = [None] * dist.get_world_size() if dist.is_initialized() else [sums.tolist()]
    if dist.is_initialized():
        dist.all_gather_object(by_rank, sums.tolist())
    return {
        "distributed_type": accelerator.distributed_type.value,
        "world size": accelerator.num_processes,
        "samples per step": loader.total_batch_size * accelerator.gradient_accumulation_steps,
        "optimizer": type(optimizer).__name__,
        "schedule steps per step": scheduler.scheduler.last_epoch / steps,
        "parameters equal": all(each == by_rank[0] for each in by_rank),
    }

# %% [markdown]
# Five accelerators. The first does what we want, each of the others has one mistake:

# %%
def train_and_look(prepare_model=True, split_batches=False, **options):
    from accelerate.utils import DataLoaderConfiguration

    loading = DataLoaderConfiguration(split_batches=split_batches)
    accelerator = new_accelerator(dataloader_config=loading, **options)
    model, sgd, dataset = training_parts()
    schedule = torch.optim.lr_scheduler.LinearLR(sgd, 1.0, 0.0, total_iters=100)
    model = accelerator.prepare(model) if prepare_model else model
    sgd, loader, schedule = accelerator.prepare(sgd, DataLoader(dataset, 4), schedule)
    epoch(accelerator, model, sgd, loader, schedule)
    return what_runs(accelerator, model, sgd, loader, schedule, steps=len(loader))

# %%
SLOW = {"step_scheduler_with_optimizer": False}
SETUPS = {
    "as meant": SLOW,
    "Accelerator() on CPUs": {**SLOW, "cpu": False},
    "schedule by process": {},
    "model not prepared": {**SLOW, "prepare_model": False},
    "split_batches": {**SLOW, "split_batches": True},
}

# %%
def look_at_all():
    return [train_and_look(**setup) for setup in SETUPS.values()]

run = launch(look_at_all, world_size=2, device="cpu")
meant, *mistaken = run.outputs[0]
rows = [(key, *(str(seen[key]) for seen in run.outputs[0])) for key in meant]
show_table({"what runs": "", **dict.fromkeys(SETUPS, "")}, rows)

# %%
def differences(seen, wanted):
    return [key for key in wanted if seen[key] != wanted[key]]

WANTED = {"distributed_type": "MULTI_CPU", "world size": 2, "samples per step": 8, "optimizer": "SGD",
          "schedule steps per step": 1, "parameters equal": True}
holds("nothing differs in the first, on both ranks", all(outputs[0] == WANTED for outputs in run.outputs))
show_table({"setup": "", "differs in": ""},
           [(name, ", ".join(differences(seen, WANTED))) for name, seen in zip(list(SETUPS)[1:], mistaken)])

# %% [markdown]
# None of the four raised an error. Without `cpu=True` (or `use_cpu` in the YAML, which the launcher passes on) each rank trains alone on all the data, as if it were the only process. The parameters are equal only because all ranks do the same work: equal parameters alone prove nothing, so look at the world size too.
#
# The optimizer was right in all of them. With DeepSpeed it may not be the script's. Here the script has SGD and 2 accumulation steps, and the JSON has 4. In the second run the JSON also has an optimizer and a schedule; then the script must pass `DummyOptim` and `DummyScheduler`, which only fill in "auto". In the third it passes SGD anyway:

# %%
in_json = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 1}}
warmup_auto = dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto")
owns = {
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": warmup_auto},
}

# %%
def deepspeed_accelerator(config):
    from accelerate import DeepSpeedPlugin, InitProcessGroupKwargs

    plugin, gloo = DeepSpeedPlugin(hf_ds_config=config), InitProcessGroupKwargs(backend="gloo")
    options = {"deepspeed_plugin": plugin, "gradient_accumulation_steps": 2, "kwargs_handlers": [gloo]}
    return new_accelerator(cpu=False, **options)

# %%
def one_step(accelerator, model, optimizer, loader, schedule):
    """Steps of the schedule, and norm of the update / learning rate, with clipping at 0.001."""
    before, rate = flat(model.module), schedule.get_last_lr()[0]
    for inputs, targets in loader:  # 4 micro-batches
        with accelerator.accumulate(model):
            accelerator.backward(100 * nn.functional.mse_loss(model(inputs), targets))
            accelerator.clip_grad_norm_(model.parameters(), 0.001)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return schedule.scheduler.last_epoch, (flat(model.module) - before).norm().item() / rate

# %%
def deepspeed_runs(config, dummy):
    from accelerate.utils import DummyOptim, DummyScheduler

    model, optimizer, dataset = training_parts()
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    if dummy:
        optimizer = DummyOptim(model.parameters(), lr=0.1)
        schedule = DummyScheduler(optimizer, warmup_num_steps=4)
    accelerator = deepspeed_accelerator(config)
    prepared = accelerator.prepare(model, optimizer, DataLoader(dataset, 4), schedule)
    engine, schedule = prepared[0], prepared[3].scheduler
    classes = [type(each).__name__ for each in (engine.basic_optimizer, schedule)]
    stepped = None if dummy else one_step(accelerator, *prepared)
    return *classes, engine.gradient_accumulation_steps(), stepped

# %%
def who_owns():
    ran = [deepspeed_runs(in_json, dummy=False), deepspeed_runs(in_json | owns, dummy=True)]
    try:
        deepspeed_runs(in_json | owns, dummy=False)
    except ValueError as error:
        return ran, str(error).split(".")[0]

# %%
ran, refused = launch(who_owns, world_size=2, device="cpu", timeout_s=60, quiet=True).outputs[0]
names = "SGD in the script", "DummyOptim, and AdamW in the JSON"
show_table({"given": "", "optimizer": "", "schedule": "", "accumulation": "d"},
           [(name, *each[:3]) for name, each in zip(names, ran)])
print("SGD, and AdamW in the JSON:", refused)
holds("the JSON's accumulation replaces the script's 2", [each[2] for each in ran], 4)
schedule_steps_made, clipped = ran[0][3]
holds("steps of the script's schedule in one step of the engine, on 2 ranks", schedule_steps_made, 2)
holds("clip_grad_norm_ at 0.001, and still: norm of the update / learning rate", clipped, 1.0, rtol=0.01)

# %%
from shardlab.recorded_runs import config_runs

asked, reported = config_runs.load()["F"]
holds("the script's optimizer", asked["script"]["optimizer"], "SGD")
holds("the engine's, with offload_optimizer", reported["optimizer"], "DeepSpeedCPUAdam")

# %% [markdown]
# The accumulation steps were replaced with no more than a warning in the log. A schedule of the script still takes one step for each process. And **`clip_grad_norm_` does nothing under DeepSpeed**, except that it returns the norm: the engine has already stepped, in `backward`, and it clips at its `gradient_clipping`, here the default of 1.0.
#
# The last line is from a recorded run, because compiling it takes a minute: with `offload_optimizer`, Accelerate silently replaces **SGD by Adam** (`map_pytorch_optim_to_deepspeed` in `utils/deepspeed.py`). That is why `WANTED` includes the optimizer's class.
#
# ### `accelerate launch` with two CPU processes
#
# So far Shardlab started the ranks. The real launcher needs a script, so we write the functions of some cells into a file. This one creates the accelerator. For DeepSpeed on CPUs it names gloo: without that, Accelerate counts one process and the batch sizes no longer fit. And it switches off a communication library that DeepSpeed would compile first.

# %%
def script_accelerator():
    from accelerate import Accelerator, InitProcessGroupKwargs

    handlers = []
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        import deepspeed

        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        handlers = [InitProcessGroupKwargs(backend="gloo")]
    return Accelerator(kwargs_handlers=handlers, step_scheduler_with_optimizer=False)

# %% [markdown]
# Then it trains as above. `prepare` also gets an evaluation loader, as in most scripts.

# %%
def script_training():
    accelerator = script_accelerator()
    model, sgd, dataset = training_parts()
    model.config = type("Config", (), {"hidden_size": 16})  # Transformers' models have it
    schedule = torch.optim.lr_scheduler.LinearLR(sgd, 1.0, 0.0, total_iters=100)
    loaders = DataLoader(dataset, 4), DataLoader(dataset, 2)  # training, evaluation
    model, sgd, loader, _, schedule = accelerator.prepare(model, sgd, *loaders, schedule)
    epoch(accelerator, model, sgd, loader, schedule)
    seen = what_runs(accelerator, model, sgd, loader, schedule, steps=len(loader))
    report = accelerator.process_index, seen, engine_reports(accelerator, model)
    sys.stdout.write(f"SEEN {json.dumps(report)}\n")  # in one piece: other ranks write too
    sys.stdout.flush()
    os._exit(0)  # Python's own shutdown aborts now and then while gloo's threads end

# %%
def engine_reports(accelerator, engine):
    if not hasattr(engine, "zero_optimization_stage"):
        return {}
    config = accelerator.state.deepspeed_plugin.deepspeed_config
    stage, batch, clip = engine.zero_optimization_stage(), engine.train_batch_size(), engine.gradient_clipping()
    whole = [p.ds_persist for p in engine.parameters()]  # True: not partitioned between steps
    return {"stage": stage, "batch": batch, "clip": clip, "config": config, "whole": whole}

# %%
IMPORTS = """
import json, logging, os, sys, torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
"""
functions = training_parts, epoch, what_runs, engine_reports, script_accelerator, script_training
source = "\n".join([IMPORTS, *map(inspect.getsource, functions), "script_training()"])
(folder / "train.py").write_text(source)
print(source.count("\n"), "lines written")

# %%
def run_script(*launcher, **variables):
    """What each rank saw. If you interrupt the cell, the launcher ends its ranks."""
    quiet = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    on_cpu = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", *launcher, str(folder / "train.py")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env={**os.environ, **quiet, **on_cpu, **variables}, **pipes)
    try:
        output, errors = process.communicate()
    finally:
        process.terminate()
        process.wait()
    if process.returncode:
        raise RuntimeError(errors)
    lines = [line.partition("SEEN ")[2] for line in output.splitlines()]
    return sorted(json.loads(line) for line in lines if line)

# %% [markdown]
# The file `cpu.yaml` says `distributed_type: MULTI_CPU` and `num_processes: 2`. **How many processes does `accelerate launch` start?**

# %%
predicted_processes = predict("Processes that train with cpu.yaml")
predicted_processes

# %%
accelerate_launch = ("accelerate.commands.launch", "--main_process_port=0", "--config_file")
print("accelerate launch with cpu.yaml: a few seconds …")
trained = run_script(*accelerate_launch, str(folder / "cpu.yaml"))
seen = trained[0][1]
predicted_processes.compare(len(trained), {"what the file says": 2})

# %%
def show_seen(seen):
    show_table({"what runs": "", "here": str, "wanted": str}, [(key, seen[key], WANTED[key]) for key in WANTED])

holds("what differs", differences(seen, WANTED), ["distributed_type", "world size", "samples per step"])
show_seen(seen)

# %% [markdown]
# One, without a warning. `launch_command` in `accelerate/commands/launch.py` has separate launchers for DeepSpeed, for several GPUs and FSDP, for Megatron-LM, for TPUs and for SageMaker. `MULTI_CPU` is none of them and gets `simple_launcher`, which starts the script once, and looks at `num_processes` only if `mpirun_config` names a host file: then it runs `mpirun`. For one CPU machine without MPI, `torchrun` starts the ranks; `ACCELERATE_USE_CPU` is what the YAML's `use_cpu` becomes:

# %%
torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
print("torchrun with 2 ranks: a few seconds …")
(_, seen, _), _ = run_script(*torchrun, ACCELERATE_USE_CPU="true")
holds("nothing differs", seen == WANTED)
show_seen(seen)

# %% [markdown]
# ### `accelerate launch` with DeepSpeed, and what "auto" becomes
#
# A YAML can point to a DeepSpeed JSON. Values that are `"auto"` are filled in by `prepare`, from the arguments it gets:

# %%
batch = dict.fromkeys(
    ["train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"], "auto"
)
buckets = dict.fromkeys(
    ["reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"], "auto"
)
more = {"gradient_clipping": "auto", "bf16": {"enabled": "auto"}}
auto = batch | more | {"zero_optimization": {"stage": 3, **buckets}}
(folder / "auto.json").write_text(json.dumps(auto, indent=2))
points_to = {"deepspeed_config_file": str(folder / "auto.json"), "zero3_init_flag": False}
print(write_yaml("deepspeed.yaml", distributed_type="DEEPSPEED", mixed_precision=None, deepspeed_config=points_to))

# %% [markdown]
# These are all the keys that `accelerate config` writes into this section. Those marked * are errors if a JSON file is given, and so is `mixed_precision` in the YAML (`_deepspeed_config_checks` in `utils/dataclasses.py`):

# %%
DEEPSPEED_KEYS = {
    "deepspeed_config_file": "the JSON; without it, the keys with * make one",
    "zero_stage": "* 0 to 3",
    **dict.fromkeys(("offload_optimizer_device", "offload_param_device"), "* none, cpu, nvme"),
    **dict.fromkeys(("offload_optimizer_nvme_path", "offload_param_nvme_path"), "* a folder, for nvme"),
    "gradient_accumulation_steps": "* as in the JSON",
    "gradient_clipping": "* as in the JSON",
    "zero3_save_16bit_model": "* gathers 16-bit weights for saving",
    "zero3_init_flag": "builds the model already sharded, at stage 3",
    "deepspeed_moe_layer_cls_names": "layers that stage 3 gathers as a whole",
    "deepspeed_multinode_launcher": "several machines: pdsh, standard, openmpi, …",
    "deepspeed_hostfile": "several machines: DeepSpeed's host file",
    **dict.fromkeys(("deepspeed_inclusion_filter", "deepspeed_exclusion_filter"), "some of its nodes and slots"),
}

# %%
def keys_asked_for(section):
    from accelerate.commands.config import cluster

    return set(re.findall(rf'{section}\["(\w+)"\] = ', inspect.getsource(cluster)))

show_table({"key of deepspeed_config": "", "means": ""}, DEEPSPEED_KEYS.items())
holds("all that accelerate config asks for", set(DEEPSPEED_KEYS) == keys_asked_for("deepspeed_config"))

# %% [markdown]
# The script gives `prepare` a training loader with batches of 4 and an evaluation loader with batches of 2.

# %%
print("accelerate launch with DeepSpeed on 2 ranks: 10 s, more on a busy machine …")
(_, seen, engine), _ = run_script(*accelerate_launch, str(folder / "deepspeed.yaml"))
became = engine["config"] | engine["config"]["zero_optimization"]
asked = auto | auto["zero_optimization"]
rows = [(key, str(became[key])) for key, value in asked.items() if value in ("auto", {"enabled": "auto"})]
show_table({"key": "", "auto became": ""}, rows)

# %%
show_seen(seen)
holds("optimizer and stage", (seen["optimizer"], engine["stage"]), ("SGD", 3))
holds("the micro-batch is the smaller loader's", became["train_micro_batch_size_per_gpu"], 2)
holds("clipping at", engine["clip"], 1)
holds("samples per step: loader, engine", (seen["samples per step"], engine["batch"]), (8, 4))

# %% [markdown]
# Three of these surprise most people. The micro-batch is that of the **smallest** loader given to `prepare`, evaluation included (unless the plugin has `is_train_batch_min=False`: then of the largest): the engine assumes 4 samples per step, but the loader delivers 8. Gradients are clipped at 1.0, though nobody asked for it. And bucket sizes come from `model.config.hidden_size`, or the largest of `hidden_sizes`: 16², 0.9 · 16² and 10 · 16. Without either there is an error. So write the batch size as a number, and clipping as 0.0 if you want none.
#
# And does it shard, at stage 3? Parameters up to the persistence threshold stay whole on every rank:

# %%
print("kept whole:", engine["whole"])
holds("parameters kept whole, of 4", sum(engine["whole"]), 4)

# %% [markdown]
# None of this model's parameters has more than 160 elements, so stage 3 partitions none of them. The optimizer state and gradients are sharded, the parameters are not. (Larger parameters are empty tensors between steps; then `parameters equal` says nothing about them.)
#
# ### FSDP's keys
#
# For FSDP the YAML has a section `fsdp_config`. Its values become the units, resharding and precision that you wrote by hand in [chapter 05](05_fsdp.ipynb):

# %%
FSDP_KEYS = {
    "fsdp_version": (2, "1 if you leave it out: the old FSDP, with other keys"),
    "fsdp_reshard_after_forward": (True, "free parameters after forward; false keeps them until backward"),
    "fsdp_auto_wrap_policy": ("TRANSFORMER_BASED_WRAP", "what becomes a unit; NO_WRAP: only the root"),
    "fsdp_transformer_layer_cls_to_wrap": ("Block", "for that policy: the class of a block, by name"),
    "fsdp_min_num_params": (None, "for SIZE_BASED_WRAP: a unit has at least as many parameters"),
    "fsdp_offload_params": (False, "parameters, gradients and optimizer on the host"),
    "fsdp_state_dict_type": ("SHARDED_STATE_DICT", "what save_state writes: shards, or one full file"),
    "fsdp_cpu_ram_efficient_loading": (True, "only rank 0 reads the weights; for Transformers"),
    "fsdp_activation_checkpointing": (False, "recompute each unit's activations"),
}
fsdp_config = {key: value for key, (value, _) in FSDP_KEYS.items() if value is not None}
fsdp_yaml = write_yaml("fsdp.yaml", distributed_type="FSDP", mixed_precision="bf16", fsdp_config=fsdp_config)

# %%
rows = [(key, value if value is None else str(value), means) for key, (value, means) in FSDP_KEYS.items()]
show_table({"key of fsdp_config": "", "here": "", "means": ""}, rows)
holds("all are in the file", all(f"  {key}:" in fsdp_yaml for key in fsdp_config))
version_1 = {"fsdp_backward_prefetch", "fsdp_forward_prefetch", "fsdp_use_orig_params", "fsdp_sync_module_states"}
holds("accelerate config asks for these, and four more in version 1",
      keys_asked_for("fsdp_config") == version_1 | set(FSDP_KEYS))

# %% [markdown]
# Version 1 has four more keys, for what version 2 always does or no longer has: `fsdp_backward_prefetch` and `fsdp_forward_prefetch` (when the next unit is gathered), `fsdp_use_orig_params` and `fsdp_sync_module_states` (rank 0's weights for all). Its strategy, such as `FULL_SHARD`, is now in `fsdp_reshard_after_forward`; older files have `fsdp_sharding_strategy`.
#
# Does it shard on our CPU ranks? We pass the plugin that such a section becomes, with and without `cpu=True`:

# %%
def try_fsdp():
    from accelerate import FullyShardedDataParallelPlugin

    seen = []
    for cpu in (True, False):
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
        accelerator = new_accelerator(cpu=cpu, fsdp_plugin=plugin)
        model = accelerator.prepare(training_parts()[0])
        kind = type(next(model.parameters())).__name__
        seen.append((f"cpu={cpu}", accelerator.distributed_type.value, type(model).__name__, kind))
    return seen

# %%
run = launch(try_fsdp, world_size=2, device="cpu")
show_table(dict.fromkeys(("accelerator", "distributed_type", "model", "parameters"), ""), run.outputs[0])
holds("no accelerator chose FSDP", "FSDP" in [row[1] for row in run.outputs[0]], False)

# %% [markdown]
# With `cpu=True` you get DDP, without it an unwrapped model on each rank. Neither warns: the code (`accelerate/state.py`) considers FSDP only where it has found GPUs or similar devices. On a GPU the type should be `FSDP` and parameters should be `DTensor`; **we have not run that here**, as our tests have no GPU. `what_runs` shows the difference in its first line.
#
# ### Which call does what, by library
#
# | you want | PyTorch by hand | Accelerate | DeepSpeed |
# |---|---|---|---|
# | start ranks | `torchrun` | `accelerate launch` | `deepspeed` |
# | model on all ranks | `DistributedDataParallel`, `fully_shard` | `prepare` | `initialize` |
# | data for each rank | `DistributedSampler` | `prepare` | `initialize(training_data=…)` |
# | backward | `(loss / n).backward()` | `backward(loss)` | `engine.backward(loss)` |
# | accumulate | `no_sync` | `with accumulate(model)` | `gradient_accumulation_steps`, `engine.step()` each time |
# | clip | `clip_grad_norm_` | `clip_grad_norm_` if `sync_gradients` | `gradient_clipping` |
# | 16 bits | `autocast` | `mixed_precision` | `bf16`, `fp16` |
# | evaluate exactly | `all_gather`, drop repeats | `gather_for_metrics` | by hand |
# | write once | `if rank == 0` | `is_main_process` | `if rank == 0` |
# | wait | `barrier` | `wait_for_everyone` | `deepspeed.comm.barrier` |
# | checkpoint | `torch.distributed.checkpoint` | `save_state`, `load_state` | `save_checkpoint`, `load_checkpoint` |

# %% [markdown]
# ## What to remember
#
# - Errors are the cheap mistakes. Duplicate keys, a missing `cpu=True`, "auto" and a default clipping at 1.0 raise none.
# - Write down what you want: world size, type, samples in a step, stage, precision, optimizer, learning rate. Read the same from the engine after a few steps, and compare.
# - Losses show little: at stage 0 instead of 3, the loss fell just the same.
# - Every collective needs all ranks: no saving, evaluating or waiting inside `if is_main_process`.
# - DeepSpeed's engine divides, clips, scales and steps for you; Accelerate replaces lines of your loop. Do not do the same again by hand.
#
# ## Sources
#
# - DeepSpeed 0.19.8: [configuration JSON](https://www.deepspeed.ai/docs/config-json/); its source where the documentation is silent: `runtime/constants.py`, `runtime/config.py`, `runtime/lr_schedules.py`, `runtime/dataloader.py`, `runtime/fp16/loss_scaler.py`, `runtime/utils.py`, `runtime/zero/config.py`, `runtime/activation_checkpointing/checkpointing.py`, `launcher/runner.py`.
# - The loss scale at stage 0: [DeepSpeed pull request 8393](https://github.com/deepspeedai/DeepSpeed/pull/8393).
# - Accelerate 1.15: [documentation](https://huggingface.co/docs/accelerate); the prepared scheduler's speed: issues [1382](https://github.com/huggingface/accelerate/issues/1382) and [2142](https://github.com/huggingface/accelerate/issues/2142).
