from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import torch

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer
from autograder.exercises.lab10_save_resume.train_resumable import NOWHERE, killed, training_case
from autograder.exercises.lab10_save_resume.training_job import Job, seed_all

CASES = (
    training_case("2 ranks, killed twice", 2, 13, 3, killed("step", 5), killed("save", 11, rank=1)),
    training_case("1 rank, started again when all is done", 1, 6, 2, NOWHERE, weight=0.5),
)
BOUNDARIES = {
    "divides": "1 rank, killed in step 7",
    "does not divide": "2 ranks, killed while they save",
    "one rank": "1 rank, killed in step 7",
    "more ranks than elements": "not asked: ranks share nothing out",
    "no step left": "1 rank, started again when all is done",
    "a kill after a kill": "2 ranks, killed twice",
}
EQUAL_ANSWERS = (
    EqualAnswer("if rank == 0:", "if rank == dist.get_world_size() - 1:", "it is alike on all"),
    EqualAnswer("done % every == 0", "not done % every", "the same"),
    EqualAnswer(
        'done = alike["done"]', "done = int(newest.name[5:])", "the folder's name has it as well"
    ),
)

PIECES = ("model", "optimizer", "scheduler", "stream", "scaler")
States = dict[str, Any]  # a rank's random states while it is another rank's turn


def reference(case: Case, inputs: Any) -> Plain:
    ranks, lives = case.params["ranks"], case.params["lives"]
    steps, losses = last_life(case, inputs[0])
    return {
        "steps": [steps] * ranks,
        "losses": [losses] * ranks,
        "kills": [kill != NOWHERE for kill in lives],
        "bit for bit": True,
    }


def last_life(case: Case, given: Any, lost: str = "") -> tuple[list[int], torch.Tensor]:
    """Steps and losses of the last start, where all that was saved comes back but ``lost``."""
    before = torch.get_rng_state(), random.getstate()
    ranks, every = case.params["ranks"], case.params["every"]
    saved: Any = None
    losses: dict[int, float] = {}
    try:
        for life, kill in enumerate(case.params["lives"]):
            jobs = [Job(given, rank, ranks) for rank in range(ranks)]
            states = [states_of(seed) for seed in given["seeds"][life]]
            losses = {}
            for step in range(restore(jobs, states, saved, lost), case.params["steps"]):
                loss = step_together(jobs, states)
                if (kill["where"], kill.get("step")) == ("step", step):
                    break
                losses[step] = loss
                if (step + 1) % every == 0:
                    if (kill["where"], kill.get("step")) == ("save", step):
                        break
                    saved = snapshot(jobs, states, step + 1)
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
    return list(losses), torch.tensor(list(losses.values()), dtype=torch.float64)


def states_of(seed: int) -> States:
    seed_all(seed)
    return {"torch": torch.get_rng_state(), "python": random.getstate()}


def step_together(jobs: list[Job], by_rank: list[States]) -> float:
    computed = []
    for job, states in zip(jobs, by_rank, strict=True):
        torch.set_rng_state(states["torch"])
        random.setstate(states["python"])
        computed.append(job.forward_and_backward())
        states |= {"torch": torch.get_rng_state(), "python": random.getstate()}
    together = torch.stack(computed).mean(dim=0)
    losses = [job.update(together) for job in jobs]  # all alike
    return losses[0]


def snapshot(jobs: list[Job], by_rank: list[States], done: int) -> Any:
    pieces = {name: getattr(jobs[0], name).state_dict() for name in PIECES}
    return {"done": done, "by rank": copy.deepcopy(by_rank), **copy.deepcopy(pieces)}


def restore(jobs: list[Job], by_rank: list[States], saved: Any, lost: str) -> int:
    """Number of steps done."""
    if saved is None:
        return 0
    for job in jobs:
        for name in PIECES:
            if name != lost:
                getattr(job, name).load_state_dict(copy.deepcopy(saved[name]))
    for rank, states in enumerate(by_rank):
        whose = {"all but rank 0's": 0, "all but the last rank's": -1}.get(lost, rank)
        for name in ("torch", "python"):
            if lost not in (name, "both random states"):
                states[name] = saved["by rank"][whose][name]
    return int(saved["done"])


# ---- wrong references ---------------------------------------------------------------------------


def without(lost: str) -> Callable[[Case, Any], Plain]:
    def outputs(case: Case, inputs: Any) -> Plain:
        return {"losses": [last_life(case, inputs[0], lost)[1]] * case.params["ranks"]}

    return outputs


MISTAKES = {
    "does not bring the parameters back": without("model"),
    "loses the optimizer's state: Adam starts with empty averages": without("optimizer"),
    "loses the scheduler's state: the learning rate starts over": without("scheduler"),
    "loses the position in the data: it sees the first batches again": without("stream"),
    "loses the loss scale: it starts over, and steps overflow again": without("scaler"),
    "does not restore torch's random state: dropout draws other numbers": without("torch"),
    "does not restore Python's random state: random.random() draws other numbers": (
        without("python")
    ),
    "restores no random state: dropout and random.random() draw other numbers": (
        without("both random states")
    ),
    "gives all ranks the random states of one: each rank has its own": (
        without("all but rank 0's"),
        without("all but the last rank's"),
    ),
}
