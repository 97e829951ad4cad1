"""ZeRO's memory, predicted and measured, by stage and world size.

.venv/bin/python -m benchmarks.zero_memory [--ranks 2 4 8] [--precision bf16 fp32] [--json FILE]

Real DeepSpeed engines train a small GPT with Adam.  "paper" is the paper's formula, "named" adds
the named extras of DeepSpeed (estimate/zero_extras.py), and "measured" is the live bytes of
parameters, gradients and optimizer after the second backward pass, on the rank with the most.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardlab import Run, data, launch, measure, models
from shardlab.estimate import memory
from shardlab.estimate.zero_extras import zero_extras

STATES = ("parameters", "gradients", "optimizer")
BUCKET_ELEMENTS = 2**15  # DeepSpeed's 500 million would dwarf a small model
# An odd width, so that shards need padding.
MODEL = models.GPTConfig(layers=2, heads=3, width=33, context=32)
PERSISTENCE_THRESHOLD = 1_000  # elements: biases and norms persist


def train(stage: int, precision: str, batch_size: int = 2, context: int = 16) -> None:
    """Two steps of DeepSpeed on this rank."""
    import deepspeed
    import torch
    import torch.distributed as dist

    model = models.GPT(MODEL)
    if precision == "bf16":
        model = model.to(torch.bfloat16)
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": batch_size,
        "gradient_clipping": 0.0,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "bf16": {"enabled": precision == "bf16"},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": BUCKET_ELEMENTS,
            "stage3_param_persistence_threshold": PERSISTENCE_THRESHOLD,
        },
    }
    engine, *_ = deepspeed.initialize(model=model, config=config)
    for step in range(2):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        tokens, targets = data.batch(step, batch_size, context, rank, world_size)
        engine.backward(engine(tokens, targets))
        with measure("after backward"):
            dist.barrier()  # gloo's threads keep sent buffers a little longer
            time.sleep(0.05)
        engine.step()


@dataclass
class Row:
    precision: str
    ranks: int
    stage: int
    paper_bytes: float
    extras: dict[str, float]  # by name, of the rank with the most measured bytes
    measured_bytes: int
    bucket_bytes: int  # peak

    @property
    def named_bytes(self) -> float:
        return self.paper_bytes + sum(self.extras.values())

    @property
    def relative_error(self) -> float:
        """Measured over named, minus 1."""
        return self.measured_bytes / self.named_bytes - 1


def row_of(run: Run, precision: str, stage: int) -> Row:
    numels = {name: p.numel() for name, p in models.GPT(MODEL).named_parameters()}
    setup: dict[str, Any] = {"stage": stage, "world_size": run.world_size, "precision": precision}
    extras = zero_extras(numels, persistence_threshold=PERSISTENCE_THRESHOLD, **setup)
    live = run.memory.at("after backward")
    by_rank = np.sum([live[state] for state in STATES], axis=0)
    rank = int(by_rank.argmax())
    return Row(
        precision=precision,
        ranks=run.world_size,
        stage=stage,
        paper_bytes=memory.model_states(sum(numels.values()), **setup).device_bytes,
        extras={name: amounts[rank] for name, amounts in extras.items() if amounts[rank]},
        measured_bytes=int(by_rank[rank]),
        bucket_bytes=int(run.memory.peak_of("buckets").max()),
    )


def rows(precisions: list[str], sizes: list[int]) -> Iterator[Row]:
    for precision in precisions:
        for ranks in sizes:
            for stage in range(4):
                run = launch(
                    train, stage, precision, world_size=ranks, memory=True, engine="deepspeed",
                    timeout_s=120, quiet=True, device="cpu",
                )  # fmt: skip
                yield row_of(run, precision, stage)


HEADER = (
    f"{'':4} {'N':>2} {'stage':>5} {'paper':>10} {'named':>10} {'measured':>10} {'error':>7} "
    f"{'buckets':>9}   beyond the paper, bytes"
)


def line(row: Row) -> str:
    extras = ", ".join(f"{name} {amount:+,.0f}" for name, amount in row.extras.items())
    return (
        f"{row.precision:4} {row.ranks:2} {row.stage:5} {row.paper_bytes:10,.0f} "
        f"{row.named_bytes:10,.0f} {row.measured_bytes:10,} {row.relative_error:7.2%} "
        f"{row.bucket_bytes:9,}   {extras or 'nothing'}"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--precision", nargs="+", default=["bf16", "fp32"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    options = parser.parse_args(arguments)
    count = models.count_parameters(models.GPT(MODEL))
    print(f"{count:,} parameters, Adam; bytes of model states on a rank after backward\n\n{HEADER}")
    found = []
    for row in rows(options.precision, options.ranks):
        print(line(row), flush=True)
        found.append(
            {**asdict(row), "named_bytes": row.named_bytes, "relative_error": row.relative_error}
        )
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
