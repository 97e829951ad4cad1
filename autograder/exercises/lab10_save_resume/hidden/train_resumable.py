"""Lab 10, train_resumable's oracle: the loss curve after the last kill, and after each slip."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch

from autograder.exercise import Case, Plain
from autograder.exercise.kept_back import kept_back
from autograder.exercises.resumable_job import Job, seed_all

PIECES = ("model", "optimizer", "scheduler", "stream", "scaler")
SLIPS = (
    *("", *PIECES, "torch", "python", "both random states"),
    *("rank 0's random states", "last rank's random states"),
)


@kept_back(lambda case, inputs: [(case, inputs[0], slip) for slip in SLIPS])
def last_life(case: Case, given: Any, slip: str) -> Plain:
    """{"steps", "losses"} of the last start, where all that is saved comes back but ``slip``."""
    ranks, every = case.params["ranks"], case.params["every"]
    before = torch.get_rng_state(), random.getstate()
    saved: Any = None
    losses: dict[int, float] = {}
    try:
        for life, kill in enumerate([*case.params["kills"], {"where": "nowhere"}]):
            jobs = [Job(given, rank, ranks) for rank in range(ranks)]
            dice = [dice_of(seed) for seed in given["seeds"][life]]
            done, losses = 0, {}
            if saved:
                done = restore(jobs, dice, saved, slip)
            for step in range(done, case.params["steps"]):
                loss = step_together(jobs, dice)
                if kill == {**kill, "where": "step", "step": step}:
                    break
                losses[step] = loss
                if (step + 1) % every == 0:
                    if kill == {**kill, "where": "save", "step": step}:
                        break
                    saved = snapshot(jobs, dice, step + 1)
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
    return {
        "steps": list(losses),
        "losses": torch.tensor(list(losses.values()), dtype=torch.float64),
    }


Dice = dict[str, Any]  # a rank's random states, while another's turn it is


def dice_of(seed: int) -> Dice:
    seed_all(seed)
    return {"torch": torch.get_rng_state(), "python": random.getstate()}


def step_together(jobs: list[Job], dice: list[Dice]) -> float:
    by_rank = []
    for job, states in zip(jobs, dice, strict=True):
        torch.set_rng_state(states["torch"])
        random.setstate(states["python"])
        by_rank.append(job.forward_and_backward())
        states |= {"torch": torch.get_rng_state(), "python": random.getstate()}
    together = torch.stack(by_rank).mean(dim=0)
    losses = [job.update(together) for job in jobs]  # all alike
    return losses[0]


def snapshot(jobs: list[Job], dice: list[Dice], done: int) -> Any:
    pieces = {name: getattr(jobs[0], name).state_dict() for name in PIECES}
    return {"done": done, "dice": [dict(states) for states in dice], **copy.deepcopy(pieces)}


def restore(jobs: list[Job], dice: list[Dice], saved: Any, slip: str) -> int:
    for job in jobs:
        for name in PIECES:
            if name != slip:
                getattr(job, name).load_state_dict(copy.deepcopy(saved[name]))
    for rank, states in enumerate(dice):
        whose = {"rank 0's random states": 0, "last rank's random states": -1}.get(slip, rank)
        for name in ("torch", "python"):
            if slip not in (name, "both random states"):
                states[name] = saved["dice"][whose][name]
    return int(saved["done"])
