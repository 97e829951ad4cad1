"""Ranks that run untrusted code get only an exercise's drive and one case."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import cloudpickle
import pytest

from autograder import exercises
from autograder.evaluation.trial import case_on_ranks
from autograder.exercise import Case, Exercise
from autograder.guest.on_rank import on_rank
from autograder.sandbox.bubblewrap import VISIBLE_FOLDERS
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


def pickled(exercise: Exercise, case: Case) -> bytes:
    """What launch sends to a rank."""
    execute = codec.encode_any(exercise.execute)
    sent = codec.encode_any(exercise.drive), case_on_ranks(exercise, case)
    return codec.encode_any((on_rank, sent)) + execute


def test_a_rank_runs_a_drive_without_importing_exercises(tmp_path: Path) -> None:
    blobs = [
        (f"{exercise.name}, {case.name}", pickled(exercise, case))
        for exercise in EXERCISES
        for case in exercise.cases
    ]
    blob_file = tmp_path / "blobs"
    blob_file.write_bytes(cloudpickle.dumps(blobs))
    result = subprocess.run(
        [sys.executable, "-c", IN_A_RANK, str(blob_file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    needed = {module.split(".")[1] for module in result.stdout.split() if "." in module}
    assert needed == {"guest"}
    assert needed < set(VISIBLE_FOLDERS)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_no_hidden_text_and_no_other_case_is_pickled(exercise: Exercise) -> None:
    hidden = Path(exercise.required_half.module.__file__).parent
    secret = {text for text in strings_below(hidden) if len(text) > 15}
    visible = [repr(case.params) for case in exercise.cases if not case.hidden]
    public = "\n".join([*strings_below(hidden.parent, and_names=True), *visible])
    secret = {text for text in secret if text not in public}
    signs = {sign.__name__ for sign in exercise.signs} - {"sign"}
    for case in exercise.cases:
        blob = pickled(exercise, case)
        assert b".hidden" not in blob
        others = {other.name for other in exercise.cases if other is not case}
        # one case's name may be part of another's
        others = {name for name in others if name not in case.name}
        for text in sorted(secret | signs | others):
            assert text in case.name or text.encode() not in blob, text


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_no_drive_carries_code_that_is_worth_points_later(exercise: Exercise) -> None:
    """One student's answers share ranks, in the order of the lab, so an answer can keep code that a
    drive brings, for itself or for a later answer.  Replacements of earlier answers have their
    names.
    """
    of_lab = [each for each in EXERCISES if each.name.partition(".")[0] == chapter_of(exercise)]
    this_and_later = of_lab[of_lab.index(exercise) :]
    defined = {normal(name) for name in definitions_in(codec.encode_any(exercise.drive))}
    for later in this_and_later:
        assert not [name for name in defined if normal(later.answer) in name], later.name
    if exercise.execute is not None:  # it runs where no student code does
        on_clean_ranks = set(definitions_in(codec.encode_any(exercise.execute)))
        assert on_clean_ranks - set(definitions_in(codec.encode_any(exercise.drive)))


def chapter_of(exercise: Exercise) -> str:
    return exercise.name.partition(".")[0]


def normal(name: str) -> str:
    return name.replace("_", "").lower()


def definitions_in(blob: bytes) -> Iterator[str]:
    """Names of the functions and classes that are pickled by value."""
    seen: set[int] = set()
    waiting: list[object] = [cloudpickle.loads(blob)]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, ModuleType):
            continue
        seen.add(id(each))
        is_by_value = getattr(each, "__module__", "").startswith("autograder.exercises")
        if isinstance(each, FunctionType) and is_by_value:
            yield each.__name__
            waiting += [*each.__globals__.values()] if each.__globals__ is not globals() else []
            waiting += [cell.cell_contents for cell in each.__closure__ or ()]
        elif isinstance(each, type) and is_by_value:
            yield each.__name__
            waiting += [*vars(each).values()]
        elif isinstance(each, functools.partial):
            waiting += [each.func, *each.args, *each.keywords.values()]
        elif isinstance(each, staticmethod | classmethod):
            waiting.append(each.__func__)


def test_definitions_pickled_by_value_are_found() -> None:
    ring = next(each for each in EXERCISES if each.answer == "ring_all_reduce")
    found = set(definitions_in(codec.encode_any(ring.drive)))
    assert {"drive", "direct_reduce_scatter", "exchange", "bounds_in"} <= found


@functools.cache
def strings_below(folder: Path, and_names: bool = False) -> set[str]:
    """``and_names``: also keys of dicts, and names of arguments."""
    sources = [compile(path.read_text(), path.name, "exec") for path in folder.glob("*.py")]
    return set(strings_in(sources, and_names))


def strings_in(constants: Iterable[object], and_names: bool) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from strings_in(constant.co_consts, and_names)
        elif isinstance(constant, tuple) and and_names:
            yield from strings_in(constant, and_names)
