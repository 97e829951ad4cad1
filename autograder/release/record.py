"""Records the hidden halves' results for the visible cases of exercises, as plain data."""

from __future__ import annotations

import platform
from collections.abc import Collection
from importlib.metadata import version

from autograder import exercises
from autograder.evaluation.right_calls import right_calls
from autograder.evaluation.trial import VISIBLE_SEED, RankPool, rng_for
from autograder.exercise import Exercise
from autograder.exercise.recorded import SUFFIX, record
from shardlab.ranks.threads import one_thread


@one_thread()
def recorded(labs: Collection[str]) -> dict[str, bytes]:
    """{path relative to exercises/: bytes of the file}"""
    with RankPool() as ranks:
        for lab in labs:
            for exercise in exercises.of_lab(lab):
                ranks.expect(exercise, exercise.cases)
        return {
            f"lab{lab}/recorded/{module}{SUFFIX}": _record(exercise, ranks)
            for lab in labs
            for module, exercise in zip(
                exercises.lab_module(lab).EXERCISES, exercises.of_lab(lab), strict=True
            )
        }


def _record(exercise: Exercise, ranks: RankPool) -> bytes:
    facts = {
        "of": exercise.name,
        "seed": VISIBLE_SEED,
        "tolerance": exercise.tolerance,
        "python": platform.python_version(),
        **{package: version(package) for package in ("shardlab", "torch", "numpy")},
    }
    return record(
        exercise,
        lambda case: exercise.draw(case, rng_for(exercise, case, VISIBLE_SEED)),
        facts,
        lambda case: right_calls(exercise, case, VISIBLE_SEED, ranks),
    )
