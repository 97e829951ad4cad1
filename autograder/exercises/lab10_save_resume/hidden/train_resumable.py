from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer
from autograder.exercises.lab10_save_resume.train_resumable import (
    NOWHERE,
    done_before,
    training_case,
)
from autograder.exercises.lab10_save_resume.training_job import Job, seed_all

Rank = dict[str, Any]  # its job, and its random states while it is another rank's turn

CASES = (
    training_case("2 ranks, killed twice", 2, 13, 3, ("step", 5, 0), ("save", 11, 1)),
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


def reference(case: Case, inputs: Any) -> Plain:
    ranks = case.params["ranks"]
    steps, losses = last_life(case, inputs[0])
    return {
        "steps": [steps] * ranks,
        "losses": [losses] * ranks,
        "kills": [kill != NOWHERE for kill in case.params["lives"]],
        "bit for bit": True,
    }


def last_life(
    case: Case, given: Any, *lost: str, whose: int | None = None
) -> tuple[list[int], torch.Tensor]:
    """Steps and losses of the last start of a job that at each start has ``lost`` something.

    ``whose``: the rank whose random states all ranks get.  Steps that a kill undoes are not run.
    """
    before = torch.get_rng_state(), random.getstate()
    try:
        ranks = start(case, given, 0)
        for life in range(len(case.params["lives"])):
            if life:
                restart(ranks, start(case, given, life), lost, whose)
            is_last = life == len(case.params["lives"]) - 1
            stop = case.params["steps"] if is_last else done_before(case, life + 1)
            steps = list(range(done_before(case, life), stop))
            losses = [step_together(ranks) for _ in steps]
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
    return steps, torch.tensor(losses, dtype=torch.float64)


def start(case: Case, given: Any, life: int) -> list[Rank]:
    ranks = []
    for rank, seed in enumerate(given["seeds"][life]):
        job = Job(given, rank, case.params["ranks"])
        seed_all(seed)
        ranks.append({"job": job, "torch": torch.get_rng_state(), "python": random.getstate()})
    return ranks


def restart(ranks: list[Rank], fresh: list[Rank], lost: Sequence[str], whose: int | None) -> None:
    for rank, new in zip(ranks, fresh, strict=True):
        if whose is not None:
            rank |= {name: ranks[whose][name] for name in ("torch", "python")}
        for name in lost:
            if name in rank:
                rank[name] = new[name]
            else:
                state = getattr(new["job"], name).state_dict()
                getattr(rank["job"], name).load_state_dict(state)


def step_together(ranks: list[Rank]) -> float:
    computed = []
    for rank in ranks:
        torch.set_rng_state(rank["torch"])
        random.setstate(rank["python"])
        computed.append(rank["job"].forward_and_backward())
        rank |= {"torch": torch.get_rng_state(), "python": random.getstate()}
    together = torch.stack(computed).mean(dim=0)
    losses = [float(rank["job"].update(together)) for rank in ranks]  # all alike
    return losses[0]


def without(*lost: str, whose: int | None = None) -> Callable[[Case, Any], Plain]:
    def outputs(case: Case, inputs: Any) -> Plain:
        _, losses = last_life(case, inputs[0], *lost, whose=whose)
        return {"losses": [losses] * case.params["ranks"]}

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
        without("torch", "python")
    ),
    "gives all ranks the random states of one: each rank has its own": (
        without(whose=0),
        without(whose=-1),
    ),
}
