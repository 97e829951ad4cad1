"""The same learning rate at each optimizer step on any number of ranks, with Accelerate."""

from __future__ import annotations

from typing import Any

import numpy as np

from autograder.exercise import Case, OnRanks, Plain
from autograder.exercises.lab13_accelerate.shared import new_accelerator, numbered


def draw_rate(case: Case, rng: np.random.Generator) -> float:
    """The highest learning rate."""
    return float(rng.uniform(0.01, 1.0))


def drive(subject: Any, lr: float, case: Case) -> Plain:
    import torch

    asked = case.params
    accelerator = new_accelerator(asked["accumulation"], split_batches=asked["split_batches"])
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    batch_size = case.world_size if asked["split_batches"] else 1
    samples: Any = torch.ones(asked["batches"] * case.world_size, 2)
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=lr),
        torch.utils.data.DataLoader(samples, batch_size=batch_size),
    )
    scheduler = subject(accelerator, optimizer, asked["warmup_steps"], asked["total_steps"])
    rates = []
    for _ in range(asked["epochs"]):
        for micro_batch in loader:
            with accelerator.accumulate(model):
                loss = model(micro_batch).mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    rates.append(float(optimizer.param_groups[0]["lr"]))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    return numbered("rates", rates)


def case_of(name: str, world_size: int, total_steps: int, **options: int | bool) -> Case:
    """``batches``: per rank and epoch."""
    params = {"accumulation": 1, "split_batches": False, "batches": 4, "epochs": 2}
    params |= {"warmup_steps": 2, "total_steps": total_steps}
    return Case(name, world_size, params | options)


EXERCISE = OnRanks(
    points=3,
    cases=(
        case_of("one rank, no warm-up", 1, 6, accumulation=3, batches=9, warmup_steps=0),
        case_of("2 ranks", 2, 8),
        case_of("4 ranks, accumulation of 2, 5 batches", 4, 6, accumulation=2, batches=5),
        case_of("2 ranks, split_batches", 2, 8, split_batches=True, warmup_steps=3),
    ),
    inputs=draw_rate,
    drive=drive,
    tolerance=1e-9,
)
