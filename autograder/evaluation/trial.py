"""Runs an answer on real ranks, case by case, from a process that runs no student code.

Inputs are drawn here, from a recorded seed; every rank gets only its own.  The answer is unpickled
on ranks only; they return plain data, which is compared here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from autograder.evaluation.judge import Judged, certain_in, judge_within_limits
from autograder.evaluation.limited import watchdog
from autograder.exercise import Attempt, BudgetUsage, Case, Exercise, Plain
from autograder.exercise.budget import by_rank
from autograder.exercise.process_memory import PROCESS_MEMORY
from autograder.guest import on_rank
from autograder.guest.closed_modules import parents_of, places_of
from shardlab.display import source
from shardlab.errors import DeadlockError, LaunchError, RankError, RunTimeout
from shardlab.ranks import codec
from shardlab.ranks.client import Host
from shardlab.ranks.clock import most_wall_s
from shardlab.ranks.rank_set import RankSet
from shardlab.ranks.trust import Trust
from shardlab.run import Run

log = logging.getLogger(__name__)

VISIBLE_SEED = 2026  # for a student's own checks: the same inputs each time
# For a case that is run again if it does not end, or that follows one that did not: far more than
# a right answer needs, so that a hang costs its full limit only once.
SHORT_TIMEOUT_S, SHORT_SHARE = 8.0, 0.25
# The wall time of a case is far below WATCHDOG_S + WATCHDOG_TIMES × the longest run.
WATCHDOG_S, WATCHDOG_TIMES = 900.0, 2
MAX_DELAY_S = 0.008  # of a rank at each call with random_delays; a call takes about 1 ms


class InfrastructureError(Exception):
    """The case could not be run because of the machine, not the student: try again."""

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: no frames, because the checker's do not help a student."""
        return [f"{type(self).__name__}: {self} (not your fault: try again)"]


class RankKind(NamedTuple):
    """Exercises of one kind can share ranks. ``is_clean``: student code never runs on them.

    ``closed``: modules that are closed there, for good.
    ``world_size``: of ranks on several nodes: fewer ranks would not be divided among them equally.
    """

    engine: str
    is_point_to_point: bool
    closed: tuple[str, ...] = ()
    is_clean: bool = False
    nodes: int = 1
    link_bits_per_s: float | None = None
    world_size: int | None = None


class RankPool:
    """`with RankPool() as ranks`: keeps ranks running from case to case and answer to answer.

    Starting them takes far longer than running an answer on them.
    """

    def __init__(self, *, host: Host | None = None, trust: Trust = Trust.OWN) -> None:
        self.host, self.trust = host, trust
        self._sizes: dict[RankKind, set[int]] = defaultdict(set)
        self._timeout_s: dict[RankKind, float] = defaultdict(float)
        self._rank_sets: dict[RankKind, RankSet] = {}

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, *_: object) -> None:
        for kind in [*self._rank_sets]:
            self.end(kind)

    def expect(self, exercise: Exercise, cases: Iterable[Case]) -> None:
        """Ranks started from now on can run all of these cases."""
        for case in cases:
            kinds = [_kind(exercise, case)] if _can_keep_ranks(exercise, case) else []
            if exercise.execute:
                kinds.append(_kind(exercise, case, is_clean=True))
            for kind in kinds:
                self._sizes[kind].add(case.world_size)
                self._timeout_s[kind] = max(self._timeout_s[kind], exercise.timeout_s)

    def get(self, kind: RankKind) -> RankSet:
        """Ranks that earlier cases used, or new ones: as many as any expected case needs."""
        if self.has(kind) and not self._rank_sets[kind].is_reusable:
            self.end(kind)
        if not self.has(kind):
            self._rank_sets[kind] = self.new(kind, self._sizes[kind], self._timeout_s[kind])
        return self._rank_sets[kind]

    def has(self, kind: RankKind) -> bool:
        return kind in self._rank_sets

    def end(self, kind: RankKind) -> None:
        if kind in self._rank_sets:
            self._rank_sets.pop(kind).close()

    def new(self, kind: RankKind, sizes: set[int], timeout_s: float) -> RankSet:
        """New ranks; the caller closes them."""
        return RankSet(
            max(sizes),
            smaller=sizes,
            timeout_s=timeout_s,
            device="cpu",
            engine=kind.engine,
            quiet=True,
            host=self.host,
            # all are connected from the start: only cheating needs another connection
            may_connect=not kind.is_point_to_point,
            trust=self.trust,
            preload=(*on_rank.PRELOAD, *parents_of(kind.closed)),
            prepare=("autograder.guest.closed_modules:prepare_to_close", *kind.closed),
            hide=places_of(kind.closed),
            nodes=kind.nodes,
            link_bits_per_s=kind.link_bits_per_s,
        )


def _kind(exercise: Exercise, case: Case, is_clean: bool = False) -> RankKind:
    closed = () if is_clean else exercise.closed
    where = (case.nodes, case.link_bits_per_s, case.world_size) if case.nodes > 1 else ()
    return RankKind(exercise.engine, exercise.is_point_to_point, closed, is_clean, *where)


def _can_keep_ranks(exercise: Exercise, case: Case) -> bool:
    """Whether ranks can be kept: not if their processes' memory is measured, which needs new
    processes, and not with DeepSpeed, which keeps global state."""
    return exercise.engine != "deepspeed" and not _measures_process_memory(exercise, case)


def _measures_process_memory(exercise: Exercise, case: Case) -> bool:
    budgets = [budget for budget in exercise.budgets if budget.heading == PROCESS_MEMORY]
    return any(exercise.limit_of(budget, case) is not None for budget in budgets)


class Trials:
    """`trials = Trials(exercise, blob, seed, ranks); attempt, judged = trials.run(case)`.

    On used ranks, a failure counts if this answer has made the same mistake on new ranks before,
    and a pass counts if the previous case passed.  Otherwise the case is run again on new ranks,
    and that result counts.

    ``subject_blob``: a cloudpickle of the answer.
    """

    def __init__(self, exercise: Exercise, subject_blob: bytes, seed: int, ranks: RankPool) -> None:
        self.exercise, self.subject_blob, self.seed = exercise, subject_blob, seed
        self.ranks, self.trust = ranks, ranks.trust
        self.last_passed = True
        self.has_timed_out = False
        self.leaves_ranks_usable = True  # where it passes
        self.mistakes: set[str] = set()  # made on new ranks
        self.suspects: frozenset[str] = frozenset()  # named mistakes that explain the cases so far

    def run(self, case: Case) -> tuple[Attempt, Judged]:
        """Runs one case; a failure of student code is part of the result.

        Raises InfrastructureError for a failure of the machine.
        """
        if self.trust is Trust.OWN:
            return self._run_case(case)
        run_s = most_wall_s(self.exercise.timeout_s, case.world_size)
        with watchdog(WATCHDOG_S + WATCHDOG_TIMES * run_s):
            return self._run_case(case)

    def _run_case(self, case: Case) -> tuple[Attempt, Judged]:
        exercise = self.exercise
        kind, can_keep = _kind(exercise, case), _can_keep_ranks(exercise, case)
        inputs = self.inputs(case)
        given = case, inputs, self.expected(case, inputs)
        passed = False
        if can_keep and (self.ranks.has(kind) or (self.last_passed and self.leaves_ranks_usable)):
            were_new, attempt, judged = self._on_kept_ranks(kind, *given)
            result = judged.result
            passed = result.passed
            is_known = result.mistake in self.mistakes and not result.violation
            if were_new or (self.last_passed if passed else is_known):
                self._remember(judged)
                return attempt, judged
        if passed:  # as the next cases probably will: keep the new ranks for them
            self.ranks.end(kind)
            _, attempt, judged = self._on_kept_ranks(kind, *given)
        else:
            with self.ranks.new(kind, {case.world_size}, exercise.timeout_s) as fresh:
                attempt, judged = self._judged(fresh, *given)
            if judged.result.passed and can_keep:
                self.ranks.end(kind)  # they have state from a failed case
        self._remember(judged)
        return attempt, judged

    def _on_kept_ranks(
        self, kind: RankKind, case: Case, inputs: Sequence[Plain], expected: list[Plain]
    ) -> tuple[bool, Attempt, Judged]:
        """The first value says whether the ranks were new."""
        ranks = self.ranks.get(kind)
        were_new = ranks.is_fresh
        attempt, judged = self._judged(ranks, case, inputs, expected)
        if not ranks.is_reusable:
            self.ranks.end(kind)
            self.leaves_ranks_usable = not judged.result.passed
        return were_new, attempt, judged

    def inputs(self, case: Case) -> Sequence[Plain]:
        return self.exercise.draw(case, rng_for(self.exercise, case, self.seed))

    def expected(self, case: Case, inputs: Sequence[Plain]) -> list[Plain]:
        return list(self.exercise.expect(case, inputs))

    def _remember(self, judged: Judged) -> None:
        self.last_passed = judged.result.passed
        if judged.result.mistake:
            self.mistakes.add(judged.result.mistake)
        self.suspects = certain_in(judged.named) or self.suspects

    def _judged(
        self, ranks: RankSet, case: Case, inputs: Sequence[Plain], expected: list[Plain]
    ) -> tuple[Attempt, Judged]:
        """A case with random delays fails if it fails in one of its orders."""
        for delay_s in delays_s(self.exercise, case, self.seed):
            attempt = self._attempt(ranks, case, inputs, expected, delay_s)
            judged = judge_within_limits(self.exercise, attempt, self.suspects)
            if not (judged.result.passed and ranks.is_reusable):
                break
        return attempt, judged

    def _attempt(
        self,
        ranks: RankSet,
        case: Case,
        inputs: Sequence[Plain],
        expected: list[Plain],
        delay_s: Sequence[float],
    ) -> Attempt:
        exercise = self.exercise
        given = (
            _pickled(exercise.drive),
            case_on_ranks(exercise, case),
            self.subject_blob,
            exercise.closed,
        )
        key, known, later = exercise.withheld, inputs, []
        if key:
            known = [{k: v for k, v in own.items() if k != key} for own in inputs]
            later = [{key: own[key]} for own in inputs]
        run, error = self._run(ranks, case, known, delay_s, on_rank.on_rank, *given, withheld=later)
        if run is not None and error is None and exercise.execute is not None:
            returned = run.outputs
            clean = self.ranks.get(_kind(exercise, case, is_clean=True))
            blob = _pickled(exercise.execute)
            program = (on_rank.on_clean_rank, blob, case, returned)
            run, error = self._run(clean, case, inputs, delay_s, *program)
            if run is not None:
                pairs = zip(returned, run.outputs, strict=True)
                run.outputs = [_merged(*pair) for pair in pairs]
        has_outputs = run is not None and (error is None or self.trust is Trust.OWN)
        spent, unmeasured = self._measured_budgets(case, run) if run else ((), ())
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

    def _timeout_s(self, ranks: RankSet, case: Case) -> float:
        """A student's own check runs each case once, and large cases always use new ranks."""
        longest_s = self.exercise.timeout_s
        may_be_short = self.trust is Trust.UNTRUSTED and _can_keep_ranks(self.exercise, case)
        if not may_be_short or (ranks.is_fresh and not self.has_timed_out):
            return longest_s
        return min(longest_s, max(SHORT_TIMEOUT_S, SHORT_SHARE * longest_s))

    def _measured_budgets(
        self, case: Case, run: Run
    ) -> tuple[tuple[BudgetUsage, ...], tuple[str, ...]]:
        """The case's budgets with what was used, and labels of those that could not be measured."""
        measured, unmeasured = [], []
        for budget in self.exercise.budgets:
            limit = self.exercise.limit_of(budget, case)
            if limit is None or (budget.from_outside and self.trust is Trust.OWN):
                continue
            try:
                used = budget.used(run)
            except Exception as error:  # student code may leave a record in any form
                if not isinstance(error, KeyError):  # of a phase that did not occur
                    log.info("%s: a budget failed", self.exercise.name, exc_info=True)
                unmeasured.append(budget.label)
                continue
            spent = BudgetUsage(
                budget.label,
                used=by_rank(used, case.world_size),
                limit=by_rank(limit.most, case.world_size),
                least=by_rank(limit.least, case.world_size),
                heading=budget.heading,
                unit=budget.unit,
                from_outside=budget.from_outside,
                contradicts=budget.contradicts,
            )
            measured.append(spent)
        return tuple(measured), tuple(unmeasured)

    def _run(
        self,
        ranks: RankSet,
        case: Case,
        inputs: Sequence[Plain],
        delay_s: Sequence[float],
        fn: Callable[..., Any],
        *given: Any,
        withheld: Sequence[Mapping[str, Sequence[Plain]]] = (),
    ) -> tuple[Run | None, LaunchError | None]:
        """The run, and the error of student code if there is one; then the run is partial."""
        exercise = self.exercise
        run: Run | None
        error: LaunchError | None = None
        was_new, timeout_s = ranks.is_fresh, self._timeout_s(ranks, case)
        try:
            # Student code can forge file names in tracebacks: do not read these files here.
            with (
                contextlib.nullcontext()
                if self.trust is Trust.OWN
                else source.without_source_text()
            ):
                run = ranks.run(
                    fn,
                    *given,
                    world_size=case.world_size,
                    inputs=inputs,
                    memory=exercise.records_memory(case),
                    process_memory=_measures_process_memory(exercise, case),
                    delay_s=delay_s,
                    seed=rank_seed(exercise, case, self.seed),
                    results="plain",
                    timeout_s=timeout_s,
                    output_bytes=exercise.output_bytes,
                    withheld=withheld,
                )
        except (RankError, DeadlockError, RunTimeout) as failure:
            error, run = failure, failure.run
        except Exception as failure:
            raise InfrastructureError(f"{exercise.name}, {case.name}: {failure}") from failure
        self.has_timed_out |= isinstance(error, RunTimeout) and was_new
        if run is not None:  # by rank, so that diagnoses do not depend on timing
            run.calls.sort(key=lambda call: call.rank)
        return run, error


def case_on_ranks(exercise: Exercise, case: Case) -> Case:
    """The case as sent to ranks, where student code can read all of it."""
    kept = exercise.kept_from_ranks
    return replace(case, params={k: v for k, v in case.params.items() if k not in kept})


def _merged(returned: Plain, executed: Plain) -> Plain:
    both_are_dicts = isinstance(returned, dict) and isinstance(executed, dict)
    return {**returned, **executed} if both_are_dicts else returned


# Once for all submissions: it includes everything that `drive` calls.
_pickled = functools.cache(codec.encode_any)


def rng_for(exercise: Exercise, case: Case, seed: int) -> np.random.Generator:
    """A separate generator per case: adding or reordering cases keeps the others' inputs."""
    return np.random.default_rng(_derived(f"{seed}/{exercise.name}/{case.name}"))


def delays_s(exercise: Exercise, case: Case, seed: int) -> list[list[float]]:
    """For each run of the case: by how long each rank delays each of its calls.

    With random delays, the case runs with the ranks delayed in a random order, then in the reverse.
    """
    if not case.random_delays or case.world_size == 1:
        return [[]]
    rng = np.random.default_rng(_derived(f"order/{seed}/{exercise.name}/{case.name}"))
    delay_s = rng.permutation(np.linspace(0, MAX_DELAY_S, case.world_size))
    return [delay_s.tolist(), (MAX_DELAY_S - delay_s).tolist()]


def rank_seed(exercise: Exercise, case: Case, seed: int) -> int:
    """The seed on ranks. Not ``seed`` itself, from which a rank could draw the others' inputs."""
    return _derived(f"ranks/{seed}/{exercise.name}/{case.name}")


def _derived(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
