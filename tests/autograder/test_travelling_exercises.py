"""What of an exercise travels into ranks that run untrusted code: its drive, and one case."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import cloudpickle
import pytest

from autograder import exercises
from autograder.exercise import Case, Exercise
from autograder.guest.on_rank import on_rank
from autograder.sandbox.bubblewrap import MODULES
from shardlab.ranks import codec

EXERCISES = [exercise for lab in exercises.labs() for exercise in exercises.of_lab(lab)]
IN_A_RANK = """
import sys
from importlib.abc import MetaPathFinder

class NotMounted(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith("autograder.exercises"):
            raise ImportError(f"{name} is not mounted here")

sys.meta_path.insert(0, NotMounted())
import cloudpickle
for name, blob in cloudpickle.load(open(sys.argv[1], "rb")):
    on_rank, (drive_blob, case) = cloudpickle.loads(blob)
    drive = cloudpickle.loads(drive_blob)
    assert callable(drive) and case.params is not None, name
loaded = sorted(module for module in sys.modules if module.startswith("autograder"))
print(*loaded)
"""


def travelling(exercise: Exercise, case: Case) -> bytes:
    """As launch packs it."""
    return codec.encode_any((on_rank, (codec.encode_any(exercise.drive), case)))


def test_a_rank_needs_no_exercise_to_run_a_drive(tmp_path: Path) -> None:
    blobs = [
        (f"{exercise.name}, {case.name}", travelling(exercise, case))
        for exercise in EXERCISES
        for case in exercise.cases
    ]
    packed = tmp_path / "blobs"
    packed.write_bytes(cloudpickle.dumps(blobs))
    told = subprocess.run(
        [sys.executable, "-c", IN_A_RANK, str(packed)], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    paths = (module.removeprefix("autograder").lstrip(".") for module in told.stdout.split())
    needed = {f"{path.replace('.', '/') or '__init__'}.py" for path in paths}
    assert "drive.py" in needed
    assert needed <= set(MODULES)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_no_oracle_and_no_other_case_goes_along(exercise: Exercise) -> None:
    told = set(strings_in(exercise.drive.__code__))
    secret = {text for text in strings_in(exercise.expect.__code__) if len(text) > 15} - told
    checker = {function.__name__ for function in [exercise.expect, *exercise.diagnoses]}
    for case in exercise.cases:
        blob = travelling(exercise, case)
        others = {other.name for other in exercise.cases if other is not case}
        # one case's name may be part of another's
        others = {name for name in others if name not in case.name}
        for text in sorted(secret | checker | others):
            assert text.encode() not in blob, text


def strings_in(code: CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from strings_in(constant)
