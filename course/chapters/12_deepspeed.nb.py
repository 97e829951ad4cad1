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
# # 12 · DeepSpeed in practice
#
# So far you wrote the pieces of distributed training by hand: collectives, shards, units. **DeepSpeed** does this for you: it takes your model and a JSON file and returns an **engine** that trains. It decides a lot for you, and it often starts without an error and trains something other than what you meant: another batch size, no sharding, or clipped gradients.
#
# The question of this chapter: how do you find out what really runs?
#
# **After this chapter you can**
#
# - repair a DeepSpeed configuration, and compare what the engine does with what its author wanted;
# - say what the engine does in `backward` and `step`, and what it does unasked;
# - build a model already sharded, and know what precision, buckets and launcher change.
#
# **You need:** [05 FSDP](05_fsdp.ipynb), [07 Offload](07_offload.ipynb).

# %% [markdown]
# <details open><summary>A file that asks for stage 3, and an engine that shards nothing</summary>
#
# [![Animation: A file that asks for stage 3, and an engine that shards nothing](openers/12_deepspeed.svg)](openers/12_deepspeed.svg)
#
# What rank 0 of two does in one step of two micro-batches: forward and backward, and below them its collectives, waits included. The file of the first row has zero_optimization twice, with stage 3 in the first. Python's json keeps the last, so the engine runs stage 0: it all-reduces all gradients, without an error. Stage 1 shards only the update. Stage 3 gathers each layer's parameters in every forward and backward. (The keys that let it keep a small model gathered are 0.) (Recorded from real processes.)
#
# </details>

# %% jupyter={"source_hidden": true}
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import functools
import json
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn

from shardlab import (
    RankError,
    data,
    holds,
    launch,
    measure,
    models,
    placement,
    show_table,
    warm_up,
)
from shardlab.widgets import palette, predict

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)
warm_up("deepspeed")  # loads in the background while you read

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
# **Which mistake stops the first run?**

# %%
FIRST = {
    "ImportError": "a name in the script",
    "JSONDecodeError": "the file is not valid JSON",
    "ValidationError": "a key that DeepSpeed does not know",
}
predicted_first = predict("The first run stops at", options=list(FIRST.values()))
predicted_first

# %% [markdown]
# A traceback is long, but two of its lines are enough: the last one says what failed, and the last one in our own code says where.

# %%
def error_of(fn, *args):
    try:
        launch(fn, *args, world_size=4, device="cpu", timeout_s=120)
    except RankError as error:
        return error

def show_error(fn, *args):
    error = error_of(fn, *args)
    lines = error.message.splitlines()
    lines = [line for line in lines if "errors.pydantic.dev" not in line]
    print(f"{error.kind}:", "\n".join(lines))
    print("in", error.source)

# %%
first = error_of(example_as_found, as_found, None, None)
predicted_first.compare(FIRST[first.kind])

# %%
print(f"{first.kind}: {first.message}\nin", first.source)

# %% [markdown]
# ### Repair 1: the script
#
# DeepSpeed has no `Hparams`. It has a `DeepSpeedEngine`, but you do not create one yourself: `deepspeed.initialize` starts communication, reads the configuration, and returns the engine and three more values. The two keys in `OWN_ADAM` make it accept PyTorch's AdamW ([chapter 07](07_offload.ipynb)).

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
# `settings_of` asks the engine, not the configuration. Each row has a counterpart in what the author wanted. (The cell is collapsed.)

# %% jupyter={"source_hidden": true}
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

wanted = {
    "ZeRO stage": 3, "sequences in a step": 32, "precision": "bfloat16",
    "gradients clipped at": 0.5, "optimizer states on": "host", "parameters on": "host",
    "whole weights on save": True, "forward passes of a block": 2,
}

def show_difference(has):
    def row(name):
        same = has[name] == wanted[name]
        return name, str(wanted[name]), str(has[name]), "yes" if same else "no"

    columns = dict.fromkeys(("setting", "wanted", "the engine has", "as wanted"), "")
    show_table(columns, map(row, wanted))

# %% [markdown]
# ### Repair 2: the JSON
#
# The script is right now. The next errors come from the file:

# %%
def train_as_written(text):
    return train_example(start_example(text))

show_error(train_as_written, as_found)

# %% [markdown]
# JSON has no comments: line 2, column 65 is where this one begins. We remove it. The next mistake is a comma that is missing at the end of line 6. **Which line does the error name?**

# %%
predicted_line = predict("The line in the error", options=["5", "6", "7", "12"])
predicted_line

# %%
no_comment = as_found.replace("  // for each GPU", "")
error = error_of(train_as_written, no_comment)
line = error.message.split("line ")[1].split()[0]
predicted_line.compare(line, {"the line that lacks the comma": "6"})

# %% [markdown]
# A missing comma is reported where the **next** key begins, so look at the line before. With the comma, Python can read the file, and DeepSpeed begins to look at its keys:

# %%
clock = '"wall_clock_breakdown": false'
valid_json = no_comment.replace(clock, clock + ",")
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
question = "The stage of the engine that trained without an error"
predicted_stage = predict(question, options=["0", "1", "2", "3"])
predicted_stage

# %%
says = {"what the first zero_optimization says": "3"}
predicted_stage.compare(str(first_settings["ZeRO stage"]), says)

# %%
show_difference(first_settings)

# %% [markdown]
# ### Repair 3: what was silently ignored
#
# Five of eight settings are not what the author wanted. The file has `zero_optimization` twice, and Python's `json` keeps the last one. It has no stage, so the stage is 0: each rank keeps the whole model and all optimizer states. There was no warning. The mistakes in the first `zero_optimization` raised no error because nothing read them.
#
# DeepSpeed has its own reader for files. If you pass the **path** instead of a dict, it reads Hjson, a more lenient form of JSON, which accepts the comment and the missing comma, but it rejects a key that is there twice (`runtime/config_utils.py`). Accelerate reads with `json`, so write plain JSON without duplicate keys: then both read the same. We merge the two blocks, and now the mistakes in the first one are read:

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
# `cpu_offload` is not among these errors: it is the old name, and DeepSpeed logs a warning and turns it into `offload_optimizer`. (Next to the new name it is an error.) We write the new one, and drop `fast_init`, which does nothing here. This is the file after all repairs:

# %%
repaired = """{
  "train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 2, "gradient_clipping": 0.5,
  "wall_clock_breakdown": false,
  "bf16": {"enabled": true}, "fp16": {"enabled": false, "loss_scale_window": 500},
  "activation_checkpointing": {"partition_activations": true},
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"},
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
question = "After save_checkpoint('model_checkpoint.pt') on four ranks there is"
predicted_saved = predict(question, options=SAVED)
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
with tempfile.TemporaryDirectory() as folder:
    on_4 = {"world_size": 4, "device": "cpu", "timeout_s": 120}
    run = launch(train_repaired, repaired, folder, **on_4)
    checkpoint, whole = Path(folder, "model_checkpoint.pt"), Path(folder, "weights.pt")
    is_part = checkpoint.stat().st_size < whole.stat().st_size
    kind, weights = SAVED[2 if checkpoint.is_dir() else is_part], torch.load(whole)
    saved = sorted(path.name for path in checkpoint.rglob("*.pt"))
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
print("in model_checkpoint.pt:", *saved, sep="\n")
print("weights.pt:", len(weights), "tensors,", weights["token.weight"].dtype)

# %% [markdown]
# The argument of `save_checkpoint` is a folder, whatever its name ends with, and every rank writes its own part. It is for resuming training: `load_checkpoint` reads it. The name `model_checkpoint.pt` works, and misleads everyone who tries `torch.load` on it. The weights alone are in the other file.
#
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
# `deepspeed.initialize` returns four things: the **engine**, which wraps your model, its optimizer, a data loader and a learning-rate scheduler. The last two are `None` unless you ask for them. Almost every decision comes from the configuration. [Chapter 04](04_zero.ipynb) has the stages, [chapter 07](07_offload.ipynb) offload and [chapter 11](11_save_resume.ipynb) checkpoints.
#
# ### Three batch sizes, of which two are free
#
# `train_batch_size` counts the samples of one optimizer step on **all** ranks:
#
# $$\text{train} = \text{micro} \times \text{accumulation} \times \text{ranks}$$
#
# where micro is `train_micro_batch_size_per_gpu` and accumulation is `gradient_accumulation_steps`. Set one or more of them, and DeepSpeed computes the rest, or refuses to start. **Which of these start on 4 ranks?**

# %%
micro_2 = {"train_micro_batch_size_per_gpu": 2}
micro_3 = {"train_micro_batch_size_per_gpu": 3}
batch_configs = {
    "micro 2": micro_2,
    "train 16": {"train_batch_size": 16},
    "train 30": {"train_batch_size": 30},
    "train 16 and micro 2": {"train_batch_size": 16, **micro_2},
    "train 16 and micro 3": {"train_batch_size": 16, **micro_3},
    "accumulation 2": {"gradient_accumulation_steps": 2},
}

# %%
given = list(batch_configs)
predicted_starts = predict("These start on 4 ranks", options=given, several=True)
predicted_starts

# %%
def batch_sizes(config):
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        c = DeepSpeedConfig(config)
    except AssertionError as error:
        return str(error).replace("Check batch related parameters. ", "")
    micro = c.train_micro_batch_size_per_gpu
    return c.train_batch_size, micro, c.gradient_accumulation_steps

def all_batch_sizes():
    import deepspeed

    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    return [batch_sizes(config) for config in batch_configs.values()]

# %%
ds_options = {"device": "cpu", "timeout_s": 60}
run = launch(all_batch_sizes, world_size=4, **ds_options)
found = dict(zip(batch_configs, run.outputs[0]))
started = {name: sizes for name, sizes in found.items() if isinstance(sizes, tuple)}
predicted_starts.compare(list(started))

# %%
show_table({"given": "", "train": "d", "micro": "d", "accumulation": "d"},
           [(name, *sizes) for name, sizes in started.items()])
refused = [f"{name}: {error}" for name, error in found.items() if name not in started]
print(*refused, sep="\n")

# %% [markdown]
# Sizes that do not divide evenly raise an error, and so does accumulation alone. Two things are not checked. If you set only `train_batch_size`, accumulation is 1, and the micro-batch may not fit in memory. And the engine never looks at the batches that you feed it. You will see that next.
#
# ### backward, step, and the accumulation boundary
#
# We train a tiny model for 8 micro-batches on two ranks, with 2 accumulation steps and a scheduler. The configuration promises micro-batches of 2 samples. `micro_batch` feeds 3, records what `backward` and `step` send, and returns what they do: five numbers that we look at one after the other.

# %%
def tiny_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

warmup = {"warmup_min_lr": 0.0, "warmup_max_lr": 0.1,
          "warmup_num_steps": 4, "warmup_type": "linear"}
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
labels = ["stage 1", "stage 2"]
predicted_backwards = predict("Backwards that communicate, of 8", labels=labels)
predicted_backwards

# %%
on_2 = {"world_size": 2, **ds_options}
driven = {stage: launch(drive_engine, stage, **on_2) for stage in (1, 2)}

def communicating(run):
    return sum(bool(run.calls_in(f"backward {number}")) for number in range(8))

wrong = {"one in each step, which is right only at stage 1": [4, 4]}
wrong["every backward, which is right only at stage 2"] = [8, 8]
predicted_backwards.compare([communicating(run) for run in driven.values()], wrong)

# %%
def draw_calls(axes, run):
    parts = {"backward": "all_reduce", "step": "all_gather"}
    for at, (part, op) in zip((-0.2, 0.2), parts.items()):
        for number in range(8):
            calls = [c for c in run.calls_in(f"{part} {number}") if c.op.startswith(op)]
            passed = sum(call.bytes for call in calls if call.rank == 0)
            look = {"color": palette.op_color(op), "label": "" if number else f"{op} in {part}"}
            axes.bar(number + at, passed, 0.36, **look)
    axes.set_ylabel("bytes")

# %%
figure, rows = plt.subplots(2, figsize=(6.7, 3.4), sharex=True, sharey=True)
for axes, (stage, run) in zip(rows, driven.items()):
    draw_calls(axes, run)
    axes.set_title(f"stage {stage}: {communicating(run)} of 8 backwards send", size=10)
rows[1].set_xlabel("micro-batch")
rows[1].legend(frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.4))
figure.tight_layout()

# %% [markdown]
# Stage 1 keeps whole gradients and waits for the **boundary**, the last micro-batch of a step. Stage 2 keeps slices, so it has to send every time ([chapter 04](04_zero.ipynb)). You call `engine.step()` after every backward. Between boundaries it only counts; at a boundary it updates this rank's slice and gathers the others. Here is stage 1:

# %%
micro_batches, samples = driven[1].outputs[0]
columns = {"micro-batch": "d", "boundary": str, "learning rate": ".3f"}
columns |= {"gradient norm": ".2f", "moved by": ".4f"}
show_table(columns, [(number, *row[:4]) for number, row in enumerate(micro_batches)])
returned = [row[4] for row in micro_batches]
holds("backward returns the loss divided by accumulation", returned, 0.5, rtol=1e-5)
holds("samples that the engine counted, of the 8 · 3 · 2 = 48 it was fed", samples, 32)

# %% [markdown]
# Four things to notice:
#
# - **The samples.** The engine counts those that its configuration promises, 32, and not those that it gets.
# - **The loss.** `engine.backward` divides by the accumulation steps. If your loop divides too, gradients are half as large.
# - **The schedule.** It steps once per optimizer step, not per micro-batch. But `WarmupLR` starts at its minimum **twice**: once before its first step, once for step 0. With a minimum of 0, two optimizer steps change nothing. And `warmup_type` is `log` unless you set it to `linear`, as we do. The JSON also accepts `WarmupDecayLR`, `WarmupCosineLR`, `OneCycle` and `LRRangeTest`.
# - **Clipping.** You did not ask for any. What did the last steps do?

# %%
updates = [row[1:4] for row in micro_batches if row[0] and row[1] > 0]
holds("gradient norm", [norm for _, norm, _ in updates], above=2)
clipped_to = [distance / rate for rate, _, distance in updates]
holds("norm of the update / learning rate", clipped_to, 1.0, rtol=1e-3)

# %% [markdown]
# The gradient has a norm over 2, and SGD moved as if it were 1. In DeepSpeed 0.19.8 **`gradient_clipping` is 1.0 unless you set it** (`GRADIENT_CLIPPING_DEFAULT` in `runtime/constants.py`). Set it to 0.0 when you compare with a loop that does not clip.
#
# ### A backward of your own
#
# There is a second way: `engine.scale(loss)` returns the loss, multiplied by fp16's loss scale if there is one, and you call `backward` on it. Does this skip the division by the accumulation steps? We take an optimizer step of two micro-batches in each way, without clipping. The last version also divides by hand:

# %%
WAYS = {
    "engine.backward": lambda engine, loss: engine.backward(loss),
    "scale": lambda engine, loss: engine.scale(loss).backward(),
    "scale, divided": lambda engine, loss: (engine.scale(loss) / 2).backward(),
}
unscheduled = {key: value for key, value in engine_config.items() if key != "scheduler"}
unclipped = unscheduled | {"gradient_clipping": 0.0}

# %%
def step_by(way, stage):
    import deepspeed

    config = unclipped | {"zero_optimization": {"stage": stage}}
    engine, *_ = deepspeed.initialize(model=tiny_model(), config=config)
    before = flat(engine.module)
    for _ in range(2):
        WAYS[way](engine, engine(torch.ones(2, 8)).square().mean())
        engine.step()
    return (flat(engine.module) - before).norm().item()

# %%
def all_ways():
    moved = {way: [step_by(way, stage) for stage in (1, 2)] for way in WAYS}
    try:
        step_by("scale", stage=0)
    except RuntimeError as error:
        return moved, str(error).split(". ")[0]

# %%
moved, refused = launch(all_ways, **on_2).outputs[0]
show_table({"backward": "", "stage 1: moved by": ".4f", "stage 2: moved by": ".4f"},
           [(way, *distances) for way, distances in moved.items()])
by_engine, by_scale, divided = moved.values()
holds("scale: moved as far as with engine.backward", by_scale, by_engine)
half = [distance / 2 for distance in by_engine]
holds("divided by hand as well: half as far", divided, half, rtol=0.01)
print("stage 0:", refused)

# %% [markdown]
# It does not skip it: the engine divides the gradient when it arrives at the output of the forward (`_backward_prologue_per_tensor` in `runtime/engine.py`). So leave the division to the engine in both ways. At stage 0 only `engine.backward` works, and a plain `loss.backward()` raises an error where fp16 needs a loss scale.
#
# ### Your own scheduler and optimizer
#
# Pass your own scheduler to `initialize` as `lr_scheduler`. The engine steps it, once per optimizer step (`_take_model_step` in `runtime/engine.py`): do not step it again.
#
# Pass a PyTorch optimizer, and the engine takes it over. With ZeRO it accepts Adam, AdamW and a few more, and others only with `zero_allow_untested_optimizer`. What is in your optimizer afterwards?

# %%
def give_optimizer(stage, allowed):
    import deepspeed

    model = tiny_model()
    mine = torch.optim.SGD(model.parameters(), lr=0.1)
    config = micro_2 | {"zero_optimization": {"stage": stage}}
    config["zero_allow_untested_optimizer"] = allowed
    given = {"model": model, "optimizer": mine, "config": config}
    try:
        returned = deepspeed.initialize(**given)[1]
    except AssertionError as error:
        return str(error)
    shapes = [tuple(p.shape) for p in mine.param_groups[0]["params"]]
    return type(returned).__name__, str(shapes)

# %%
def give_optimizers():
    import deepspeed

    adam = {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}}
    config = engine_config | {"optimizer": adam}
    made = deepspeed.initialize(model=tiny_model(), config=config)[0].basic_optimizer
    by_json = type(made).__name__, made.defaults["weight_decay"]
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
# And a loader? `initialize(training_data=dataset)` returns a `DeepSpeedDataLoader` (`runtime/dataloader.py`). It takes a dataset and not a `DataLoader`, shards it over the ranks, shuffles, and takes the micro-batch from the configuration. It never calls `set_epoch`, so **every epoch has the same order** until you call `loader.data_sampler.set_epoch(epoch)`. If you bring your own loader, give it to your loop, with a `DistributedSampler`.
#
# ### zero.Init: build the model already sharded
#
# At stage 3, `initialize` partitions the parameters. Before that, every rank has built the whole model, so the model must fit on each of them. Built inside `with deepspeed.zero.Init(…)`, each layer is partitioned as soon as its constructor ends. **How many elements does each of 2 ranks hold after building a model of 120,576?**

# %%
labels = ["without zero.Init", "with zero.Init"]
predicted_held = predict("Elements on each rank", labels=labels)
predicted_held

# %%
stage_3 = {"stage": 3, "stage3_param_persistence_threshold": 0}

def held(model):
    here = [getattr(each, "ds_tensor", each) for each in model.parameters()]
    return sum(each.numel() for each in here)

# %%
def build(inside):
    import deepspeed

    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    config = unscheduled | {"zero_optimization": stage_3}
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=inside):
        model = models.gpt("0.1M")
    built = held(model)
    deepspeed.initialize(model=model, config=config)
    weight = model.token.weight
    with deepspeed.zero.GatheredParameters([weight]):
        gathered = list(weight.shape)
    return built, held(model), list(weight.shape), gathered

# %%
built = [launch(build, inside, **on_2).outputs[0] for inside in (False, True)]
whole, part = (each[0] for each in built)
predicted_held.compare([whole, part], {"what each rank holds after initialize": [part, part]})

# %%
columns = {"elements of rank 0": "", "built": ",d", "after initialize": ",d"}
columns |= {"shape of token.weight": str, "in GatheredParameters": str}
show_table(columns, [(name, *each) for name, each in zip(labels, built)])
holds("with zero.Init each of 2 ranks holds half", part, whole / 2)

# %% [markdown]
# A parameter is an empty tensor outside of its layer's forward and backward; this rank's part is in `ds_tensor`. So code that reads or initializes weights goes inside `with deepspeed.zero.GatheredParameters(parameters)`; with `modifier_rank=0`, what rank 0 changes there is sent to all ranks.
#
# ### fp16: the loss scale
#
# [Chapter 01](01_one_device.ipynb) has the loss scale. In DeepSpeed's section `fp16`, `loss_scale` 0 means a dynamic scale, and is the default. It starts at $2^{16}$ (`initial_scale_power` 16) and doubles after 1000 steps without an overflow (`loss_scale_window`). `hysteresis` 2 lets the first overflow only skip its step; the next one halves the scale. An overflow at `min_loss_scale` ends the run.
#
# Does the update come out right? DeepSpeed checks whether the processor has instructions for fp16. PyTorch can compute in fp16 without them, slowly, so we make the check succeed. Two samples of ones go in, so each weight's gradient is 2, and SGD with a learning rate of 1 must move each weight by 2:

# %%
def fp16_update(stage, power):
    import deepspeed

    config = unclipped | {
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
        "fp16": {"enabled": True, "initial_scale_power": power},
    }
    model = nn.Linear(8, 4, bias=False)
    engine, *_ = deepspeed.initialize(model=model, config=config)
    before = engine.module.weight.detach().clone()
    engine.backward(engine(torch.ones(2, 8).half()).float().sum())
    engine.step()
    update = (before - engine.module.weight).float().max().item()
    return stage, power, update, engine.skipped_steps

# %%
def fp16_engines():
    from deepspeed.accelerator import get_accelerator

    get_accelerator().is_fp16_supported = lambda: True
    return [fp16_update(stage, power) for stage in (1, 0) for power in (8, 20)]

updates = launch(fp16_engines, world_size=2, **ds_options).outputs[0]
columns = {"stage": "d", "initial_scale_power": "d"}
show_table(columns | {"update (2 is right)": ".6f", "skipped steps": "d"}, updates)
by_case = {(stage, power): update for stage, power, update, _ in updates}
too_small = by_case[1, 8] / by_case[0, 8]
holds("stage 0: how many times too small", too_small, 2**8, rtol=0.01)

# %% [markdown]
# At stage 1, $2^8$ gives the right update, and $2^{20}$ overflows, so the step is skipped and nothing moves.
#
# At stage 0 the update is wrong, by exactly the scale. **In 0.19.8 an fp16 engine without ZeRO divides the gradients by the scale, but never multiplied the loss by it** ([DeepSpeed #8393](https://github.com/deepspeedai/DeepSpeed/pull/8393), open when this was written). No overflow is ever found either, because nothing is scaled. SGD stalls; Adam hides it, as it divides by the size of the gradient. Use bf16 or a ZeRO stage.

# %% [markdown]
# ### ZeRO's other keys
#
# [DeepSpeed's documentation](https://www.deepspeed.ai/docs/config-json/) says what each key is for: buckets limit the elements of one call, `allgather_partitions` chooses between all-gather and broadcasts, `reduce_scatter` between reduce-scatter and all-reduce. **Which of these change the calls of a step at stage 1, over gloo?**

# %%
stage_1_keys = {
    "reduce_bucket_size": 2**15,
    "allgather_bucket_size": 2**12,
    "allgather_partitions": False,
    "reduce_scatter": False,
    "round_robin_gradients": True,
}
names = list(stage_1_keys)
predicted_keys = predict("These change the calls", options=names, several=True)
predicted_keys

# %%
key_cases = {"stage 1": {"stage": 1}}
key_cases |= {name: {"stage": 1, name: value} for name, value in stage_1_keys.items()}
small = stage_3 | {"reduce_bucket_size": 2**15}
key_cases["stage 3"] = small
key_cases["stage 3, sub_group_size"] = small | {"sub_group_size": 10_000}
key_cases["stage 3, prefetch 0"] = small | {"stage3_prefetch_bucket_size": 0}
key_cases["stage 3, reduce_scatter"] = small | {"reduce_scatter": False}

# %%
def try_key(name, zero):
    import deepspeed

    config = unscheduled | {"gradient_accumulation_steps": 1, "zero_optimization": zero}
    engine, *_ = deepspeed.initialize(model=models.gpt("0.1M"), config=config)
    for step in range(2):  # the second one is measured
        with measure(name if step else "first step"):
            engine.backward(engine(*data.batch(step, 2, 32, dist.get_rank(), 2)))
            engine.step()

def try_keys():
    for name, zero in key_cases.items():
        try_key(name, zero)

# %%
CALLS = ("all_reduce", "reduce_scatter_single", "all_gather_single")
keys_run = launch(try_keys, world_size=2, **ds_options)

def count_calls(name):
    calls = [call.op for call in keys_run.calls_in(name)]
    return [calls.count(op) or None for op in CALLS]

plain = count_calls("stage 1")
predicted_keys.compare([name for name in names if count_calls(name) != plain])

# %%
show_table({"calls in a step": "", **dict.fromkeys(CALLS, "d")},
           [(name, *count_calls(name)) for name in key_cases])

def step_bytes(name):
    return sum(call.bytes for call in keys_run.calls_in(name))

same = [step_bytes(name) for name in ("stage 1", *stage_1_keys)]
holds("stage 1: bytes of the tensors passed, in all rows", same, same[0], unit="bytes")

# %% [markdown]
# Only one of the five does: `reduce_bucket_size`, and only the number of messages differs. `allgather_partitions` is read and never used; `allgather_bucket_size` does nothing where PyTorch has `all_gather_into_tensor`; `round_robin_gradients` reorders the flat buffer. At stage 3, `sub_group_size` adds small all-reduces, for the norm of each group, and without prefetching there are more and smaller gathers. There, `reduce_scatter` false passes the same tensors to an all-reduce, and on a ring an all-reduce sends twice as much ([chapter 03](03_ring_all_reduce.ipynb)). The page [DeepSpeed's keys](../../docs/deepspeed_keys.md) says what each key changes, with those of activation checkpointing.
#
# ### What the engine can report
#
# Three keys make the engine report: `comms_logger` counts the collectives that go through `deepspeed.comm` (your own `dist.all_reduce` does not), `wall_clock_breakdown` prints times, `flops_profiler` counts operations in one step. All three wait for the device again and again: switch them off when you measure speed.
#
# **The backend.** If you already have a process group, DeepSpeed uses it. Otherwise it makes one, and its accelerator names the backend: `gloo` for CPUs, or `ccl`, Intel's, if installed; `nccl` for NVIDIA GPUs (`accelerator/`).
#
# **Checkpoints.** **All** ranks call `save_checkpoint` and `load_checkpoint`; on rank 0 alone they hang ([DeepSpeed #2993](https://github.com/deepspeedai/DeepSpeed/issues/2993)). A misspelled folder raises no error ([chapter 11](11_save_resume.ipynb)).
#
# **Pipelines.** A pipeline engine ([chapter 09](09_pipeline.ipynb)) accumulates the gradients of many micro-batches before it sends them, so DeepSpeed refuses it with stages 2 and 3, which would send or gather for each of them. Stage 1 works: it shards only the optimizer states.
#
# ### The launcher and its hostfile
#
# `deepspeed train.py` starts one process per GPU of this machine, with the same variables as torchrun, and adds `--local_rank=…` to your script's arguments (not with `--no_local_rank`). For several machines it reads a **hostfile**, one line per node: a name and its `slots`, the processes to start there. It runs one command on each node, through ssh and `pdsh`. (With `--no_ssh` you run it yourself on each, with that node's `--node_rank`.) This is that command. (It was run on two nodes made of network namespaces; [Chapters and labs on many nodes](../../docs/many-nodes.md) says what to watch out for.)

# %%
def command_for(hostfile):
    from deepspeed.launcher import multinode_runner, runner

    arguments = ["--hostfile", hostfile, "--master_addr", "node-a", "train.py"]
    nodes = runner.parse_inclusion_exclusion(runner.fetch_hostfile(hostfile), "", "")
    world = runner.encode_world_info(nodes)
    pdsh = multinode_runner.PDSHRunner(runner.parse_args(arguments), world)
    return pdsh.get_cmd({}, nodes)[0], runner.fetch_hostfile(f"{hostfile}_typo")

# %%
with tempfile.TemporaryDirectory() as folder:
    hostfile = Path(folder, "hostfile")
    hostfile.write_text("node-a slots=2\nnode-b slots=2")
    run = launch(command_for, str(hostfile), world_size=1, **ds_options)
command, missing = run.outputs[0]
shown = [part for part in command if "cd " not in part]
print(*(part.replace(sys.executable, "python") for part in shown))
print("a hostfile that does not exist:", missing)

# %% [markdown]
# `pdsh` fills in `%n`, the number of the node. `--world_info` is the table of nodes and slots, in base64. Three pitfalls:
#
# - **A hostfile that does not exist is not an error.** The launcher logs a warning and starts on this machine only. Assert the world size in your script. Without `--hostfile` it looks for `/job/hostfile`.
# - **Your environment is not copied.** Only variables whose names start with `PYTHON`, `MLFLOW`, `MV2`, `UCX` and, with NVIDIA GPUs, `NCCL` are exported. Write others into `.deepspeed_env`.
# - **`train_batch_size` stays the same.** With twice the ranks, accumulation or the micro-batch is halved, or the start fails.

# %% [markdown]
# ### Stage 3 across a slow link
#
# Here are two real nodes with two ranks each, as if by that hostfile, and 100 Mbit/s between them. Stage 3 gathers every layer over this link twice, in forward and in backward. ZeRO++'s **hpZ** ([chapter 06](06_fsdp_in_practice.ipynb)) is one key, `zero_hpz_partition_size`: each group of that many consecutive ranks keeps a second copy of the parameters from forward to backward, sharded within the group. The model has Ψ parameters in eight layers. **How many elements leave a node in backward, with hpZ?** (Over gloo, a reduce-scatter sends as much as an all-reduce.)

# %%
predicted_hpz = predict("Elements that leave a node in backward, with hpZ", unit="Ψ")
predicted_hpz

# %%
gather_again = stage_3 | {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
hpz_cases = {
    "stage 3": gather_again,
    "with hpZ": gather_again | {"zero_hpz_partition_size": 2},
    "kept gathered": stage_3,
}

# %%
def eight_layers(zero):
    import deepspeed

    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])
    config = unclipped | {"gradient_accumulation_steps": 1, "zero_optimization": zero}
    return deepspeed.initialize(model=model, config=config)[0]

# %%
def second_step(name, zero):
    engine = eight_layers(zero)
    for label in ("first step", name):
        with measure(f"{label}, forward"):
            loss = engine(torch.ones(2, 256)).square().mean()
            dist.barrier()
        second = [p.ds_secondary_tensor for p in engine.module.parameters()]
        with measure(f"{label}, backward"):
            engine.backward(loss)
            dist.barrier()
        engine.step()
    return sum(each.numel() for each in second if each is not None), loss.item()

def second_steps(cases):
    return [second_step(name, zero) for name, zero in cases.items()]

# %%
on_nodes = {"nodes": 2, "link_bits_per_s": 100e6, "recorded": "12_two_nodes"}
run = launch(second_steps, hpz_cases, world_size=4, **on_nodes, **ds_options)
psi = 8 * (256 * 256 + 256)
passes = {name: [run.traffic[f"{name}, {way}"] for way in ("forward", "backward")] for name in hpz_cases}
leaving = {name: [each.between_nodes[0, 1] / 4 / psi for each in two] for name, two in passes.items()}
named = {"without hpZ": leaving["stage 3"][1], "with a reduce-scatter like NCCL's": 0.75}
predicted_hpz.compare(leaving["with hpZ"][1], named)

# %%
def seconds_of(block):
    return max(each.end_s - each.start_s for each in block.blocks)

columns = {"leaves a node, in Ψ": "", "forward": ".2f", "backward": ".2f"}
columns |= {"link alone in backward, s": ".2f", "backward, s": ".2f"}
link_s = {name: 8 * two[1].between_nodes[0, 1] / 100e6 for name, two in passes.items()}
show_table(columns, [(name, *leaving[name], link_s[name], seconds_of(passes[name][1])) for name in hpz_cases])
(none, loss), (second, same_loss), _ = run.outputs[0]
holds("stage 3, backward: a gather and an all-reduce", leaving["stage 3"][1], 3/4 + 2 * 3/4, rtol=0.02)
holds("with hpZ, backward: an all-reduce", leaving["with hpZ"][1], 2 * 3/4, rtol=0.02)
holds("with hpZ, the second copy on each rank, in Ψ", (second - none) / psi, 1/2)
holds("the loss of the second step, with and without hpZ", same_loss, loss, rtol=1e-6)

# %% [markdown]
# The gather in backward stays within the node. The price is memory: half a copy more on each rank, from forward to the step. With NCCL's reduce-scatter a step would send 1.5Ψ instead of 2.25Ψ out of a node. And hpZ is not always needed: two keys are 0 here, because by default stage 3 keeps up to $10^9$ parameters gathered from forward to backward, and then even without hpZ there is no second gather (last row).
#
# ZeRO++'s other two parts are `zero_quantized_weights` and `zero_quantized_gradients`. We cannot run them: both need a kernel that 0.19.8 has for GPUs only, and stop here with `ValueError: This op had not been implemented on CPU backend.`

# %% [markdown]
# ## What to remember
#
# - Errors are the cheap mistakes. Duplicate keys, a section that the model never uses and a default clipping at 1.0 raise none.
# - Write down what you want: world size, samples in a step, stage, precision, clipping, optimizer. Read the same from the engine after a few steps, and compare.
# - Losses show little: at stage 0 instead of 3, the loss fell just the same.
# - The engine divides the loss, clips, scales and steps for you. Do not do the same again by hand.
# - Every collective needs all ranks: no saving inside `if rank == 0`.
#
# ## Sources
#
# - DeepSpeed 0.19.8: [configuration JSON](https://www.deepspeed.ai/docs/config-json/); its source where the documentation is silent: `runtime/constants.py`, `runtime/config.py`, `runtime/engine.py`, `runtime/lr_schedules.py`, `runtime/dataloader.py`, `runtime/fp16/loss_scaler.py`, `runtime/utils.py`, `runtime/zero/config.py`, `launcher/runner.py`.
# - The loss scale at stage 0: [DeepSpeed pull request 8393](https://github.com/deepspeedai/DeepSpeed/pull/8393).
