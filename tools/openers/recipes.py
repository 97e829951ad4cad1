"""How each opener is recorded: a run of real ranks, and what of it is shown."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from shardlab import data, models
from shardlab.launch import launch
from shardlab.run import Run
from shardlab.trace.measure import measure
from shardlab.widgets.units import format_bytes
from tools.openers.marks import (
    DIGITS,
    ended,
    levels_of,
    of_calls,
    rank_rows,
    rounded,
    shifted,
    thinned,
)
from tools.openers.opener import WAITS, Block, Level, Message, Opener


def record(name: str) -> Opener:
    """Runs a recipe. Raises KeyError for a chapter without one."""
    return RECIPES[name]()


def start_here() -> Opener:
    run = launch(pass_it_on, world_size=4, device="cpu", quiet=True)
    return of_calls(
        run,
        "Four processes start, and a message passes from one to the next",
        "Each of four ranks computes for a moment. Then rank 0 sends a tensor to rank 1, which "
        "adds its own and passes it on, until it is back at rank 0. A rank that has called recv "
        "waits there until its neighbor sends.",
    )


def pass_it_on() -> None:
    torch.set_num_threads(1)
    rank, n = dist.get_rank(), dist.get_world_size()
    compute(2)  # the first time includes one-time setup
    dist.barrier()
    with measure("compute"):
        own = compute(2 + rank % 2)
    if rank:
        received = torch.empty_like(own)
        dist.recv(received, src=rank - 1)
        with measure("compute"):
            own = received + compute(2)
    dist.send(own, dst=(rank + 1) % n)
    if rank == 0:
        dist.recv(own, src=n - 1)


def compute(times: int) -> torch.Tensor:
    x = torch.rand(256, 256)
    for _ in range(8 * times):
        x = torch.tanh(x @ x)
    return x


def one_device() -> Opener:
    run = launch(two_steps, world_size=1, device="cpu", memory=True, quiet=True)
    [memory] = run.memory
    second = [phase for phase in memory.phases if phase.name == "forward"][1]
    start, end = second.start_s, float(memory.times_s[-1])
    return Opener(
        "The memory of one training step rises in forward and falls in backward",
        "The parameters and the optimizer's states stay in memory. Forward adds activations, layer "
        "by layer; backward frees them as it computes the gradients. "
        f"At most {format_bytes(memory.peak_bytes)} are live at one time.",
        ("one rank",),
        round(end - start, DIGITS),
        levels=levels_of(0, memory, start, end, 160, *memory.live_bytes),
    )


def two_steps() -> None:
    torch.manual_seed(0)
    model = models.gpt("1M")
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(2):
        optimizer.zero_grad()
        model(*data.batch(step, 8, 64)).backward()
        optimizer.step()


def dp_vs_ddp() -> Opener:
    run = launch(ddp_steps, world_size=2, device="cpu", quiet=True)
    return of_calls(
        run,
        "Gradients leave in buckets while backward still computes",
        "Backward computes gradients from the last layer to the first. As soon as a bucket of them "
        "is complete, its all-reduce starts, while backward continues.",
        lanes={"all_reduce": 1},
    )


def ddp_steps() -> None:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(models.gpt("1M"), bucket_cap_mb=0.7)
    batch = data.batch(0, 4, 64, dist.get_rank(), dist.get_world_size())
    for _ in range(3):
        dist.barrier()
        with measure("forward"):
            loss = model(*batch)
        with measure("backward"):
            loss.backward()


def ring() -> Opener:
    run = launch(ring_steps, 2**20, world_size=4, device="cpu", quiet=True)
    sent = run.traffic["ring"].sent_by_rank[0]
    return of_calls(
        run,
        "Around a ring of four ranks, a tensor is summed in 2(N − 1) = 6 steps",
        "Every rank sends one quarter of its tensor to the next rank, again and again. After three "
        "steps each rank has one quarter of the sum; after three more, everyone has all of it. "
        f"Rank 0 sent {format_bytes(sent)} for a tensor of {format_bytes(4 * 2**20)}.",
        lanes={"recv": 1},
    )


def ring_steps(length: int) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(torch.rand(length).chunk(n))
    dist.all_reduce(torch.zeros(1))  # the first call includes one-time setup
    dist.barrier()
    with measure("ring"):
        for step in range(2 * (n - 1)):
            mine, next_one = (rank - step) % n, (rank - step - 1) % n
            received = torch.empty_like(chunks[next_one])
            sending = dist.isend(chunks[mine], (rank + 1) % n)
            dist.recv(received, (rank - 1) % n)
            assert sending is not None  # this rank is in the group
            sending.wait()
            chunks[next_one] = chunks[next_one] + received if step < n - 1 else received


def zero() -> Opener:
    run = sharded_run(4, layers=4, steps=2)  # the first step includes one-time setup
    second = [[phase for phase in rank.phases if phase.name == "forward"][1] for rank in run.memory]
    start = max(phase.start_s for phase in second)
    end = max(rank.phases[-1].end_s for rank in run.memory)
    shown = ("parameters", "gradients")
    levels = [
        level
        for rank, memory in enumerate(run.memory)
        for level in levels_of(rank, memory, start, end, 90, *shown)
    ]
    return Opener(
        "Each rank keeps a slice of the model, gathers a layer to use it, and frees it again",
        "Four ranks, each with a quarter of the parameters. Before a layer computes, all ranks "
        "gather its parameters; afterwards they free them. In backward they gather again, and each "
        "keeps its slice of the gradients.",
        rank_rows(4),
        round(end - start, DIGITS),
        levels=tuple(levels),
    )


def fsdp() -> Opener:
    run = sharded_run(2, layers=6, steps=1)
    events = sorted(run.memory[0].units, key=lambda event: event.end_s)
    units = sorted({event.unit for event in events})
    blocks, whole_since = [], {}
    start, end = events[0].start_s, events[-1].end_s
    for event in events:
        row = units.index(event.unit)
        if event.event == "copy":
            whole_since[row] = event.end_s
        elif row in whole_since and event.event in ("free", "reduce"):
            blocks.append(Block(row, 0, whole_since.pop(row), event.end_s, "whole"))
    return Opener(
        "Each unit of the model is whole only while it computes",
        "One of two ranks: each bar shows how long a unit's parameters are gathered. "
        "Forward goes down the blocks and backward comes back up; the root, which contains the "
        "others, stays whole.",
        tuple(unit or "root" for unit in units),
        round(end - start, DIGITS),
        blocks=shifted(blocks, start),
    )


def sharded_run(world_size: int, layers: int, steps: int) -> Run:
    options: dict[str, Any] = {"world_size": world_size, "device": "cpu", "quiet": True}
    return launch(sharded_steps, layers, steps, memory=True, **options)


def sharded_steps(layers: int, steps: int) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = models.GPT(models.GPTConfig(layers=layers, heads=4, width=192, context=64))
    for unit in (*model.blocks, model):
        fully_shard(unit)
    forward_and_backward(model, steps)


def forward_and_backward(model: nn.Module, steps: int) -> None:
    for step in range(steps):
        model.zero_grad()
        dist.barrier()
        model(*data.batch(step, 2, 64, dist.get_rank(), dist.get_world_size())).backward()


def fsdp_in_practice() -> Opener:
    rows = ("FSDP, all ranks", "HSDP, in node", "HSDP, between")
    blocks: list[Block] = []
    for groups in (1, 2):
        run = launch(steps_on_a_mesh, groups, world_size=4, device="cpu", quiet=True)
        begin = max(ended(call) for call in run.calls if call.op == "barrier")
        for call in run.calls:
            if call.rank == 0 and call.start_s >= begin:
                row = 0 if groups == 1 else 1 if call.group == (0, 1) else 2
                times = call.start_s - begin, ended(call) - begin
                blocks.append(Block(row, 0, *times, call.op.removesuffix("_single")))
    return Opener(
        "Hybrid sharding gathers within a node and sums slices of gradients between nodes",
        "The collectives of rank 0 of four in one step, waits included. With FSDP all four ranks "
        "take part in each, so parameters and gradients cross between the nodes {0, 1} and {2, 3}. "
        "With HSDP rank 0 gathers and reduce-scatters with rank 1 only; each unit's slice of the "
        "gradients is then all-reduced with rank 2, on the other node.",
        rows,
        round(max(block.end for block in blocks), DIGITS),
        blocks=shifted(blocks, 0),
    )


def steps_on_a_mesh(groups: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    torch.set_num_threads(1)
    shape = (groups, dist.get_world_size() // groups)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    model = models.gpt("1M")
    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=mesh if groups > 1 else mesh["shard"])
    forward_and_backward(model, 3)  # the first ones include one-time setup


def offload() -> Opener:
    run = launch(offloaded_step, world_size=1, device="cpu", quiet=True)
    spans, moves = run.outputs[0]
    rows = {"forward": 0, "backward": 0, "to host": 1, "update": 2, "to device": 3}
    blocks = [Block(rows[kind], 0, start, end, kind) for kind, start, end in spans]
    blocks += [Block(rows[f"to {to}"], 0, start, end, "copy") for to, start, end in moves]
    start, end = min(block.start for block in blocks), max(block.end for block in blocks)
    return Opener(
        "Gradients go down to the host, the update runs there, and new weights come back up",
        "The device computes forward and backward. Then, parameter by parameter, the gradient is "
        "copied to the host, the host updates its fp32 master copy, and the new weight is copied "
        f"to the device. ({len(moves)} copies. On a machine without a GPU the two memories are "
        "simulated, and the times are those of its CPU.)",
        ("device", "to host", "host", "to device"),
        round(end - start, DIGITS),
        blocks=shifted(blocks, start),
    )


def offloaded_step() -> tuple[list[Any], list[Any]]:
    from shardlab.placement import Pools

    torch.manual_seed(0)
    torch.set_num_threads(1)
    spans: list[Any] = []

    def timed(kind: str, function: Callable[[], Any]) -> Any:
        start = time.perf_counter() - origin
        result = function()
        spans.append((kind, start, time.perf_counter() - origin))
        return result

    model = models.GPT(models.GPTConfig(layers=2, heads=2, width=256, context=64)).bfloat16()
    batch = data.batch(0, 1, 64)
    pools, origin = Pools("cpu"), time.perf_counter()
    with pools:
        with pools.host():
            masters = [torch.zeros(each.shape) for each in model.parameters()]
        loss = timed("forward", lambda: model(*batch))
        timed("backward", loss.backward)
        before = len(pools.moves)
        for parameter, master in zip(model.parameters(), masters, strict=True):
            assert parameter.grad is not None
            gradient = pools.to_host(parameter.grad)
            with pools.host():
                new = timed("update", partial(adam, gradient, master))
            parameter.data.copy_(pools.to_device(new))
    return spans, [(move.to, move.start_s, move.end_s) for move in pools.moves[before:]]


def adam(gradient: torch.Tensor, master: torch.Tensor) -> torch.Tensor:
    """A first step of Adam, whose states are still zero."""
    wide = gradient.float()
    master.sub_(1e-3 * (0.1 * wide / 0.1) / ((0.001 * wide.square() / 0.001).sqrt() + 1e-8))
    return master.bfloat16()


def tensor_parallel() -> Opener:
    run = launch(split_mlp, 512, world_size=2, device="cpu", quiet=True)
    return of_calls(
        run,
        "Two ranks compute one layer together, and add up their halves",
        "Each rank has half of the columns of W₁ and half of the rows of W₂, so it can compute "
        "both products without the other. Its result is a partial sum; one all-reduce in forward "
        "and one in backward complete it.",
        lanes={"all_reduce": 1},
    )


def split_mlp(width: int) -> None:
    torch.set_num_threads(1)
    n = dist.get_world_size()
    w1 = torch.randn(width, 2 * width // n).requires_grad_()
    w2 = torch.randn(2 * width // n, width).requires_grad_()
    x = torch.randn(width, width, requires_grad=True)
    for _ in range(2):  # the first time includes one-time setup
        dist.barrier()
        with measure("forward"):
            part = functional.gelu(x @ w1) @ w2
        dist.all_reduce(part.detach().clone())
        with measure("backward"):
            part.backward(torch.ones_like(part))
        dist.all_reduce(x.grad)


def pipeline() -> Opener:
    from shardlab.simulate.pipeline import one_f_one_b

    schedule = one_f_one_b(4, 8)
    run = launch(pipeline_step, schedule, world_size=4, device="cpu", quiet=True)
    kinds = {"F": "forward", "B": "backward"}
    blocks = [
        Block(rank, 0, slot.start, slot.end, kinds[slot.action.kind], str(slot.action.micro_batch))
        for rank, slots in enumerate(run.outputs)
        for slot in slots
    ]
    start, end = min(block.start for block in blocks), max(block.end for block in blocks)
    ends = {(block.row, block.kind, block.label): block for block in blocks}
    messages = []
    for (row, kind, label), block in ends.items():
        to = row + (1 if kind == "forward" else -1)
        if 0 <= to < 4:
            messages.append(
                Message(row, to, block.end - start, ends[to, kind, label].start - start)
            )
    return Opener(
        "A pipeline of four stages fills, runs and drains",
        "Eight micro-batches, numbered 0 to 7. A stage can begin a micro-batch only when the "
        "stage before it is done, so at first the later ones wait; at the end the early ones wait "
        "for the last gradients. (Each forward sleeps until 20 ms have passed and each backward "
        "until 40 ms, to emulate four devices on one machine; the order and the waits are real.)",
        tuple(f"stage {stage}" for stage in range(4)),
        round(end - start, DIGITS),
        blocks=shifted(blocks, start),
        messages=rounded(messages),
    )


def pipeline_step(schedule: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    from shardlab.pipeline import run_schedule
    from shardlab.simulate.pipeline import Costs

    torch.set_num_threads(1)
    rank = dist.get_rank()
    stage = {rank: nn.Linear(64, 64)}
    inputs = [torch.rand(4, 64) for _ in range(8)]
    for pace in (None, Costs(0.02, 0.02, 0.02)):  # the first step includes one-time setup
        result = run_schedule(
            schedule, stage, inputs, inputs, functional.mse_loss,
            activation_shape=(4, 64), minimum_s=pace,
        )  # fmt: skip
    return result.slots


def checkpointing() -> Opener:
    run = launch(kept_and_recomputed, world_size=1, device="cpu", quiet=True)
    levels, peaks, end = [], [], 0
    for row, (live, operators) in enumerate(run.outputs[0]):
        times, amounts = thinned(range(operators), live, 130)
        levels.append(Level(row, "activations", tuple(times), tuple(amounts)))
        peaks.append(max(live))
        end = max(end, operators)
    return Opener(
        "Keep every activation, or keep a few and compute the rest again",
        "Above, forward keeps all activations until backward needs them: they pile up to "
        f"{format_bytes(peaks[0])}. Below, each block keeps only its input, and backward computes "
        f"the rest again, one block at a time: {format_bytes(peaks[1])}, for more operators.",
        ("keeps all", "recomputes"),
        end,
        unit="operators",
        levels=tuple(levels),
    )


def kept_and_recomputed() -> list[tuple[list[int], int]]:
    from torch.utils.checkpoint import checkpoint

    from shardlab.trace import lifetimes

    batch, found = data.batch(0, 4, 64), []
    for again in (False, True):
        torch.manual_seed(0)
        model = models.GPT(models.GPTConfig(layers=6, heads=4, width=64, context=64))
        for block in model.blocks if again else ():
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        recorded = lifetimes.record(model, partial(step_of, model, batch))
        found.append((recorded.live_bytes.tolist(), recorded.operators))
    return found


def step_of(model: nn.Module, batch: Sequence[torch.Tensor]) -> None:
    model(*batch).backward()


def save_resume() -> Opener:
    from shardlab.trace.disk_recorder import DiskChange

    with tempfile.TemporaryDirectory() as folder:
        run = launch(atomic_save, Path(folder), world_size=4, device="cpu", quiet=True)
    made: list[list[DiskChange]] = run.outputs
    rename = next(change for change in made[0] if change.op == "rename")
    start = min(change.at_s for changes in made for change in changes)
    end = (rename.at_s - start) * 1.2  # so that the checkpoint is seen
    levels = []
    for rank, changes in enumerate(made):
        writes = [change for change in changes if change.op == "write"]
        times = [0.0, *(round(change.at_s - start, DIGITS) for change in writes)]
        sizes = [0, *itertools.accumulate(len(change.data) for change in writes)]
        times.append(round(rename.at_s - start, DIGITS))
        zeros = (0,) * (len(times) - 1)
        levels.append(Level(rank, "unfinished", tuple(times), (*sizes, 0)))
        levels.append(Level(rank, "checkpoint", tuple(times), (*zeros, sizes[-1])))
    return Opener(
        "Four ranks write four files, and one rename makes them a checkpoint",
        "Each rank writes its slice into a folder under a temporary name. Until all have finished, "
        "a restart ignores that folder and uses the checkpoint before it. Then one rank renames "
        "the folder: at that moment, and not a file earlier, the new checkpoint exists.",
        tuple(f"file of rank {rank}" for rank in range(4)),
        round(end, DIGITS),
        levels=tuple(levels),
    )


def atomic_save(folder: Path) -> Any:
    from shardlab.trace.disk_recorder import disk_changes

    rank = dist.get_rank()
    unfinished = folder / "new"
    with disk_changes(folder) as changes:
        if rank == 0:
            unfinished.mkdir()
        dist.barrier()
        with open(unfinished / f"rank_{rank}.pt", "wb", buffering=0) as file:
            for _ in range(16):
                file.write(torch.rand(2**16).numpy().tobytes())
            os.fsync(file.fileno())
        dist.barrier()
        if rank == 0:
            os.rename(unfinished, folder / "step_4")
    return [change._replace(data=bytes(len(change.data))) for change in changes]


def deepspeed() -> Opener:
    text = '"zero_optimization": {"stage": 3}, "zero_optimization": {"overlap_comm": false}'
    read = json.loads(f"{{{text}}}")["zero_optimization"]  # as Accelerate reads it
    return one_step_of(
        {
            "a key twice": (in_an_engine, read),
            "stage 1": (in_an_engine, {"stage": 1}),
            "stage 3": (in_an_engine, {"stage": 3}),
        },
        "A file that asks for stage 3, and an engine that shards nothing",
        "What rank 0 of two does in one step of two micro-batches: forward and backward, and below "
        "them its collectives, waits included. The file of the first row has zero_optimization "
        "twice, with stage 3 in the first. Python's json keeps the last, so the engine runs stage "
        "0: it all-reduces all gradients, without an error. Stage 1 shards only the update. Stage "
        "3 gathers each layer's parameters in every forward and backward. (The keys that let it "
        "keep a small model gathered are 0.)",
    )


def accelerate() -> Opener:
    return one_step_of(
        {
            "DDP by hand": (with_ddp, {}),
            "cpu=True": (accelerated, {"cpu": True}),
            "Accelerator()": (accelerated, {}),
        },
        "Accelerate makes the calls of the loop by hand, or none at all",
        "What rank 0 of two does in one step of two micro-batches: forward and backward, and below "
        "them its collectives, waits included. DDP by hand sums gradients in the second backward "
        "only, and so does Accelerate. But Accelerator() without cpu=True finds no GPU here and "
        "wraps nothing: no collective, no error, and each rank trains alone.",
    )


def one_step_of(
    ways: dict[str, tuple[Callable[[Any], None], dict[str, Any]]], title: str, caption: str
) -> Opener:
    """{row: (function, its argument)}: the last step of rank 0 of two."""
    blocks: list[Block] = []
    for row, (train, options) in enumerate(ways.values()):
        run = launch(train, options, world_size=2, device="cpu", quiet=True, timeout_s=200)
        shown = of_calls(run, "", "", lanes=dict.fromkeys((call.op for call in run.calls), 1))
        for block in shown.blocks:
            kind = block.kind.removesuffix(WAITS).removesuffix("_single")
            if block.row == 0:
                blocks.append(block._replace(row=row, kind=kind))
    end = max(block.end for block in blocks)
    return Opener(title, caption, tuple(ways), end, blocks=shifted(blocks, 0))


def with_ddp(_: dict[str, Any]) -> None:
    model = nn.parallel.DistributedDataParallel(models.gpt("1M"))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):  # the first ones include one-time setup
        dist.barrier()
        for micro in range(2):
            with contextlib.nullcontext() if micro else model.no_sync():
                with measure("forward"):
                    loss = model(*data.batch(2 * step + micro, 4, 64, dist.get_rank(), 2))
                with measure("backward"):
                    (loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def accelerated(options: dict[str, Any]) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=2, **options)
    model = models.gpt("1M")
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))

    for step in range(3):  # the first ones include one-time setup
        dist.barrier()
        for micro in range(2):
            with accelerator.accumulate(model):
                with measure("forward"):
                    loss = model(*data.batch(2 * step + micro, 4, 64, dist.get_rank(), 2))
                with measure("backward"):
                    accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()


def in_an_engine(zero: dict[str, Any]) -> None:
    import deepspeed

    layer_by_layer = {  # as in a model that is too large to stay gathered
        "stage3_param_persistence_threshold": 0,
        "stage3_prefetch_bucket_size": 0,
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
    }
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "zero_optimization": zero | layer_by_layer,
        "zero_allow_untested_optimizer": True,
    }
    model = models.gpt("1M")
    optimizer = torch.optim.AdamW(model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for step in range(3):  # the first ones include one-time setup
        dist.barrier()
        for micro in range(2):
            with measure("forward"):
                loss = engine(*data.batch(2 * step + micro, 4, 64, dist.get_rank(), 2))
            with measure("backward"):
                engine.backward(loss)
            engine.step()


def lora() -> Opener:
    rows = ("full", "LoRA", "QLoRA")
    shown = ("parameters", "gradients", "optimizer", "activations")
    levels: list[Level] = []
    ends, peaks = [], []
    for row, method in enumerate(rows):
        # Importing bitsandbytes can take a minute.
        options: dict[str, Any] = {"memory": True, "quiet": True, "timeout_s": 200}
        [memory] = launch(fine_tune, method, world_size=1, device="cpu", **options).memory
        start = [phase.start_s for phase in memory.phases if phase.name == "forward"][-1]
        end = memory.phases[-1].end_s
        found = levels_of(row, memory, start, end, 90, *shown)
        levels += found
        ends.append(end - start)
        peaks.append(max(map(sum, zip(*(level.amounts for level in found), strict=True))))
    return Opener(
        "LoRA leaves almost no gradients and optimizer states, and QLoRA shrinks the weights",
        "The memory of one training step of the same GPT, three times. Full fine-tuning keeps a "
        "gradient and two optimizer states for each parameter. LoRA freezes the parameters, so "
        "that only its small matrices have them. QLoRA also stores the frozen matrices in 4 bits. "
        f"Activations remain. Peak memory is {format_bytes(peaks[0])}, "
        f"{format_bytes(peaks[1])} and {format_bytes(peaks[2])}.",
        rows,
        round(max(ends), DIGITS),
        levels=tuple(levels),
    )


def fine_tune(method: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = models.GPT(models.GPTConfig(layers=4, heads=4, width=256, context=64))
    if method == "QLoRA":
        in_4_bits(model)
    if method != "full":
        from peft import LoraConfig, inject_adapter_in_model

        targets = ["qkv", "out", "up", "down"]
        inject_adapter_in_model(LoraConfig(r=4, target_modules=targets), model)  # in place
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    for step in range(3):  # the first ones include one-time setup
        optimizer.zero_grad()
        model(*data.batch(step, 2, 64)).backward()
        optimizer.step()


def in_4_bits(model: models.GPT) -> None:
    """Replace each Linear of the blocks, in place."""
    from bitsandbytes.nn.modules import Linear4bit

    for block in model.blocks:
        for name, layer in list(block.named_modules()):
            if isinstance(layer, nn.Linear):
                small = Linear4bit(layer.in_features, layer.out_features, quant_type="nf4")
                small.load_state_dict(layer.state_dict())
                block.set_submodule(name, small.to("cpu"))  # the move quantizes


def quantization() -> Opener:
    ways = {"fp32": None, "bf16": torch.bfloat16, "int8": 8, "4 bits": 4}
    run = launch(load_and_quantize, list(ways.values()), world_size=1, device="cpu", quiet=True)
    finished, sizes = run.outputs[0]
    levels = tuple(
        Level(row, "parameters", tuple(times), tuple(amounts))
        for row, (times, amounts) in enumerate(zip(finished, sizes, strict=True))
    )
    totals = (
        f"{format_bytes(amounts[-1])} in {name}" for name, amounts in zip(ways, sizes, strict=True)
    )
    ends = ", ".join(totals)
    return Opener(
        "Codes take a quarter or an eighth of the bytes, and their scales a little more",
        "The matrices of the same GPT, stored one after another in four formats. In int8 and in 4 "
        "bits, blocks of 64 weights share an fp32 scale, which takes half a bit for each weight. "
        f"In all, {ends}.",
        tuple(ways),
        max(times[-1] for times in finished),
        unit="matrices",
        levels=levels,
    )


def load_and_quantize(formats: list[Any]) -> tuple[list[list[float]], list[list[int]]]:
    """Bytes stored, after each matrix and format."""
    torch.manual_seed(0)
    model = models.GPT(models.GPTConfig(layers=4, heads=4, width=256, context=64))
    matrices = [each.detach() for each in model.blocks.parameters() if each.ndim == 2]
    sizes = []
    for wanted in formats:
        stored, amounts = 0, [0]
        for matrix in matrices:
            stored += stored_bytes(matrix, wanted)
            amounts.append(stored)
        sizes.append(amounts)
    return [[float(i) for i in range(len(matrices) + 1)] for _ in formats], sizes


def stored_bytes(matrix: torch.Tensor, wanted: Any) -> int:
    """Of the tensors that are stored: values, or codes and scales."""
    if not isinstance(wanted, int):
        return matrix.to(wanted or matrix.dtype).nbytes
    blocks = matrix.reshape(-1, 64)
    scales = blocks.abs().amax(1, keepdim=True) / (2 ** (wanted - 1) - 1)
    codes = (blocks / scales).round().to(torch.int8)
    if wanted == 4:
        codes = codes[:, 0::2] << 4 | codes[:, 1::2] & 15
    return codes.nbytes + scales.nbytes


def where_the_time_goes() -> Opener:
    run = launch(steps_with_a_straggler, world_size=4, device="cpu", quiet=True)
    return of_calls(
        run,
        "The rank that never waits is the one that all others wait for",
        "Three steps of four ranks. Each computes and then enters an all-reduce; it is pale while "
        "another rank has not entered it yet. Rank 2 has three times as much to compute: it has "
        "the shortest all-reduces, and it decides how long a step takes.",
    )


def steps_with_a_straggler() -> None:
    torch.set_num_threads(1)
    compute(2)  # the first time includes one-time setup
    gradients = torch.zeros(1 << 18)
    for _ in range(3):
        dist.all_reduce(gradients)
    dist.barrier()
    for _ in range(3):
        with measure("compute"):
            compute(6 if dist.get_rank() == 2 else 2)
        dist.all_reduce(gradients)


RECIPES: dict[str, Callable[[], Opener]] = {
    "00_start_here": start_here,
    "01_one_device": one_device,
    "02_dp_vs_ddp": dp_vs_ddp,
    "03_ring_all_reduce": ring,
    "04_zero": zero,
    "05_fsdp": fsdp,
    "06_fsdp_in_practice": fsdp_in_practice,
    "07_offload": offload,
    "08_tensor_parallel": tensor_parallel,
    "09_pipeline": pipeline,
    "10_activation_checkpointing": checkpointing,
    "11_save_resume": save_resume,
    "12_deepspeed": deepspeed,
    "13_accelerate": accelerate,
    "14_lora": lora,
    "15_quantization": quantization,
    "16_where_the_time_goes": where_the_time_goes,
}
