"""Records the traces of `which_is_it` from real runs: a step of each method, as one rank calls it.

python -m autograder.exercises.lab06_fsdp_in_practice.hidden.record_traces
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from shardlab import launch, measure
from shardlab.recorded_runs.step_traces import METHODS, RECORDED, Trace, dump
from shardlab.run import Run

HIDDEN = Path(__file__).with_name("traces.json")
DDP, ZERO2, FSDP, KEPT, HSDP, TP = METHODS
STEPS = 3  # in its second step, DDP has rebuilt its buckets


@dataclass(frozen=True)
class Recipe:
    """A run of a few steps, of which the last is recorded on one rank."""

    method: str
    width: int = 32
    blocks: int = 3
    samples: int = 8  # of a rank's batch
    mesh: tuple[int, ...] = (4,)  # HSDP: groups × ranks in a group
    rank: int = 0
    bucket_mb: float = 0.03  # DDP
    only_root: bool = False  # FSDP: the whole model is one unit
    in_root: int = 0  # FSDP: the number of last blocks that are not units: they belong to the root
    # Whether parameters are freed after forward, or to how many ranks each unit is resharded then.
    reshards: bool | int = True
    bf16: bool = False  # FSDP: gathers in bf16
    micro_batches: int = 1
    counts_samples: bool = False  # gathers the ranks' numbers of samples before forward
    logs_loss: bool = False  # averages the loss over the ranks
    collects: int = 0  # the number of metrics that it collects from each rank, after the step
    clips: bool = False  # clips the norm of the gradient
    sequence_parallel: bool = False  # TP: activations are sharded between the layers
    wide_head: bool = False  # TP: only a linear layer with many classes, split by class
    frozen_below: bool = False  # TP: no gradient of its input is needed

    @property
    def world_size(self) -> int:
        return int(torch.Size(self.mesh).numel())


class Block(nn.Module):
    """x + down(gelu(up(x))), four times as wide inside"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(x)))


def model_of(recipe: Recipe) -> nn.Module:
    torch.manual_seed(0)
    if recipe.wide_head:
        return nn.Sequential(nn.Linear(recipe.width, 40 * recipe.width, bias=False))
    return nn.Sequential(*[Block(recipe.width) for _ in range(recipe.blocks)])


def prepared(model: nn.Module, recipe: Recipe) -> nn.Module:
    if recipe.method == DDP:
        return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=recipe.bucket_mb)
    if recipe.method == TP:
        return tensor_parallel(model, recipe)
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    names = ("groups", "shards")[-len(recipe.mesh) :]
    options: dict[str, Any] = {"mesh": init_device_mesh("cpu", recipe.mesh, mesh_dim_names=names)}
    if recipe.bf16:
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    reshards = recipe.method != KEPT and recipe.reshards
    blocks = [] if recipe.only_root else list(model.children())
    for block in blocks[: len(blocks) - recipe.in_root]:
        fully_shard(block, reshard_after_forward=reshards, **options)
    fully_shard(model, **options)  # by default the root is not resharded
    return model


def tensor_parallel(model: nn.Module, recipe: Recipe) -> nn.Module:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", recipe.mesh)
    between = Shard(0) if recipe.sequence_parallel or recipe.wide_head else Replicate()
    up, down = ColwiseParallel(input_layouts=between), RowwiseParallel(output_layouts=between)
    plan: dict[str, Any] = {"0": up} if recipe.wide_head else {"*.up": up, "*.down": down}
    return parallelize_module(model, mesh, plan)


def batch_of(recipe: Recipe) -> Tensor:
    """What this rank gets: its own samples, or with tensor parallelism the same on all ranks; its
    slice of them if the activations are sharded."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if recipe.method != TP:
        torch.manual_seed(rank)
        return torch.randn(recipe.samples, recipe.width)
    torch.manual_seed(0)
    whole = torch.randn(recipe.samples, recipe.width)
    if recipe.sequence_parallel or recipe.wide_head:
        whole = whole.chunk(size)[rank]
    return whole.requires_grad_(not recipe.frozen_below)  # as if an earlier layer had computed it


def train(recipe: Recipe) -> int:
    """Returns the bytes of the whole model's parameters."""
    if recipe.method == ZERO2:
        return train_with_deepspeed(recipe)
    model = model_of(recipe)
    parameter_bytes = sum(each.nbytes for each in model.parameters())
    model = prepared(model, recipe)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        for micro_batch in range(1, recipe.micro_batches + 1):
            waits = recipe.method == DDP and micro_batch < recipe.micro_batches
            with model.no_sync() if waits else nullcontext():  # type: ignore[operator]
                with measure("forward"):
                    loss = loss_of(model, recipe)
                with measure("backward"):
                    loss.backward()
        with measure("step"):
            if recipe.clips:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if recipe.collects:
                metrics = torch.zeros(recipe.collects)
                dist.all_gather([metrics.clone() for _ in range(recipe.world_size)], metrics)
    return parameter_bytes


def loss_of(model: nn.Module, recipe: Recipe) -> Tensor:
    batch = batch_of(recipe)
    if recipe.counts_samples:
        count = torch.tensor([float(len(batch))])
        dist.all_gather([count.clone() for _ in range(recipe.world_size)], count)
    loss: Tensor = model(batch).square().mean()
    if recipe.logs_loss:
        logged = loss.detach().clone()
        dist.all_reduce(logged)
    return loss


def train_with_deepspeed(recipe: Recipe) -> int:
    import deepspeed

    model = model_of(recipe)
    parameter_bytes = sum(each.nbytes for each in model.parameters())
    config = {
        "train_micro_batch_size_per_gpu": recipe.samples,
        "gradient_accumulation_steps": recipe.micro_batches,
        "gradient_clipping": 1.0 if recipe.clips else 0.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 2**13},
    }
    engine, *_ = deepspeed.initialize(model=model, config=config)
    for _ in range(STEPS * recipe.micro_batches):
        with measure("forward"):
            loss = loss_of(engine, recipe)
        with measure("backward"):
            engine.backward(loss)
        with measure("step"):
            engine.step()
    return parameter_bytes


def trace_of(recipe: Recipe, run: Run) -> Trace:
    blocks = [each for each in run.traffic.blocks if each.rank == recipe.rank]
    blocks = blocks[-len(blocks) // STEPS :]
    calls = [
        {
            "op": re.sub("_(single|coalesced)$", "", call.op),
            "bytes": call.bytes,
            "ranks": list(call.group),
            "phase": block.label,
        }
        for block in sorted(blocks, key=lambda each: each.start_s)
        for call in run.calls
        if call.rank == recipe.rank and block.start_s <= call.start_s <= block.end_s
    ]
    element_bytes = 2 if recipe.bf16 else 4
    return {
        "world_size": recipe.world_size,
        "parameter_bytes": run.outputs[recipe.rank],
        "activation_bytes": recipe.samples * recipe.width * element_bytes,
        "calls": calls,
    }


def record(recipe: Recipe) -> Trace:
    engine = "deepspeed" if recipe.method == ZERO2 else "torch"
    run = launch(train, recipe, world_size=recipe.world_size, device="cpu", engine=engine)
    return trace_of(recipe, run)


VISIBLE = {
    "A": Recipe(FSDP, rank=1, mesh=(3,)),  # padded
    "B": Recipe(DDP, width=48, samples=16),
    "C": Recipe(TP, samples=24, rank=3),
    # Each of its calls is small, and a unit's slice times all ranks is as large as activations.
    "D": Recipe(
        HSDP, blocks=6, samples=522, mesh=(2, 2), counts_samples=True, collects=100, rank=2
    ),
    "E": Recipe(ZERO2, width=40, rank=2),
    "F": Recipe(KEPT, width=24, blocks=4, micro_batches=2, mesh=(2,)),
    # The same operations, some of them for another purpose.
    # What it collects is more than activations.
    "G": Recipe(
        TP, samples=24, sequence_parallel=True, counts_samples=True, clips=True, collects=300
    ),
    "H": Recipe(
        DDP, counts_samples=True, logs_loss=True, collects=1000, micro_batches=2, mesh=(2,)
    ),
    "I": Recipe(
        FSDP, blocks=4, in_root=3, reshards=2, bf16=True, logs_loss=True, clips=True, rank=3
    ),
    "J": Recipe(TP, width=28, samples=18, wide_head=True, frozen_below=True, mesh=(2,), rank=1),
}
# {case: {name: recipe}}
OF_CASES = {
    "six methods, at sizes of their own": {
        "DDP": Recipe(DDP, width=112, blocks=5, mesh=(2,)),
        "ZeRO-2": Recipe(ZERO2, width=72, blocks=2, samples=11, mesh=(2,)),
        "FSDP": Recipe(FSDP, width=21, blocks=6, mesh=(3,), rank=2),
        "kept": Recipe(KEPT, width=25, blocks=2, mesh=(3,), rank=1),
        "HSDP": Recipe(HSDP, width=24, blocks=5, samples=394, mesh=(2, 3), rank=4),
        "TP": Recipe(TP, width=24, blocks=5, samples=5, mesh=(3,), rank=2),
        "TP, wide": Recipe(TP, width=20, samples=30, wide_head=True, frozen_below=True, mesh=(3,)),
    },
    "six methods, with a single unit": {
        "DDP": Recipe(DDP, blocks=1, mesh=(3,)),
        "ZeRO-2": Recipe(ZERO2, width=16, blocks=1),
        "kept": Recipe(KEPT, only_root=True, mesh=(4,)),
        "HSDP": Recipe(HSDP, blocks=1, mesh=(3, 2), only_root=True, rank=5),
        "TP": Recipe(TP, blocks=1, samples=400, mesh=(2,)),
        "TP, wide": Recipe(TP, samples=32, wide_head=True, mesh=(4,), rank=1),
    },
    "six methods that log and clip": {
        "DDP": Recipe(DDP, width=44, counts_samples=True, collects=1000, rank=1),
        "ZeRO-2": Recipe(ZERO2, width=36, counts_samples=True, logs_loss=True, clips=True),
        "FSDP": Recipe(
            FSDP, width=28, blocks=4, in_root=3, bf16=True, logs_loss=True, clips=True, mesh=(2,)
        ),
        "kept": Recipe(KEPT, width=52, bf16=True, logs_loss=True, clips=True, rank=2),
        "HSDP": Recipe(
            HSDP, width=36, mesh=(2, 2), counts_samples=True, clips=True, collects=99, rank=1
        ),
        "TP": Recipe(TP, width=40, samples=12, counts_samples=True, clips=True, collects=300),
    },
    "six methods, in micro-batches": {
        "DDP": Recipe(DDP, width=40, blocks=2, micro_batches=3),
        "ZeRO-2": Recipe(ZERO2, width=24, blocks=2, micro_batches=3),
        "FSDP": Recipe(FSDP, width=36, blocks=4, in_root=3, reshards=2, micro_batches=3),
        "kept": Recipe(KEPT, width=36, blocks=3, micro_batches=2, mesh=(3,)),
        "HSDP": Recipe(HSDP, blocks=2, mesh=(2, 2), micro_batches=2, reshards=False, rank=3),
        "TP": Recipe(TP, blocks=2, samples=20, micro_batches=2, sequence_parallel=True),
    },
}
HIDDEN_RECIPES = {
    f"{case}: {name}": recipe for case, named in OF_CASES.items() for name, recipe in named.items()
}


def record_all(recipes: Iterable[tuple[str, Recipe]]) -> dict[str, tuple[str, Trace]]:
    return {name: (recipe.method, record(recipe)) for name, recipe in recipes}


def main() -> None:
    dump(record_all(VISIBLE.items()), RECORDED)
    dump(record_all(HIDDEN_RECIPES.items()), HIDDEN)


if __name__ == "__main__":
    main()
