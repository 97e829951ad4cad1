"""What of an exercise travels into ranks that run untrusted code: its drive, and one case."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType

import cloudpickle
import pytest

from autograder import exercises
from autograder.exercise import Case, Exercise
from autograder.guest.on_rank import on_rank
from autograder.sandbox.bubblewrap import ROOMS
from shardlab.ranks import codec

EXERCISES = [exercise for lab in exercises.labs() for exercise in exercises.of_lab(lab)]
IN_A_RANK = """
import sys
from importlib.abc import MetaPathFinder

class NotMounted(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith(("autograder.exercise", "autograder.evaluation")):
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
    execute = codec.encode_any(exercise.execute)
    return codec.encode_any((on_rank, (codec.encode_any(exercise.drive), case))) + execute


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
    needed = {module.split(".")[1] for module in told.stdout.split() if "." in module}
    assert needed == {"guest"}
    assert needed < set(ROOMS)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_nothing_hidden_and_no_other_case_goes_along(exercise: Exercise) -> None:
    hidden = Path(exercise.decides.module.__file__).parent
    secret = {text for text in strings_below(hidden) if len(text) > 15}
    secret -= strings_below(hidden.parent)  # what public halves say as well is nobody's secret
    signs = {sign.__name__ for sign in exercise.signs} - {"sign"}
    for case in exercise.cases:
        blob = travelling(exercise, case)
        assert b".hidden" not in blob
        others = {other.name for other in exercise.cases if other is not case}
        # one case's name may be part of another's
        others = {name for name in others if name not in case.name}
        for text in sorted(secret | signs | others):
            assert text in case.name or text.encode() not in blob, text


@functools.cache
def strings_below(folder: Path) -> set[str]:
    sources = [compile(path.read_text(), path.name, "exec") for path in folder.glob("*.py")]
    return set(strings_in(sources))


def strings_in(codes: Iterable[CodeType]) -> Iterator[str]:
    for code in codes:
        for constant in code.co_consts:
            if isinstance(constant, str):
                yield constant
            elif isinstance(constant, CodeType):
                yield from strings_in([constant])
