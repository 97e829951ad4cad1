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
# # 13 · Accelerate in practice
#
# DeepSpeed takes over the training step. **Accelerate** leaves you your loop and replaces some of its lines. The same script then runs on one process, with DDP, FSDP or DeepSpeed. It decides a lot for you, and most of its mistakes raise no error: each rank trains alone, the learning rate falls too fast, or another optimizer runs.
#
# The question of this chapter: what do the replaced lines do, and how do you check that they did it?
#
# **After this chapter you can**
#
# - port a hand-written DDP loop to Accelerate, piece by piece;
# - avoid what differs on several ranks: seeds, printing, metrics, schedules, checkpoints;
# - assert what Accelerate does not report, with DDP, FSDP and DeepSpeed.
#
# **You need:** [05 FSDP](05_fsdp.ipynb), [12 DeepSpeed](12_deepspeed.ipynb).

# %% [markdown]
# <details open><summary>Accelerate makes the calls of the loop by hand, or none at all</summary>
#
# [![Animation: Accelerate makes the calls of the loop by hand, or none at all](openers/13_accelerate.svg)](openers/13_accelerate.svg)
#
# What rank 0 of two does in one step of two micro-batches: forward and backward, and below them its collectives, waits included. DDP by hand sums gradients in the second backward only, and so does Accelerate. But Accelerator() without cpu=True finds no GPU here and wraps nothing: no collective, no error, and each rank trains alone. (Recorded from real processes.)
#
# </details>

# %% jupyter={"source_hidden": true}
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import contextlib
import functools
import inspect
import json
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from shardlab import holds, launch, launched_script, measure, show_table, warm_up
from shardlab.recorded_runs import config_runs
from shardlab.widgets import palette, predict

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)
warm_up("deepspeed")  # loads in the background while you read

# %% [markdown]
# ## A loop, piece by piece
#
# We start from a loop for DDP written by hand, replace one piece after the other, and record the collectives before and after each. An `Accelerator` keeps its state in class attributes that all accelerators of a process share, and `_reset_state` forgets them: a script does not need this, but a notebook that creates several does. And `cpu=True` matters: you will soon see what happens without it.

# %%
def new_accelerator(**options):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    return Accelerator(**{"cpu": True, **options})

# %% [markdown]
# First the data: samples 0 to 31 in batches of 4, for two ranks. By hand, a `DistributedSampler` gives each rank its share. With Accelerate, `prepare` of a plain loader does. **Which samples are in the first batch that rank 1 gets from a prepared loader?**

# %%
shares = ["1, 3, 5, 7", "2, 3", "4, 5, 6, 7", "16, 17, 18, 19"]
predicted_share = predict("The first batch of rank 1", options=shares)
predicted_share

# %%
def first_batches():
    accelerator, numbers = new_accelerator(), torch.arange(32)
    sampler = DistributedSampler(numbers, shuffle=False)
    prepared = accelerator.prepare(DataLoader(numbers, 4))
    loaders = DataLoader(numbers, 4, sampler=sampler), prepared
    return [", ".join(map(str, next(iter(each)).tolist())) for each in loaders]

run = launch(first_batches, world_size=2, device="cpu")
by_sampler = {"what a DistributedSampler gives": run.outputs[1][0]}
predicted_share.compare(run.outputs[1][1], by_sampler)

# %%
columns = {"rank": "d", "DistributedSampler": "", "prepared loader": ""}
show_table(columns, [(rank, *each) for rank, each in enumerate(run.outputs)])

# %% [markdown]
# `DistributedSampler` assigns single samples in turn, a prepared loader whole batches. Together the ranks get the same set of samples, so the averaged gradient is the same, but each rank's losses are not. Compare the losses of two scripts only after you have averaged them over ranks.
#
# This is the hand-written loop, with two micro-batches per step. It has everything that such loops have: a sampler, the DDP wrapper, and `no_sync` for all micro-batches but the last. It returns the parameters, and the number of samples that this rank has seen.

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
    model, seen = nn.parallel.DistributedDataParallel(model), 0
    sampler = DistributedSampler(dataset, shuffle=False)
    for i, (inputs, targets) in enumerate(DataLoader(dataset, 4, sampler=sampler), 1):
        last = i % accumulation == 0
        with contextlib.nullcontext() if last else model.no_sync():
            loss = nn.functional.mse_loss(model(inputs), targets)
            (loss / accumulation).backward()
        if last:
            sgd.step()
            sgd.zero_grad()
        seen += len(inputs)
    return [p.detach() for p in model.parameters()], seen

# %% [markdown]
# The first half of the port: we pass the model, which it wraps in DDP, and the optimizer to `prepare`. The arguments add the next pieces: the prepared **loader**, and `accelerator.backward`, which divides the loss by the accumulation steps.

# %%
def half_ported(sampled=True, prepares=False, divides=True, own=True, steps=2):
    accelerator = new_accelerator(gradient_accumulation_steps=steps)
    model, sgd, dataset = training_parts()
    model, sgd = accelerator.prepare(model, sgd)
    sampler = DistributedSampler(dataset, shuffle=False) if sampled else None
    loader = DataLoader(dataset, 4, sampler=sampler)
    loader = accelerator.prepare(loader) if prepares else loader
    for i, (inputs, targets) in enumerate(loader, 1):
        with contextlib.nullcontext() if i % steps == 0 else model.no_sync():
            loss = nn.functional.mse_loss(model(inputs), targets)
            scaled = loss / steps if divides else loss
            scaled.backward() if own else accelerator.backward(scaled)
        if i % steps == 0:
            sgd.step()
            sgd.zero_grad()
    return [p.detach() for p in model.parameters()], 4 * i

# %% [markdown]
# The last piece is `accumulate`. It stands for `no_sync`, and makes `step` and `zero_grad` do nothing until the last micro-batch, so the loop no longer counts micro-batches:

# %%
def train_with_accelerate(accumulation=2):
    accelerator = new_accelerator(gradient_accumulation_steps=accumulation)
    model, sgd, dataset = training_parts()
    model, sgd, loader = accelerator.prepare(model, sgd, DataLoader(dataset, 4))
    seen = 0
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            sgd.step()
            sgd.zero_grad()
        seen += len(inputs)
    return [p.detach() for p in model.parameters()], seen

# %% [markdown]
# Two more versions are wrong on purpose: "loader and sampler" prepares the loader but keeps the sampler, "divided twice" lets `backward` divide the loss and divides it too. All versions run on two ranks. **Which of the two wrong ones makes as many all-reduces as the loop by hand?**

# %%
WRONG = ["loader and sampler", "divided twice"]
predicted_wrong = predict("As many all-reduces as by hand", options=WRONG, several=True)
predicted_wrong

# %%
with_loader = {"sampled": False, "prepares": True}
with_backward = {**with_loader, "own": False}
VERSIONS = {
    "by hand": train_by_hand,
    "model and optimizer": half_ported,
    "+ loader": functools.partial(half_ported, **with_loader),
    "+ backward": functools.partial(half_ported, **with_backward, divides=False),
    "+ accumulate": train_with_accelerate,
    WRONG[0]: functools.partial(half_ported, prepares=True),
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

same = [name for name in WRONG if reductions(name) == reductions("by hand")]
predicted_wrong.compare(same)

# %%
def off(name):
    pairs = zip(trained["by hand"][0], trained[name][0])
    return max((a - b).abs().max().item() for a, b in pairs)

def row(name):
    size = sum(size for _, size in calls_of_rank_0(name))
    return name, reductions(name), size, trained[name][1], off(name)

columns = {"version": "", "all-reduces": "d", "bytes of all calls": ",d"}
columns |= {"samples of rank 0": "d", "parameters differ by": ".0e"}
show_table(columns, map(row, VERSIONS))
right = [name for name in VERSIONS if name not in WRONG]
alike = [calls_of_rank_0(name) == calls_of_rank_0("by hand") for name in right]
holds("correct versions: the collectives of the loop by hand, in order", alike)
holds("correct versions: parameters differ by", list(map(off, right)), below=1e-6)

# %% [markdown]
# Accelerate adds no collective and leaves none out. Neither of the wrong versions raises an error. Here are the samples that each rank reads in an epoch:

# %%
def samples_read():
    accelerator, numbers = new_accelerator(), torch.arange(32)
    sampled = DataLoader(numbers, 4, sampler=DistributedSampler(numbers, shuffle=False))
    prepared = accelerator.prepare(DataLoader(numbers, 4))
    loaders = sampled, prepared, accelerator.prepare(sampled)
    return [torch.cat(list(loader)).tolist() for loader in loaders]

# %%
read = launch(samples_read, world_size=2, device="cpu").outputs
figure, axes = plt.subplots(figsize=(6.7, 2.2))
for rank, rows in enumerate(read):
    for y, samples in enumerate(rows):
        look = {"color": palette.rank_color(rank), "label": "" if y else f"rank {rank}"}
        axes.bar(samples, 0.7, 0.9, y - 0.35, **look)
axes.set_yticks(range(3), ["sampler", "prepared loader", "loader and sampler"])
axes.invert_yaxis()
used = len({sample for rows in read for sample in rows[2]})
axes.set_title(f"Samples read: with loader and sampler, {used} of 32", size=10)
axes.legend(frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.2))
figure.tight_layout()

# %% [markdown]
# With the sampler kept, the samples are divided among the ranks **twice**: each rank sees a quarter of them, and half of the data is never used. With the loss divided twice, gradients are half as large, and not even the collectives differ: only the parameters do.
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
    os.environ.update(LOCAL_RANK=str(rank % 2), LOCAL_WORLD_SIZE="2")
    os.environ["MASTER_ADDR"] = "localhost"

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
named = {"what different seeds on all ranks give": different[1]}
named["what plain set_seed gives"] = different[2]
predicted_different.compare(different[0], named)

# %%
rows = [(rank, *drawn) for rank, drawn in enumerate(run.outputs)]
show_table({"rank": "d", **dict.fromkeys(columns, ".4f")}, rows)
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
    indices = accelerator.process_index, accelerator.local_process_index
    return *indices, accelerator.is_main_process

# %%
run = launch(who_prints, world_size=4, device="cpu", quiet=True)
texts = "from print", "from accelerator.print", "from the main process"
printed = [[text in out for text in texts] for out in run.stdout]
columns = "main process", "print", "accelerator.print", "if main"
rows = [(*who, *said) for who, said in zip(run.outputs, printed)]
show_table({"rank": "d", "local": "d", **dict.fromkeys(columns, "")}, rows)
by_accelerator = [rank for rank in range(4) if printed[rank][1]]
holds("accelerator.print prints on", by_accelerator, [0, 2])
made = [call.op for call in run.calls if call.rank == 0]
holds("wait_for_everyone is a", made, ["barrier"])

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
    tried = {"as they are": inputs, ".bfloat16()": inputs.bfloat16()}
    tried[".half()"] = inputs.half()
    outputs = {name: model(given) for name, given in tried.items()}
    found = {name: (y.item(), str(y.dtype)) for name, y in outputs.items()}
    try:
        accelerator.unwrap_model(model, keep_fp32_wrapper=False)(inputs.half())
    except RuntimeError as error:
        return found, str(error)

# %%
run = launch(inputs_in_16_bits, world_size=1, device="cpu")
outputs, error = run.outputs[0]
rows = [(name, *each) for name, each in outputs.items()]
show_table({"inputs": "", "output": ".0f", "dtype": ""}, rows)
print("without autocast:", error)
is_nan = [value != value for value, _ in outputs.values()]
holds("only .half() gives nan", is_nan, [False, False, True])

# %% [markdown]
# No error under autocast: `.half()` turns 70,000 into infinity before autocast sees it. Delete the line.
#
# You can delete two more things from old scripts: `.to(device)`, as a prepared loader moves its batches to `accelerator.device`, and your own `torch.autocast(…)`. Only the prepared model's forward is under autocast; `accelerator.autocast()` is for what you compute outside of it. Autocast chooses a dtype for each operation: a matmul runs in bf16, `mse_loss` in fp32.
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
question = "Steps of the scheduler after 3 optimizer steps on 4 ranks"
predicted_schedule = predict(question)
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
    prepared = accelerator.prepare(model, sgd, DataLoader(dataset, 4), schedule)
    epoch(accelerator, *prepared)
    schedule = prepared[-1]
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
    parts = accelerator.prepare(model, sgd, DataLoader(dataset, 4, shuffle=True))
    average = torch.optim.swa_utils.AveragedModel(model)
    accelerator.register_for_checkpointing(average)
    epoch(accelerator, *parts)
    accelerator.save_state(f"{folder}/safe")
    accelerator.save_state(f"{folder}/pickled", safe_serialization=False)
    saved, first = model[0].weight.clone(), epoch(accelerator, *parts)
    accelerator.load_state(f"{folder}/safe")
    restored, again = torch.equal(saved, model[0].weight), epoch(accelerator, *parts)
    note = {"note": "mine", "rank": accelerator.process_index}
    accelerator.save(note, f"{folder}/other.pt")
    accelerator.wait_for_everyone()
    return restored, first == again, torch.load(f"{folder}/other.pt")

# %%
accelerate_disk = tempfile.TemporaryDirectory()  # removed when the kernel ends
folder = Path(accelerate_disk.name)
run = launch(save_and_load, str(folder), world_size=2, device="cpu")
restored, same, other = map(list, zip(*run.outputs))
files = [", ".join(sorted(path.name for path in (folder / name).iterdir()))
         for name in ("safe", "pickled")]
show_table({"folder": "", "files": ""}, zip(("safe", "pickled"), files))
print("saved by accelerator.save:", other[1])
holds("the weights are those that were saved", restored, [True, True])
holds("are the losses of the second epoch equal, by rank", same, [False, False])

# %% [markdown]
# The weights were restored, and yet the losses of the second epoch differ. The order of the samples was not restored: `prepare` gave the loader's sampler a random generator of its own, and that is in none of the files. The lab fixes this. Other things to know:
#
# - `safe_serialization` decides between `model.safetensors` (the default: numbers only, nothing is executed when it is read) and a pickled `pytorch_model.bin`.
# - `accelerator.save` writes any object, by default on the main process of the whole run: rank 0's, as the output shows.
# - Objects of your own are included by `register_for_checkpointing`: the file `custom_checkpoint_0.pkl`. They need `state_dict` and `load_state_dict`.
#
# A model that is too large to be built first and filled later is loaded by `load_checkpoint_and_dispatch`, layer by layer onto the devices you name. If a weight is missing from the file, version 1.15 leaves it random and raises no error, not even with `strict=True` (a test of this course checks that). So compare the names: `set(model.state_dict()) - set(file)` must be empty.
#
# ### The configuration file
#
# `accelerate config` asks questions and writes a YAML file. Its answers become a `ClusterConfig` (`commands/config/cluster.py`), which we fill in directly:

# %% jupyter={"source_hidden": true}
def write_yaml(name, **answers):
    from accelerate.commands.config.config_args import ClusterConfig

    common = {"compute_environment": "LOCAL_MACHINE", "num_processes": 2}
    common |= {"mixed_precision": "no", "use_cpu": False, "same_network": True}
    common |= {"debug": False, "downcast_bf16": "no", "tpu_env": []}
    ClusterConfig(**common | answers).to_yaml_file(str(folder / name))
    return (folder / name).read_text()

# %%
print("Loading Accelerate: a few seconds …")
print(write_yaml("cpu.yaml", distributed_type="MULTI_CPU", use_cpu=True))

# %% [markdown]
# Most keys are what their names say; `downcast_bf16` and those with `tpu_` are for TPUs, and `main_training_function` is for notebooks. Mind two: `num_processes` counts all machines, so with two machines of eight GPUs it is 16, on both; `machine_rank` differs on each.
#
# ### Did it run as I meant?
#
# Nearly all mistakes with Accelerate are silent: the script trains, and the loss falls. This function reports what runs. Copy it into your projects; call it on all ranks after some steps, and compare it with what you wanted.

# %%
def what_runs(accelerator, model, optimizer, loader, scheduler, steps):
    sums = [p.detach().double().sum().item() for p in model.parameters()]
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer  # out of its wrappers
    by_rank = [sums] * (dist.get_world_size() if dist.is_initialized() else 1)
    if dist.is_initialized():
        dist.all_gather_object(by_rank, sums)
    accumulation = accelerator.gradient_accumulation_steps
    return {
        "distributed_type": accelerator.distributed_type.value,
        "world size": accelerator.num_processes,
        "samples per step": loader.total_batch_size * accumulation,
        "optimizer": type(optimizer).__name__,
        "schedule steps per step": scheduler.scheduler.last_epoch / steps,
        "parameters equal": all(each == by_rank[0] for each in by_rank),
    }

# %% [markdown]
# Five accelerators. The first does what we want, each of the others has one mistake. (`split_batches` divides each batch of the loader among the ranks.)

# %%
def train_and_look(prepare_model=True, split_batches=False, **options):
    from accelerate.utils import DataLoaderConfiguration

    loading = DataLoaderConfiguration(split_batches=split_batches)
    accelerator = new_accelerator(dataloader_config=loading, **options)
    model, sgd, dataset = training_parts()
    schedule = torch.optim.lr_scheduler.LinearLR(sgd, 1.0, 0.0, total_iters=100)
    model = accelerator.prepare(model) if prepare_model else model
    loader = DataLoader(dataset, 4)
    sgd, loader, schedule = accelerator.prepare(sgd, loader, schedule)
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

WANTED = {"distributed_type": "MULTI_CPU", "world size": 2, "samples per step": 8,
          "optimizer": "SGD", "schedule steps per step": 1, "parameters equal": True}
as_meant = [outputs[0] == WANTED for outputs in run.outputs]
holds("nothing differs in the first, on both ranks", as_meant)
found = [", ".join(differences(seen, WANTED)) for seen in mistaken]
show_table({"setup": "", "differs in": ""}, zip(list(SETUPS)[1:], found))

# %% [markdown]
# None of the four raised an error. Without `cpu=True` (or `use_cpu` in the YAML, which the launcher passes on) each rank trains alone on all the data, as if it were the only process. The parameters are equal only because all ranks do the same work: equal parameters alone prove nothing, so look at the world size too.
#
# The optimizer was right in all of them. With DeepSpeed it may not be the script's. Here the script has SGD and 2 accumulation steps, and the JSON has 4. In the second run the JSON also has an optimizer and a schedule; then the script must pass `DummyOptim` and `DummyScheduler`, which only fill in "auto". In the third it passes SGD anyway:

# %%
in_json = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}
in_json["zero_optimization"] = {"stage": 1}
warmup = dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto")
owns = {
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": warmup},
}

# %% jupyter={"source_hidden": true}
def deepspeed_accelerator(config):
    from accelerate import DeepSpeedPlugin, InitProcessGroupKwargs

    plugin = DeepSpeedPlugin(hf_ds_config=config)
    options = {"deepspeed_plugin": plugin, "gradient_accumulation_steps": 2}
    gloo = InitProcessGroupKwargs(backend="gloo")
    return new_accelerator(cpu=False, **options, kwargs_handlers=[gloo])

# %% [markdown]
# The script's loop is the one for DDP, with a schedule and clipping of its own:

# %%
def flat(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()

def one_step(accelerator, model, optimizer, loader, schedule):
    """Steps of the schedule, and norm of the update / learning rate."""
    before, rate = flat(model.module), schedule.get_last_lr()[0]
    for inputs, targets in loader:  # 4 micro-batches
        with accelerator.accumulate(model):
            loss = 100 * nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 0.001)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    moved = (flat(model.module) - before).norm().item()
    return schedule.scheduler.last_epoch, moved / rate

# %% [markdown]
# Each run returns the classes of its optimizer and schedule, the accumulation steps, and what one step did:

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
    ran = [deepspeed_runs(in_json, dummy=False)]
    ran.append(deepspeed_runs(in_json | owns, dummy=True))
    try:
        deepspeed_runs(in_json | owns, dummy=False)
    except ValueError as error:
        return ran, str(error).split(".")[0]

# %%
options = {"world_size": 2, "device": "cpu", "timeout_s": 60, "quiet": True}
ran, refused = launch(who_owns, **options).outputs[0]
names = "SGD in the script", "DummyOptim, and AdamW in the JSON"
show_table({"given": "", "optimizer": "", "schedule": "", "accumulation": "d"},
           [(name, *each[:3]) for name, each in zip(names, ran)])
print("SGD, and AdamW in the JSON:", refused)
accumulated = [each[2] for each in ran]
holds("the JSON's accumulation replaces the script's 2", accumulated, 4)
scheduled, clipped = ran[0][3]
holds("steps of the script's schedule in one step of the engine", scheduled, 2)
holds("clipped at 0.001: norm of the update / learning rate", clipped, 1.0, rtol=0.01)

# %%
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
# So far Shardlab started the ranks. The real launcher needs a script, so we write the functions of some cells into a file. It trains as above, and `prepare` also gets an evaluation loader. For DeepSpeed on CPUs the script's accelerator names the gloo backend: without that, Accelerate counts one process and the batch sizes no longer fit.

# %%
def script():
    accelerator = launched_script.new_accelerator()
    model, sgd, dataset = training_parts()
    model.config = type("Config", (), {"hidden_size": 16})  # as in Transformers
    schedule = torch.optim.lr_scheduler.LinearLR(sgd, 1.0, 0.0, total_iters=100)
    loaders = DataLoader(dataset, 4), DataLoader(dataset, 2)  # training, evaluation
    prepared = accelerator.prepare(model, sgd, *loaders, schedule)
    model, sgd, loader, _, schedule = prepared
    epoch(accelerator, model, sgd, loader, schedule)
    seen = what_runs(accelerator, model, sgd, loader, schedule, steps=len(loader))
    settings = launched_script.engine_settings(accelerator, model)
    launched_script.report(accelerator.process_index, seen, settings)

# %% jupyter={"source_hidden": true}
IMPORTS = """
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shardlab import launched_script
"""
functions = [inspect.getsource(each) for each in (training_parts, epoch, what_runs, script)]
path = folder / "train.py"
path.write_text("\n".join([IMPORTS, *functions, "script()"]))

def accelerate_launch(name):
    options = "--main_process_port=0", "--config_file", str(folder / name)
    return launched_script.start(path, "accelerate.commands.launch", *options)

# %% [markdown]
# The file `cpu.yaml` says `distributed_type: MULTI_CPU` and `num_processes: 2`. **How many processes does `accelerate launch` start?**

# %%
predicted_processes = predict("Processes that train with cpu.yaml")
predicted_processes

# %%
print("accelerate launch with cpu.yaml: a few seconds …")
trained = accelerate_launch("cpu.yaml")
seen = trained[0][1]
predicted_processes.compare(len(trained), {"what the file says": 2})

# %%
def show_seen(seen):
    rows = [(key, seen[key], WANTED[key]) for key in WANTED]
    show_table({"what runs": "", "here": str, "wanted": str}, rows)

differing = ["distributed_type", "world size", "samples per step"]
holds("what differs", differences(seen, WANTED), differing)
show_seen(seen)

# %% [markdown]
# One, without a warning. `MULTI_CPU` gets `simple_launcher` (`accelerate/commands/launch.py`), which starts the script once, and looks at `num_processes` only if `mpirun_config` names a host file: then it runs `mpirun`. For one CPU machine without MPI, `torchrun` starts the ranks; `ACCELERATE_USE_CPU` is what the YAML's `use_cpu` becomes:

# %%
torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
print("torchrun with 2 ranks: a few seconds …")
(_, seen, _), _ = launched_script.start(path, *torchrun, ACCELERATE_USE_CPU="true")
holds("nothing differs", seen == WANTED)
show_seen(seen)

# %% [markdown]
# ### `accelerate launch` with DeepSpeed, and what "auto" becomes
#
# A YAML can point to a DeepSpeed JSON. Values that are `"auto"` are filled in by `prepare`, from the arguments it gets:

# %%
batch = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
         "train_batch_size")
buckets = ("reduce_bucket_size", "stage3_prefetch_bucket_size",
           "stage3_param_persistence_threshold")
zero = {"stage": 3, **dict.fromkeys(buckets, "auto")}
auto = dict.fromkeys((*batch, "gradient_clipping"), "auto")
auto |= {"bf16": {"enabled": "auto"}, "zero_optimization": zero}
(folder / "auto.json").write_text(json.dumps(auto, indent=2))
section = {"deepspeed_config_file": str(folder / "auto.json"), "zero3_init_flag": False}
options = {"distributed_type": "DEEPSPEED", "mixed_precision": None}
print(write_yaml("deepspeed.yaml", deepspeed_config=section, **options))

# %% [markdown]
# Without a JSON, keys of `deepspeed_config` make one; the page [keys of DeepSpeed and Accelerate](../../docs/deepspeed_keys.md) has all of them, and those of `fsdp_config`. The script gives `prepare` a training loader with batches of 4 and an evaluation loader with batches of 2.

# %%
print("accelerate launch with DeepSpeed on 2 ranks: 10 s, more on a busy machine …")
(_, seen, engine), _ = accelerate_launch("deepspeed.yaml")
became = engine["config"] | engine["config"]["zero_optimization"]
asked = (*batch, *buckets, "gradient_clipping", "bf16")
show_table({"key": "", "auto became": ""}, [(key, str(became[key])) for key in asked])
holds("optimizer and stage", (seen["optimizer"], engine["stage"]), ("SGD", 3))
holds("the micro-batch is the smaller loader's", became[batch[0]], 2)
holds("clipping at", engine["clip"], 1)
counted = seen["samples per step"], engine["batch"]
holds("samples per step: loader, engine", counted, (8, 4))
holds("parameters kept whole, of 4", sum(engine["whole"]), 4)

# %% [markdown]
# Three of these surprise most people. The micro-batch is that of the **smallest** loader given to `prepare`, evaluation included (unless the plugin has `is_train_batch_min=False`: then of the largest): the engine assumes 4 samples per step, but the loader delivers 8. Gradients are clipped at 1.0, though nobody asked for it. And bucket sizes come from `model.config.hidden_size`, or the largest of `hidden_sizes`: 16², 0.9 · 16² and 10 · 16. Without either there is an error. So write the batch size as a number, and clipping as 0.0 if you want none.
#
# And does it shard, at stage 3? None of this model's parameters has more than 160 elements, the persistence threshold, so all of them stay whole on every rank. Only the optimizer state and gradients are sharded. (Larger parameters are empty tensors between steps; then `parameters equal` says nothing about them.)
#
# ### FSDP needs a GPU
#
# For FSDP the YAML has a section `fsdp_config`. Its values become the units, resharding and precision that you wrote by hand in [chapter 05](05_fsdp.ipynb) and [06](06_fsdp_in_practice.ipynb). Does it shard on our CPU ranks? We pass the plugin that such a section becomes, with and without `cpu=True`:

# %%
def try_fsdp():
    from accelerate import FullyShardedDataParallelPlugin

    seen = []
    for cpu in (True, False):
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
        accelerator = new_accelerator(cpu=cpu, fsdp_plugin=plugin)
        model = accelerator.prepare(training_parts()[0])
        kind = type(next(model.parameters())).__name__
        chosen = accelerator.distributed_type.value
        seen.append((f"cpu={cpu}", chosen, type(model).__name__, kind))
    return seen

# %%
run = launch(try_fsdp, world_size=2, device="cpu")
columns = "accelerator", "distributed_type", "model", "parameters"
show_table(dict.fromkeys(columns, ""), run.outputs[0])
chosen = [row[1] for row in run.outputs[0]]
holds("no accelerator chose FSDP", "FSDP" in chosen, False)

# %% [markdown]
# With `cpu=True` you get DDP, without it an unwrapped model on each rank. Neither warns: the code (`accelerate/state.py`) considers FSDP only where it has found GPUs or similar devices. On a GPU the type should be `FSDP` and parameters should be `DTensor`; **we have not run that here**, as our tests have no GPU. `what_runs` shows the difference in its first line.
#
# ### Where the Hugging Face Trainer stands
#
# `transformers.Trainer` takes your loop, too. Inside it is what you have seen here: it creates an `Accelerator` from its `TrainingArguments`, and prepares model, optimizer and loaders (`trainer.py` of Transformers 5.23). So most of this chapter holds: the same launchers start it, and `auto` is filled in from its arguments. It differs in the scheduler, which it does not prepare, so that it steps once per optimizer step on any number of ranks. It clips at 1.0 unless you set `max_grad_norm`, resumes in the middle of an epoch with `skip_first_batches`, and divides a language model's loss by the tokens of all micro-batches and ranks.
#
# ### Which call does what, by library
#
# | you want | PyTorch by hand | Accelerate | DeepSpeed | Trainer |
# |---|---|---|---|---|
# | start ranks | `torchrun` | `accelerate launch` | `deepspeed` | any of these |
# | model on all ranks | `DistributedDataParallel`, `fully_shard` | `prepare` | `initialize` | `fsdp=`, `deepspeed=` |
# | data for each rank | `DistributedSampler` | `prepare` | `initialize(training_data=…)` | `train_dataset=` |
# | backward | `(loss / n).backward()` | `backward(loss)` | `engine.backward(loss)` | `train()` |
# | accumulate | `no_sync` | `with accumulate(model)` | `gradient_accumulation_steps`, `engine.step()` each time | `gradient_accumulation_steps=` |
# | clip | `clip_grad_norm_` | `clip_grad_norm_` if `sync_gradients` | `gradient_clipping` | `max_grad_norm=` |
# | 16 bits | `autocast` | `mixed_precision` | `bf16`, `fp16` | `bf16=`, `fp16=` |
# | evaluate exactly | `all_gather`, drop repeats | `gather_for_metrics` | by hand | `evaluate()` |
# | write once | `if rank == 0` | `is_main_process` | `if rank == 0` | `is_world_process_zero()` |
# | wait | `barrier` | `wait_for_everyone` | `deepspeed.comm.barrier` | |
# | checkpoint | `torch.distributed.checkpoint` | `save_state`, `load_state` | `save_checkpoint`, `load_checkpoint` | `save_steps=`, `resume_from_checkpoint=` |

# %% [markdown]
# ## What to remember
#
# - Nearly all mistakes are silent: a missing `cpu=True`, a sampler kept, a loss divided twice, "auto", a schedule that steps once for each process.
# - Write down what you want: world size, type, samples in a step, optimizer, learning rate. Read the same from the run after a few steps, and compare.
# - Every collective needs all ranks: no saving, evaluating or waiting inside `if is_main_process`.
# - Under DeepSpeed the engine's configuration decides: accumulation, clipping, optimizer.
#
# ## Sources
#
# - Transformers 5.23: [Trainer](https://huggingface.co/docs/transformers/main_classes/trainer).
# - Accelerate 1.15: [documentation](https://huggingface.co/docs/accelerate); the prepared scheduler's speed: issues [1382](https://github.com/huggingface/accelerate/issues/1382) and [2142](https://github.com/huggingface/accelerate/issues/2142).
