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
# # 11 · Save, crash, resume, reshard
#
# The more devices a training run uses, the sooner one of them fails, and one failure stops all of them. In 54 days on 16,384 GPUs, the training of Llama 3 405B was unexpectedly interrupted 419 times (Llama team 2024, section 3.3.4): once every three hours. Only what is on disk survives.
#
# The question of this chapter: what has to be on that disk so that the crash makes no difference to the training?
#
# **After this chapter you can**
#
# - list everything that a checkpoint has to contain so that a resumed run gives the same bits;
# - save so that a kill at any moment leaves a complete checkpoint;
# - load a sharded checkpoint on another number of ranks, and choose how often to save.
#
# **You need:** [05 FSDP](05_fsdp.ipynb).

# %% [markdown]
# <details open><summary>Four ranks write four files, and one rename makes them a checkpoint</summary>
#
# [![Animation: Four ranks write four files, and one rename makes them a checkpoint](openers/11_save_resume.svg)](openers/11_save_resume.svg)
#
# Each rank writes its slice into a folder under a temporary name. Until all have finished, a restart ignores that folder and uses the checkpoint before it. Then one rank renames the folder: at that moment, and not a file earlier, the new checkpoint exists. (Recorded from real processes.)
#
# </details>

# %% jupyter={"source_hidden": true}
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist

from shardlab import data, holds, launch, measure, models, show_table
from shardlab.errors import RankError
from shardlab.estimate import checkpoint
from shardlab.trace.disk_recorder import disk_changes, snapshot
from shardlab.widgets import disk_moments, format_bytes, palette, predict

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)
disk = Path(tempfile.mkdtemp())  # shared by all ranks, like a cluster's file system

# %% [markdown]
# ## What must be saved
#
# We train with data parallelism and everything a real run has: dropout, Adam, a learning-rate schedule, a loss scale, a position in the data. Parameters, optimizers, schedules and scales are the same on all ranks; batches and random numbers differ.

# %%
def warm_up_and_decay(step):
    return min((step + 1) / 8, 1) * 0.97**step

def new_job():
    torch.manual_seed(0)  # the same parameters on every rank
    model = models.GPT(models.GPTConfig(2, 2, 64, 32, dropout=0.2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up_and_decay)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18)
    torch.manual_seed(random.SystemRandom().getrandbits(32))  # each start draws its own numbers
    return {"parameters": model, "optimizer": optimizer, "schedule": scheduler,
            "loss scale": scaler, "position": 0}

# %% [markdown]
# One step. The loss scale matters only if something overflows: here gradients above 2¹⁵ count as overflowed, as in a narrow format.

# %%
def average(parameters):
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    flat[flat.abs() > 2.0**15] = torch.inf
    for parameter, mean in zip(parameters, flat.split([each.numel() for each in parameters])):
        parameter.grad = mean.view_as(parameter)

# %%
def one_step(job):
    model, scaler = job["parameters"], job["loss scale"]
    batch = data.batch(job["position"], 2, 32, dist.get_rank(), dist.get_world_size())
    loss = model(*batch)
    scaler.scale(loss).backward()
    average(list(model.parameters()))
    scaler.step(job["optimizer"])  # skipped if a gradient has overflowed
    scale = scaler.get_scale()
    scaler.update()
    if scaler.get_scale() >= scale:
        job["schedule"].step()
    job["optimizer"].zero_grad()
    job["position"] += 1
    return loss.item()

# %% [markdown]
# Next, collect everything that changes from step to step. PyTorch's objects have a `state_dict()`; the random state belongs to the process.

# %%
def everything(job):
    state = {name: each.state_dict() for name, each in job.items() if name != "position"}
    state |= {"position": job["position"], "random state": torch.get_rng_state()}
    return state

# %%
def restore(job, state, forget=None):
    for name, each in state.items():
        if name == forget:
            continue
        if name == "random state":
            torch.set_rng_state(each)
        elif name == "position":
            job[name] = each
        else:
            job[name].load_state_dict(each)

# %% [markdown]
# Each rank trains 8 steps, writes everything to its own file, and trains 8 more. Then it restarts from the file: once with everything, and once for each piece, without that piece. The restart with everything must give **bit-equal** losses. **Which missing pieces already change the first loss after the restart?**

# %%
PIECES = ["parameters", "optimizer", "schedule", "loss scale", "position", "random state"]
predicted_in_first_loss = predict("Missing pieces that change the first loss", options=PIECES, several=True)
predicted_in_first_loss

# %%
def uninterrupted_and_resumed(folder):
    job, path = new_job(), folder / f"first_{dist.get_rank()}.pt"
    for _ in range(8):
        one_step(job)
    torch.save(everything(job), path)
    curves = {"uninterrupted": [one_step(job) for _ in range(8)]}
    for forget in (None, *torch.load(path, weights_only=True)):
        job = new_job()
        restore(job, torch.load(path, weights_only=True), forget)
        curves[forget or "nothing"] = [one_step(job) for _ in range(8)]
    return curves

# %%
curves = launch(uninterrupted_and_resumed, disk, world_size=2, device="cpu").outputs[0]

# %%
uninterrupted = curves.pop("uninterrupted")
first = {}
for forgotten, losses in curves.items():
    differ = [step for step, loss in enumerate(losses) if loss != uninterrupted[step]]
    first[forgotten] = differ[0] if differ else None

# %%
at_once = [name for name, step in first.items() if step == 0]
predicted_in_first_loss.compare(at_once, {"those that change some loss": PIECES})

# %%
show_table({"forgotten": "", "first loss that differs": "d"}, first.items())
holds("only with everything restored, all losses are bit-equal", [*first.values()].count(None), 1)

# %%
figure, axes = plt.subplots(figsize=(7, 3))
axes.plot(range(8, 16), uninterrupted, color=palette.PREDICTED, linewidth=6, label="uninterrupted, or nothing forgotten")
for style, (forgotten, losses) in enumerate(list(curves.items())[1:]):
    line = {"linestyle": ["-", "--", "-.", ":"][style % 4], "color": palette.PARTS[style % 6]}
    axes.plot(range(8, 16), losses, label=f"without {forgotten}", **line)
axes.set(xlabel="step", ylabel="loss of rank 0")
axes.legend(frameon=False, ncols=2, fontsize=9)
figure.tight_layout()

# %% [markdown]
# If parameters, position or random state are missing, the next forward pass already differs. Without the optimizer's averages, the schedule or the loss scale the first loss is right and later ones are not; such a curve looks like noise, so the mistake can go unnoticed for months. That is why a test of resuming compares bits, not curves.
#
# How large is each piece?

# %%
def size_on_disk(piece, path=disk / "piece.pt"):
    torch.save(piece, path)
    return path.stat().st_size

pieces = torch.load(disk / "first_0.pt", weights_only=True)
show_table(
    {"piece": "", "on disk": format_bytes},
    [(name, size_on_disk(piece)) for name, piece in pieces.items()],
)

# %% [markdown]
# The optimizer is most of it. In fp32, parameters and Adam's two states take 12 bytes for each parameter; in 16-bit training it is 2 for the parameter and 12 for the optimizer with its fp32 master copy: $\mathbf{14\Psi}$ **bytes** for Ψ parameters. Gradients are not saved, since a step starts without them. BLOOM's authors write of its 176 billion parameters: "only the bf16 weights are 329GB, the full checkpoint with optimizer states is 2.3TB":

# %%
bloom = 176.247e9
weights, total = 2 * bloom / 2**30, checkpoint.checkpoint_bytes(bloom) / 2**30
print(f"BLOOM by formula: {weights:.0f} GiB of weights, {total:,.0f} GiB in total")
holds("as its authors write", [weights, total], [329, 2300], rtol=0.005, unit="GiB")

# %% [markdown]
# ## Which rank writes?
#
# In plain data parallelism every rank has everything, and rank 0 writes. With ZeRO, FSDP or tensor parallelism each has a slice. Then there are two ways: **rank 0 gathers** the slices and writes one file, or each rank writes **its slice** to its own file. Four ranks hold the parameters and both Adam states of a GPT of 3 million parameters, S bytes in total. **While rank 0 gathers and saves, how many bytes does it hold, in units of S? And how many do all ranks send in total?**

# %%
predicted_gather = predict("While rank 0 gathers and saves", unit="S", labels=["rank 0 holds", "all ranks send"])
predicted_gather

# %%
world_size = 4
elements = 3 * models.count_parameters(models.gpt("3M"))
elements -= elements % world_size
total_bytes = 4 * elements

# %%
def rank_0_saves(folder):
    own = torch.rand(elements // dist.get_world_size())
    with measure("save"):
        if dist.get_rank() == 0:
            whole = torch.empty(dist.get_world_size(), len(own))
            dist.gather(own, list(whole))
            torch.save(whole, folder / "whole.pt")
        else:
            dist.gather(own)
        dist.barrier()

# %%
def each_saves(folder):
    own = torch.rand(elements // dist.get_world_size())
    with measure("save"):
        torch.save(own, folder / f"slice_{dist.get_rank()}.pt")
        dist.barrier()

# %%
saves = {
    "rank 0": launch(rank_0_saves, disk, world_size=world_size, device="cpu", memory=True),
    "sharded": launch(each_saves, disk, world_size=world_size, device="cpu", memory=True),
}

# %%
gather = saves["rank 0"]
found = [gather.memory[0].peak_bytes / total_bytes, gather.traffic["save"].sent_by_rank.sum() / total_bytes]
named = {"the whole, without the slice that rank 0 has": [1, found[1]], "as if rank 0 sent to itself": [found[0], 1]}
predicted_gather.compare(found, named)

# %%
def cost_of(run):
    held = [rank.peak_bytes / total_bytes for rank in run.memory]
    sent = run.traffic["save"].sent_by_rank.sum() / total_bytes
    seconds = max(block.end_s - block.start_s for block in run.traffic["save"].blocks)
    return *held, sent, 1000 * seconds

held_by = {f"held by rank {rank}, in S": ".2f" for rank in range(world_size)}
show_table(
    {"saved by": "", **held_by, "sent, in S": ".2f", "took, ms": ".0f"},
    [(name, *cost_of(run)) for name, run in saves.items()],
)

# %% [markdown]
# The formula agrees with the measurement. If rank 0 saves everything, it holds $S$ plus a slice, and $\frac{N-1}{N} S$ crosses the network. If the ranks save their own slices, each holds its slice, and nothing crosses the network. Times on this machine say little, because all ranks share one disk.

# %%
figure, axes = plt.subplots(figsize=(7, 2.6))
for row, (name, run) in enumerate(saves.items()):
    predicted = np.array(checkpoint.held_bytes(total_bytes, world_size, sharded=name == "sharded"))
    measured = np.array([rank.peak_bytes for rank in run.memory])
    holds(f"{name}: held by each rank", measured, predicted, rtol=0.01, unit="bytes")
    at = np.arange(world_size) + 5 * row
    axes.bar(at - 0.2, predicted / 2**20, width=0.36, color=palette.PREDICTED)
    axes.bar(at + 0.2, measured / 2**20, width=0.36, color=palette.MEASURED)
    way = "each rank its slice" if name == "sharded" else "all through rank 0"
    axes.text(at[2], 11, way, ha="center", color=palette.PLOT_INK)
axes.set(ylabel="MiB held while saving", xticks=[*range(4), *range(5, 9)],
         xticklabels=[f"rank {rank}" for rank in range(4)] * 2)
axes.legend(["predicted", "measured"], frameon=False)
figure.tight_layout()

# %%
sent = saves["rank 0"].traffic["save"].sent_by_rank.sum()
gathered = checkpoint.gathered_bytes(total_bytes, world_size)
holds("sent to rank 0", sent, gathered, rtol=0.02, unit="bytes")
sent = saves["sharded"].traffic["save"].sent_by_rank.sum()
holds("sent if each rank saves its slice, over S", sent / total_bytes, below=0.01)

# %% [markdown]
# At scale: BLOOM was trained on 384 GPUs. Assume that each rank writes 2 GB/s and that the storage accepts 100 GB/s in total (round numbers, for an example):

# %%
speeds = {"rank_bytes_per_s": 2e9, "storage_bytes_per_s": 100e9}
size = checkpoint.checkpoint_bytes(bloom)
show_table({"saved": "", "seconds": ",.0f"}, [
    ("through rank 0", checkpoint.save_s(size, 384, sharded=False, **speeds)),
    ("sharded", checkpoint.save_s(size, 384, sharded=True, **speeds)),
])

# %% [markdown]
# And rank 0 would need room for BLOOM's 2.3 TB in one host's memory. So large models are saved sharded, which raises two questions. When are N files **one** checkpoint? And which ranks can load them?
#
# ## A kill during a step
#
# SIGKILL cannot be caught: no handler, no `finally`. The operating system's out-of-memory killer sends it, and so do schedulers when a time limit has passed. Rank 2 receives it in step 3:

# %%
def train_and_die(folder):
    for step in range(6):
        dist.all_reduce(torch.ones(1000))
        if dist.get_rank() == 2 and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / f"died_{dist.get_rank()}.txt").write_text(str(step))

# %%
try:
    launch(train_and_die, disk, world_size=4, device="cpu")
except RankError as error:
    print(error.headline)

# %% [markdown]
# All ranks are gone: the others cannot continue without the one that died, so the launcher ends them. What they had in memory is lost. What they wrote to disk stays:

# %%
files = sorted(disk.glob("died_*"))
show_table({"file": "", "step in it": ""}, [(path.name, path.read_text()) for path in files])

# %% [markdown]
# ## A kill during a save
#
# Now the worst case. Four ranks save every second step, always to the same four names. In step 4 rank 2 is killed just before it writes; the others have written. The job is restarted, and each rank loads its file. **How does the restart notice that something is wrong?**

# %%
NOTICED = ["a file is missing", "a file cannot be loaded", "a tensor has another shape", "not at all"]
predicted_notice = predict("How the restart notices the kill", options=NOTICED)
predicted_notice

# %%
def save_over_and_over(folder):
    for step in (2, 4):
        if dist.get_rank() == 2 and step == 4:
            dist.barrier()  # the others write first
            os.kill(os.getpid(), signal.SIGKILL)
        torch.save({"step": step, "own": torch.rand(1000)}, folder / f"model_{dist.get_rank()}.pt")
        if step == 4:
            dist.barrier()

# %%
try:
    launch(save_over_and_over, disk, world_size=4, device="cpu")
except RankError as error:
    killed = error

# %%
def how_a_restart_notices(paths):
    if not all(path.exists() for path in paths):
        return "a file is missing"
    try:
        owns = [torch.load(path, weights_only=True)["own"] for path in paths]
    except Exception:
        return "a file cannot be loaded"
    return "not at all" if {len(own) for own in owns} == {1000} else "a tensor has another shape"

paths = [disk / f"model_{rank}.pt" for rank in range(4)]
predicted_notice.compare(how_a_restart_notices(paths))

# %%
print(killed.headline)
print("steps in the files:", [torch.load(path, weights_only=True)["step"] for path in paths])

# %% [markdown]
# Each file is complete, all four load without an error, and together they form a state that the training was never in. So: **never overwrite a checkpoint**. Write each one to a new place.
#
# A half-written file is no better. Eight ranks write a file of 4 MiB again and again, in two ways: directly under its final name, and under a temporary name that is then changed to the final one. After a quarter of a second one rank is killed, and the launcher kills the others.

# %%
LINES = ["one line of 64 bytes; after the last line, the file says end...\n"] * 2**16

def put(path):
    with open(path, "w") as file:
        file.writelines(LINES)
        file.write("end")

# %%
def write_forever(folder):
    rank = dist.get_rank()
    put(folder / f"renamed_{rank}")
    dist.barrier()
    if rank == 0:
        threading.Timer(0.25, os.kill, (os.getpid(), signal.SIGKILL)).start()
    while True:
        put(folder / f"in_place_{rank}")
        put(folder / f"unfinished_{rank}")
        os.replace(folder / f"unfinished_{rank}", folder / f"renamed_{rank}")

# %%
try:
    launch(write_forever, disk, world_size=8, device="cpu")
except RankError as error:
    print(error.headline)
complete = {
    way: [path.read_text().endswith("end") for path in disk.glob(f"{way}_*")]
    for way in ("in_place", "unfinished", "renamed")
}
show_table(
    {"file": "", "there are": "d", "complete": "d"},
    [(way, len(each), sum(each)) for way, each in complete.items()],
)
holds("complete files of those that were renamed", sum(complete["renamed"]), 8)

# %% [markdown]
# A rename is **atomic**: until the rename the name refers to the old file, afterwards to the new one, and there is no state in between. So a file that got its name by a rename is always complete. This is an **atomic commit**, and it works for folders as well: N ranks write into a temporary folder, all wait for each other, and then one of them renames the folder. You will do that in lab 11, where the check kills your ranks after every single change that they make on disk.

# %% [markdown]
# ## The disk, moment by moment
#
# Four ways to save step 4 over a checkpoint of step 2. Each rank writes its own file, and then: the name stays the same; or each rank renames its file; or one rank renames the folder; or the same with `fsync`, which the next section explains.

# %%
def save_file(path, step, sync=False):
    with path.open("wb") as file:
        torch.save({"step": step, "own": torch.rand(4000)}, file)
        if sync:
            file.flush()
            os.fsync(file.fileno())

def in_place(step, folder):
    save_file(folder / f"rank_{dist.get_rank()}.pt", step)

def rename_files(step, folder):
    name = f"rank_{dist.get_rank()}.pt"
    save_file(folder / f"new_{name}", step)
    os.replace(folder / f"new_{name}", folder / name)

# %%
def rename_folder(step, folder, sync=False):
    rank, unfinished = dist.get_rank(), folder / "new"
    if rank == 0:
        unfinished.mkdir()
    dist.barrier()
    save_file(unfinished / f"rank_{rank}.pt", step, sync)
    dist.barrier()  # all files are written
    if rank == 0:
        os.rename(unfinished, folder / f"step_{step}")

def rename_synced_folder(step, folder):
    rename_folder(step, folder, sync=True)

# %% [markdown]
# After a failure, `restart` takes the newest folder, or the files if there are no folders, and returns the step that each rank would continue with. `disk_changes` records each change that a rank makes on the disk.

# %%
def restart(folder):
    newest = max(folder.glob("step_*"), default=folder)
    return [torch.load(newest / f"rank_{rank}.pt", weights_only=True)["step"] for rank in range(4)]

def recorded(save, step, folder):
    with disk_changes(folder) as changes:
        save(step, folder)
    return changes

# %%
ways = {"in place": in_place, "files renamed": rename_files, "folder renamed": rename_folder,
        "folder, with fsync": rename_synced_folder}
saves = {}
for way, save in ways.items():
    folder = Path(tempfile.mkdtemp(dir=disk))
    launch(save, 2, folder, world_size=4, device="cpu")
    before = snapshot(folder)
    saves[way] = before, launch(recorded, save, 4, folder, world_size=4, device="cpu")

# %%
moments = disk_moments(saves, restart)
moments

# %% [markdown]
# Move through the moments with the arrow keys. At each one the disk is rebuilt as it was then, and `restart` is called on it: the colors show what it returned. Saved in place, it is useless from the first change until the last: it cannot be loaded, or it is a mix of two steps. If each rank renames its file, every file is complete, but the first renamed file already makes a mix of two steps. Only the renamed folder is always one checkpoint, the old or the new one. The lower strip shows the same for a power failure.

# %%
loaded = {way: set(moments.found(way)) for way in ways}
holds("a renamed folder is the old or the new checkpoint", loaded["folder renamed"], {"old", "new"})
holds("renamed files can be a mix", loaded["files renamed"], {"old", "mix", "new"})
holds("in place, no moment can be used", not {"old", "new"} & set(moments.found("in place")[1:-1]))
after_power_failure = set(moments.found("folder, with fsync", "power"))
holds("after a power failure, too, if synced", after_power_failure, {"old", "new"})

# %% [markdown]
# In practice two more things matter:
#
# - **A power failure** also loses the operating system's cache. `os.fsync(file)` waits until a file's content is on the disk itself; call it before the rename. The new name is an entry in the folder around it, and the folder needs its own `fsync`, **after** the rename: `fd = os.open(folder, os.O_RDONLY); os.fsync(fd); os.close(fd)`. Until then a power failure may bring the old name back. If only the process is killed, you need neither. The lower strip above shows a disk that has lost all bytes that no `fsync` followed.
# - **Network file systems.** On NFS the server renames atomically (RFC 1813), but two things differ from a local disk: if the server restarts, a rename may report an error although it was done (rename(2), under "Bugs"), and other computers may see the old folder for up to a minute, from their caches (`acdirmax` in nfs(5)). So let the rank that renamed tell the others, and do not let them look for the name. On Lustre, a file system of many large clusters, no client sees stale names or data, according to its manual; for a power failure you need `fsync` there as well.
# - **Object stores**, such as S3, cannot rename folders. There the last file written is a small index of all others: if the index exists, so does everything in it. `torch.distributed.checkpoint` does this with its `.metadata`, DeepSpeed with its file `latest`.
#
# ## Load the checkpoint of 4 ranks on 2
#
# After a failure there may be fewer nodes than before. Then each rank has to read parts of several slices: with X the four old ranks and Y the two new ones, $W[I_X] \to W[I_Y]$ ([chapter 03](03_ring_all_reduce.ipynb)). PyTorch's **distributed checkpoint** (DCP) does this for DTensors, such as FSDP2's parameters: every rank writes its own slices, and the metadata records which part of which tensor is in which file.

# %%
def sharded_model():
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = models.gpt("0.3M")
    for unit in (*model.blocks, model):
        fully_shard(unit)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

def full_tensors(model):
    return {name: each.full_tensor().detach() for name, each in model.named_parameters()}

# %%
def save_with_dcp(folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = sharded_model()
    rank, n = dist.get_rank(), dist.get_world_size()
    model(*data.batch(0, 2, 32, rank, n)).backward()
    optimizer.step()
    dcp.save(dict(zip(("model", "optimizer"), get_state_dict(model, optimizer))), checkpoint_id=folder)
    return full_tensors(model)

# %%
def load_with_dcp(folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, optimizer = sharded_model()
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.load(states, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=states["model"],
                   optim_state_dict=states["optimizer"])
    return full_tensors(model), len(next(model.parameters()).to_local())

# %%
saved = launch(save_with_dcp, disk / "dcp", world_size=4, device="cpu").outputs[0]
show_table(
    {"file": "", "size": format_bytes},
    [(path.name, path.stat().st_size) for path in sorted((disk / "dcp").iterdir())],
)
loaded, rows = launch(load_with_dcp, disk / "dcp", world_size=2, device="cpu").outputs[0]
holds("bit-equal on 2 ranks", [torch.equal(loaded[name], saved[name]) for name in saved])
print(f"rank 0 of 2 has {rows} of {len(saved['token.weight'])} rows of the first tensor")

# %% [markdown]
# You pass `dcp.load` the tensors to load into: their sharding says which parts each rank needs, and DCP finds the pieces. `dcp.async_save` copies the state to host memory and writes it from there while training continues.
#
# A plain tensor has no sharding. DCP assumes that it is the same on all ranks and writes it once, without a warning. Each rank saves its own number here, first under one key and then under a key of its own:

# %%
def save_and_load_own(folder):
    import torch.distributed.checkpoint as dcp

    keys = "own", f"own_{dist.get_rank()}"
    dcp.save({key: torch.tensor(dist.get_rank()) for key in keys}, checkpoint_id=folder)
    loaded = {key: torch.tensor(-1) for key in keys}
    dcp.load(loaded, checkpoint_id=folder)
    return [each.item() for each in loaded.values()]

found = launch(save_and_load_own, disk / "own", world_size=4, device="cpu").outputs
show_table({"rank": "d", "under one key": "d", "under its own": "d"}, [(rank, *each) for rank, each in enumerate(found)])

# %% [markdown]
# Random states and positions in the data need a key for each rank. And `dcp.save` and `dcp.load` are collectives of all ranks: if only some of them take part, pass `process_group=` with a group of exactly those.
#
# ### Shards or everything
#
# `model.state_dict()` returns a rank's shards. `get_model_state_dict` can also collect the **full** state dict, as a file for use without FSDP. **How many elements does each of four ranks send in each of the two cases?**

# %%
predicted_state_dicts = predict("Elements sent", unit="Ψ", labels=["shards", "full"])
predicted_state_dicts

# %%
def two_state_dicts():
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    model, _ = sharded_model()
    with measure("shards"):
        shards = model.state_dict()
    with measure("full"):
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        full = get_model_state_dict(model, options=options)
    return tuple(shards["token.weight"].to_local().shape), len(shards), len(full)

# %%
state_run = launch(two_state_dicts, world_size=4, device="cpu", quiet=True)
model = models.gpt("0.3M")
psi, tied = models.count_parameters(model), model.token.weight.numel()
traffic = [state_run.traffic[each] for each in ("shards", "full")]
sent = [each.sent_by_rank.mean() / 4 / psi for each in traffic]
named = {"the formula without the tied matrix's second copy": [0, 3 / 4]}
predicted_state_dicts.compare(sent, named)

# %%
holds("full: elements sent, in Ψ", sent[1], 3 / 4 * (1 + tied / psi), rtol=0.05)
show_table(
    {"rank": "d", "shape of a shard": str, "tensors in its shards": "d", "in its full one": "d"},
    [(rank, *output) for rank, output in enumerate(state_run.outputs)],
)

# %% [markdown]
# The shards are there already. For the full one every tensor is gathered (the tied matrix twice, once for each of its names), and only rank 0 keeps it, in the host's memory. The others get an empty dictionary, but they have to call the function, or rank 0 would wait for them forever. So large models save shards.
#
# ## In practice: DeepSpeed
#
# `engine.save_checkpoint` and `engine.load_checkpoint` do this for an engine; pass your own state, such as the position in the data, as `client_state`. Stage 2 on four ranks:

# %%
def engine_of(**more):
    import deepspeed

    torch.manual_seed(0)
    adam = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
    settings = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.0, "optimizer": adam}
    settings |= {"zero_optimization": {"stage": 2}, **more}
    return deepspeed.initialize(model=models.gpt("0.1M"), config=settings)[0]

def whole_parameters(engine):
    return {name: each.detach().clone() for name, each in engine.module.named_parameters()}

# %%
def save_with_deepspeed(folder):
    engine, rank, n = engine_of(), dist.get_rank(), dist.get_world_size()
    for step in range(2):
        engine.backward(engine(*data.batch(step, 2, 32, rank, n)))
        engine.step()
    engine.save_checkpoint(str(folder), tag="step_2", client_state={"position": 2})
    return whole_parameters(engine)

# %%
on_cpu = {"device": "cpu", "engine": "deepspeed", "timeout_s": 60}
print("loading DeepSpeed, then training and saving on 4 ranks: up to half a minute …")
saved = launch(save_with_deepspeed, disk / "ds", world_size=4, **on_cpu).outputs[0]
show_table(
    {"file": "", "size": format_bytes},
    [(path.name, path.stat().st_size) for path in sorted((disk / "ds").rglob("*_states.pt"))],
)
print("latest:", (disk / "ds/latest").read_text())

# %% [markdown]
# There is one file for the model, which is replicated at stage 2, and one for each rank's slice of the optimizer. **Can two ranks load this?**

# %%
predicted_two_load = predict("Two ranks can load it", options=["yes", "no"])
predicted_two_load

# %%
def load_with_deepspeed(folder, tag, more):
    engine = engine_of(**more)
    _, client = engine.load_checkpoint(str(folder), tag=tag)
    return whole_parameters(engine), client["position"]

# %%
try:
    launch(load_with_deepspeed, disk / "ds", "step_2", {}, world_size=2, quiet=True, **on_cpu)
    refused = None
except RankError as error:
    refused = error

# %%
predicted_two_load.compare(refused is None)

# %%
print(refused.message)

# %% [markdown]
# No: each file is a slice exactly as it was in memory. DeepSpeed has two tools to convert it. The first, `zero_to_fp32`, merges the master copies into one plain `state_dict`, for use without DeepSpeed; every checkpoint contains a copy of the script. The result has no optimizer state, so you cannot resume from it exactly.

# %%
def merge(folder):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    return get_fp32_state_dict_from_zero_checkpoint(str(folder))

merged = launch(merge, disk / "ds", world_size=1, quiet=True, **on_cpu).outputs[0]
same = [torch.equal(merged[name], each) for name, each in saved.items()]
holds(f"{len(merged)} tensors, equal to the engine's; no optimizer", same)

# %% [markdown]
# The second converts it into a **universal checkpoint**: a folder for each parameter, with its master copy and both of Adam's states, unsharded. Any number of ranks can take their slices from that. On the command line it is `python -m deepspeed.checkpoint.ds_to_universal`; here we call its main function.

# %%
def make_universal(folder):
    from argparse import Namespace

    from deepspeed.checkpoint import ds_to_universal

    options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False}
    options |= {"strict": True, "inject_missing_state": True}  # inject_missing_state: not a Megatron checkpoint
    paths = {"input_folder": folder / "step_2", "output_folder": folder / "universal"}
    paths = {name: str(path) for name, path in paths.items()}
    ds_to_universal.main(Namespace(**paths, **options))

# %%
launch(make_universal, disk / "ds", world_size=1, quiet=True, **on_cpu)
show_table(
    {"file of position.weight": "", "size": format_bytes},
    [(path.name, path.stat().st_size) for path in sorted((disk / "ds/universal/zero/position.weight").iterdir())],
)
universal = {"checkpoint": {"load_universal": True}}
resumed = launch(load_with_deepspeed, disk / "ds", "universal", universal, world_size=2, quiet=True, **on_cpu)
loaded, position = resumed.outputs[0]
holds("bit-equal on 2 ranks", [torch.equal(loaded[name], each) for name, each in saved.items()])
print("position:", position)

# %% [markdown]
# Two pitfalls. **All** ranks call `save_checkpoint`, with a folder and not a file; on rank 0 alone it hangs ([DeepSpeed #2993](https://github.com/deepspeedai/DeepSpeed/issues/2993), with Accelerate [#1171](https://github.com/huggingface/accelerate/issues/1171)). And a misspelled folder raises no error: `load_checkpoint` logs a warning and returns `None, None`, and training would start from the beginning. Check the path that it returns.
#
# ## In practice: torchrun restarts the ranks
#
# When a rank dies, something has to notice, end the others and start all of them again. `torchrun --max-restarts` does that. It does not load checkpoints: it runs the same script from its first line, and the script has to look for a checkpoint. This script dies in step 3 of its first attempt:

# %%
SCRIPT = '''
import os, signal, sys, torch.distributed as dist
from pathlib import Path
rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
dist.init_process_group("gloo", f"file://{sys.argv[1]}/store_{attempt}", rank=rank, world_size=2)
saved = Path(sys.argv[1]) / f"rank_{rank}.txt"
step = int(saved.read_text()) if saved.exists() else 0
sys.stdout.write(f"attempt {attempt}, rank {rank}: continues at step {step}\\n")
while step < 5:
    if rank == 1 and step == 3 and attempt == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    step += 1
    dist.barrier()
    saved.write_text(str(step))
sys.stdout.write(f"attempt {attempt}, rank {rank}: done\\n")
'''

# %%
(disk / "attempts").mkdir()
(disk / "script.py").write_text(SCRIPT)
torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
command = [*torchrun, "--max-restarts=1", str(disk / "script.py"), str(disk / "attempts")]
environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
print("torchrun starts 2 ranks, and starts them again after the kill: up to half a minute …")
ended = subprocess.run(command, capture_output=True, text=True, env=environment)
printed = [line for line in ended.stdout.splitlines() if "attempt" in line]
print(*sorted(printed, key=lambda line: (line[:9], "done" in line, line)), sep="\n")
if ended.returncode:
    raise RuntimeError(ended.stderr)

# %% [markdown]
# (Each rank writes its file in place, without waiting for the others. After what we have seen, how could that go wrong?) On several nodes, `torchrun --nnodes=6:8` continues with the nodes that are left, between 6 and 8; then a different number of ranks loads the checkpoint, as above.
#
# ## How often?
#
# Assume that training waits 60 seconds for each checkpoint, and that something fails as often as in Llama 3's training. Saving often costs much waiting; saving seldom means that each failure undoes many steps. We draw 50,000 failures at random and try all intervals: of the time between two failures, only intervals that end with a finished checkpoint are kept.

# %%
mtbf_s = 54 * 24 * 3600 / 419
until_failure_s = np.random.default_rng(0).exponential(mtbf_s, 50_000)

def percent_lost(interval_min, save_s):
    saved = until_failure_s // (60 * interval_min + save_s)
    return 100 * (1 - saved.sum() * 60 * interval_min / until_failure_s.sum())

def best_interval_min(save_s):
    return min(range(1, 241), key=lambda minutes: percent_lost(minutes, save_s))

# %%
best_min = best_interval_min(60)
lost = percent_lost(best_min, 60)
finished = (until_failure_s // (60 * best_min + 60)).sum()
saving = 100 * finished * 60 / until_failure_s.sum()
print(f"a failure every {mtbf_s / 3600:.1f} h: save every {best_min} min, {lost:.1f} % of the time is lost")
print(f"to waiting for checkpoints: {saving:.1f} %; to steps that a failure undoes: {lost - saving:.1f} %")

# %% [markdown]
# Now the ranks only copy their state to host memory and continue training while it is written: a checkpoint takes 5 s of their time, a twelfth. The interval stays as it is. **What percentage of the time is lost now?**

# %%
predicted_lost = predict("Time lost with 5 s for a checkpoint", unit="%")
predicted_lost

# %%
named = {"a twelfth of what was lost": lost / 12, "as much as before": lost}
predicted_lost.compare(percent_lost(best_min, 5), named, "simulated")

# %%
lost_with_5_s = percent_lost(best_interval_min(5), 5)
print(f"at the best interval for 5 s, {best_interval_min(5)} min: {lost_with_5_s:.1f} % is lost")

# %% [markdown]
# Only the waiting has become a twelfth: failures are as frequent as before, and each still undoes half an interval on average. So with faster checkpoints, save more often. With $\delta$ seconds for a checkpoint and a failure every $M$ seconds, saving every $\tau$ seconds costs $\delta/\tau$ of the time and failures $\tau/(2M)$. The sum is smallest at $\tau = \sqrt{2\,\delta M}$ (Young 1974), where both are equal: together $\sqrt{2\,\delta/M}$.

# %%
for save_s, simulated in ((60, lost), (5, lost_with_5_s)):
    interval_s = checkpoint.best_interval_s(save_s, mtbf_s)
    by_formula = 100 * checkpoint.overhead_fraction(interval_s, save_s, mtbf_s)
    holds(f"{save_s} s for a checkpoint: % of the time lost", simulated, by_formula, rtol=0.05)

# %%
figure, axes = plt.subplots(figsize=(7, 2.8))
minutes = np.geomspace(0.5, 240, 200)
for save_s, style in ((300, ":"), (60, "-"), (5, "--")):
    shares = [100 * checkpoint.overhead_fraction(60 * each, save_s, mtbf_s) for each in minutes]
    axes.plot(minutes, shares, style, color=palette.PREDICTED)
    best = checkpoint.best_interval_s(save_s, mtbf_s)
    lowest = best / 60, 100 * checkpoint.overhead_fraction(best, save_s, mtbf_s)
    axes.plot(*lowest, "o", color=palette.PREDICTED)
    axes.annotate(f"δ = {save_s} s", lowest, (0, 7), textcoords="offset points", ha="center")
axes.set(xscale="log", ylim=(0, 60), xlabel="minutes between checkpoints", ylabel="% of the time lost")
axes.set_xticks([1, 10, 100], ["1", "10", "100"])
figure.tight_layout()

# %% [markdown]
# At the best interval, the lost time grows with $\sqrt{\delta}$: if a checkpoint blocks the ranks only a twelfth as long, it falls to less than a third. At the old interval more than half of it remained. (Restarting takes additional time, whatever the interval.)
#
# ## What goes wrong in practice
#
# - **The wrong order.** A file gets its final name before its content. Or you delete the old checkpoint to make room, and then the run crashes.
# - **No optimizer**, because only the model's file was kept. The loss jumps, recovers, and nobody notices.
# - **Data from the start.** The model sees its first batches twice, and the last ones never.
# - **A view saved with its whole storage**: `torch.save(flat[a:b])` writes all of `flat`. Call `clone()` first.
# - **File names sorted as text**: `shard_10` comes before `shard_2`.
# - **Never tested.** You cannot rely on a checkpoint that was never loaded. Kill a run on purpose, in its first hour.
#
# ## Where GPUs differ
#
# - CUDA's random state is one more piece (`torch.cuda.get_rng_state_all()`).
# - States are copied to the host before they are written. The copy is fast, and an asynchronous save blocks training only for the copy.
# - Some GPU kernels add numbers in varying order, so bits differ from run to run unless you set `torch.use_deterministic_algorithms(True)`.
# - NCCL notices a peer that died behind a network connection: since version 2.4 it reports such errors asynchronously, PyTorch's watchdog thread asks for them (`ncclCommGetAsyncError`) and aborts. A peer that hangs, or that shares only NVLink or memory with the others, breaks no connection; there a timeout has to notice.
#
# ## What to remember
#
# - Save parameters, optimizer, schedule, loss scale, position in the data, and each rank's random state. Compare bits.
# - A checkpoint takes 14Ψ bytes in 16-bit training. Each rank writes its slice: no traffic, no second copy.
# - Write each checkpoint to a new place, wait for all ranks, rename once.
# - If each slice records its tensor and its position in it, any number of ranks can load the checkpoint.
# - Save every $\sqrt{2\,\delta M}$ seconds, and make $\delta$ small.
#
# ## Sources
#
# - Llama team: *The Llama 3 herd of models.* [arXiv 2407.21783](https://arxiv.org/abs/2407.21783), 2024. Section 3.3.4, table 5: 419 unexpected interruptions in 54 days.
# - BigScience: [the 176B model's page](https://bigscience.notion.site/BigScience-176B-Model-ad073ca07cdf479398d5f95d88e218c4) for the sizes of its checkpoint; T. Le Scao et al.: *BLOOM.* [arXiv 2211.05100](https://arxiv.org/abs/2211.05100), 2022, for the number of parameters.
# - J. W. Young: *A first order approximation to the optimum checkpoint interval.* Communications of the ACM 17, 1974.
# - RFC 1813, *NFS version 3*, section 3.3.14; Linux manual pages [rename(2)](https://man7.org/linux/man-pages/man2/rename.2.html), [fsync(2)](https://man7.org/linux/man-pages/man2/fsync.2.html) and [nfs(5)](https://man7.org/linux/man-pages/man5/nfs.5.html); *Lustre operations manual*, on POSIX compliance.
# - NCCL: [release notes of 2.4.2](https://docs.nvidia.com/deeplearning/nccl/archives/nccl_2127/release-notes/rel_2-4-2.html), on `ncclCommGetAsyncError`.
# - PyTorch 2.13: [torch.distributed.checkpoint](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html), [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html).
# - DeepSpeed 0.19.8: [checkpointing](https://deepspeed.readthedocs.io/en/latest/model-checkpointing.html), [universal checkpointing](https://www.deepspeed.ai/tutorials/universal-checkpointing/).
