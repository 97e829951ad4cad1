"""Tries an answer on real ranks, case after case, in a process that runs no student code.

Inputs are drawn here, from a seed that is written down; every rank gets its own and no other.
The answer is unpickled on ranks only, and what comes back is plain data, compared here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from autograder.evaluation.judge import NO_SUSPECTS, Judged, certain_in, judge
from autograder.exercise import Attempt, Case, Exercise, Plain, Spent
from autograder.exercise.budget import by_rank
from autograder.guest.on_rank import on_clean_rank, on_rank
from shardlab import source
from shardlab.errors import DeadlockError, LaunchError, RankError, RunTimeout
from shardlab.rank_set import RankSet
from shardlab.ranks import codec
from shardlab.ranks.client import Host
from shardlab.ranks.trust import Trust
from shardlab.run import Run

VISIBLE_SEED = 2026  # of a student's own checks: the same inputs each time


class InfrastructureError(Exception):
    """The case could not be run, and that is not the student's doing: try again."""

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: the checker's own frames tell a student nothing."""
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {self} (not your doing: try again)"]


class Kind(NamedTuple):
    """Exercises of one kind can share ranks. ``is_clean``: student code never runs on them."""

    engine: str
    is_point_to_point: bool
    is_clean: bool = False


class KeptRanks:
    """`with KeptRanks() as ranks`: ranks that stay from case to case, and from answer to answer.

    To start them costs far more than what an answer does on them.
    """

    def __init__(self, *, host: Host | None = None, trust: Trust = Trust.OWN) -> None:
        self.host, self.trust = host, trust
        self._sizes: dict[Kind, set[int]] = defaultdict(set)
        self._timeout_s: dict[Kind, float] = defaultdict(float)
        self._standing: dict[Kind, RankSet] = {}

    def __enter__(self) -> KeptRanks:
        return self

    def __exit__(self, *_: object) -> None:
        for kind in [*self._standing]:
            self.end(kind)

    def expect(self, exercise: Exercise, cases: Iterable[Case]) -> None:
        """These are to come: ranks that are started from now on serve all of them."""
        sizes = {case.world_size for case in cases}
        kinds = [_kind(exercise)] if _may_stay(exercise) else []
        if exercise.execute:
            kinds.append(_kind(exercise, is_clean=True))
        for kind in kinds:
            self._sizes[kind] |= sizes
            self._timeout_s[kind] = max(self._timeout_s[kind], exercise.timeout_s)

    def standing(self, kind: Kind) -> RankSet:
        """Those that earlier cases ran on, or new ones: as many as any expected case needs."""
        if self.are_standing(kind) and not self._standing[kind].can_go_on:
            self.end(kind)
        if not self.are_standing(kind):
            self._standing[kind] = self.new(kind, self._sizes[kind], self._timeout_s[kind])
        return self._standing[kind]

    def are_standing(self, kind: Kind) -> bool:
        return kind in self._standing

    def end(self, kind: Kind) -> None:
        if kind in self._standing:
            self._standing.pop(kind).close()

    def new(self, kind: Kind, sizes: set[int], timeout_s: float) -> RankSet:
        """Whoever asks has to close them."""
        return RankSet(
            max(sizes),
            smaller=sizes,
            timeout_s=timeout_s,
            device="cpu",
            engine=kind.engine,
            quiet=True,
            host=self.host,
            # all are connected from the start: who opens another connection hides something
            may_connect=not kind.is_point_to_point,
            trust=self.trust,
        )


def _kind(exercise: Exercise, is_clean: bool = False) -> Kind:
    return Kind(exercise.engine, exercise.is_point_to_point, is_clean)


def _may_stay(exercise: Exercise) -> bool:
    """Tensors of an earlier case would be in no later one's memory; DeepSpeed keeps much of what it
    was told first."""
    return not exercise.memory and exercise.engine != "deepspeed"


class Trials:
    """`trials = Trials(exercise, blob, seed, ranks); attempt, judged = trials.of(case)`.

    On ranks that other cases have used, what counts is a mistake that this answer has made on new
    ones before, and a pass as long as the case before it has passed.  Anything else is tried again
    on new ranks, and counts as it ends there.

    ``subject_blob``: a cloudpickle of the answer.
    """

    def __init__(
        self, exercise: Exercise, subject_blob: bytes, seed: int, ranks: KeptRanks
    ) -> None:
        self.exercise, self.subject_blob, self.seed = exercise, subject_blob, seed
        self.ranks, self.trust = ranks, ranks.trust
        self.goes_well = True  # the last case has passed
        self.mistakes: set[str] = set()  # made on new ranks
        self.suspects: frozenset[str] = NO_SUSPECTS  # named mistakes that explain the cases so far

    def of(self, case: Case) -> tuple[Attempt, Judged]:
        """One case. A failure of student code is part of what it returns.

        Raises InfrastructureError for a failure that is the machine's.
        """
        exercise, kind, may_stay = self.exercise, _kind(self.exercise), _may_stay(self.exercise)
        inputs = list(exercise.draw(case, rng_for(exercise, case, self.seed)))
        expected = list(exercise.expect(case, inputs))
        if may_stay and (self.goes_well or self.ranks.are_standing(kind)):
            ranks = self.ranks.standing(kind)
            were_new = ranks.is_fresh
            attempt = self._attempt(ranks, case, inputs, expected)
            judged = judge(exercise, attempt, self.suspects)
            if not ranks.can_go_on:
                self.ranks.end(kind)
            result = judged.result
            is_known = result.mistake in self.mistakes and not result.trouble
            if were_new or (self.goes_well if result.passed else is_known):
                self._remember(judged)
                return attempt, judged
        with self.ranks.new(kind, {case.world_size}, exercise.timeout_s) as fresh:
            attempt = self._attempt(fresh, case, inputs, expected)
        judged = judge(exercise, attempt, self.suspects)
        if judged.result.passed and may_stay:
            self.ranks.end(kind)  # they hold what a failed case has left behind
        self._remember(judged)
        return attempt, judged

    def _remember(self, judged: Judged) -> None:
        self.goes_well = judged.result.passed
        if judged.result.mistake:
            self.mistakes.add(judged.result.mistake)
        self.suspects = certain_in(judged.named) or self.suspects

    def _attempt(
        self, ranks: RankSet, case: Case, inputs: list[Plain], expected: list[Plain]
    ) -> Attempt:
        exercise = self.exercise
        given = (
            _pickled(exercise.drive),
            _on_ranks(exercise, case),
            self.subject_blob,
            exercise.closed,
        )
        run, error = self._run(ranks, case, inputs, on_rank, *given)
        if run is not None and error is None and exercise.execute is not None:
            returned = run.outputs
            clean = self.ranks.standing(_kind(exercise, is_clean=True))
            blob = _pickled(exercise.execute)
            run, error = self._run(clean, case, inputs, on_clean_rank, blob, case, returned)
            if run is not None:
                pairs = zip(returned, run.outputs, strict=True)
                run.outputs = [_merged(*pair) for pair in pairs]
        has_outputs = run is not None and (error is None or self.trust is Trust.OWN)
        spent, unmeasured = self._held_against_budgets(case, run) if run else ((), ())
        return Attempt(
            case=case,
            inputs=inputs,
            expected=expected,
            outputs=run.outputs if run and has_outputs else [None] * case.world_size,
            run=run,
            error=error,
            spent=spent,
            unmeasured=unmeasured,
            trust=self.trust,
        )

    def _held_against_budgets(
        self, case: Case, run: Run
    ) -> tuple[tuple[Spent, ...], tuple[str, ...]]:
        """What the case's budgets measured, and the labels of those for which nothing is there."""
        held, unmeasured = [], []
        for budget in self.exercise.budgets:
            limit = self.exercise.limit_of(budget, case)
            if limit is None or (budget.from_outside and self.trust is Trust.OWN):
                continue
            try:
                used = budget.used(run)
            except KeyError:
                unmeasured.append(budget.label)
                continue
            spent = Spent(
                budget.label,
                used=by_rank(used, case.world_size),
                limit=by_rank(limit.most, case.world_size),
                least=by_rank(limit.least, case.world_size),
                heading=budget.heading,
                unit=budget.unit,
                from_outside=budget.from_outside,
            )
            held.append(spent)
        return tuple(held), tuple(unmeasured)

    def _run(
        self, ranks: RankSet, case: Case, inputs: list[Plain], fn: Callable[..., Any], *given: Any
    ) -> tuple[Run | None, LaunchError | None]:
        """The run, partial where there is an error of student code."""
        exercise = self.exercise
        run: Run | None
        error: LaunchError | None = None
        try:
            # What student code says of a file's name must not have that file read here.
            with contextlib.nullcontext() if self.trust is Trust.OWN else source.without_files():
                run = ranks.run(
                    fn,
                    *given,
                    world_size=case.world_size,
                    inputs=inputs,
                    memory=exercise.memory,
                    shaken=case.shaken,
                    seed=seed_of_ranks(exercise, case, self.seed),
                    results="plain",
                    timeout_s=exercise.timeout_s,
                    output_bytes=exercise.output_bytes,
                )
        except (RankError, DeadlockError, RunTimeout) as failure:
            error, run = failure, failure.run
        except Exception as failure:
            raise InfrastructureError(f"{exercise.name}, {case.name}: {failure}") from failure
        if run is not None:  # so that whose call is found first does not hang on a moment
            run.calls.sort(key=lambda call: call.rank)
        return run, error


def _on_ranks(exercise: Exercise, case: Case) -> Case:
    """The case as a rank gets it, where student code can read all of it."""
    kept = exercise.kept_from_ranks
    return replace(case, params={k: v for k, v in case.params.items() if k not in kept})


def _merged(returned: Plain, executed: Plain) -> Plain:
    both_are_dicts = isinstance(returned, dict) and isinstance(executed, dict)
    return {**returned, **executed} if both_are_dicts else returned


_pickled = functools.cache(codec.encode_any)  # once for a class: it holds all that `drive` calls


def rng_for(exercise: Exercise, case: Case, seed: int) -> np.random.Generator:
    """A case's own generator: adding or reordering cases leaves the others' inputs alone."""
    return np.random.default_rng(_derived(f"{seed}/{exercise.name}/{case.name}"))


def seed_of_ranks(exercise: Exercise, case: Case, seed: int) -> int:
    """What ranks draw from. Not ``seed``: a rank that knew it would know the others' inputs."""
    return _derived(f"ranks/{seed}/{exercise.name}/{case.name}")


def _derived(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
