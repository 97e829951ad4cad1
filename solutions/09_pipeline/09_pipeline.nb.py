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
# # Lab 09 · Pipeline parallel
#
# A model that is cut into stages, one on each device, leaves all devices but one idle unless the batch is split too. A **schedule** says which micro-batch goes through which stage, and when: it determines how long devices idle and how many activations they hold. You will write three schedules, run them on real ranks, and then look for a better one.
#
# **In this lab you**
#
# - write the GPipe, 1F1B and interleaved schedules, and predict their bubbles;
# - run any schedule on real ranks without deadlock;
# - find a schedule with a smaller bubble than 1F1B and the same memory.
#
# **You need:** [chapter 09](../../course/chapters/09_pipeline.ipynb).
#
# <!-- table of points -->
#
# Each exercise has a task, a **spec** that runs, a **budget**, your cell, a picture of what your code did, and a check. The check simulates your schedules, counts idle slots and activations in flight, then runs them on real ranks and compares every gradient with one process. Grading adds cases that you do not see: other numbers of devices, micro-batches and chunks. A mistake in one exercise never costs points in a later one. The library's own schedules, which the chapter uses, cannot be imported while your answers are checked.

# %%
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from autograder import check
from shardlab import launch, show_table
from shardlab.simulate.pipeline import Costs, simulate
from shardlab.widgets import pipeline_schedule, timeline

# %% [markdown]
# ## 1 · `naive_step`
#
# One training step on N ranks, the simplest way: **rank r holds stage r** of the model. Rank 0 computes its stage on the batch and sends the result to rank 1, and so on; the last rank computes the loss. Then backward, from the last rank to the first: a rank receives the gradient of its output, and sends the gradient of its input.
#
# `naive_step(stage, x, target, shape)`: `stage` is this rank's module. `x` is the batch on rank 0 and None elsewhere, `target` is the target on the last rank and None elsewhere. Every tensor sent between stages has the same `shape`, in float32. Leave the gradients in the stage's parameters (their values do not change), and return the loss, `F.mse_loss(y, target)`, as a tensor on the last rank. With one rank there is nothing to send.

# %%
def naive_step_spec(stages, x, target):
    """One process: all stages in sequence."""
    loss = F.mse_loss(nn.Sequential(*stages)(x), target)
    loss.backward()
    return loss

naive_step_spec([nn.Linear(3, 3), nn.Linear(3, 3)], torch.ones(2, 3), torch.zeros(2, 3))

# %% [markdown]
# **Budget** · sends one tensor to each neighbor: activations to the next rank, their gradient to the previous rank · waits for every message (`dist.send` and `dist.recv` do) · calls: send and recv only.
#
# <details><summary>Hint 1 · the two halves</summary>
#
# Forward: receive `x` unless this is the first rank, compute `y`, send it unless this is the last. Backward: receive `y`'s gradient unless this is the last rank, compute, send `x`'s gradient unless this is the first.
# </details>
# <details><summary>Hint 2 · where autograd stops</summary>
#
# Autograd does not see other ranks. A received tensor is new and has no history: `torch.empty(shape)`, then `dist.recv(x, rank - 1)`, then `x.requires_grad_()` before the stage sees it. After backward its gradient is in `x.grad`.
# </details>
# <details><summary>Hint 3 · backward in the middle of a model</summary>
#
# `y.backward(y_grad)` starts the backward from a gradient you received. Send `y.detach()`: the values only.
# </details>

# %% nbgrader={"grade_id": "naive_step", "solution": true}
def naive_step(stage, x, target, shape):
    """this rank's stage, x, target  ->  gradients in its parameters; the loss on the last rank"""
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    is_first, is_last = rank == 0, rank == world_size - 1
    if not is_first:
        x = torch.empty(shape)
        dist.recv(x, rank - 1)
        x.requires_grad_()
    y = stage(x)
    if is_last:
        loss = F.mse_loss(y, target)
        loss.backward()
    else:
        dist.send(y.detach(), rank + 1)
        y_grad = torch.empty(shape)
        dist.recv(y_grad, rank + 1)
        y.backward(y_grad)
    if not is_first:
        dist.send(x.grad, rank - 1)
    return loss.detach() if is_last else None
    ### END SOLUTION

# %% [markdown]
# Your step on four ranks, with stages that take some time. A bar shows a rank waiting for a neighbor: at any time, all ranks but one wait.

# %%
def four_stages():
    rank, shape = dist.get_rank(), (256, 512)
    stage = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)])
    x, target = torch.randn(shape), torch.zeros(shape)
    naive_step(stage, x if rank == 0 else None, target if rank == 3 else None, shape)

run = launch(four_stages, world_size=4)
timeline(run)

# %% nbgrader={"grade_id": "check_naive_step", "grade": true}
check("pipeline.naive_step", naive_step)

# %% [markdown]
# ## 2 · `gpipe_schedule`
#
# With the batch cut into micro-batches, device 1 can work on the first while device 0 works on the second. From here on a schedule is **data**: one list of actions for each device, in order. An action is `(kind, stage, micro_batch)`: `("F", 1, 0)` is stage 1's forward of micro-batch 0, and `"B"` is a backward. A schedule contains no times: each action starts as soon as its input has arrived and its device is free.
#
# GPipe's schedule: **all forwards, then all backwards**. Device i holds stage i.

# %%
def gpipe_schedule_spec():
    """two devices, two micro-batches"""
    return [
        [("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1)],
        [("F", 1, 0), ("F", 1, 1), ("B", 1, 0), ("B", 1, 1)],
    ]

gpipe_schedule_spec()

# %% [markdown]
# Below, and in all exercises but the last, a forward takes one slot and a backward two. A micro-batch is **in flight** on a device between its forward and its backward there: the device holds its activations.

# %%
def show(schedule):
    """A row for each device, a column for each slot: the action and its micro-batch."""
    time = simulate(schedule)
    for device, slots in enumerate(time.slots):
        row = ["  ·"] * round(time.makespan)
        for (kind, stage, k), start, end in slots:
            chunk = "'" * (stage // len(schedule))
            row[round(start) : round(end)] = [f"{kind}{k}{chunk}".rjust(3)] * round(end - start)
        idle, held = round(time.idle[device]), time.peak_in_flight[device]
        print(f"device {device} ", *row, f"  idle {idle}, at most {held} in flight")

show(gpipe_schedule_spec())

# %% [markdown]
# **Budget** · idles ≤ (p − 1)(F + B) slots on each device · holds all m micro-batches. There may be fewer micro-batches than devices.
#
# <details><summary>Hint 1 · what differs between devices</summary>
#
# Only the stage index. The order is the same on every device.
# </details>
# <details><summary>Hint 2 · nearly there</summary>
#
# For stage s: `[("F", s, k) for k in range(micro_batches)]`, followed by the same with `"B"`.
# </details>
# <details><summary>Hint 3 · the whole schedule</summary>
#
# A list of such lists, one for each s in `range(devices)`. The backwards may go from the first micro-batch to the last or from the last to the first, as long as all devices use the same order.
# </details>

# %% nbgrader={"grade_id": "gpipe_schedule", "solution": true}
def gpipe_schedule(devices, micro_batches):
    """(2, 2)  ->  [[F0 F1 B0 B1 of stage 0], [F0 F1 B0 B1 of stage 1]]"""
    ### BEGIN SOLUTION
    every = range(micro_batches)
    return [
        [("F", s, k) for k in every] + [("B", s, k) for k in every] for s in range(devices)
    ]
    ### END SOLUTION

# %%
pipeline_schedule(4, 8, schedules={"my GPipe": gpipe_schedule(4, 8)})

# %% nbgrader={"grade_id": "check_gpipe_schedule", "grade": true}
check("pipeline.gpipe_schedule", gpipe_schedule)

# %% [markdown]
# ## 3 · `bubble_fraction`
#
# The idle slots are called the **bubble**. For what fraction of the **whole step** does a device idle, with p devices, m micro-batches and v chunks of the model on each device? (Exercise 6 introduces chunks: filling and draining the pipeline takes p − 1 times F + B with one chunk, and 1/v of that with v chunks. Until then v is 1.)
#
# Watch the denominator. Papers often give $\frac{p-1}{v \cdot m}$: the bubble over the *ideal* time, the time of the work alone. (With chunks, both formulas need m to be a multiple of p, and all questions keep to that.) Here the question is the bubble over the actual time of the step.

# %%
def bubble_fraction_spec(schedule):
    """Counted in a simulation."""
    time = simulate(schedule)
    return time.idle[0] / time.makespan

bubble_fraction_spec(gpipe_schedule_spec())

# %% [markdown]
# **Budget** · no communication: this is arithmetic.
#
# <details><summary>Hint 1 · count in one unit</summary>
#
# Take F + B of one device as the unit. A device works for m units. In your picture above, how many units is the bubble?
# </details>
# <details><summary>Hint 2 · the bubble</summary>
#
# $\frac{p-1}{v}$ units, whatever m is. The step takes m units and the bubble.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# With $b = \frac{p-1}{v}$ it is $\frac{b}{m+b}$.
# </details>

# %% nbgrader={"grade_id": "bubble_fraction", "solution": true}
def bubble_fraction(devices, micro_batches, chunks=1):
    """(2, 2)  ->  0.333…"""
    ### BEGIN SOLUTION
    idle = devices - 1
    return idle / (chunks * micro_batches + idle)
    ### END SOLUTION

# %% [markdown]
# The effect of more micro-batches, for four devices:

# %%
show_table(
    {"micro-batches": "d", "idle, of the step": ".1%"},
    [(m, bubble_fraction(4, m)) for m in (1, 2, 4, 8, 16, 32, 64)],
)

# %% nbgrader={"grade_id": "check_bubble_fraction", "grade": true}
check("pipeline.bubble_fraction", bubble_fraction)

# %% [markdown]
# ## 4 · `one_f_one_b_schedule`
#
# GPipe's devices hold the activations of all m micro-batches. **1F1B** has the same bubble, but starts each backward as early as possible: after a short warm-up a device alternates one forward and one backward, so that each new micro-batch replaces a finished one. Device i then holds at most p − i.

# %%
def one_f_one_b_schedule_spec():
    """two devices, three micro-batches: the last device needs no warm-up"""
    kinds = [["F0", "F1", "B0", "F2", "B1", "B2"], ["F0", "B0", "F1", "B1", "F2", "B2"]]
    return [[(each[0], s, int(each[1])) for each in row] for s, row in enumerate(kinds)]

show(one_f_one_b_schedule_spec())

# %% [markdown]
# **Budget** · idles ≤ (p − 1)(F + B) slots on each device · device i holds ≤ p − i micro-batches (or m, if that is less).
#
# <details><summary>Hint 1 · how long to warm up</summary>
#
# The first gradient reaches device i after the micro-batch has traveled to the last device and its gradient has come back. Before that backward, device i runs p − 1 − i forwards as its warm-up: none on the last device, p − 1 on the first.
# </details>
# <details><summary>Hint 2 · three phases</summary>
#
# `warm_up` forwards; then one forward and one backward in turn until there are no forwards left; then the remaining `warm_up` backwards. Forwards and backwards each go from micro-batch 0 upward.
# </details>
# <details><summary>Hint 3 · few micro-batches</summary>
#
# `warm_up = min(devices - 1 - s, micro_batches)`. The k-th pair is `("F", s, warm_up + k), ("B", s, k)` for k in `range(micro_batches - warm_up)`.
# </details>

# %% nbgrader={"grade_id": "one_f_one_b_schedule", "solution": true}
def one_f_one_b_schedule(devices, micro_batches):
    """(2, 3)  ->  [[F0 F1 B0 F2 B1 B2 of stage 0], [F0 B0 F1 B1 F2 B2 of stage 1]]"""
    ### BEGIN SOLUTION
    schedule = []
    for s in range(devices):
        warm_up = min(devices - 1 - s, micro_batches)
        actions = [("F", s, k) for k in range(warm_up)]
        for k in range(micro_batches):
            if warm_up + k < micro_batches:
                actions.append(("F", s, warm_up + k))
            actions.append(("B", s, k))
        schedule.append(actions)
    return schedule
    ### END SOLUTION

# %%
both = {"my GPipe": gpipe_schedule(4, 8), "my 1F1B": one_f_one_b_schedule(4, 8)}
pipeline_schedule(4, 8, schedules=both)

# %% nbgrader={"grade_id": "check_one_f_one_b_schedule", "grade": true}
check("pipeline.one_f_one_b_schedule", one_f_one_b_schedule)

# %% [markdown]
# ## 5 · `run_schedule`
#
# Now write a function that executes **any** schedule on real ranks. Rank r runs the actions of `schedule[r]` in order, and exchanges tensors with the ranks that hold the neighboring stages.
#
# `run_schedule(schedule, stages, inputs, targets, shape)`: `stages` maps stage indices to this rank's modules: `{1: module}`, or `{1: module, 3: module}` for two chunks. `inputs` is a list of micro-batches on the rank that holds stage 0, `targets` a list on the rank that holds the last stage; each is None elsewhere. Any rank may hold any stage, and some may hold more stages than others, but two neighboring stages are never on the same rank. Every tensor sent has `shape`, of two or more dimensions, in float32. Afterwards all parameters have the gradients of the **mean** loss over the micro-batches; return that loss as a tensor on the rank of the last stage. Leave the values of the parameters and all arguments unchanged, `requires_grad` too: the caller uses them again for the next step.

# %%
def run_schedule_spec(stages, inputs, targets):
    """One process: gradients add up in .grad from one micro-batch to the next."""
    losses = [F.mse_loss(nn.Sequential(*stages)(x), y) for x, y in zip(inputs, targets)]
    loss = sum(losses) / len(losses)
    loss.backward()
    return loss

halves = torch.ones(4, 3).split(2), torch.zeros(4, 3).split(2)
run_schedule_spec([nn.Linear(3, 3), nn.Linear(3, 3)], *halves)

# %% [markdown]
# `dist.send` waits until the other rank receives. In 1F1B two neighbors send to each other at the same time, one an activation and one a gradient: if both call `dist.send`, neither ever receives. And two ranks may exchange messages of the same shape for different stages and micro-batches: `dist.send`, `dist.isend` and `dist.recv` take an integer `tag`, and a receive takes only a message with the same tag.
#
# Until a send is over, its tensor must be neither changed nor freed: the work that `dist.isend` returns has to be waited for, at the latest before your function returns.
#
# **Budget** · sends each activation and each gradient once · waits for every `isend` (and `irecv`) · keeps a stage's input `x` and output `y` only while the micro-batch is in flight (local variables may hold those of two more); not counted: tensors being sent, if detached, and receive buffers whose action has not run yet · leaves nothing behind that grows from call to call, not even a list of numbers · calls: send and recv only (`dist.isend` is a send) · runs its actions in the order of the schedule, each once.
#
# <details><summary>Hint 1 · which rank holds a stage</summary>
#
# Read it from the schedule: `rank_of = {s: rank for rank, actions in enumerate(schedule) for _, s, _ in actions}`. The last stage is `max(rank_of)`.
# </details>
# <details><summary>Hint 2 · between forward and backward</summary>
#
# Keep `x` and `y` of each forward in a dict by `(stage, micro_batch)`, and `pop` them for the backward, so that they are freed: memory for p − i micro-batches instead of m is what 1F1B is for. Send `y.detach()`: `y` itself would keep the whole graph down to `x`. Gradients of different micro-batches add up in `.grad` automatically. Divide each micro-batch's loss by the number of micro-batches.
# </details>
# <details><summary>Hint 3 · sends that do not wait</summary>
#
# `sending.append((dist.isend(tensor, peer, tag=…), tensor))`: the list keeps the tensor alive. Receive with `dist.recv`, and after the last action call `wait()` on every send (with gloo, `is_completed()` of a send stays False until then).
# </details>
# <details><summary>Hint 4 · a tag for each message</summary>
#
# Number each message by the action that receives it, `(kind, s, k)`: `(2 * s + (kind == "F")) * most + k` is unique if `most` is larger than every k. Sender and receiver must compute the same tag, so take `most` from the whole schedule: `max(map(len, schedule))`. (Not from `hash`: it differs between processes for strings.)
# </details>

# %% nbgrader={"grade_id": "run_schedule", "solution": true}
def run_schedule(schedule, stages, inputs, targets, shape):
    """this rank's stages {index: module}, inputs and targets [m] of shape  ->  mean loss or None"""
    ### BEGIN SOLUTION
    rank_of = {s: rank for rank, actions in enumerate(schedule) for _, s, _ in actions}
    last, most = max(rank_of), max(map(len, schedule))
    kept, losses, sending = {}, [], []

    def tag_of(kind, s, k):
        return (2 * s + (kind == "F")) * most + k

    def send(tensor, *action):
        work = dist.isend(tensor, rank_of[action[1]], tag=tag_of(*action))
        sending.append((work, tensor))

    def receive(source, *action):
        tensor = torch.empty(shape)
        dist.recv(tensor, rank_of[source], tag=tag_of(*action))
        return tensor

    for kind, s, k in schedule[dist.get_rank()]:
        if kind == "F":
            x = inputs[k] if s == 0 else receive(s - 1, kind, s, k).requires_grad_()
            y = stages[s](x)
            if s == last:
                y = F.mse_loss(y, targets[k]) / len(targets)
                losses.append(y.detach())
            else:
                send(y.detach(), kind, s + 1, k)
            kept[s, k] = x, y
        else:
            x, y = kept.pop((s, k))
            y.backward(None if s == last else receive(s + 1, kind, s, k))
            if s > 0:
                send(x.grad, kind, s - 1, k)
    for work, _ in sending:
        work.wait()
    return sum(losses) if losses else None
    ### END SOLUTION

# %% [markdown]
# 1F1B on four real ranks, with your own schedule. A light bar is a rank waiting in a receive; a dark one is a send that nothing waits for until the end.

# %%
def one_step(schedule):
    rank, shape = dist.get_rank(), (256, 256)
    stages = {rank: nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])}
    inputs = [torch.randn(shape) for _ in range(8)] if rank == 0 else None
    targets = [torch.zeros(shape) for _ in range(8)] if rank == 3 else None
    return run_schedule(schedule, stages, inputs, targets, shape)

run = launch(one_step, one_f_one_b_schedule(4, 8), world_size=4)
timeline(run)

# %% nbgrader={"grade_id": "check_run_schedule", "grade": true}
check("pipeline.run_schedule", run_schedule)

# %% [markdown]
# ## 6 · `interleaved_schedule`
#
# A bubble lasts as long as a micro-batch takes to pass through the devices. Give each device **v chunks** instead of one: stages are assigned in turn, **stage s to device s % p**, so that a micro-batch visits each device v times, and each visit takes 1/v of the time. The pipeline also fills in 1/v of the time: the bubble shrinks to (p − 1)(F + B) of *one chunk*. The cost is v times the messages, and more activations in flight.
#
# Micro-batches run in **rounds of p**: p of them through the device's first chunk, the same p through its second, and so on; then the next p. Backwards run in the same way, but from the last chunk to the first. The number of micro-batches is a multiple of the number of devices, and there are at least 2 chunks.

# %%
def interleaved_schedule_spec(devices, chunks):
    """The first round's forwards on device 0, then its backwards: chunk by chunk."""
    forwards = [("F", c * devices, k) for c in range(chunks) for k in range(devices)]
    backwards = [("B", c * devices, k) for c in reversed(range(chunks)) for k in range(devices)]
    return forwards, backwards

interleaved_schedule_spec(2, 2)

# %% [markdown]
# On each device the two orders are merged as in 1F1B: a warm-up of forwards, then one of each in turn, then the remaining backwards. A slot is a forward of one chunk here.
#
# How long should the warm-up be? If messages took no time, (v − 1)p + p − 1 − d forwards on device d would be enough. But then a gradient would be computed just when the next device needs it, and devices would wait for **message after message**. Here a message between devices takes **a quarter of a slot**. Megatron's warm-up has up to p − 1 forwards more: while a message travels, the device has other work, and in the whole step only the messages of one micro-batch are waited for, on its way through all v · p stages and back. The price is more chunks in flight.
#
# **Budget** · with messages of a quarter of a slot: idles ≤ (p − 1)(F + B) slots and 2(vp − 1) messages on each device; in quarter slots, 36 + 14 = 50 for p = 4 and v = 2 · device i holds ≤ 2(p − 1 − i) + (v − 1)p + 1 chunks in flight.
#
# <details><summary>Hint 1 · the order of the forwards</summary>
#
# All forwards of device d, in order: for each round, for each chunk c, for each micro-batch k of the round, `("F", c * devices + d, k)`. That is three loops, the first one `for first in range(0, micro_batches, devices)`.
# </details>
# <details><summary>Hint 2 · the warm-up</summary>
#
# The first backward belongs to the last chunk. Before it come (v − 1)p forwards of the other chunks, and some more while the first micro-batch travels to the last device and its gradient comes back. Megatron runs 2(p − 1 − d) of these, twice as many as 1F1B: then an action's input arrives a whole action before it is needed, which is time for the message. The warm-up is never longer than the list of forwards.
# </details>
# <details><summary>Hint 3 · merging</summary>
#
# With lists `forwards` and `backwards`: `forwards[:warm_up]`, then the n-th of `forwards[warm_up:]` followed by the n-th of `backwards` while there are forwards, then the remaining backwards. It is `one_f_one_b_schedule` with different lists.
# </details>

# %% nbgrader={"grade_id": "interleaved_schedule", "solution": true}
def interleaved_schedule(devices, micro_batches, chunks):
    """device d holds stages d, d + devices, …  ->  its actions, by device"""
    ### BEGIN SOLUTION
    schedule = []
    for d in range(devices):
        rounds = [range(i, i + devices) for i in range(0, micro_batches, devices)]
        mine = [c * devices + d for c in range(chunks)]
        forwards = [("F", s, k) for each in rounds for s in mine for k in each]
        backwards = [("B", s, k) for each in rounds for s in reversed(mine) for k in each]
        warm_up = min((chunks - 1) * devices + 2 * (devices - 1 - d), len(forwards))
        actions, ahead = forwards[:warm_up], forwards[warm_up:]
        for n, backward in enumerate(backwards):
            actions += [*ahead[n : n + 1], backward]
        schedule.append(actions)
    return schedule
    ### END SOLUTION

# %% [markdown]
# One round on two devices with two chunks each; a prime marks the second chunk's actions. Then the idle time of four devices, without and with messages that take time, and the same four compared with 1F1B.

# %%
show(interleaved_schedule(2, 2, 2))
for message in (0, 0.25):
    time = simulate(interleaved_schedule(4, 8, 2), Costs(send=message))
    print(f"a message takes {message} slots: idle {time.idle[0]} of {time.makespan}")

# %%
both = {"my 1F1B": one_f_one_b_schedule(4, 8), "my interleaved 1F1B": interleaved_schedule(4, 8, 2)}
pipeline_schedule(4, 8, 2, schedules=both)

# %% nbgrader={"grade_id": "check_interleaved_schedule", "grade": true}
check("pipeline.interleaved_schedule", interleaved_schedule)

# %% [markdown]
# ## 7 · A puzzle: `zero_bubble_schedule`
#
# With 1F1B, each of p devices idles for 3(p − 1) slots. Can you do better **in the same memory**: one stage on each device, and no device with more than p micro-batches in flight, as many as 1F1B's first device has?
#
# The idea: a backward computes two things. The previous stage waits for the gradient of the stage's *input*. Nobody waits for the gradients of its *weights* until the step ends. So split it: `("I", s, k)` first, `("W", s, k)` any time later. F, I and W take one slot each, and a micro-batch's activations are kept until its W.
#
# No schedule can idle for fewer than p − 1 slots: the last device gets its first micro-batch after p − 1 forwards, and until then it has nothing to do. **So p − 1 is the lower bound.** Can you reach it?

# %%
def zero_bubble_schedule_spec():
    """two devices, two micro-batches: 1F1B's order, each B split into I and W; not optimal yet"""
    kinds = [["F0", "F1", "I0", "W0", "I1", "W1"], ["F0", "I0", "W0", "F1", "I1", "W1"]]
    return [[(each[0], s, int(each[1])) for each in row] for s, row in enumerate(kinds)]

show(zero_bubble_schedule_spec())

# %% [markdown]
# Your score, from 0% for 1F1B to 100% for the optimum:

# %%
def score(schedule):
    """0 for 1F1B's bubble, 1 for the smallest possible; 0 if it needs more memory than 1F1B."""
    time, p = simulate(schedule), len(schedule)
    fits = max(time.peak_in_flight) <= p
    return fits * (3 * (p - 1) - max(time.idle)) / (2 * (p - 1))

print(f"{score(zero_bubble_schedule_spec()):.0%}")

# %% [markdown]
# **Budget** · idles less than 1F1B, then ≤ 2(p − 1) slots, then p − 1, one case each · holds ≤ p micro-batches on each device. There are at least as many micro-batches as devices, sometimes just as many.
#
# <details><summary>Hint 1 · the first third</summary>
#
# Your 1F1B with `("I", s, k), ("W", s, k)` in place of `("B", s, k)`. Look at the end of the picture: on the way back up, each device now waits one slot for the device after it, not two.
# </details>
# <details><summary>Hint 2 · what delays a gradient</summary>
#
# In that picture the last device runs I0, W0, F1, I1: the gradient that device p − 2 waits for comes three slots after the previous one. What if it ran I0, F1, I1 first? Which devices have the memory to delay W? In 1F1B, device i holds only p − i micro-batches.
# </details>
# <details><summary>Hint 3 · how many to delay</summary>
#
# Device i has room for i more micro-batches than 1F1B gives it. So it can delay i of its Ws: its first W comes after I of micro-batch i, and from then on each W is the one that has waited longest.
# </details>
# <details><summary>Hint 4 · nearly there</summary>
#
# The loop of `one_f_one_b_schedule`; after `("I", s, k)` comes `("W", s, k - s)` if k ≥ s. After the loop, the remaining s Ws.
# </details>

# %% nbgrader={"grade_id": "zero_bubble_schedule", "solution": true}
def zero_bubble_schedule(devices, micro_batches):
    """actions "F", "I" and "W" ("B" for I and W together), for each stage and micro-batch"""
    ### BEGIN SOLUTION
    schedule = []
    for s in range(devices):
        warm_up = devices - 1 - s  # no more than there are micro-batches
        order = [("F", k) for k in range(warm_up)]
        for k in range(micro_batches):
            if warm_up + k < micro_batches:
                order.append(("F", warm_up + k))
            order.append(("I", k))
            if k >= s:
                order.append(("W", k - s))
        order += [("W", k) for k in range(micro_batches - s, micro_batches)]
        schedule.append([(kind, s, k) for kind, k in order])
    return schedule
    ### END SOLUTION

# %%
mine = zero_bubble_schedule(4, 8)
print(f"score: {score(mine):.0%} of the way from 1F1B to the optimum")
pipeline_schedule(4, 8, schedules={"my 1F1B": one_f_one_b_schedule(4, 8), "my split backward": mine})

# %% nbgrader={"grade_id": "check_zero_bubble_schedule", "grade": true}
check("pipeline.zero_bubble_schedule", zero_bubble_schedule)

# %% [markdown]
# ## 8 · Which schedule?
#
# You train a model on 8 devices in a pipeline. Each device has memory for the activations of 8 micro-batches of its stage; the global batch gives 16 micro-batches; a forward and each half of a backward take the same time. Compare GPipe, 1F1B, your interleaved 1F1B with 2 chunks (a chunk's activations are half a stage's) and your schedule from exercise 7: which of them fit, and what is the bubble of each as a fraction of the step? Which would you choose if the links between devices are slow? Give the numbers. Four to eight sentences.

# %% [markdown] nbgrader={"grade_id": "which_schedule", "grade": true, "solution": true, "points": 2}
# ### BEGIN SOLUTION
# GPipe holds all 16 micro-batches and does not fit. 1F1B holds 8 on the first device and fits; both idle 7/(16 + 7) = 30.4% of the step. Interleaved with 2 chunks idles 7/(2 · 16 + 7) = 17.9%, but its first device has 2 · 7 + 8 + 1 = 23 chunks in flight, as much as 11.5 micro-batches: it does not fit. The split backward holds 8 and idles 7 slots of 3 · 16 + 7, 12.7%: it fits and is the best.
#
# It sends as much as 1F1B, one activation and one gradient for each micro-batch and boundary, so slow links are no reason against it. They are a reason against interleaving, which with 2 chunks sends more than twice as much, including from the last device to the first. On slow links more micro-batches in flight would help to hide the sends, but there is no memory for them.
#
# Points: 1 for which fit (1F1B and the split backward do, GPipe and interleaved do not), 1 for the fractions (30.4%, 30.4%, 17.9%, 12.7%) and that interleaving multiplies the messages.
# ### END SOLUTION
