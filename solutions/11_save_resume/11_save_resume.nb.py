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
# # Lab 11 · Save, crash, resume, reshard
#
# In a long training run, some rank will be killed, and you do not know when. You will save a state that is sharded over many ranks, load it on a different number of ranks, make sure that a kill at any time leaves a complete checkpoint, and write a training loop that resumes after a kill as if nothing had happened.
#
# **In this lab you**
#
# - save a sharded state, and load it on a different number of ranks;
# - commit a checkpoint so that a kill at any moment leaves a complete one;
# - write a training loop that resumes bit for bit.
#
# **You need:** [chapter 11](../../course/chapters/11_save_resume.ipynb).
#
# <!-- table of points -->
#
# Each exercise has a task, a **spec** that runs, a **budget**, your cell, a picture of what your code did, and a check. Grading adds hidden cases: other sizes, other numbers of ranks. A mistake in one exercise never costs points in a later one.
#
# The ranks in this notebook share a disk, as in a cluster: each run below gets its own folder.

# %%
import json
import math
import os
import random
import shutil
import signal
import tempfile
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.nn.functional as F

from autograder import check
from shardlab import data, launch, models, show_table
from shardlab.errors import RankError
from shardlab.widgets import format_bytes, palette

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# ## 1 · `save_sharded`
#
# The state is sharded as in ZeRO: each tensor is flattened, padded with zeros until N divides its length, and cut into N equal **slices**; rank r has the r-th. Each rank writes its own file, so nothing is gathered, no rank has to hold the whole state, and N disks or N network cards work in parallel.
#
# `save_sharded(folder, slices, shapes)` runs on every rank. `slices` is a dict of this rank's slices, `shapes` a dict of the whole tensors' shapes, as lists. Write
#
# - on every rank: the dict of slices, with `torch.save`, to `folder / shard_name(rank, world_size)`
# - on rank 0 also: `index.json`, with `{"world_size": N, "shapes": shapes}`, because a different number of ranks may load the checkpoint.
#
# Files of an earlier save that have the same names are replaced.

# %%
def shard_name(rank, world_size):
    return f"shard_{rank}_of_{world_size}.pt"

# %%
def slices_spec(state, world_size):
    """{"w": [[1 2 3] [4 5 6]], …}, 4 ranks  ->  rank 0 {"w": [1 2], …} … rank 3 {"w": [0 0], …}"""
    padded = {k: F.pad(v.flatten(), (0, -v.numel() % world_size)) for k, v in state.items()}
    return [{k: v.chunk(world_size)[r] for k, v in padded.items()} for r in range(world_size)]

slices_spec({"w": torch.arange(1, 7).view(2, 3), "b": torch.arange(7, 10)}, world_size=4)

# %% [markdown]
# **Budget** · sends ≤ 4 KiB per rank: a barrier, but no tensor · writes the bytes of its slices and ≤ 8 KiB more (and 4 KiB for the index).
#
# <details><summary>Hint 1 · two files with the same name</summary>
#
# On a shared disk, the last rank to write a file overwrites the others. So every rank needs its own file name, and only one rank writes `index.json`.
# </details>
# <details><summary>Hint 2 · bytes</summary>
#
# A slice is a **view** of a longer tensor, and `torch.save` writes all of a view's storage, including the other ranks' slices. A `clone()` has storage only for its own elements.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Two steps. On every rank: a new dict with a copy of each slice, one `torch.save`. On one rank only: a dict with two keys, as JSON text (`json.dumps`, `Path.write_text`).
# </details>

# %% nbgrader={"grade_id": "save_sharded", "solution": true}
def save_sharded(folder, slices, shapes):
    """folder a Path, slices {name: [length]}, shapes {name: [int, …]}  ->  files in folder"""
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    own = {name: each.clone() for name, each in slices.items()}
    torch.save(own, folder / shard_name(rank, world_size))
    if rank == 0:
        index = {"world_size": world_size, "shapes": shapes}
        (folder / "index.json").write_text(json.dumps(index))
    ### END SOLUTION

# %% [markdown]
# A GPT of 0.3 million parameters in fp32, on four ranks. Together the four files hold the state once.

# %%
def gpt_state():
    torch.manual_seed(0)
    return {name: each.detach() for name, each in models.gpt("0.3M").named_parameters()}

def save_gpt(folder):
    state, n = gpt_state(), dist.get_world_size()
    shapes = {name: list(each.shape) for name, each in state.items()}
    save_sharded(folder, slices_spec(state, n)[dist.get_rank()], shapes)

# %%
checkpoint = Path(tempfile.mkdtemp())
run = launch(save_gpt, checkpoint, world_size=4)
in_memory = sum(each.numel() * 4 for each in gpt_state().values())
print("sent:", run.traffic.sent_by_rank.sum(), "bytes; the state in memory:", format_bytes(in_memory))
show_table(
    {"file": "", "size": format_bytes},
    [(path.name, path.stat().st_size) for path in sorted(checkpoint.iterdir())],
)

# %% nbgrader={"grade_id": "check_save_sharded", "grade": true}
check("save_resume.save_sharded", save_sharded)

# %% [markdown]
# ## 2 · `load_sharded`
#
# After a crash there may be fewer nodes than before, or more. So M ranks load what N ranks saved: the state is **resharded** on loading.
#
# `load_sharded(folder)` returns this rank's slices for the **current** number of ranks: a dict of tensors of the saved dtypes, each flattened, padded with zeros and cut for M ranks. It must not open every file: if a thousand ranks each read a whole checkpoint, the disks have to deliver it a thousand times.
#
# - Every rank has at least one element of each tensor.
# - The order of the tensors in a file can differ from that in the index.
# - Files that another number of ranks saved earlier may still be in the folder.
# - A process may load several checkpoints, also a newer one from the same folder. A newer save may overwrite the files: that must not change what was loaded before.

# %%
def reshard_spec(slices_by_rank, shapes, world_size):
    """One process: concatenate, cut off the padding, slice again."""
    whole = {
        name: torch.cat([slices[name] for slices in slices_by_rank])[: math.prod(shape)]
        for name, shape in shapes.items()
    }
    return slices_spec(whole, world_size)

reshard_spec(slices_spec({"w": torch.arange(1, 7)}, 4), {"w": [6]}, world_size=3)

# %% [markdown]
# **Budget** · opens only files that contain at least one element of its slices; padding does not count. In cases with "few files" in their name, to open another file is an error.
#
# <details><summary>Hint 1 · the lengths of slices</summary>
#
# `index.json` has the number of ranks that saved and the shapes. A tensor of n elements was cut into slices of ⌈n/N⌉, and is now cut into slices of ⌈n/M⌉: `-(-n // N)` rounds up.
# </details>
# <details><summary>Hint 2 · which files</summary>
#
# This rank now has elements `start` to `stop` of the n (without padding). Element i is in file `i // old`, where `old` is the length of an old slice, at position `i - file * old`.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# One loop over the tensors, and in it one over the files from that of `start` to that of `stop - 1`. Cut each file's slice at both ends: only in the first file does this rank's part begin after position 0. Join the pieces, then pad. Each file has slices of all tensors, so keep what you have opened in a dict. `torch.load(path, weights_only=True, mmap=True)` reads only the parts that you use from the disk; its tensors are views of the file, so return copies.
# </details>

# %% nbgrader={"grade_id": "load_sharded", "solution": true}
def load_sharded(folder):
    """folder a Path  ->  {name: [length]}, this rank's slices for the current world size"""
    ### BEGIN SOLUTION
    index = json.loads((folder / "index.json").read_text())
    rank, world_size, opened, slices = dist.get_rank(), dist.get_world_size(), {}, {}
    for name, shape in index["shapes"].items():
        elements = math.prod(shape)
        old, new = -(-elements // index["world_size"]), -(-elements // world_size)
        start, stop = rank * new, min((rank + 1) * new, elements)
        pieces = []
        for shard in range(start // old, (stop - 1) // old + 1):
            if shard not in opened:
                path = folder / shard_name(shard, index["world_size"])
                opened[shard] = torch.load(path, weights_only=True, mmap=True)
            piece = opened[shard][name]
            pieces.append(piece[max(start - shard * old, 0) : stop - shard * old])
        own = torch.cat(pieces)
        slices[name] = F.pad(own, (0, new - len(own)))
    return slices
    ### END SOLUTION

# %% [markdown]
# Load the GPT that four ranks saved above on two and on three ranks, concatenate the slices and compare with the original.

# %%
def load_gpt(folder):
    return load_sharded(folder)

shapes = {name: list(each.shape) for name, each in gpt_state().items()}
for world_size in (2, 3):
    loaded = launch(load_gpt, checkpoint, world_size=world_size).outputs
    (whole,) = reshard_spec(loaded, shapes, world_size=1)
    equal = all(torch.equal(whole[name], each.flatten()) for name, each in gpt_state().items())
    print(f"on {world_size} ranks, rank 0 has {sum(map(len, loaded[0].values())):,} elements.", end=" ")
    print("Concatenated:", "bit-equal" if equal else "NOT what was saved")

# %% nbgrader={"grade_id": "check_load_sharded", "grade": true}
check("save_resume.load_sharded", load_sharded)

# %% [markdown]
# ## 3 · `atomic_commit`
#
# A rank may be killed while it writes. The files that it leaves must never be mistaken for a checkpoint. In this lab, a checkpoint is a folder named `step_` and eight digits, and every folder with such a name must be **complete**: `latest` relies on that.

# %%
def latest(root):
    """The newest checkpoint's folder, or None."""
    return max(Path(root).glob("step_????????"), default=None)

def name_of(step):
    return f"step_{step:08}"

# %% [markdown]
# `atomic_commit(root, step, write)` runs on every rank. `write(folder)` writes this rank's files into an existing folder; this may take a while. When the call returns on any rank, `root / name_of(step)` must contain the files of **all** ranks and nothing else.
#
# - A kill of any rank at any time leaves a complete newest checkpoint: either the new one or the one before it.
# - After a kill, the job is restarted, perhaps with fewer ranks. It commits the same step again, or the next one if that step is complete. So no folder has the final name when `atomic_commit` is called. Files that the killed run left behind must not make the restarted one fail or end up in its checkpoint.
# - At the end, even after a restart, `root` contains only checkpoints. Old ones stay.
# - Temporary files are in `root`, too: a rename works only within one file system.
# - In one call, no rank removes a file or folder that another rank has just made: for a moment it would be missing for all.

# %%
def commit_spec(checkpoints, step, files_by_rank, is_killed):
    """What root may contain: all of the new checkpoint or none of it."""
    return checkpoints if is_killed else {**checkpoints, step: files_by_rank}

commit_spec({1: ["a", "b"]}, 2, ["c", "d"], is_killed=False)

# %% [markdown]
# **Budget** · no kill breaks a checkpoint. The check kills a rank (SIGKILL) after each change that your code makes on disk. Then it inspects the disk and restarts the job.
#
# Its ranks take turns, in two orders: each runs until it waits in a collective. You only need `dist.barrier()`. A rank that waits in a loop for a file to appear keeps its turn, and the check stops it after 8 seconds. (A power failure, which needs `os.fsync`, is not part of this task.)
#
# <details><summary>How the check sees every change</summary>
#
# The operating system pauses each system call that changes a file (seccomp), whichever program makes it. If your system does not support that, your own check looks at the disk only between lines of Python code; grading always sees all changes. The ranks also have `all_reduce` and `broadcast`; with `async_op=True` a rank waits only when it calls `.wait()`.
# </details>
# <details><summary>Hint 1 · the one atomic step</summary>
#
# Renaming a folder is a single step of the file system: before it the new name does not exist, after it the folder is complete. Copying takes many steps. So write to a temporary folder first, then rename it.
# </details>
# <details><summary>Hint 2 · which rank does what</summary>
#
# One rank creates the temporary folder; the others must not write before it exists. One rank renames it, after all have written. And no rank returns before the rename. That makes three barriers, which every rank enters.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Prepare on one rank, write on all, publish on one, with a barrier after each. Two questions are left. What does the rank that prepares do if a killed run has left a folder under the temporary name? And which temporary names does `latest` never find, whatever the number of the step?
# </details>

# %% nbgrader={"grade_id": "atomic_commit", "solution": true}
def atomic_commit(root, step, write):
    """root a Path, step an int, write(folder)  ->  root/step_00000012, complete or absent"""
    ### BEGIN SOLUTION
    folder = root / "unfinished"
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    dist.barrier()
    write(folder)
    dist.barrier()
    if dist.get_rank() == 0:
        folder.rename(root / name_of(step))
    dist.barrier()
    ### END SOLUTION

# %% [markdown]
# A kill, on four real ranks that share a disk: rank 2 dies in the middle of writing its file in step 2. What is on disk then, and after a restart?

# %%
def write_in_two(folder, is_victim):
    path = Path(folder) / f"rank_{dist.get_rank()}.txt"
    path.write_text("half of it")
    if is_victim:
        os.kill(os.getpid(), signal.SIGKILL)
    path.write_text("half of it and the rest")

def commit_both(root, killed_in):
    for step in (1, 2):
        is_victim = dist.get_rank() == 2 and step == killed_in
        if latest(root) is None or latest(root).name < name_of(step):
            atomic_commit(root, step, partial(write_in_two, is_victim=is_victim))

# %%
root = Path(tempfile.mkdtemp())
for killed_in in (2, None):
    try:
        launch(commit_both, root, killed_in, world_size=4)
    except RankError as error:
        print("rank 2 was killed, as planned" if error.kind == "SIGKILL" else error.headline)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    show_table(
        {"folder": "", "file": "", "bytes": "d"},
        [(path.parent.name, path.name, path.stat().st_size) for path in files],
    )

# %% nbgrader={"grade_id": "check_atomic_commit", "grade": true}
check("save_resume.atomic_commit", atomic_commit)

# %% [markdown]
# ## 4 · `train_resumable`
#
# What has to be in a checkpoint so that a kill does not change the loss curve? Here is a training job with everything that a real one has: a model with dropout, Adam, a learning-rate schedule, a position in the data, a loss scale. The ranks train with data parallelism: parameters, optimizer, schedule and scale are the same on all ranks, but **random states are not**. `job.step()` runs one step on this rank's batch and returns the mean loss over all ranks.

# %%
class Stream:
    """This rank's batches of real text, from `position` on."""

    def __init__(self):
        self.position = 0

    def next(self):
        batch = data.batch(self.position, 2, 32, dist.get_rank(), dist.get_world_size())
        self.position += 1
        return batch

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]

# %%
class Scaler:
    """A loss scale as in lab 01: halved when gradients overflow, doubled after 4 good steps."""

    def __init__(self):
        self.scale, self.good_steps = 2.0**18, 0

    def step(self, optimizer, parameters):
        """Whether the optimizer stepped."""
        if not all(torch.isfinite(each.grad).all() for each in parameters):
            self.scale, self.good_steps = self.scale / 2, 0
            return False
        for each in parameters:
            each.grad /= self.scale
        optimizer.step()
        self.good_steps += 1
        if self.good_steps == 4:
            self.scale, self.good_steps = self.scale * 2, 0
        return True

    def state_dict(self):
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load_state_dict(self, state):
        self.scale, self.good_steps = state["scale"], state["good_steps"]

# %%
def warm_up_and_decay(step):
    return min((step + 1) / 4, 1) * 0.95**step

class Job:
    """Has model, optimizer, scheduler, stream and scaler, each with a state_dict(); step()"""

    def __init__(self):
        torch.manual_seed(0)  # the same parameters on every rank
        self.model = models.GPT(models.GPTConfig(2, 2, 64, 32, dropout=0.2))
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.Adam(self.parameters, lr=3e-3)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, warm_up_and_decay)
        self.stream, self.scaler = Stream(), Scaler()
        seed = random.SystemRandom().getrandbits(32)  # different random numbers at each start
        torch.manual_seed(seed)
        random.seed(seed)

    def step(self):
        tokens, targets = self.stream.next()
        if random.random() < 0.5:
            tokens = tokens.where(torch.rand(tokens.shape) < 0.9, 0)  # mask some
        loss = self.model(tokens, targets)
        self.optimizer.zero_grad()
        (loss * self.scaler.scale).backward()
        for each in self.parameters:
            each.grad = each.grad.half().float()  # round to 16 bits
            dist.all_reduce(each.grad, op=dist.ReduceOp.SUM)
            each.grad /= dist.get_world_size()
        if self.scaler.step(self.optimizer, self.parameters):
            self.scheduler.step()
        mean = loss.detach()
        dist.all_reduce(mean, op=dist.ReduceOp.SUM)
        return mean.item() / dist.get_world_size()

# %% [markdown]
# `train_resumable(root, job, steps, every)` runs on every rank.
#
# - At the start it resumes from the newest checkpoint, if there is one (`latest`). A killed run may have left an unfinished folder as well.
# - It trains until `steps` steps are done in total. Steps that the checkpoint contains are not run again, and their batches cannot be asked for again: in the check you would get zeros. A start that finds all steps done asks for no batch.
# - It commits a checkpoint after every `every` steps, counted from the first start, and at no other time: `atomic_commit`, with the number of steps done. It removes none. Older ones may be missing after a restart, so each contains everything that is needed.
# - Each file is written by only one rank: if several write the same file at once, the result can be a mixture.
# - Call no seed function: restore the checkpoint's random states.
# - It returns `{step: loss}` of the steps that **this** call has run, counted from 0.
#
# The check's ranks have `barrier`, `all_reduce`, `broadcast`, `all_gather`, `gather_object`, `all_gather_object` and `broadcast_object_list`.

# %%
def resume_spec(curve, killed_in, every):
    """The losses of an uninterrupted run  ->  what the restarted job has to return"""
    first = killed_in // every * every
    return {step: loss for step, loss in enumerate(curve) if step >= first}

resume_spec([3.0, 2.0, 1.5, 1.2, 1.1], killed_in=3, every=2)

# %% [markdown]
# **Budget** · losses after a kill are **bit-equal** to those of an uninterrupted run · a checkpoint has ≤ 1.1 times the bytes of the parameters and of Adam's two states, plus 16 KiB for each rank: what is the same on all ranks is stored once. (Names count as well, and 256 bytes for each file and folder.)
#
# <details><summary>Hint 1 · where random numbers come from</summary>
#
# Dropout draws from PyTorch's generator: `torch.get_rng_state()`, `torch.set_rng_state(state)`. `random.random()` draws from Python's: `random.getstate()`, `random.setstate(state)`. Each rank has its own of both.
# </details>
# <details><summary>Hint 2 · which rank writes what</summary>
#
# Rank 0 writes the five `state_dict()`s and the number of steps done; every rank writes its random states to its own small file. Every rank reads both files.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# After step s, s + 1 steps are done: that number names the checkpoint, and a restart continues with it. Define `write(folder)` inside your function, so that it sees the job as it is at that moment. Loading, before the first step, is the same in reverse; both files load with `weights_only=True`.
# </details>

# %% nbgrader={"grade_id": "train_resumable", "solution": true}
def train_resumable(root, job, steps, every):
    """root a Path, job a Job  ->  {step: loss} of the steps that this call ran"""
    ### BEGIN SOLUTION
    rank, done, losses = dist.get_rank(), 0, {}
    pieces = {name: getattr(job, name) for name in
              ("model", "optimizer", "scheduler", "stream", "scaler")}

    def write(folder):
        if rank == 0:
            shared = {name: piece.state_dict() for name, piece in pieces.items()}
            torch.save({"done": done, **shared}, folder / "shared.pt")
        own = {"torch": torch.get_rng_state(), "python": random.getstate()}
        torch.save(own, folder / f"rank_{rank}.pt")

    newest = latest(root)
    if newest is not None:
        shared = torch.load(newest / "shared.pt", weights_only=True)
        own = torch.load(newest / f"rank_{rank}.pt", weights_only=True)
        for name, piece in pieces.items():
            piece.load_state_dict(shared[name])
        torch.set_rng_state(own["torch"])
        random.setstate(own["python"])
        done = shared["done"]
    while done < steps:
        losses[done] = job.step()
        done += 1
        if done % every == 0:
            atomic_commit(root, done, write)
    return losses
    ### END SOLUTION

# %% [markdown]
# Two ranks, 24 steps, a checkpoint after every 5. Rank 1 is killed in step 17, and the job is restarted. Another run starts from the checkpoint of step 5 without an interruption; its curve is the wide line.

# %%
def train(root, killed_in=None):
    job = Job()
    def die_in_step(*_):
        if dist.get_rank() == 1 and job.stream.position == killed_in + 1:
            os.kill(os.getpid(), signal.SIGKILL)
    if killed_in is not None:
        job.model.register_forward_hook(die_in_step)
    return train_resumable(root, job, steps=24, every=5)

# %%
root, copied = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
options = {"world_size": 2, "device": "cpu"}
try:
    launch(partial(train, killed_in=17), root, **options)
except RankError as error:
    print("rank 1 was killed, as planned" if error.kind == "SIGKILL" else error.headline)
print("the newest checkpoint:", latest(root).name)

# %%
shutil.copytree(root / name_of(5), copied / name_of(5))  # this run is not interrupted
resumed, uninterrupted = (launch(train, each, **options).outputs[0] for each in (root, copied))
equal = all(uninterrupted[step] == loss for step, loss in resumed.items())
print(f"steps {min(resumed)} to {max(resumed)}:", "bit-equal" if equal else "NOT equal")
figure, axes = plt.subplots(figsize=(6.5, 2.6))
axes.plot(uninterrupted.keys(), uninterrupted.values(),
          color=palette.PREDICTED, linewidth=5, label="uninterrupted")
axes.plot(resumed.keys(), resumed.values(), color=palette.MEASURED, label="resumed")
axes.axvline(17, color=palette.ERROR, linewidth=1, label="killed in step 17")
axes.set(xlabel="step", ylabel="loss", xticks=range(5, 24, 3))
axes.legend(frameon=False)
figure.tight_layout()

# %% nbgrader={"grade_id": "check_train_resumable", "grade": true}
check("save_resume.train_resumable", train_resumable)

# %% [markdown]
# ## 5 · How often?
#
# You train a model of 70 billion parameters in bf16 with Adam on 1024 GPUs, and on average something fails every 5 hours. A checkpoint contains the parameters in bf16 and, in fp32, the optimizer's master copy and two states. The storage accepts 20 GB/s from all ranks together; ranks wait while they save. How large is a checkpoint, how long does it take if each rank writes its slice, and how long if rank 0 writes all of it at 2 GB/s? If a checkpoint takes δ seconds and failures occur every M seconds on average, saving every $\sqrt{2\,\delta M}$ seconds loses the least time (Young, 1974): how often would you save, and what fraction of the time is lost to saving and to repeated steps, in both cases? What would you do to lose less? Write five to eight sentences.

# %% [markdown] nbgrader={"grade_id": "how_often", "grade": true, "solution": true, "points": 2}
# ### BEGIN SOLUTION
# 2 + 12 = 14 bytes for each of 70 · 10⁹ parameters are 980 GB. At 20 GB/s, each rank writing its slice of 0.96 GB, that takes 49 s; through rank 0 at 2 GB/s it takes 490 s, and rank 0 would have to gather 980 GB, more than one host can hold.
#
# With M = 18,000 s the best interval for sharded saving is $\sqrt{2 \cdot 49 \cdot 18000}$ = 1328 s, about 22 minutes: saving takes 49/1328 = 3.7% of the time, and each failure repeats half an interval, 664 s, 664/18000 = 3.7%; 7.4% in total. Through rank 0 it is $\sqrt{2 \cdot 490 \cdot 18000}$ = 4200 s, 70 minutes: 11.7% and 11.7%, 23% in total. (A restart costs more, the same in both.)
#
# To lose less, let ranks wait only until their slices are copied to host memory, and write from there while training continues (asynchronous saving): δ falls to the seconds of the copy, and you can save every few minutes. Or make the state smaller, or the storage faster; the lost time is proportional to √δ.
#
# Points: 1 for the size and both times, 1 for the intervals, the fractions lost and a sensible remedy.
# ### END SOLUTION
