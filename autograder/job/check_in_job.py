"""What a script of `python -m autograder script` ends with: the check of its answer.

Every process of the job runs this.  Each draws the same inputs, and each judges the same results,
which the ranks have exchanged; rank 0 prints.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NoReturn

from autograder import exercises
from autograder.evaluation.decide import decide
from autograder.evaluation.present import as_text
from autograder.evaluation.trial import VISIBLE_SEED, RankKind, RankPool
from autograder.evaluation.verdict import Verdict
from autograder.exercise import Case, Exercise
from autograder.guest.answer import pickled
from shardlab.job.environment import Job, current
from shardlab.job.launch import ranks_of
from shardlab.ranks.trust import Trust
from shardlab.run import Run


def check_in_job(name: str, subject: Any) -> NoReturn:
    """Check an answer on the visible cases that have as many ranks as the job.

    Ends the process: with status 0 if all of these cases pass, 1 if one fails, 2 if there is none.
    In one process, the cases with one rank run as in a notebook.
    """
    exercise = exercises.load(name)
    job = current()
    world_size = job.world_size if job else 1
    is_first = job is None or job.rank == 0
    visible = [case for case in exercise.cases if not case.hidden]
    chosen = [case for case in visible if case.world_size == world_size]
    lines = [
        f"skipped, needs {case.world_size} rank{'s' * (case.world_size > 1)}: {case.name}"
        for case in visible
        if case not in chosen
    ]
    status = 2
    if not chosen:
        lines.append(f"no case of {name} has {world_size} ranks: start as many as a case needs")
    elif subject is None or subject is ...:
        lines, status = [f"{exercise.answer}: not written yet"], 1
    else:
        verdict = verdict_in_job(exercise, tuple(chosen), subject, job)
        lines.insert(0, as_text(verdict))
        status = 0 if verdict.passed else 1
    if is_first:
        print(*lines, sep="\n", flush=True)
    sys.exit(status)


def verdict_in_job(
    exercise: Exercise, cases: tuple[Case, ...], subject: Any, job: Job | None
) -> Verdict:
    """The verdict on these cases; without a job on ranks of its own."""
    # In a job, modules with solutions stay open: the same process also judges.
    own = replace(exercise, cases=cases, closed=exercise.closed if job is None else ())
    pool = None if job is None else JobPool(ranks_of(job, "cpu"))
    blob = pickled(exercise.answer, subject)
    return decide(own, blob, VISIBLE_SEED, trust=Trust.OWN, ranks=pool)


class JobPool(RankPool):
    """The job's processes for every case. Those of an earlier case are not replaced."""

    def __init__(self, ranks: Any) -> None:
        super().__init__(trust=Trust.OWN)
        self.ranks: Any = _Set(ranks)

    def expect(self, exercise: Exercise, cases: Iterable[Case]) -> None:
        pass

    def get(self, kind: RankKind) -> Any:
        return self.ranks

    def has(self, kind: RankKind) -> bool:
        return True

    def end(self, kind: RankKind) -> None:
        pass

    def new(self, kind: RankKind, sizes: Collection[int], timeout_s: float) -> Any:
        kept: AbstractContextManager[Any] = nullcontext(self.ranks)
        return kept


class _Set:
    """As much of a RankSet as a trial uses."""

    is_fresh = True  # so that no case is run twice
    is_reusable = True

    def __init__(self, ranks: Any) -> None:
        self.ranks = ranks

    def run(
        self,
        fn: Any,
        *given: Any,
        inputs: Sequence[Any],
        seed: int,
        results: str,
        memory: bool,
        delay_s: Sequence[float],
        timeout_s: float,
        withheld: Sequence[Mapping[str, Sequence[Any]]],
        **_: Any,
    ) -> Run:
        run: Run = self.ranks.run(
            fn, *given, inputs=inputs, seed=seed, results=results, memory=memory,
            delay_s=delay_s, timeout_s=timeout_s, withheld=withheld,
        )  # fmt: skip
        return run
