"""Kill ranks, and compare the loss curve after the last restart."""

from __future__ import annotations

import shutil
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autograder.exercise import NAMED_MISTAKES, Attempt, Case, OnRanks, Plain, equal
from autograder.exercise.budget import Budget, Limit, from_outputs
from autograder.exercise.signs import MistakeText, on_each_rank, over_budget
from autograder.exercises.lab10_save_resume.forked_ranks import (
    Group,
    Outcome,
    kill_self,
    raise_first_error,
    run_ranks,
    was_killed,
)
from autograder.exercises.lab10_save_resume.training_job import Job, seed_all
from autograder.guest.on_rank import with_functions_replaced

WIDTHS = (8, 64, 64, 1)
SAMPLES = 4  # in a batch of one rank
STATE_BYTES = 8 * 3  # fp64: a parameter and Adam's two states
RANDOM_BYTES = 16_384  # both random states and torch.save's overhead, for each rank
TOLERANCE = 1e-6
IN_A_CHECKPOINT = "in a checkpoint"

NO_KILL = ("nowhere", None, None)


def training_case(
    name: str, ranks: int, steps: int, every: int, *kills: Any, weight: float = 1.0
) -> Case:
    """Starts the job once for each of ``kills``, ("step" or "save", step, rank), and once more."""
    params = {"ranks": ranks, "steps": steps, "every": every, "starts": [*kills, NO_KILL]}
    return Case(name, 1, params, weight=weight)


def draw_job(case: Case, rng: np.random.Generator) -> Plain:
    """In fp64. ``seeds``: [start][rank], a different random state for each start of the job."""
    samples = case.params["steps"] * case.params["ranks"]

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape))

    per_start = len(case.params["starts"]), case.params["ranks"]
    return {
        "weights": [normal(b, a) / a**0.5 for a, b in pairwise(WIDTHS)],
        "inputs": normal(samples, SAMPLES, WIDTHS[0]),
        "targets": 2 * normal(samples, SAMPLES, 1),
        "seeds": rng.integers(1, 10**6, per_start).tolist(),
    }


# ---- next to the student's code -----------------------------------------------------------------


def drive(subject: Any, given: Any, case: Case) -> Plain:
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        root = Path(name)
        kills = []
        for start in range(len(case.params["starts"])):
            outcomes = run_job(subject, root, given, case, start)
            kills.append(was_killed(outcomes))
            raise_first_error(outcomes)
        whole_run, *_ = run_ranks(partial(uninterrupted, given, case), case.params["ranks"])
        returned = [in_pairs(each.value) for each in outcomes]
        return {
            "steps": [[step for step, _ in pairs] for pairs in returned],
            "losses": [torch.tensor([loss for _, loss in pairs]).double() for pairs in returned],
            "kills": kills,
            "bit for bit": all(
                whole_run.value.get(step) == loss for pairs in returned for step, loss in pairs
            ),
            "checkpoint bytes": newest_bytes(root),
        }


def run_job(subject: Any, root: Path, given: Any, case: Case, start: int) -> list[Outcome]:
    """One start of the job, until it is done or killed."""
    kill = case.params["starts"][start]

    def on_rank(group: Group) -> Any:
        seed_all(given["seeds"][start][group.rank])
        done = done_before(case, start)

        def die_in(where: str) -> None:
            if kill == (where, done - 1, group.rank):
                kill_self()

        def mean(tensor: Tensor) -> Tensor:
            nonlocal done
            done += 1
            mean = group.mean(tensor)
            die_in("step")
            return mean

        def atomic_commit(_: Any, step: int, write: Any) -> None:
            folder = root / f"unfinished_{start}_{step}"
            folder.mkdir(exist_ok=True)
            write(folder)
            die_in("save")
            group.exchange("written")
            if group.rank == 0:
                shutil.rmtree(root / f"step_{step:08}", ignore_errors=True)
                folder.rename(root / f"step_{step:08}")
            group.exchange("renamed")

        with_functions_replaced(subject, atomic_commit=atomic_commit)
        job = Job(given, group.rank, group.world_size, mean)
        return subject(root, job, case.params["steps"], case.params["every"])

    return run_ranks(on_rank, case.params["ranks"])


def done_before(case: Case, start: int) -> int:
    """Steps in the checkpoint that a start of the job finds."""
    every, done = case.params["every"], 0
    for _, step, _ in case.params["starts"][:start]:
        reached = case.params["steps"] if step is None else step
        done = max(done, reached // every * every)
    return done


def uninterrupted(given: Any, case: Case, group: Group) -> dict[int, float]:
    seed_all(given["seeds"][0][group.rank])
    job = Job(given, group.rank, group.world_size, group.mean)
    return {step: job.step() for step in range(case.params["steps"])}


def in_pairs(returned: Any) -> list[tuple[int, float]]:
    """[(step, loss), ...]"""
    if not isinstance(returned, dict):
        kind = type(returned).__name__
        raise TypeError(f"train_resumable should return {{step: loss}}, not {kind}")
    return sorted((int(step), float(loss)) for step, loss in returned.items())


def newest_bytes(root: Path) -> int:
    folders = sorted(root.glob("step_*"))
    return sum(path.stat().st_size for path in folders[-1].iterdir()) if folders else 0


def checkpoint_limit(case: Case) -> Limit:
    parameters = sum(b * (a + 1) for a, b in pairwise(WIDTHS))
    return Limit(1.1 * STATE_BYTES * parameters + RANDOM_BYTES * case.params["ranks"])


LABEL = "saves the ranks' common state only once"
COMMON_STATE_ONCE = Budget(
    LABEL, from_outputs("checkpoint bytes"), checkpoint_limit, IN_A_CHECKPOINT
)


@on_each_rank
def wrong_steps(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    wanted, params = attempt.expected[rank]["steps"][0], attempt.case.params
    got = next((each for each in output["steps"] if each != wanted), None)
    if got is None:
        return None
    evidence = f"{got}, expected {wanted}"
    first, due = (got or [params["steps"]])[0], (wanted or [params["steps"]])[0]
    if first == 0 and due != 0:
        return "starts again at step 0: resume from the newest checkpoint", evidence
    if 0 < abs(first - due) < params["every"]:
        mistake = "resumes at the wrong step after a restart: after step s, s + 1 steps are done"
        return mistake, evidence
    return "does not run exactly the remaining steps after a restart", evidence


@on_each_rank
def wrong_losses(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    if not equal(attempt.expected[rank]["losses"], output["losses"], TOLERANCE):
        return (
            "does not restore everything: losses after a restart differ from those of an "
            "uninterrupted run"
        )
    if not output["bit for bit"]:
        return "comes close to the loss curve but is not bit-equal: something was rounded or lost"
    return None


saves_too_much = over_budget(
    IN_A_CHECKPOINT,
    "saves the ranks' common state more than once: let rank 0 write it, and each rank only its own "
    "random states",
)

EXERCISE = OnRanks(
    points=6,
    cases=(
        training_case("1 rank, killed in step 7", 1, 12, 3, ("step", 7, 0)),
        training_case("2 ranks, killed during a save", 2, 14, 4, ("save", 11, 1)),
    ),
    inputs=draw_job,
    drive=drive,
    tolerance=TOLERANCE,
    budgets=(COMMON_STATE_ONCE,),
    signs=(wrong_steps, NAMED_MISTAKES, wrong_losses, saves_too_much),
)
