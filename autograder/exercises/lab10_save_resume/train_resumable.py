"""Kill ranks, and compare the loss curve after the last restart.

The training data stays with the parent of the ranks, which answers their requests.  It does not
repeat batches that were used before the checkpoint, and they take more bytes than a checkpoint may
have.  Nothing else that a start of the job leaves behind is there in the next one.
"""

from __future__ import annotations

import shutil
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from autograder.exercise import NAMED_MISTAKES, Attempt, Case, OnRanks, Plain, equal
from autograder.exercise.budget import Budget, Limit, from_outputs
from autograder.exercise.signs import MistakeText, on_each_rank, over_budget
from autograder.exercises.lab10_save_resume.forked_ranks import (
    Group,
    Message,
    Observer,
    Outcome,
    fails_on_a_rank,
    protected_parent,
    raise_first_error,
    run_ranks,
    was_killed,
)
from autograder.exercises.lab10_save_resume.training_job import Job, batch_of, seed_all
from autograder.guest import private_folders
from autograder.guest.on_rank import gets_pickled_answer, with_functions_replaced

WIDTHS = (64, 32, 32, 1)
SAMPLES = 64  # in a batch of one rank
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


@gets_pickled_answer
def drive(pickled: bytes, given: Any, case: Case) -> Plain:
    starts, before = [], private_folders.content()
    with protected_parent(), TemporaryDirectory(ignore_cleanup_errors=True) as name:
        before |= private_folders.content()
        newest: Path | None = None
        for start in range(len(case.params["starts"])):
            root = Path(name, f"start_{start}")
            root.mkdir()
            if newest is not None:
                copy_of_files(newest, root / newest.name)
                shutil.rmtree(newest.parent)
            observer = JobObserver(given, case, start)
            outcomes = run_job(pickled, root, given, case, observer)
            raise_first_error(outcomes)
            newest = max(root.glob("step_????????"), default=None)
            starts.append((observer, was_killed(outcomes), bytes_in(newest)))
            private_folders.remove_all_but(before)
        work = partial(uninterrupted, given["weights"], given["seeds"][0], case.params["steps"])
        observer = JobObserver(given, case, 0, is_killed=False)
        whole_run, *_ = run_ranks(work, case.params["ranks"], observer)
    losses = dict(whole_run.value)
    returned = [each.value for each in outcomes]
    return {
        "steps": [[step for step, _ in pairs] for pairs in returned],
        "losses": [torch.tensor([loss for _, loss in pairs]).double() for pairs in returned],
        "kills": [killed for _, killed, _ in starts],
        "commits": [each.commits for each, _, _ in starts],
        "bit for bit": all(losses.get(step) == loss for pairs in returned for step, loss in pairs),
        "asked again for": max(each.asked_again for each, _, _ in starts),
        "batches after the end": sum(each.batches for each, _, _ in starts if each.is_done),
        "checkpoint bytes": max(size for _, _, size in starts),
    }


def copy_of_files(source: Path, target: Path) -> None:
    """Regular files only, without their times and attributes."""
    target.mkdir()
    for path in source.iterdir():
        if path.is_symlink():
            continue
        if path.is_dir():
            copy_of_files(path, target / path.name)
        elif path.is_file():
            shutil.copyfile(path, target / path.name)


def bytes_in(folder: Path | None) -> int:
    """Of files and their names."""
    if folder is None:
        return 0
    paths = list(folder.rglob("*"))
    return sum(len(path.name) + path.lstat().st_size * path.is_file() for path in paths)


class JobObserver(Observer):
    """Delivers batches, notes the commits, and kills a rank as the case says."""

    def __init__(self, given: Any, case: Case, start: int, is_killed: bool = True) -> None:
        self.given, self.ranks = given, case.params["ranks"]
        self.kill = case.params["starts"][start] if is_killed else NO_KILL
        self.first = done_before(case, start)
        self.done = [self.first] * self.ranks
        self.commits: list[int] = []
        self.is_done = self.first == case.params["steps"]  # from the beginning
        self.batches = 0
        self.asked_again = 0  # for batches that were used before the checkpoint

    def has_to_die(self, rank: int, message: Message | None) -> bool:
        op = message and message.get("op")
        if op == "mean":
            self.done[rank] += 1
            return self.kill == ("step", self.done[rank] - 1, rank)
        if op == "written":
            return self.kill == ("save", self.done[rank] - 1, rank)
        if message and op == "renamed" and rank == 0:
            self.commits.append(int(message["step"]))
        return False

    def answer(self, rank: int, message: Message) -> Plain:
        if message.get("op") != "batch":
            return None
        position = int(message["position"])
        self.batches += 1
        self.asked_again += position < self.first
        return list(batch_of(self.given, position, rank, self.ranks, self.first))


def run_job(
    pickled: bytes, root: Path, given: Any, case: Case, observer: JobObserver
) -> list[Outcome]:
    """One start of the job, until it is done or killed."""
    start = int(root.name.removeprefix("start_"))
    data = given["inputs"], given["targets"]

    def on_rank(group: Group) -> Any:
        for tensor in data:
            tensor.zero_()  # in this process only: its batches come from the parent
        seed_all(given["seeds"][start][group.rank])

        def atomic_commit(_: Any, step: int, write: Any) -> None:
            folder = root / f"unfinished_{start}_{step}"
            folder.mkdir(exist_ok=True)
            write(folder)
            group.exchange("written")
            if group.rank == 0:
                shutil.rmtree(root / f"step_{step:08}", ignore_errors=True)
                folder.rename(root / f"step_{step:08}")
            group.exchange("renamed", step=int(step))

        subject = with_functions_replaced(cloudpickle.loads(pickled), atomic_commit=atomic_commit)
        job = Job(given["weights"], batches_for(group), group.mean)
        return in_pairs(subject(root, job, case.params["steps"], case.params["every"]))

    ranks = range(case.params["ranks"])
    return run_ranks(on_rank, len(ranks), observer, ranks[:: -1 if start % 2 else 1])


def done_before(case: Case, start: int) -> int:
    """Steps in the checkpoint that a start of the job finds."""
    every, done = case.params["every"], 0
    for _, step, _ in case.params["starts"][:start]:
        reached = case.params["steps"] if step is None else step
        done = max(done, reached // every * every)
    return done


def batches_for(group: Group) -> Any:
    return lambda position: tuple(group.request("batch", position=int(position)))


def uninterrupted(
    weights: list[Tensor], seeds: list[int], steps: int, group: Group
) -> list[tuple[int, float]]:
    seed_all(seeds[group.rank])
    job = Job(weights, batches_for(group), group.mean)
    return [(step, job.step()) for step in range(steps)]


def in_pairs(returned: Any) -> list[tuple[int, float]]:
    """[(step, loss), ...]"""
    if not isinstance(returned, dict):
        kind = type(returned).__name__
        raise TypeError(f"train_resumable should return {{step: loss}}, not {kind}")
    return sorted((int(step), float(loss)) for step, loss in returned.items())


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
def wrong_commits(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    for wanted, got in zip(attempt.expected[rank]["commits"], output["commits"], strict=True):
        if got == wanted:
            continue
        evidence = f"{got}, expected {wanted}"
        if got == [step - 1 for step in wanted]:
            mistake = "gives a checkpoint the number of its last step"
            return f"{mistake}: after step s, s + 1 steps are done", evidence
        if set(wanted) < set(got):
            return "commits more checkpoints than one after every `every` steps", evidence
        return "does not commit a checkpoint after every `every` steps", evidence
    return None


@on_each_rank
def repeats_steps(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    if output["batches after the end"]:
        return "asks for batches although the checkpoint contains all steps"
    if output["asked again for"] and not output["bit for bit"]:
        return (
            "runs steps again that the checkpoint contains: their batches do not come again, so "
            "restore the state that they led to"
        )
    return None


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
    signs=(
        fails_on_a_rank,
        wrong_steps,
        wrong_commits,
        NAMED_MISTAKES,
        repeats_steps,
        wrong_losses,
        saves_too_much,
    ),
)
