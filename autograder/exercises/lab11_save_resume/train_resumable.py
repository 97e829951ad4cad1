"""Kill ranks, and compare the loss curve after the last restart.

The training data stays in the ranks' parent, which sends batches on request.  It does not repeat
batches that were used before the checkpoint, and these take more bytes than the remaining
checkpoints may have.  Nothing else that a start of the job leaves behind is available to the next.
"""

from __future__ import annotations

import contextlib
import os
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

from autograder.exercise import NAMED_MISTAKES, Case, OnRanks, Plain
from autograder.exercise.budget import Budget, Limit, from_outputs
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.lab11_save_resume.folders import (
    copy_of_files,
    name_of,
    text,
    total_bytes,
)
from autograder.exercises.lab11_save_resume.forked_ranks import (
    Observer,
    Outcome,
    protected_parent,
    run_ranks,
    was_killed,
)
from autograder.exercises.lab11_save_resume.process_group import Group, Message
from autograder.exercises.lab11_save_resume.rank_errors import (
    fails_on_a_rank,
    raise_first_error,
)
from autograder.exercises.lab11_save_resume.training_job import (
    MEAN_TARGET,
    Job,
    Scaler,
    Stream,
    batch_of,
    seed_all,
)
from autograder.guest import private_folders
from autograder.guest.on_rank import gets_pickled_answer, with_functions_replaced

WIDTHS = (64, 32, 32, 1)
SAMPLES = 256  # in a batch of one rank; see `checkpoint_limit`
SEEN_NS = 10**9  # modification time of files that the observer has seen
STATE_BYTES = 8 * 3  # fp64: a parameter and Adam's two states
RANDOM_BYTES = 16_384  # both random states and torch.save's overhead, for each rank
TOLERANCE = 1e-6
UNFINISHED = ".unfinished"  # at the end of a name that `latest` does not find

NO_KILL = ("nowhere", None, None)
CALLED = {"mean": "job.step()", "written": "atomic_commit", "renamed": "atomic_commit"}


def training_case(
    name: str, ranks: int, steps: int, every: int, *kills: Any, weight: float = 1.0
) -> Case:
    """Start the job once for each of ``kills``, ("step" or "save", step, rank), and once more.

    Each kill leaves a checkpoint between two changes of the loss scale (see `training_job`), so
    that a lost count of good steps has an effect.

    With several ranks, each start finds all older checkpoints, else only the newest, because one
    rank's batches would fit into several.
    """
    params = {"ranks": ranks, "steps": steps, "every": every, "starts": [*kills, NO_KILL]}
    params["keeps old"] = ranks > 1
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
        "targets": MEAN_TARGET + 2 * normal(samples, SAMPLES, 1),
        "seeds": rng.integers(1, 10**6, per_start).tolist(),
    }


# ---- next to the student's code -----------------------------------------------------------------


@gets_pickled_answer
def drive(pickled: bytes, given: Any, case: Case) -> Plain:
    starts, before = [], private_folders.content()
    checkpoint_bytes = 0
    with protected_parent(), TemporaryDirectory(ignore_cleanup_errors=True) as name:
        before |= private_folders.content()
        survivors: list[Path] = []
        for start in range(len(case.params["starts"])):
            root = Path(name, f"start_{start}")
            root.mkdir()
            for each in reversed(survivors):  # so that file times reveal nothing
                copy_of_files(each, root / each.name)
            if survivors:
                shutil.rmtree(survivors[0].parent)
                next_step = done_before(case, start) + case.params["every"]
                (root / f"{name_of(next_step)}{UNFINISHED}").mkdir()  # of a killed run
            observer = JobObserver(given, case, start, root)
            outcomes = run_job(pickled, root, given, case, observer)
            raise_first_error(outcomes, CALLED)
            left = sorted(root.glob("step_????????"))
            starts.append((observer, was_killed(outcomes), [text(each.name) for each in left]))
            checkpoint_bytes = max([checkpoint_bytes, *map(total_bytes, left)])
            survivors = left if case.params["keeps old"] else left[-1:]
            private_folders.remove_all_but(before)
        work = partial(uninterrupted, given["weights"], given["seeds"][0], case.params["steps"])
        observer = JobObserver(given, case, 0, Path(name), is_killed=False)
        whole_run, *_ = run_ranks(work, case.params["ranks"], observer)
    losses = dict(whole_run.value)
    returned = [each.value for each in outcomes]
    return {
        "steps": [[step for step, _ in pairs] for pairs in returned],
        "losses": [torch.tensor([loss for _, loss in pairs]).double() for pairs in returned],
        "kills": [killed for _, killed, _ in starts],
        "commits": [each.commits for each, _, _ in starts],
        # Later starts may have begun at the wrong step.
        "misnumbered in the first start": starts[0][0].misnumbered,
        "left": [left for _, _, left in starts],
        "written by several ranks": sorted(
            {text(n) for each, _, _ in starts for n in each.written_by_several()}
        ),
        "losses are bit-equal": all(
            losses.get(step) == loss for pairs in returned for step, loss in pairs
        ),
        "batches after the end": sum(each.batches for each, _, _ in starts if each.is_done),
        "checkpoint bytes": checkpoint_bytes,
    }


class JobObserver(Observer):
    """Delivers batches, records commits and which ranks write which files, and kills a rank."""

    def __init__(
        self, given: Any, case: Case, start: int, root: Path, is_killed: bool = True
    ) -> None:
        self.given, self.ranks, self.root = given, case.params["ranks"], root
        self.kill = case.params["starts"][start] if is_killed else NO_KILL
        self.first = done_before(case, start)
        self.done = [self.first] * self.ranks
        self.commits: list[int] = []
        self.misnumbered: list[tuple[int, int]] = []  # number of a checkpoint, steps done
        self.is_done = self.first == case.params["steps"]  # from the beginning
        self.batches = 0  # that ranks asked for
        self.writers: dict[Path, set[int]] = {}
        self.inspect(None)

    def inspect(self, rank: int | None) -> None:
        """Find the files that have changed since the last time; only ``rank`` has run since."""
        for path in self.root.rglob("*"):
            with contextlib.suppress(OSError):  # it may be removed in the meantime
                if path.is_file() and path.lstat().st_mtime_ns != SEEN_NS:
                    os.utime(path, ns=(SEEN_NS, SEEN_NS), follow_symlinks=False)
                    self.writers.setdefault(path, set()).update(set() if rank is None else {rank})

    def written_by_several(self) -> list[str]:
        """Names of files that several ranks have written."""
        return [path.name for path, ranks in self.writers.items() if len(ranks) > 1]

    def should_kill(self, rank: int, message: Message | None) -> bool:
        op = message and message.get("op")
        if op != "batch":
            self.inspect(rank)
        if op == "mean":
            self.done[rank] += 1
            return self.kill == ("step", self.done[rank] - 1, rank)
        if op == "written":
            return self.kill == ("save", self.done[rank] - 1, rank)
        if message and op == "renamed" and rank == 0:
            number, done = int(message["step"]), self.done[0]
            self.commits.append(number)
            if number != done:
                self.misnumbered.append((number, done))
        return False

    def answer(self, rank: int, message: Message) -> Plain:
        if message.get("op") != "batch":
            return None
        self.batches += 1
        return list(batch_of(self.given, int(message["position"]), rank, self.ranks, self.first))


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
                shutil.rmtree(root / name_of(step), ignore_errors=True)
                folder.rename(root / name_of(step))
            group.exchange("renamed", step=int(step))

        ours = {"Job": Job, "Stream": Stream, "Scaler": Scaler}  # for isinstance
        subject = cloudpickle.loads(pickled)
        with_functions_replaced(subject, atomic_commit=atomic_commit, **ours)
        job = Job(given["weights"], batches_for(group), group.mean)
        return in_pairs(subject(root, job, case.params["steps"], case.params["every"]))

    ranks = range(case.params["ranks"])
    return run_ranks(on_rank, len(ranks), observer, ranks[:: -1 if start % 2 else 1])


def done_before(case: Case, start: int) -> int:
    """The number of steps in the checkpoint that a start of the job finds."""
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
    form = "train_resumable should return {step: loss}"
    if not isinstance(returned, dict):
        raise TypeError(f"{form}, not {type(returned).__name__}")
    if texts := [step for step in returned if isinstance(step, str)]:
        raise TypeError(f"{form} with numbers as steps, not {texts[0]!r}")
    return sorted((int(step), float(loss)) for step, loss in returned.items())


def checkpoint_limit(case: Case) -> Limit:
    """All checkpoints of a start have a seventh of the bytes of the batches before the newest, or
    less: too few for the batches in half precision, in files or in their names."""
    parameters = sum(b * (a + 1) for a, b in pairwise(WIDTHS))
    return Limit(1.1 * STATE_BYTES * parameters + RANDOM_BYTES * case.params["ranks"])


@on_each_rank
def removes_checkpoints(output: Any) -> MistakeText:
    for commits, left in zip(output["commits"], output["left"], strict=True):
        if gone := sorted(set(map(name_of, commits)).difference(left)):
            return "removes checkpoints: old ones stay", f"missing: {', '.join(gone)}"
    return None


@on_each_rank
def asks_after_the_end(output: Any) -> MistakeText:
    if not (batches := output["batches after the end"]):
        return None
    return "asks for batches in a start that finds all steps done", f"{batches} of them"


@on_each_rank
def wrong_numbers(output: Any) -> MistakeText:
    for number, done in output["misnumbered in the first start"]:
        mistake = "gives a checkpoint a number that is not that of the steps done: after step s, "
        return f"{mistake}s + 1 are done", f"number {number} after {done} step{'s' * (done != 1)}"
    return None


@on_each_rank
def wrong_steps(output: Any, expected: Any, case: Case) -> MistakeText:
    key = "steps"
    mistake = "does not return the losses of exactly the remaining steps after a restart"
    # Without the right checkpoints, a restart does not find the right steps.
    if output["commits"][0] != expected["commits"][0] or output["steps"] == expected["steps"]:
        key = "commits"
        mistake = "does not commit checkpoints after every `every` steps, and at no other time"
    for got, due in zip(output[key], expected[key], strict=True):  # by rank, by start of the job
        if got != due:
            setting = f"steps={case.params['steps']}, every={case.params['every']}"
            return mistake, f"{got}, expected {due} with {setting}"
    return None


EXERCISE = OnRanks(
    points=6,
    cases=(
        training_case("1 rank, killed in step 11", 1, 15, 5, ("step", 11, 0)),
        training_case("2 ranks, killed twice", 2, 18, 5, ("save", 9, 0), ("step", 16, 1)),
        training_case("1 rank, restarted when all steps are done", 1, 6, 2, NO_KILL, weight=0.5),
    ),
    inputs=draw_job,
    drive=drive,
    tolerance=TOLERANCE,
    budgets=(
        Budget(
            "saves the ranks' common state only once",
            from_outputs("checkpoint bytes"),
            checkpoint_limit,
            heading="in a checkpoint",
        ),
    ),
    signs=(
        fails_on_a_rank,
        NAMED_MISTAKES,
        removes_checkpoints,
        wrong_numbers,
        wrong_steps,
        asks_after_the_end,
    ),
)
