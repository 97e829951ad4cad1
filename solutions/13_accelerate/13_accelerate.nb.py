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
# # Lab 13 · Accelerate
#
# Accelerate leaves a training loop where it is and replaces some of its lines. You will port a loop, and fix what most often goes wrong with several ranks, without an error: the loss of ragged batches, metrics, the learning rate, and resuming.
#
# **In this lab you**
#
# - port a hand-written DDP loop to Accelerate;
# - compute losses and metrics that are exact on several ranks;
# - make the learning rate and a resumed run the same on any number of ranks.
#
# **You need:** [chapter 13](../../course/chapters/13_accelerate.ipynb).
#
# <!-- table of points -->
#
# Each exercise has a task, a **spec** that runs, a **budget**, your cell, a picture of what your code did, and a check. Grading adds hidden cases: other sizes, other numbers of ranks. A mistake in one exercise never costs points in a later one.

# %%
print("Loading PyTorch and Accelerate: a few seconds, longer the first time on a computer …")

import tempfile
from contextlib import nullcontext
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from autograder import check
from shardlab import launch, show_table
from shardlab.widgets import palette

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# ## 1 · `port_a_loop`
#
# A colleague has written this training loop by hand, in plain PyTorch. Each rank gets its part of the data from a `DistributedSampler`, and DistributedDataParallel (DDP) averages the gradients.

# %%
def ddp_parts(model, dataset, batch_size, lr):
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr)
    sampler = DistributedSampler(dataset, shuffle=False)
    return ddp, optimizer, DataLoader(dataset, batch_size, sampler=sampler)

# %% [markdown]
# The optimizer steps once every `accumulation` micro-batches, and for those that remain at the end. Until the last micro-batch of a step, `no_sync` keeps DDP from sending gradients. The loss of each step is averaged over all ranks, and rank 0 saves the weights.

# %%
def train_with_ddp(model, dataset, batch_size, accumulation, lr, max_norm, save):
    ddp, optimizer, loader = ddp_parts(model, dataset, batch_size, lr)
    losses, total = [], torch.zeros(())
    for i, (x, labels) in enumerate(loader):
        is_last = (i + 1) % accumulation == 0 or i + 1 == len(loader)
        with nullcontext() if is_last else ddp.no_sync():
            loss = cross_entropy(ddp(x), labels) / accumulation
            loss.backward()
        total += loss.detach()
        if is_last:
            nn.utils.clip_grad_norm_(ddp.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
            dist.all_reduce(total)
            losses.append(total.item() / dist.get_world_size())
            total.zero_()
    if dist.get_rank() == 0:
        save(ddp.module.state_dict())
    return losses

# %% [markdown]
# Rewrite it with Accelerate. `port_a_loop(model, dataset, batch_size, accumulation, lr, max_norm, save)` takes the same arguments and returns the same list of losses, on every rank. The weights and the saved state dict are the same, too: `save` is a function that only the main process calls: rank 0, once, even if the ranks are on several machines. The saved names are those of the model that was passed in.
#
# The training steps should later run under fp16 or DeepSpeed without a change. So let the `Accelerator` do what it can: `prepare` (model, optimizer and loader), `accumulate`, `backward` and `clip_grad_norm_`. The optimizer is SGD. `model` and `dataset` are plain PyTorch; the samples divide evenly, so no sampler pads.
#
# This is what the hand-written loop does on two ranks:

# %%
def run_loop(loop):
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    torch.manual_seed(7)
    dataset = TensorDataset(torch.randn(36, 8), torch.randint(4, (36,)))
    saved = []
    losses = loop(model, dataset, 3, 2, 0.4, 1.0, saved.append)
    return {"losses": losses, "saves": len(saved)}

by_hand = launch(run_loop, train_with_ddp, world_size=2, device="cpu")
by_hand.outputs

# %% [markdown]
# **Budget** · one all-reduce of the gradients per step, and at most 64 bytes more · one `accelerator.backward` for each micro-batch · no barrier in the loop; one before saving is allowed.
#
# <details><summary>Hint 1 · the start</summary>
#
# On CPU ranks, `Accelerator(cpu=True)` joins the process group. Without `cpu=True` and without GPUs, every rank trains alone, without any error. It also takes `gradient_accumulation_steps`. Which three objects does `prepare` return in the order in which you pass them?
# </details>
# <details><summary>Hint 2 · one micro-batch</summary>
#
# `with accelerator.accumulate(model):` encloses everything from forward to `zero_grad`. In it, the prepared optimizer steps and clears gradients only at the last micro-batch, so both can be called each time. Look up what `accelerator.backward` does with the loss before it calls `loss.backward()`.
# </details>
# <details><summary>Hint 3 · the last micro-batch</summary>
#
# `accelerator.sync_gradients` is `True` in the last micro-batch of a step, and at the end of the loader. What must not happen before the gradients are averaged? For the losses there is `accelerator.reduce(tensor, "mean")`, for the names `accelerator.unwrap_model`.
# </details>

# %% nbgrader={"grade_id": "port_a_loop", "solution": true}
def port_a_loop(model, dataset, batch_size, accumulation, lr, max_norm, save):
    """same arguments, weights and losses as train_with_ddp"""
    ### BEGIN SOLUTION
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loader = DataLoader(dataset, batch_size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses, total = [], torch.zeros(())
    for x, labels in loader:
        with accelerator.accumulate(model):
            loss = cross_entropy(model(x), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
        total = total + loss.detach() / accumulation
        if accelerator.sync_gradients:
            losses.append(accelerator.reduce(total, "mean").item())
            total = torch.zeros(())
    if accelerator.is_main_process:
        save(accelerator.unwrap_model(model).state_dict())
    return losses
    ### END SOLUTION

# %% [markdown]
# Both loops side by side. "Messages" are the all-reduces of rank 0. Accelerate assigns whole batches to the ranks in turn, `DistributedSampler` single samples. So each rank gets different samples than before, but all ranks together get the same ones in each step.

# %%
ported = launch(run_loop, port_a_loop, world_size=2, device="cpu")
rows = []
for name, run in {"by hand": by_hand, "Accelerate": ported}.items():
    losses = ", ".join(f"{loss:.4f}" for loss in run.outputs[0]["losses"])
    reduced = [call for call in run.calls if (call.rank, call.op) == (0, "all_reduce")]
    rows.append([name, losses, len(reduced), sum(call.bytes for call in reduced)])
show_table({"loop": "", "losses": "", "messages": "", "bytes": ","}, rows)

# %% nbgrader={"grade_id": "check_port_a_loop", "grade": true}
check("accelerate.port_a_loop", port_a_loop)

# %% [markdown]
# ## 2 · `token_mean`
#
# Sequences have different lengths. A batch is padded to its longest sequence, and the labels of the padding are −100, which the loss ignores. So micro-batches of the same shape have different numbers of tokens, and the mean of their mean losses is not the mean over all tokens: a token of a short micro-batch counts more. Until October 2024, Hugging Face's Trainer computed this wrong mean when it accumulated gradients on one device ([transformers #34191](https://github.com/huggingface/transformers/pull/34191)). The mean over several ranks was an option after [#34373](https://github.com/huggingface/transformers/pull/34373), and has been the default since [#39395](https://github.com/huggingface/transformers/pull/39395), of July 2025.
#
# `token_mean(accelerator, model, micro_batches)` runs forward and backward for all micro-batches of one step on this rank, so that afterwards
#
# - `.grad` is **the gradient of the mean loss over all tokens of all ranks**, as one process with all micro-batches would have it;
# - it returns this mean loss, the same on every rank.
#
# `micro_batches` is a list of (token ids, labels), both `[sequences, tokens]`; each label belongs to the logits of its own position. `model` is prepared (DDP), the accelerator was created with `gradient_accumulation_steps=len(micro_batches)`, and the optimizer steps after your function returns, not in it. A micro-batch may be all padding.

# %%
def token_mean_spec(model, all_micro_batches):
    """one process: the sum over all tokens, divided by their number"""
    total, tokens = 0, 0
    for ids, labels in all_micro_batches:
        logits = model(ids).flatten(0, 1)
        total += cross_entropy(logits, labels.flatten(), ignore_index=-100, reduction="sum")
        tokens += (labels != -100).sum()
    return total / tokens

# %% [markdown]
# Two micro-batches for each of two ranks, and their tokens:

# %%
def ragged(rank, i):
    torch.manual_seed(10 * rank + i)
    ids = torch.randint(11, (2, 8))
    lengths = torch.tensor([[1 + 4 * rank], [2 + 3 * i]])
    return ids, ids.masked_fill(torch.arange(8) >= lengths, -100)

def make_language_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))

everything = [ragged(rank, i) for rank in range(2) for i in range(2)]
right_loss = token_mean_spec(make_language_model(), everything).item()
print([int((labels != -100).sum()) for _, labels in everything], f"mean loss {right_loss:.4f}")

# %% [markdown]
# **Budget** · three messages a step: the gradients, the number of tokens, the loss · so each rank sends ≤ 1.05 × one ring all-reduce of the gradients per step, where these are large · no barrier.
#
# <details><summary>Hint 1 · who divides</summary>
#
# Start from the sum of the losses (`reduction="sum"`). After your division, two others follow: `accelerator.backward` divides the loss by the accumulation steps, and DDP averages the gradients over the ranks. What must you multiply by?
# </details>
# <details><summary>Hint 2 · when to count</summary>
#
# The divisor must be known before the first backward pass, and the labels are available from the start. `accelerator.reduce(tensor)` returns the sum over the ranks.
# </details>
# <details><summary>Hint 3 · the loss</summary>
#
# What you return is not what you pass to `backward`: nothing divides it afterwards. Add up the sums without their graph, and reduce once at the end.
# </details>

# %% nbgrader={"grade_id": "token_mean", "solution": true}
def token_mean(accelerator, model, micro_batches):
    """.grad and the loss: the mean over all tokens of all ranks and micro-batches"""
    ### BEGIN SOLUTION
    own_tokens = sum((labels != -100).sum() for _, labels in micro_batches)
    tokens = accelerator.reduce(own_tokens)
    divided_later = accelerator.num_processes * accelerator.gradient_accumulation_steps
    total = torch.zeros(())
    for ids, labels in micro_batches:
        with accelerator.accumulate(model):
            logits = model(ids).flatten(0, 1)
            loss = cross_entropy(logits, labels.flatten(), reduction="sum")
            accelerator.backward(loss * divided_later / tokens)
        total += loss.detach()
    return (accelerator.reduce(total) / tokens).item()
    ### END SOLUTION

# %% [markdown]
# Your step on two ranks, next to one process and to the mean of means. The gradient is that of the output layer's bias.

# %%
def mean_of_means(accelerator, model, micro_batches):
    means = []
    for ids, labels in micro_batches:
        with accelerator.accumulate(model):
            means.append(cross_entropy(model(ids).flatten(0, 1), labels.flatten()))
            accelerator.backward(means[-1])
    return accelerator.reduce(torch.stack(means).mean().detach(), "mean").item()

def one_step(step):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = accelerator.prepare(make_language_model())
    loss = step(accelerator, model, [ragged(accelerator.process_index, i) for i in range(2)])
    return loss, list(model.parameters())[-1].grad

# %%
model = make_language_model()
token_mean_spec(model, everything).backward()
rows = [["one process", f"{right_loss:.4f}", f"{model[1].bias.grad.norm():.4f}"]]
for name, step in {"token_mean": token_mean, "mean of means": mean_of_means}.items():
    loss, gradient = launch(one_step, step, world_size=2, device="cpu").outputs[0]
    rows.append([name, f"{loss:.4f}", f"{gradient.norm():.4f}"])
show_table({"step": "", "loss": "", "norm of the gradient": ""}, rows)

# %% nbgrader={"grade_id": "check_token_mean", "grade": true}
check("accelerate.token_mean", token_mean)

# %% [markdown]
# ## 3 · `metrics`
#
# Four ranks evaluate a model on ten samples. Ten is not a multiple of four, but collectives need the same number of batches on every rank. So a loader from `accelerator.prepare` starts over at the first sample to fill the last batches: the ranks evaluate twelve samples. `accelerator.gather` returns all twelve answers; `accelerator.gather_for_metrics` cuts off those that were added, **if the dataset has a length**.
#
# A **stream**, an iterable dataset without `__len__`, has none. By default, rank 0 reads it for all ranks, counts the last batch, and sends each rank its part; then `gather_for_metrics` is right. With `dispatch_batches=False`, every rank reads the stream itself, as is common when reading is slow. Then Accelerate does not know how many samples were added.
#
# `metrics(accelerator, model, loader)` returns the accuracy, right answers per sample of the dataset, **on every rank**. Model and loader are prepared, and the model is in evaluation mode, and stays in it. Each batch has three tensors: the samples' `index` in the dataset, `inputs` and `targets`. The model's answer is the class with the largest output.

# %%
class Stream(IterableDataset):
    """The samples of a TensorDataset, without its length."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return iter(self.dataset)

# %%
def metrics_spec(model, dataset):
    """One process: each sample once."""
    _, inputs, targets = dataset.tensors
    return (model(inputs).argmax(dim=1) == targets).sum().item() / len(dataset)

ten = TensorDataset(torch.arange(10), torch.eye(10), torch.tensor([0, 1, 2, 3, 0, 0, 0, 0, 0, 0]))
metrics_spec(nn.Identity(), ten)  # this model answers 0, 1, …, 9: the first four are right

# %% [markdown]
# **Budget** · each rank runs the model only on its own batches. (In the check it has no others: all numbers of other ranks' samples are NaN.)
#
# <details><summary>Hint 1 · which number to average</summary>
#
# None. An average over ranks contains the samples that were added, and an average over batches gives the samples of a short last batch more weight. Collect the answers of all ranks, and divide once, at the end.
# </details>
# <details><summary>Hint 2 · the stream</summary>
#
# A sample that was added has an index that you have seen before.
# </details>
# <details><summary>Hint 3 · two tensors at once</summary>
#
# `accelerator.gather` also takes a tuple of tensors, and returns them in the same order. Which Python type keeps one value for each index?
# </details>

# %% nbgrader={"grade_id": "metrics", "solution": true}
def metrics(accelerator, model, loader):
    """prepared model and loader  ->  right answers / samples of the dataset, on every rank"""
    ### BEGIN SOLUTION
    hit_by_index = {}
    for index, inputs, targets in loader:
        with torch.no_grad():
            hits = model(inputs).argmax(dim=1) == targets
        index, hits = accelerator.gather((index, hits))
        hit_by_index.update(zip(index.tolist(), hits.tolist()))
    return sum(hit_by_index.values()) / len(hit_by_index)
    ### END SOLUTION

# %% [markdown]
# The ten samples on four ranks, with a length and as a stream: the number of answers that the two calls return, and your accuracy.

# %%
def evaluate(dataset):
    each_reads = DataLoaderConfiguration(dispatch_batches=False)
    accelerator = Accelerator(cpu=True, dataloader_config=each_reads)
    loader = accelerator.prepare(DataLoader(dataset, batch_size=1))
    answers = {
        call: len(torch.cat([getattr(accelerator, call)(index) for index, *_ in loader]))
        for call in ("gather", "gather_for_metrics")
    }
    return answers, metrics(accelerator, nn.Identity(), loader)

# %%
rows = []
for name, dataset in {"with a length": ten, "a stream": Stream(ten)}.items():
    answers, accuracy = launch(evaluate, dataset, world_size=4).outputs[0]
    rows.append((name, *answers.values(), accuracy))
show_table({"dataset": "", **dict.fromkeys(answers, str), "your accuracy": ".3f"}, rows)

# %% nbgrader={"grade_id": "check_metrics", "grade": true}
check("accelerate.metrics", metrics)

# %% [markdown]
# ## 4 · `schedule`
#
# Your schedule is meant to warm up for 2 optimizer steps and to reach 0 after 8. On two ranks, it finishes after half as many steps. The reason is the prepared scheduler: Accelerate assumes that you planned it for one process, with a loader that is N times as long as each of the N ranks' loaders. So it makes **N steps for each step of the optimizer**. With `split_batches=True`, each batch of the loader is split over the ranks, the loader is not shortened, and the scheduler makes one step.
#
# With accumulation, a prepared scheduler counts only real steps of the optimizer; an unprepared one counts every call of `step`. The script calls it at every micro-batch.

# %%
def linear_schedule(optimizer, warmup_steps, total_steps):
    """lr × factor: rises to 1 over warmup_steps, then falls to 0 at total_steps"""
    def factor(step):
        if step < warmup_steps:
            return step / warmup_steps
        return max(0, (total_steps - step) / (total_steps - warmup_steps))

    return LambdaLR(optimizer, factor)

# %% [markdown]
# The training loop is the same for all schedules:

# %%
def prepared(accelerator, split_batches, batches=8, lr=0.1):
    """`batches` for each rank, however many ranks there are"""
    ranks, model = accelerator.num_processes, nn.Linear(2, 1)
    loader = DataLoader(torch.ones(batches * ranks, 2), batch_size=ranks if split_batches else 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return accelerator.prepare(model, optimizer, loader)

# %%
def rates(schedule, accumulation=1, split_batches=False):
    """The learning rate at each optimizer step."""
    splits = DataLoaderConfiguration(split_batches=split_batches)
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=accumulation, dataloader_config=splits
    )
    model, optimizer, loader = prepared(accelerator, split_batches, batches=8 * accumulation)
    scheduler = schedule(accelerator, optimizer, warmup_steps=2, total_steps=8)
    found = []
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).mean())
            if accelerator.sync_gradients:
                found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return found

# %% [markdown]
# The learning rate that you want at each optimizer step, on any number of ranks, and the one that you get on two ranks if you prepare the scheduler as it is:

# %%
def schedule_spec(warmup_steps, total_steps, lr=0.1):
    """In plain PyTorch, in one process."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler, found = linear_schedule(optimizer, warmup_steps, total_steps), []
    for _ in range(total_steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found

# %%
def as_it_stands(accelerator, optimizer, warmup_steps, total_steps):
    return accelerator.prepare(linear_schedule(optimizer, warmup_steps, total_steps))

too_fast = launch(rates, as_it_stands, world_size=2, device="cpu")
print("planned: ", *(f"{rate:.3f}" for rate in schedule_spec(2, 8)))
print("on two ranks:", *(f"{rate:.3f}" for rate in too_fast.outputs[0]))

# %% [markdown]
# Write `schedule(accelerator, optimizer, warmup_steps, total_steps)`, which returns the scheduler for the loop above. Both numbers are **optimizer steps** (no warm-up is 0 of them), and the learning rate at optimizer step k has to be the same on 1, 2 and 4 ranks, with or without accumulation and `split_batches`. The optimizer is already prepared.
#
# **Budget** · a few lines. `accelerator.num_processes` and `accelerator.split_batches` have what you need.
#
# <details><summary>Hint 1 · two ways to count</summary>
#
# The scheduler counts its own steps. After k optimizer steps it has made k · N of them, or k.
# </details>
# <details><summary>Hint 2 · what has to be larger</summary>
#
# If the scheduler makes N steps at a time, the warm-up takes N times as many of them. What else does?
# </details>
# <details><summary>Hint 3 · accumulation</summary>
#
# None of your numbers depends on it: a prepared scheduler ignores the calls between two optimizer steps.
# </details>

# %% nbgrader={"grade_id": "schedule", "solution": true}
def schedule(accelerator, optimizer, warmup_steps, total_steps):
    """steps of the optimizer  ->  a scheduler for the loop above"""
    ### BEGIN SOLUTION
    each = 1 if accelerator.split_batches else accelerator.num_processes
    scheduler = linear_schedule(optimizer, warmup_steps * each, total_steps * each)
    return accelerator.prepare(scheduler)
    ### END SOLUTION

# %% [markdown]
# The learning rate on 1, 2 and 4 ranks, with your schedule. All blue lines should lie on the planned one:

# %%
runs = {"1 rank": (1, 1, False), "2 ranks, accumulation": (2, 2, False)}
runs |= {"4 ranks": (4, 1, False), "4 ranks, split_batches": (4, 1, True)}
planned, yours, rows = schedule_spec(2, 8), {}, []
for name, (ranks, *options) in runs.items():
    yours[name] = launch(rates, schedule, *options, world_size=ranks, device="cpu").outputs[0]
    rows.append((name, max(abs(own - rate) for own, rate in zip(yours[name], planned, strict=True))))
show_table({"run": "", "differs from the plan by at most": ".2g"}, rows)

# %%
figure, axes = plt.subplots(figsize=(7, 2.8))
axes.plot(planned, color=palette.PREDICTED, linewidth=8, alpha=0.5, label="planned")
axes.plot(too_fast.outputs[0], "o-", color=palette.ERROR, label="2 ranks, as it stood")
for marker, (name, found) in zip("os^x", yours.items(), strict=True):
    axes.plot(found, f"{marker}-", color=palette.MEASURED, fillstyle="none", label=name)
axes.set(xlabel="optimizer step", ylabel="learning rate")
axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
figure.tight_layout()

# %% nbgrader={"grade_id": "check_schedule", "grade": true}
check("accelerate.schedule", schedule)

# %% [markdown]
# ## 5 · `save_everything`
#
# A run of three weeks is stopped and restarted many times. That should not change the result: **not a single bit**. Here is a small job: a model with dropout, AdamW, a learning rate that falls in each step, a running average of the weights, and a shuffled loader. Model, optimizer and loader are prepared, the rest is not. (The job steps the scheduler; if it were prepared, it would step N times as often.)

# %%
class Average:
    """A running average of a model's weights."""

    def __init__(self, model):
        self.weights = [each.detach().clone() for each in model.parameters()]

    def update(self, model):
        for own, each in zip(self.weights, model.parameters(), strict=True):
            own.lerp_(each.detach(), 0.1)

    def state_dict(self):
        return {"weights": self.weights}

    def load_state_dict(self, state):
        self.weights = state["weights"]

# %%
class Progress:
    """The number of steps that are done."""

    def __init__(self):
        self.steps = 0

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]

# %%
class Job:
    """Has model, optimizer, loader (prepared), scheduler, average, progress (not prepared)"""

    def __init__(self, accelerator, seed):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        self.average, self.progress, self.losses = Average(model), Progress(), []
        x = torch.linspace(-1, 1, 12 * 4).view(12, 4)
        dataset = TensorDataset(x, x.sum(dim=1, keepdim=True))
        loader = DataLoader(dataset, batch_size=2, shuffle=True, generator=torch.Generator())
        self.model, self.optimizer, self.loader = accelerator.prepare(model, optimizer, loader)
        self.accelerator = accelerator
        torch.manual_seed(seed + dist.get_rank())  # for dropout, each rank its own

    def step(self, batch):
        inputs, targets = batch
        loss = (self.model(inputs) - targets).square().mean()
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.average.update(self.model)
        self.progress.steps += 1
        self.losses.append(loss.item())

# %%
def save_everything_spec(accelerator, job, folder, until):
    """The uninterrupted run: nothing is saved."""
    while job.progress.steps < until:
        for batch in job.loader:
            job.step(batch)
            if job.progress.steps == until:
                break

def start(train, seed, folder, until):
    seeded = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=7)
    accelerator = Accelerator(cpu=True, dataloader_config=seeded)
    job = Job(accelerator, seed)
    train(accelerator, job, folder, until)
    return job.losses

# %%
whole_run = launch(start, save_everything_spec, 0, None, 8, world_size=2)
print("the losses of rank 0:", *(f"{loss:.4f}" for loss in whole_run.outputs[0]))

# %% [markdown]
# `save_everything(accelerator, job, folder, until)` runs on every rank with a new job. If the folder exists, it has the checkpoint of an earlier call, and the job continues from there; a new job has different weights and different random numbers. It runs steps until `until` steps are done in total, leaves a checkpoint in `folder`, a `Path`, and returns nothing. The ranks share a disk. In the check, each start is a new process on every rank, and only the files in `folder` remain of the one before.
#
# `accelerator.save_state(folder)` saves all that was prepared, and each rank's random states: those of PyTorch, NumPy and Python. It saves nothing about the loader here.
#
# This accelerator has `use_seedable_sampler=True`: the order of an epoch depends on a seed, which is the same at each start, and on the epoch's number, which the loader counts from 0. (The loader also has its own random generator. Without one, each new iterator draws a number from PyTorch's global random state, so a restart in the middle of an epoch draws one more than the uninterrupted run, and all later dropout differs.)
#
# **Budget** · exactly the steps that remain · losses and running average as in an uninterrupted run: bit for bit on two ranks, within 10⁻⁹ on more.
#
# On more ranks, the last bit may differ: DDP rebuilds its buckets after its first step, so a new process adds the ranks' gradients in another order. Two numbers have only one sum.
#
# <details><summary>Hint 1 · what is not prepared</summary>
#
# `accelerator.register_for_checkpointing(…)` takes objects with `state_dict` and `load_state_dict`. Three parts of the job need it, before `load_state`.
# </details>
# <details><summary>Hint 2 · the position in the data</summary>
#
# `divmod(job.progress.steps, len(job.loader))` gives the epoch and the number of its batches that are used. `job.loader.set_epoch(epoch)` sets the number of the epoch; `skip_first_batches(job.loader, n)` returns a loader that begins after n batches of that epoch.
# </details>
# <details><summary>Hint 3 · ranks and random states</summary>
#
# `save_state` writes the file `random_states_{rank}.pkl` on each rank and the others on the main process, so all ranks call it. `load_state` restores the random states; setting a seed or drawing a random number after it would change them again.
# </details>

# %% nbgrader={"grade_id": "save_everything", "solution": true}
def save_everything(accelerator, job, folder, until):
    """a new job, on every rank  ->  `until` steps are done, folder has a checkpoint"""
    ### BEGIN SOLUTION
    accelerator.register_for_checkpointing(job.scheduler, job.average, job.progress)
    if folder.exists():
        accelerator.load_state(folder)
    while job.progress.steps < until:
        epoch, used = divmod(job.progress.steps, len(job.loader))
        job.loader.set_epoch(epoch)
        for batch in skip_first_batches(job.loader, used):
            job.step(batch)
            if job.progress.steps == until:
                break
    accelerator.save_state(folder)
    ### END SOLUTION

# %% [markdown]
# Stopped after four steps, in the second epoch, and restarted with another seed: the losses of rank 1, and where they differ from those of the uninterrupted run.

# %%
with tempfile.TemporaryDirectory() as name:
    folder = Path(name, "checkpoint")
    losses = launch(start, save_everything, 0, folder, 4, world_size=2).outputs[1]
    losses += launch(start, save_everything, 1000, folder, 8, world_size=2).outputs[1]
    print("saved:", *sorted(path.name for path in folder.iterdir()))
for step, (loss, whole) in enumerate(zip(losses, whole_run.outputs[1])):
    print(f"step {step}: {loss:.6f}", "the same bits" if loss == whole else f"instead of {whole:.6f}")

# %% nbgrader={"grade_id": "check_save_everything", "grade": true}
check("accelerate.save_everything", save_everything)

# %% [markdown]
# ## 6 · What goes wrong after 100 steps, and after 200?
#
# A colleague fine-tunes a model with DeepSpeed's ZeRO-2, through Accelerate, on 16 ranks, and writes: "Gradients are clipped at 0.5. Warm-up takes the first 100 of 1,000 steps. Every 200 steps the run saves everything that it needs to continue." The JSON file has 2 accumulation steps and no key for clipping. This is the script:
#
# ```python
# accelerator = Accelerator(gradient_accumulation_steps=2)
# optimizer = AdamW(model.parameters(), lr=2e-5)
# scheduler = LambdaLR(optimizer, lambda step: min(1, (step + 1) / 100))
# model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
# for inputs, targets in loader:
#     with accelerator.accumulate(model):
#         accelerator.backward(loss_of(model, inputs, targets))
#         accelerator.clip_grad_norm_(model.parameters(), 0.5)
#         optimizer.step()
#         scheduler.step()
#         optimizer.zero_grad()
#     if accelerator.sync_gradients and model.global_steps % 200 == 0:
#         if accelerator.is_main_process:
#             accelerator.save_state(f"step_{model.global_steps}")
# ```
#
# What really happens? Give the limit on the gradients' norm, the number of warm-up steps, what happens at step 200, and what a resumed run would repeat. Which of these mistakes raise no error? Write three to six sentences.

# %% [markdown] nbgrader={"grade_id": "after_100_and_200_steps", "grade": true, "solution": true, "points": 1}
# ### BEGIN SOLUTION
# Gradients are clipped at 1.0, DeepSpeed's default: it clips by itself, and under it `clip_grad_norm_` only returns the norm. There is no error.
#
# The prepared scheduler steps 16 times per optimizer step, so warm-up is over after 7 steps, not 100 (the eighth uses scheduler step 7 · 16 = 112). There is no error either. The schedule has to be written in scheduler steps: warm-up over 1,600.
#
# `save_state` is called only on rank 0. Under DeepSpeed, saving is collective: rank 0 waits for the others, which never call it, and the run hangs at step 200. All ranks have to call it. (With plain DDP it does not hang: only rank 0's random states are saved, which is silent, too.) And the scheduler's position is saved, but not the loader's: after a resume, the epoch starts over without `skip_first_batches`.
#
# Points: half for warm-up of 7 steps and clipping at 1.0, half for the hang in `save_state`. Half of each if one number is missing.
# ### END SOLUTION
