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
# # 09 · Pipeline parallel
#
# A model too large for one device can be cut **between** its layers. Each device holds a few consecutive layers, a **stage**, and sends its output to the next device. That moves few bytes: one activation tensor forward across each stage boundary and one gradient tensor back, while [tensor parallelism](08_tensor_parallel.ipynb) communicates several times in every layer.
#
# The cost is time: a device has nothing to do until the one before it is done. The questions of this chapter: how much of the time do devices wait, how can they wait less, and what does that cost in memory?
#
# **After this chapter you can**
#
# - compute the bubble of GPipe, 1F1B and interleaved schedules, and what each holds in memory;
# - write a schedule as data, simulate it and run it on real ranks;
# - explain how splitting the backward shortens the bubble.
#
# **You need:** [01 One device](01_one_device.ipynb) and [02 DP vs DDP](02_dp_vs_ddp.ipynb).

# %% [markdown]
# <details open><summary>A pipeline of four stages fills, runs and drains</summary>
#
# [![Animation: A pipeline of four stages fills, runs and drains](openers/09_pipeline.svg)](openers/09_pipeline.svg)
#
# Eight micro-batches, numbered 0 to 7. A stage can begin a micro-batch only when the stage before it is done, so at first the later ones wait; at the end the early ones wait for the last gradients. (Each forward sleeps until 20 ms have passed and each backward until 40 ms, to emulate four devices on one machine; the order and the waits are real.) (Recorded from real processes.)
#
# </details>

# %% jupyter={"source_hidden": true}
print("Loading PyTorch: a few seconds, longer the first time on a computer …")

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

from shardlab import DeadlockError, data, holds, launch, measure, models, show_table
from shardlab.estimate.model_traffic import pipeline_boundaries
from shardlab.pipeline import cut_gpt, messages, run_schedule
from shardlab.simulate.pipeline import Costs, IllegalSchedule, simulate
from shardlab.widgets import format_bytes, palette, pipeline_schedule, predict, timeline

# %config InlineBackend.figure_formats = ["svg"]
plt.style.use(palette.PLOT_STYLE)

# %% [markdown]
# Below, p is the number of devices. Our model has eight blocks, so four devices get two each. `cut_gpt` makes the stages; the first one also embeds the tokens, the last one also computes the logits.

# %%
p = 4  # devices
SEQUENCES, CONTEXT, WIDTH = 2, 32, 64  # of a micro-batch; tokens in each; of the model
SHAPE = (SEQUENCES, CONTEXT, WIDTH)  # of the tensor between two stages
config = models.GPTConfig(layers=8, heads=4, width=WIDTH, context=CONTEXT)

def stages_of(n):
    torch.manual_seed(0)  # the same model on every rank
    return cut_gpt(models.GPT(config), n)

show_table(
    {"stage": "d", "parameters": ",d", "modules": ""},
    [
        (stage, models.count_parameters(piece), " ".join(piece._modules))
        for stage, piece in enumerate(stages_of(p))
    ],
)

# %% [markdown]
# ## One device at a time
#
# The simplest way is **naive model parallelism**. Device 0 computes its layers for the whole batch and sends the result to device 1, and so on to the last, which computes the loss. Then the gradient travels all the way back.
#
# A **schedule** is a list of actions for each device, in order. An action has a kind (`F` for forward, `B` for backward), a stage and a micro-batch, which for now is the whole batch. PyTorch writes stage 0's forward of micro-batch 0 as `0F0`:

# %%
from shardlab.simulate.pipeline import gpipe, interleaved_one_f_one_b, naive, one_f_one_b

for device, actions in enumerate(naive(p)):
    print(f"device {device}:", *actions)
print(repr(actions[0]))

# %% [markdown]
# `run_schedule` executes such lists on real ranks. Each rank goes through its own list: it receives the input of an action, computes, and sends the output on. (You will write this yourself in the lab.)

# %%
def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

def share_of(schedule, rank, first=0):
    """A rank's stages, and the tokens and targets of all micro-batches, from batch ``first`` on."""
    actions = [action for device_actions in schedule for action in device_actions]
    pieces = stages_of(1 + max(action.stage for action in actions))
    mine = {action.stage: pieces[action.stage] for action in schedule[rank]}
    m = 1 + max(action.micro_batch for action in actions)
    return mine, *zip(*(data.batch(first + i, SEQUENCES, CONTEXT) for i in range(m)))

# %%
def train(schedule, pace=None):
    mine, tokens, targets = share_of(schedule, dist.get_rank())
    if pace:  # time the second step: the first includes one-time setup
        run_schedule(schedule, mine, tokens, targets, loss_of, activation_shape=SHAPE)
        torch.nn.ModuleList(mine.values()).zero_grad()
    sizes = {"activation_shape": SHAPE, "minimum_s": pace}
    with measure("step"):
        result = run_schedule(schedule, mine, tokens, targets, loss_of, **sizes)
    return result, {name: q.grad for piece in mine.values() for name, q in piece.named_parameters()}

# %% [markdown]
# Four ranks that share the cores of a laptop cannot compute in parallel as four devices would. So each rank simulates a device: `minimum_s` gives each action a duration, and a rank that finishes earlier sleeps for the rest. Messages, waiting and order are real; only the durations are simulated, as long as your machine is fast enough. A forward takes one unit, here 20 ms. A backward takes two, because it has two matrix products for each one in the forward.
#
# **For what share of the step does a device compute, on average?**

# %%
predicted_share = predict("Share of the time that a device computes", maximum=1)
predicted_share

# %%
unit_s = 0.02
pace = Costs(unit_s, unit_s, unit_s)  # forward, and the two halves of backward
run = launch(train, naive(p), pace, world_size=p, device="cpu")
measured = {"naive": [result for result, _ in run.outputs]}

# %%
alone = simulate(naive(p))
predicted_share.compare(1 - alone.bubble_fraction, {"the share that it idles": alone.bubble_fraction}, "simulated")

# %%
pipeline_schedule(p, 1, schedules=["naive"], measured=measured, unit_s=unit_s)

# %% [markdown]
# The top picture is simulated from the dependencies alone: each action starts as soon as its device is free and its input has arrived. The one below, marked blue, shows what the ranks did. It is a staircase, down for forward and up again for backward: one device computes, three wait. (If a bar is longer below than above, your machine needed more than 20 or 40 ms for it.)
#
# A device computes for 1/p of the step. The step takes as long as on one device, and p − 1 of p devices are idle. Idle time is called the **bubble**. The other devices add memory, but no speed.
#
# ## Micro-batches
#
# The solution is to split the batch as well. As soon as device 0 has run its layers on the first **micro-batch**, it starts on the second, while device 1 works on the first. The gradients of m micro-batches are added up before one optimizer step: that is gradient accumulation ([chapter 01](01_one_device.ipynb)), and the result is the same.
#
# Chunks, gradient accumulation steps, micro-batches: three words for one thing. Check whether a library asks for their **number**, our m, or for the **size** of one:
#
# - the number: `n_microbatches` in PyTorch (`chunks` inside its code, and in the older torchgpipe), `gradient_accumulation_steps` in DeepSpeed, `microbatches` in SageMaker's model-parallel library;
# - the size: `--micro-batch-size` in Megatron-LM, `chunk_size` in Varuna.
#
# A batch of 1,024 sequences over 4 replicas of the model in 32 chunks: 1024 / 4 / 32 = 8 sequences in each. m is 32, the size 8. (In this chapter a chunk is never a micro-batch, but a piece of the model, as in Megatron-LM; more on that below.)
#
# This is **GPipe**'s schedule for two devices and three micro-batches, all forwards and then all backwards:

# %%
for device, actions in enumerate(gpipe(2, 3)):
    print(f"device {device}:", *actions)

# %% [markdown]
# **With p = 4 devices and m = 8 micro-batches, by what fraction is the step longer than the work alone?**

# %%
predicted_bubble = predict("GPipe's idle time over the time of the work alone, for p = 4 and m = 8")
predicted_bubble

# %%
m = 8
result = simulate(gpipe(p, m))
bubble = result.bubble_over_ideal
predicted_bubble.compare(bubble, {"the share of the whole step": result.bubble_fraction, "p/m": p / m}, "simulated")

# %%
holds("bubble over the ideal: (p − 1)/m", bubble, (p - 1) / m)

# %% [markdown]
# You can read the formula off the picture below. Device 3 starts only after p − 1 forwards, and p − 1 backwards follow its last action: it idles for the time of p − 1 micro-batches and works for the time of m. **Bubble over the ideal: $\frac{p-1}{m}$.** Some papers use the fraction of the total time instead, $\frac{p-1}{m+p-1}$, which is 0.27 where ours is 0.375. Always check which convention a number uses.
#
# ## The same lists on real ranks
#
# Is the result correct? One process that runs the same micro-batches must compute the same gradients. (Two parameters are an exception; see "Tied weights on two stages" below.)

# %%
TIED = ("token.weight", "head.weight")
((whole, expected),) = launch(train, gpipe(1, m), world_size=1, device="cpu").outputs

def check_gradients(name, gradients):
    pairs = [(g, expected[key]) for each in gradients for key, g in each.items() if key not in TIED]
    ours, right = (torch.cat([g.flatten() for g in side]) for side in zip(*pairs))
    holds(f"{name}: gradients on all ranks, and in one process", ours, right, rtol=1e-5, atol=1e-6)

def check(name, run):
    results, gradients = zip(*run.outputs)
    check_gradients(name, gradients)
    losses = [result.loss for result in results if result.loss is not None]
    holds(f"{name}: loss, and in one process", losses, whole.loss, rtol=1e-5)

# %%
check("gpipe", launch(train, gpipe(p, m), world_size=p, device="cpu"))

# %% [markdown]
# Is it as fast as simulated? Again each rank simulates a device. We compare GPipe with **1F1B**, one forward, one backward: device i runs p − 1 − i forwards, then alternates one forward and one backward.

# %%
schedules = {"gpipe": gpipe(p, m), "1f1b": one_f_one_b(p, m)}
runs = {
    name: launch(train, schedule, pace, world_size=p, device="cpu", quiet=True)
    for name, schedule in schedules.items()
}
measured = {name: [result for result, _ in run.outputs] for name, run in runs.items()}

# %%
pipeline_schedule(p, m, schedules=["gpipe", "1f1b"], measured=measured, unit_s=unit_s)

# %% [markdown]
# Where the measured schedule is longer than the simulated one, your machine took more than 20 ms for some action and everything after it had to wait: a pipeline has no slack. Play the animation and watch the number **in flight** on the right: micro-batches that have been through the forward but not the backward, whose activations the device still holds.
#
# 1F1B has exactly the same bubble as GPipe. What is its advantage?

# %%
def in_flight(run):
    return [result.peak_in_flight for result, _ in run.outputs]

for name, run in runs.items():
    check(name, run)
show_table(
    {"schedule": "", "bubble over the ideal": ".3f", **{f"in flight on rank {r}": "d" for r in range(p)}},
    [(name, simulate(schedules[name]).bubble_over_ideal, *in_flight(run)) for name, run in runs.items()],
)

# %% [markdown]
# ## Memory
#
# A small bubble needs many micro-batches. With eight of them, rank 0 held eight under GPipe and four under 1F1B. **With sixteen, how many does it hold at most under each?**

# %%
predicted_held = predict("Micro-batches of 16 that rank 0 holds at most", labels=["GPipe", "1F1B"])
predicted_held

# %% [markdown]
# This time we count bytes. `memory=True` tracks every tensor's storage. The memory that one more micro-batch takes on a rank is the difference between a run with two and a run with one.

# %%
def most_activations(schedule):
    run = launch(train, schedule, world_size=p, device="cpu", memory=True, quiet=True)
    return np.array([run.memory[rank].peak_of("activations") for rank in range(p)])

one, two = most_activations(gpipe(p, 1)), most_activations(gpipe(p, 2))
of_16 = {"gpipe": gpipe(p, 16), "1f1b": one_f_one_b(p, 16)}
held = {name: 1 + (most_activations(s) - one) / (two - one) for name, s in of_16.items()}

# %%
named = {"twice what it held with eight": [2 * runs[name].outputs[0][0].peak_in_flight for name in held]}
predicted_held.compare([each[0] for each in held.values()], named)

# %%
show_table(
    {"micro-batches held": "", **{f"rank {rank}": ".2f" for rank in range(p)}},
    [(name, *by_rank) for name, by_rank in held.items()],
)

# %%
figure, axes = plt.subplots(figsize=(7, 2.8))
for i, (name, schedule) in enumerate(of_16.items()):
    predicted = simulate(schedule).peak_in_flight
    at = np.arange(p) + 0.44 * i - 0.32
    axes.bar(at, predicted, 0.2, color=palette.PREDICTED, label="simulated" if i else None)
    axes.bar(at + 0.21, held[name], 0.2, color=palette.MEASURED, label="measured" if i else None)
    axes.text(at[0] + 0.1, predicted[0] + 0.4, name, ha="center", color=palette.PLOT_INK)
    holds(f"{name}: micro-batches held by each rank", held[name], predicted, rtol=0.02)
axes.set(xticks=range(p), xlabel="rank", ylabel="micro-batches held", ylim=(0, 19))
axes.legend(frameon=False, loc="upper right", ncols=2)
figure.tight_layout()

# %% [markdown]
# GPipe holds all m on every device. Under 1F1B device i never holds more than **p − i**, whatever m is, because from then on each forward waits for a backward. The first device holds the most: p micro-batches of 1/p of the model, as much as one micro-batch of the whole model.
#
# ## Interleaving: more, smaller stages
#
# The bubble lasts as long as p − 1 micro-batches *on one device*. So make each action shorter: cut the model into v·p stages (v *chunks* for each device) and assign them in turn: device r gets stages r, r + p, r + 2p, … Each action takes 1/v of the time, and the bubble shrinks to $\mathbf{\frac{p-1}{v \cdot m}}$.

# %%
interleaved = interleaved_one_f_one_b(p, m, v=2)
result = simulate(interleaved, Costs().in_chunks(2))
print("chunks in flight by device:", *result.peak_in_flight)
holds("bubble over the ideal: (p − 1)/(v·m)", result.bubble_over_ideal, (p - 1) / (2 * m))

# %% [markdown]
# (A chunk is half of a device's layers, so the first device's 11 chunks are as much as 5.5 micro-batches, where 1F1B holds 4.)
#
# The micro-batches go through the chunks in rounds of p, so Megatron-LM demands that p divides m. PyTorch is less strict, and so is our simulator: if p does not divide m they make the rounds larger, and reject only an m that gives no equal rounds, such as 9. What does that cost?

# %%
def interleaved_row(micro_batches):
    result = simulate(interleaved_one_f_one_b(p, micro_batches, v=2), Costs().in_chunks(2))
    formula = (p - 1) / (2 * micro_batches)
    return micro_batches, result.bubble_over_ideal, formula, *result.peak_in_flight

show_table(
    {"m": "d", "bubble over the ideal": ".4f", "formula": ".4f",
     **{f"in flight on device {device}": "d" for device in range(p)}},
    map(interleaved_row, (8, 6, 4, 3)),
)

# %% [markdown]
# With m = 6 the bubble is as the formula says, but the first device holds 12 chunks, more than with 8 micro-batches. With fewer micro-batches than devices the formula no longer holds.
#
# Each micro-batch now crosses more stage boundaries. **With four devices, by what factor do the total bytes sent grow from v = 1 to v = 2?**

# %%
predicted_factor = predict("Bytes sent with v = 2 over bytes sent with v = 1, for p = 4")
predicted_factor

# %%
runs["interleaved"] = launch(train, interleaved, pace.in_chunks(2), world_size=p, device="cpu", quiet=True)
sent = {name: run.traffic["step"].sent_bytes for name, run in runs.items()}
factor = sent["interleaved"].sum() / sent["1f1b"].sum()
predicted_factor.compare(factor, {"the factor of the stages; count the boundaries between them": 2 * p / p})

# %%
check("interleaved", runs["interleaved"])

# %% [markdown]
# For each micro-batch, one tensor of the shape `SHAPE` crosses each boundary forward and one comes back. There were p − 1 = 3 boundaries; now there are v·p − 1 = 7, and the last device sends to the first, too. The formula, device by device:

# %%
boundary_bytes = 4 * SEQUENCES * CONTEXT * WIDTH
for name, stage_devices in {"1f1b": [0, 1, 2, 3], "interleaved": [0, 1, 2, 3, 0, 1, 2, 3]}.items():
    predicted = np.array(pipeline_boundaries(stage_devices, m, boundary_bytes))
    print(f"{name}, from all devices to all: {format_bytes(predicted.sum())} predicted")
    holds("from each device to each other", sent[name], predicted, rtol=0.02, unit="bytes")

# %% [markdown]
# ## Splitting the backward
#
# For $y = xW$ the backward computes two products. The previous stage waits for the gradient of **x**. Nobody needs the gradient of **W** until the optimizer step. So the backward can be split into `I`, for the input, and `W`, for the weights, and `W` can run when the device would otherwise idle.
#
# **ZB-H1** is 1F1B with this split, in the memory of 1F1B's first device. In units of a forward, 1F1B's bubble is $(p-1)(1+1+1)$; ZB-H1's is $(p-1)(1+1-1)$, a third of it, if m is at least p. How long does each device delay its `W`s? That is the puzzle of the lab, so its schedule is neither printed nor drawn here.

# %%
from shardlab.simulate.pipeline import zb_h1, zb_v

split, whole_b = simulate(zb_h1(p, m)), simulate(one_f_one_b(p, m))
show_table(
    {"schedule": "", "bubble over the ideal": ".3f", **{f"in flight on device {d}": "d" for d in range(p)}},
    [
        (name, result.bubble_over_ideal, *result.peak_in_flight)
        for name, result in (("zb-h1", split), ("1f1b", whole_b))
    ],
)
holds("a third of 1F1B's bubble", split.bubble_over_ideal, whole_b.bubble_over_ideal / 3, rtol=1e-9)

# %% [markdown]
# **ZB-V** has two chunks on each device, arranged as a V: down the devices with the first chunks, up again with the second. Device 0 has both ends of the model. In the steady state every device repeats a cycle of six actions; it idles only before the first micro-batch reaches it and after its last action.

# %%
v_shape = simulate(zb_v(p, m), Costs().in_chunks(2))
print("over the ideal:", v_shape.bubble_over_ideal)
holds("own first to own last action", v_shape.span_bubble, 0, atol=1e-9)
show_table(
    {"m": "d", "bubble from own first to own last action": ".3f"},
    [(n, simulate(zb_v(p, n), Costs().in_chunks(2)).span_bubble) for n in range(4, 9)],
)

# %% [markdown]
# Is the bubble zero, as the name promises? Measured from the first action on any device to the last, it is not, because the last device starts later. The paper measures each device from its own first action to its own last: a device that starts later ends later, and its next step starts later, too. In that sense the bubble is 0, with 1F1B's memory. Three conditions come with that:
#
# - **Enough micro-batches**, about two for each device: for our four devices the bubble is 0 for m ≥ 2p − 1 = 7.
# - **Equal costs** of `F`, `I` and `W`. In a real layer the attention scores have no weights, so their whole backward belongs to `I`.
# - **No device waits for all others between two steps.** But clipping by the norm of all gradients does, and so does the check for overflow in fp16: both need a number from every stage before any stage may update, and those who started early wait for those who started late. The paper therefore validates **afterwards** (section 4): each device updates at once, the number arrives later, and in the rare case that something had to be clipped or skipped, the update is rolled back and redone.
#
# Both run on real ranks, unchanged:

# %%
for name, schedule, v in (("zb-h1", zb_h1(p, m), 1), ("zb-v", zb_v(p, m), 2)):
    runs[name] = launch(train, schedule, pace.in_chunks(v), world_size=p, device="cpu", quiet=True)
    check(name, runs[name])
    done = [[slot.action for slot in result.slots] for result, _ in runs[name].outputs]
    holds(f"{name}: every rank did its actions in order", done == schedule)
measured = {name: [result for result, _ in run.outputs] for name, run in runs.items()}

# %%
def makespan(results):
    slots = [slot for result in results for slot in result.slots]
    return max(slot.end for slot in slots) - min(slot.start for slot in slots)

def simulated_s(name, results):
    chunks = Costs().in_chunks(2 if name in ("interleaved", "zb-v") else 1)
    schedule = [[slot.action for slot in result.slots] for result in results]
    return unit_s * simulate(schedule, chunks).makespan

show_table(
    {"schedule": "", "simulated, ms": ".0f", "measured, ms": ".0f"},
    [(name, 1000 * simulated_s(name, each), 1000 * makespan(each)) for name, each in measured.items()],
)

# %% [markdown]
# Four of them, one below the other. Increase m: the bubbles shrink, and only GPipe's memory grows. Change v. Make `W` cheaper than `I`, or messages expensive, and see which schedules suffer.

# %%
new = {name: measured[name] for name in ("interleaved", "zb-v")}
pipeline_schedule(p, m, 2, ["gpipe", "1f1b", *new], measured=new, unit_s=unit_s)

# %% [markdown]
# ## What goes wrong
#
# ### A schedule that cannot run
#
# If an action comes before something it depends on, the device waits forever. The simulator does not hang; it reports which dependency is violated.

# %%
swapped = [list(actions) for actions in one_f_one_b(2, 3)]
swapped[1] = [action._replace(micro_batch=2 - action.micro_batch) for action in swapped[1]]
try:
    simulate(swapped)
except IllegalSchedule as error:
    print(error)

# %% [markdown]
# ### A valid schedule that hangs
#
# Even with a valid schedule a program can hang. This one uses `dist.send`, which returns once the other side has received the message. Each message is one arbitrary number, since only the order matters.

# %%
def blocking(schedule):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for kind, _, _ in schedule[rank]:
        before, after = (rank - 1, rank + 1) if kind == "F" else (rank + 1, rank - 1)
        if 0 <= before <= last:
            dist.recv(torch.empty(1), before)
        if 0 <= after <= last:
            dist.send(torch.empty(1), after)

# %%
options = {"world_size": 2, "device": "cpu", "quiet": True}
launch(blocking, gpipe(2, 4), **options)
print("GPipe finished")
try:
    launch(blocking, one_f_one_b(2, 4), **options)
except DeadlockError as error:
    hang = error
    print("1F1B did not")

# %%
timeline(hang)

# %% [markdown]
# Device 0 sends the next activation, device 1 sends a gradient, and neither receives what the other sends. GPipe never sends in both directions at the same time, so it finished, and would have hidden the mistake.
#
# `run_schedule` uses `isend`, which does not wait. It also posts all messages in **one order that both ends agree on**, the order of the simulation, because NCCL transfers messages between two GPUs one after the other. This cannot deadlock: consider the first message in that order that has not been transferred. Its two ranks have already done, or can do, everything that comes before it, so it can always be transferred.

# %%
show_table(
    {"message": "", "micro-batch": "d", "from device": "d", "to device": "d"},
    [
        ("activation" if each.kind == "F" else "gradient", each.micro_batch, each.sender, each.receiver)
        for each in messages(one_f_one_b(2, 3))
    ],
)

# %% [markdown]
# ### Tied weights on two stages
#
# Our GPT embeds tokens and computes logits with the same matrix ("tied weights"). In a pipeline the first stage has it and the last has a copy, and each computes only the gradient of its own use. Unless the two are summed, the copies drift apart, without an error. Megatron all-reduces them between the first and the last stage after the backward; ZB-V has both on device 0.

# %%
(_, first), (_, last) = runs["1f1b"].outputs[0], runs["1f1b"].outputs[-1]
together = first["token.weight"] + last["head.weight"]
in_one_process = expected["token.weight"]
print("alone:", torch.allclose(first["token.weight"], in_one_process, atol=1e-6), end="  ")
print("summed:", torch.allclose(together, in_one_process, atol=1e-6))

# %% [markdown]
# ### Unequal stages
#
# The slowest stage sets the pace. The logits of a large vocabulary can cost as much as a layer or two, and all of them are on the last stage:

# %%
def with_slow_end(cost):
    slow_end = {each: [1, 1, 1, cost] for each in ("forward", "backward_input", "backward_weight")}
    result = simulate(one_f_one_b(p, m), Costs(**slow_end))
    return cost, result.makespan, *(each / result.makespan for each in result.idle)

show_table(
    {"last stage, times the others": ".2f", "step": ".2f", **{f"device {d} idle": ".0%" for d in range(p)}},
    map(with_slow_end, (1, 1.25, 1.5, 2)),
)

# %% [markdown]
# The Llama 3 paper takes one layer away from the first and one from the last of its 16 stages to balance them (section 3.3.2); the 405B model has 126 layers.
#
# ## With data parallelism
#
# A pipeline is one model replica in p pieces. With dp pipelines, each processes its own m micro-batches, and each stage all-reduces its gradients with the same stage of the other pipelines:
#
# $$\text{global batch} = \text{dp} \times \text{micro-batch} \times m$$
#
# Four ranks, two pipelines of two stages, on a mesh with an axis for each:

# %%
def pipelines_side_by_side(schedule):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    dp_rank, pp_rank = mesh.get_local_rank("dp"), mesh.get_local_rank("pp")
    mine, tokens, targets = share_of(schedule, pp_rank, first=dp_rank * m // 2)
    run_schedule(
        schedule, mine, tokens, targets, loss_of, activation_shape=SHAPE, group=mesh.get_group("pp")
    )
    for parameter in mine[pp_rank].parameters():
        dist.all_reduce(parameter.grad, group=mesh.get_group("dp"))
        parameter.grad /= 2
    return {name: q.grad for name, q in mine[pp_rank].named_parameters()}

# %%
run = launch(pipelines_side_by_side, one_f_one_b(2, m // 2), world_size=4, device="cpu")
check_gradients("two pipelines", run.outputs)
print(f"global batch: 2 pipelines × {SEQUENCES} sequences × {m // 2} micro-batches = {SEQUENCES * m}, as before")

# %% [markdown]
# Here the two kinds of parallelism conflict. The global batch cannot grow without limit, because the model would learn less from each sample. At the same global batch, twice the replicas have half the micro-batches each, and **the bubble doubles**. For 16 stages and a global batch of 2,048 micro-batches:

# %%
def bubbles(each):
    schedules = one_f_one_b(16, each), interleaved_one_f_one_b(16, each, 4)
    return [simulate(schedule).bubble_over_ideal for schedule in schedules]

show_table(
    {"dp": "d", "m": "d", "1F1B": ".2f", "v = 4": ".2f"},
    [(dp, 2048 // dp, *bubbles(2048 // dp)) for dp in (16, 64, 128)],
    caption="bubble over the ideal",
)

# %% [markdown]
# Table 4 of the Llama 3 paper shows this at scale. With 16 stages, from 8,192 GPUs (64 replicas) to 16,384 (128 replicas) at the same global batch, each GPU went from 430 to 400 TFLOP/s. The paper attributes this to the smaller batch of each replica.
#
# ## In practice
#
# `torch.distributed.pipelining` takes one stage for each rank and has a class for each schedule. It splits a batch into micro-batches itself. The same stages give the same gradients:

# %%
def with_torch():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = dist.get_rank()
    piece = stages_of(p)[rank]
    stage = PipelineStage(piece, rank, p, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=m, loss_fn=loss_of)
    tokens, targets = (torch.cat(each) for each in zip(*(data.batch(i, SEQUENCES, CONTEXT) for i in range(m))))
    schedule.step(*([tokens] if rank == 0 else []), target=targets if rank == p - 1 else None)
    return {name: q.grad for name, q in piece.named_parameters()}

# %%
with_torchs = launch(with_torch, world_size=p, device="cpu").outputs
for rank, ((_, ours), theirs) in enumerate(zip(runs["1f1b"].outputs, with_torchs)):
    pairs = [(ours[name].flatten(), gradient.flatten()) for name, gradient in theirs.items()]
    differences = [(one - other).abs().max() for one, other in pairs]
    holds(f"rank {rank}: PyTorch's 1F1B gives the same gradients, largest difference", differences, below=1e-6)

# %% [markdown]
# - Four more classes run the actions simulated here in the same order, as a test of this course checks: `ScheduleGPipe`, `ScheduleInterleaved1F1B`, `ScheduleZBVZeroBubble`, and `ScheduleInterleavedZeroBubble` with one stage on each device, which is ZB-H1.
# - PyTorch 2.13 has three that are **not** simulated here: `ScheduleInterleavedZeroBubble` with two or more chunks; `ScheduleLoopedBFS`, which takes all micro-batches through a device's first chunk before the next one (Lamy-Poirier 2022); and `ScheduleDualPipeV`, after DeepSeek-V3's DualPipe, which runs the forward of one micro-batch together with the backward of another.
# - **DeepSpeed**: `PipelineModule(layers, num_stages=p)`, and `engine.train_batch(data_iter)` runs 1F1B over `gradient_accumulation_steps` micro-batches. That key is m. It refuses ZeRO's stages 2 and 3, which would send gradients or gather parameters for each micro-batch; stage 1 works.
# - **Megatron-LM**: `--pipeline-model-parallel-size` is p, `--num-virtual-stages-per-pipeline-rank` is v (the older `--num-layers-per-virtual-pipeline-stage` gives the layers of a chunk instead), and m is `--global-batch-size` over (dp × `--micro-batch-size`).
#
# ## Where GPUs differ
#
# - A GPU computes while its messages travel; our ranks also send in separate threads. The latency of the first message through the pipeline cannot be hidden, and v multiplies it.
# - Stages may be on different nodes. One tensor for each micro-batch and boundary is little enough for slow links, so tensor parallelism gets the fast ones inside a node.
# - A micro-batch that is too small leaves a GPU's units idle, so m cannot grow without limit by making micro-batches smaller.
# - The backward takes about twice as long as the forward when nothing is recomputed. With [activation checkpointing](10_activation_checkpointing.ipynb) it takes three times as long, and of GPipe's m micro-batches in flight only the stage inputs are kept.
#
# ## What to remember
#
# - Bubble over the ideal: $\frac{p-1}{m}$ for GPipe and 1F1B alike, $\frac{p-1}{v \cdot m}$ interleaved if p divides m, a third of 1F1B's for ZB-H1 if m ≥ p. Always say what the bubble is divided by.
# - 1F1B saves memory: stage i holds p − i micro-batches instead of m.
# - m is the number of gradient accumulation steps: global batch = dp × micro-batch × m.
# - A schedule is data. Simulate it before you run it, and run it with non-blocking sends.
#
# ## Sources
#
# - Y. Huang et al.: *GPipe: efficient training of giant neural networks using pipeline parallelism.* [arXiv 1811.06965](https://arxiv.org/abs/1811.06965), 2019.
# - D. Narayanan et al.: *Memory-efficient pipeline-parallel DNN training.* [arXiv 2006.09503](https://arxiv.org/abs/2006.09503), 2021: 1F1B with a flush.
# - D. Narayanan et al.: *Efficient large-scale language model training on GPU clusters using Megatron-LM.* [arXiv 2104.04473](https://arxiv.org/abs/2104.04473), 2021. Section 2.2: interleaving, and the bubble over the ideal.
# - P. Qi, X. Wan, G. Huang, M. Lin: *Zero bubble pipeline parallelism.* [arXiv 2401.10241](https://arxiv.org/abs/2401.10241), 2024: ZB-H1 and ZB-V; section 4 on validating afterwards.
# - J. Lamy-Poirier: *Breadth-first pipeline parallelism.* [arXiv 2211.05953](https://arxiv.org/abs/2211.05953), 2022.
# - DeepSeek-AI: *DeepSeek-V3 technical report.* [arXiv 2412.19437](https://arxiv.org/abs/2412.19437), 2024. DualPipe.
# - Llama team: *The Llama 3 herd of models.* [arXiv 2407.21783](https://arxiv.org/abs/2407.21783), 2024. Section 3.3, Table 4.
# - PyTorch 2.13: [torch.distributed.pipelining](https://docs.pytorch.org/docs/stable/distributed.pipelining.html), and the schedules in `torch/distributed/pipelining/schedules.py`.
# - Names of m: [Varuna](https://github.com/microsoft/varuna), README; SageMaker: [model parallelism, tips and pitfalls](https://docs.aws.amazon.com/sagemaker/latest/dg/model-parallel-customize-tips-pitfalls.html).
