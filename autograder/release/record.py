"""What functions that are kept back return for the visible cases, as files of plain data."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from importlib.metadata import version

from autograder.evaluation.threads import one_thread
from autograder.evaluation.trial import VISIBLE_SEED, rng_for
from autograder.exercise import Exercise, Plain
from autograder.exercise.kept_back import KEPT_BACK
from autograder.exercise.recorded import SUFFIX, key_of, pack
from autograder.release.refusal import ReleaseError
from shardlab.ranks import codec

Used = Iterable[tuple[Exercise, Iterable[str]]]  # with the functions that are kept back from it


def name_of(function: Callable[..., Plain]) -> str:
    """``ring.bounds_of``"""
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


def expected_name(exercise: str) -> str:
    return f"{exercise}.expected"


@one_thread()
def recorded(used: Used) -> dict[str, bytes]:
    """{name of the file: its bytes}, of oracles and of the functions named in ``used``."""
    by_name = {name_of(function): function for function in KEPT_BACK}
    tables: dict[str, dict[str, Plain]] = {}
    tolerances: dict[str, float | None] = {}

    def note(name: str, arguments: tuple[Plain, ...], result: Plain) -> None:
        known = tables.setdefault(name, {}).setdefault(key_of(arguments), result)
        if known is not result and codec.encode_plain(known) != codec.encode_plain(result):
            raise ReleaseError(
                f"{name} returns different results for arguments that differ in nothing but what "
                "tensors hold: pass it the case as well"
            )

    for exercise, functions in used:
        expected = expected_name(exercise.name)
        tolerances[expected] = exercise.tolerance
        for case in exercise.cases:
            if case.hidden:
                continue
            inputs = list(exercise.draw(case, rng_for(exercise, case, VISIBLE_SEED)))
            note(expected, (case, inputs), list(exercise.expect(case, inputs)))
            for name in functions:
                for arguments in KEPT_BACK[by_name[name]](case, inputs):
                    note(name, tuple(arguments), by_name[name](*arguments))
    return {
        f"{name}{SUFFIX}": pack(results, _facts(name, tolerances.get(name)))
        for name, results in tables.items()
    }


def _facts(name: str, tolerance: float | None) -> dict[str, Plain]:
    return {
        "of": name,
        "seed": VISIBLE_SEED,
        "tolerance": tolerance,
        "python": platform.python_version(),
        **{package: version(package) for package in ("shardlab", "torch", "numpy")},
    }
