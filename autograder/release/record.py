"""What the hidden halves of all exercises gave for the visible cases, as files of plain data."""

from __future__ import annotations

import functools
import platform
from collections.abc import Sequence
from importlib.metadata import version

from autograder import exercises
from autograder.evaluation.threads import one_thread
from autograder.evaluation.trial import VISIBLE_SEED, rng_for
from autograder.exercise import Case, Exercise, Plain
from autograder.exercise.recorded import SUFFIX, record


@one_thread()
def recorded() -> dict[str, bytes]:
    """{path below exercises/: bytes of the file}"""
    files = {}
    for lab in exercises.labs():
        modules = exercises.lab_module(lab).EXERCISES
        for module, exercise in zip(modules, exercises.of_lab(lab), strict=True):
            inputs_of = functools.partial(_visible_inputs, exercise)
            name = f"lab{lab}/recorded/{module}{SUFFIX}"
            files[name] = record(exercise, inputs_of, _facts(exercise))
    return files


def _visible_inputs(exercise: Exercise, case: Case) -> Sequence[Plain]:
    return exercise.draw(case, rng_for(exercise, case, VISIBLE_SEED))


def _facts(exercise: Exercise) -> dict[str, Plain]:
    return {
        "of": exercise.name,
        "seed": VISIBLE_SEED,
        "tolerance": exercise.tolerance,
        "python": platform.python_version(),
        **{package: version(package) for package in ("shardlab", "torch", "numpy")},
    }
