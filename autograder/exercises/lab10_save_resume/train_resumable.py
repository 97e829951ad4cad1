"""Lab 10, train_resumable: ranks are killed, and the loss curve of what follows is compared."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autograder.exercise import Budget, Case, Exercise, Plain
from autograder.exercises.outputs import from_outputs
from autograder.exercises.resumable_job import Job, seed_all
from autograder.exercises.resume_mistakes import (
    TOLERANCE,
    lost_something,
    not_bit_for_bit,
    saves_too_much,
    wrong_steps,
)
from autograder.exercises.resumed_lives import last_life
from autograder.exercises.shared_disk import (
    KILLED,
    RETURNED,
    Colleagues,
    Ended,
    die,
    raise_what_went_wrong,
    run_ranks,
)
from autograder.guest.on_rank import standing_in

WIDTHS = (8, 64, 64, 1)
SAMPLES = 4  # in a batch of one rank
STATE_BYTES = 8 * 3  # fp64: a parameter and Adam's two states
RANDOM_BYTES = 16_384  # both random states, and what torch.save adds, for each rank


# ---- inputs -------------------------------------------------------------------------------------


def draw_job(case: Case, rng: np.random.Generator) -> list[Plain]:
    """fp64. ``seeds``: [life][rank], another random state for each start of the job."""
    samples = case.params["steps"] * case.params["ranks"]

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape))

    weights = [normal(b, a) / a**0.5 for a, b in pairwise(WIDTHS)]
    lives = len(case.params["kills"]) + 1
    return [
        {
            "weights": weights,
            "inputs": normal(samples, SAMPLES, WIDTHS[0]),
            "targets": 2 * normal(samples, SAMPLES, 1),
            "seeds": rng.integers(1, 10**6, (lives, case.params["ranks"])).tolist(),
        }
    ]


# ---- beside the student's code ------------------------------------------------------------------


def drive_training(subject: Any, given: Any, case: Case) -> Plain:
    root = Path(tempfile.mkdtemp())
    try:
        was_killed = []
        for life, kill in enumerate([*case.params["kills"], {"where": "nowhere"}]):
            ends = live(subject, root, given, case, life, kill)
            raise_what_went_wrong([end for end in ends if end.how != "waits"])
            was_killed.append(any(end.how == KILLED for end in ends))
        if any(end.how != RETURNED for end in ends):
            raise_what_went_wrong(ends)
        straight = run_ranks(
            lambda colleagues: straight_on(colleagues, given, case), case.params["ranks"]
        )
        returned = [in_pairs(end.value) for end in ends]
        return {
            "steps": [[step for step, _ in pairs] for pairs in returned],
            "losses": [torch.tensor([loss for _, loss in pairs]).double() for pairs in returned],
            "kills": was_killed,
            "bit for bit": all(
                0 <= step < len(straight[rank].value) and straight[rank].value[step] == loss
                for rank, pairs in enumerate(returned)
                for step, loss in pairs
            ),
            "checkpoint bytes": newest_bytes(root),
        }
    finally:
        shutil.rmtree(root, ignore_errors=True)


def live(
    subject: Any, root: Path, given: Any, case: Case, life: int, kill: dict[str, Any]
) -> list[Ended]:
    """One start of the job, until it is done or killed."""

    def on_rank(colleagues: Colleagues) -> Any:
        seed_all(given["seeds"][life][colleagues.rank])
        is_victim = colleagues.rank == kill.get("rank", 0)
        steps_done = done_before(case, life)

        def die_in(where: str) -> None:
            if is_victim and kill["where"] == where and steps_done == kill["step"] + 1:
                die()

        def amid_a_step() -> None:
            nonlocal steps_done
            steps_done += 1
            die_in("step")

        job = job_of(colleagues, given, amid_a_step)

        def atomic_commit(_: Any, step: int, write: Any) -> None:
            folder = root / f"of_life_{life}_{step}"
            folder.mkdir(exist_ok=True)
            write(folder)
            die_in("save")
            colleagues.meet("written")
            if colleagues.rank == 0:
                shutil.rmtree(root / f"step_{step:08}", ignore_errors=True)
                folder.rename(root / f"step_{step:08}")
            colleagues.meet("named")

        standing_in(subject, atomic_commit=atomic_commit)
        return subject(root, job, case.params["steps"], case.params["every"])

    return run_ranks(on_rank, case.params["ranks"])


def done_before(case: Case, life: int) -> int:
    """Steps in the checkpoint that a start of the job finds."""
    every, done = case.params["every"], 0
    for kill in case.params["kills"][:life]:
        reached = kill.get("step", case.params["steps"])
        done = max(done, reached // every * every)
    return done


def job_of(colleagues: Colleagues, given: Any, before_update: Callable[[], None]) -> Job:
    def mean(tensor: Tensor) -> Tensor:
        return torch.stack(colleagues.meet("mean", tensor)).mean(dim=0)

    return Job(given, colleagues.rank, colleagues.world_size, mean, before_update)


def straight_on(colleagues: Colleagues, given: Any, case: Case) -> list[float]:
    """The job as it goes where nobody is killed."""
    seed_all(given["seeds"][0][colleagues.rank])
    job = job_of(colleagues, given, lambda: None)
    return [job.step() for _ in range(case.params["steps"])]


def in_pairs(returned: Any) -> list[tuple[int, float]]:
    """[(step, loss), ...]; raises TypeError where it is no {step: loss}."""
    if not isinstance(returned, dict):
        raise TypeError(f"{RETURNS_NO_DICT}, not {type(returned).__name__}")
    return sorted((int(step), float(loss)) for step, loss in returned.items())


RETURNS_NO_DICT = "train_resumable should return {step: loss}"


def newest_bytes(root: Path) -> int:
    folders = sorted(root.glob("step_*"))
    return sum(path.stat().st_size for path in folders[-1].iterdir()) if folders else 0


# ---- the exercise -------------------------------------------------------------------------------


def expect_training(case: Case, inputs: Any) -> list[Plain]:
    right = last_life(case, inputs[0], "")
    return [
        {
            "steps": [right["steps"]] * case.params["ranks"],
            "losses": [right["losses"]] * case.params["ranks"],
            "kills": [kill["where"] != "nowhere" for kill in case.params["kills"]] + [False],
            "bit for bit": True,
        }
    ]


def checkpoint_limit(case: Case) -> list[float]:
    parameters = sum(b * (a + 1) for a, b in pairwise(WIDTHS))
    return [1.1 * STATE_BYTES * parameters + RANDOM_BYTES * case.params["ranks"]]


TRAIN_RESUMABLE = Exercise(
    name="save_resume.train_resumable",
    points=6,
    cases=(
        Case(
            "1 rank, killed in step 7",
            1,
            {"ranks": 1, "steps": 12, "every": 3, "kills": [{"where": "step", "step": 7}]},
        ),
        Case(
            "2 ranks, killed while they save",
            1,
            {
                "ranks": 2,
                "steps": 14,
                "every": 4,
                "kills": [{"where": "save", "step": 11, "rank": 1}],
            },
        ),
        Case(
            "2 ranks, killed twice",
            1,
            {
                "ranks": 2,
                "steps": 13,
                "every": 3,
                "kills": [
                    {"where": "step", "step": 5, "rank": 0},
                    {"where": "save", "step": 11, "rank": 1},
                ],
            },
            hidden=True,
        ),
        Case(
            "1 rank, started again when all is done",
            1,
            {"ranks": 1, "steps": 6, "every": 2, "kills": [{"where": "nowhere"}]},
            hidden=True,
            weight=0.5,
        ),
    ),
    draw=draw_job,
    drive=drive_training,
    expect=expect_training,
    tolerance=TOLERANCE,
    budgets=(
        Budget(
            "saves what ranks have alike once",
            limit=checkpoint_limit,
            used=from_outputs("checkpoint bytes"),
            heading="in a checkpoint",
        ),
    ),
    diagnoses=(wrong_steps, lost_something, not_bit_for_bit, saves_too_much),
)
