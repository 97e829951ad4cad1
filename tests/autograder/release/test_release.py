"""The students' package works without this repository and contains no answer."""

from __future__ import annotations

import io
import json
import lzma
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch

from autograder import exercises
from autograder.__main__ import main
from autograder.build import products
from autograder.evaluation.decide import decide
from autograder.evaluation.present import as_text
from autograder.evaluation.trial import VISIBLE_SEED, rng_for
from autograder.exercise import Case, Exercise, equal
from autograder.exercise.recorded import SUFFIX, OtherInputs, RecordedHalf, record
from autograder.release.package import package
from autograder.release.write import ReleaseError, archives, write
from shardlab.ranks.trust import Trust
from tests.autograder.build.test_repository import SOURCES, answers_and_given, passages
from tests.autograder.exercise_halves import on_ranks
from tests.submissions import planted
from tools.openers import live

REPO = Path(__file__).parents[3]
EXERCISES = [exercise for lab in exercises.labs() for exercise in exercises.of_lab(lab)]
LAB, EXERCISE, MISTAKE = "01_one_device", "one_device.sgd_with_master_weights", "never_writes_back"
Passages = set[tuple[str, str]]


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return package(REPO)


@pytest.fixture(scope="module")
def texts(files: dict[str, bytes]) -> dict[str, str]:
    """All text that a student can read: the headers of recorded tensors, the cells of notebooks."""
    words = {}
    for name, content in files.items():
        if name.endswith(SUFFIX):
            content = lzma.decompress(content)
        if name.endswith((SUFFIX, ".safetensors")):
            content = content[8 : 8 + int.from_bytes(content[:8], "little")]
        words[name] = content.decode("utf-8")
        if name.endswith(".ipynb"):
            cells = json.loads(content)["cells"]
            words[name] = "\n".join("".join(cell["source"]) for cell in cells)
    return words


@pytest.fixture(scope="module")
def read(texts: dict[str, str]) -> dict[str, Passages]:
    return {name: passages(text) for name, text in texts.items()}


def test_students_do_not_see_what_only_instructors_use(files: dict[str, bytes]) -> None:
    ours = json.loads((REPO / "jupyter/labconfig/page_config.json").read_text())
    theirs = json.loads(files["jupyter/labconfig/page_config.json"])
    nbgrader = ("create-assignment", "formgrader", "course-list")
    hidden = {f"@jupyter/nbgrader:{name}": True for name in nbgrader}
    assert theirs["disabledExtensions"] == ours["disabledExtensions"] | hidden
    # These are the names of its parts that it has today.
    built = Path(sys.prefix, "share/jupyter/labextensions/@jupyter/nbgrader/static")
    scripts = "".join(path.read_text() for path in built.glob("*.js"))
    assert all(name in scripts for name in hidden)


# ---- no answer -----------------------------------------------------------------------------------


def test_the_package_is_the_course_the_labs_and_checks(files: dict[str, bytes]) -> None:
    for name in ("README.md", "Makefile", "pyproject.toml", "requirements.lock", "tools/lab.py"):
        assert name in files
    for lab in exercises.labs():
        assert f"labs/{lab}/{lab}.ipynb" in files
        assert f"course/chapters/{lab}.ipynb" in files
    assert "course/front_page.ipynb" in files
    assert "course/shardlab/widgets/widgets.css" in files
    assert {str(path.relative_to(REPO)) for path in live.files()} <= files.keys()
    packages = {name.split("/")[1] for name in files if name.startswith("autograder/")}
    modules = {"__init__.py", "__main__.py"}
    rooms = {"guest", "exercise", "exercises", "course", "evaluation", "job"}
    assert packages == modules | rooms
    folders = {
        name.split("/")[3] for name in files if re.match("autograder/exercises/lab.*/.*/", name)
    }
    assert folders == {"recorded"}
    assert not [name for name in files if name.endswith(".nb.py")]
    assert not [name for name in files if name.startswith(("solutions", "tests", "grading"))]
    project = tomllib.loads(files["pyproject.toml"].decode())
    assert set(project) == {"build-system", "project", "tool"}
    assert set(project["tool"]) == {"setuptools"}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.parent.name)
def test_the_package_contains_no_passage_of_a_solution(
    source: Path, read: dict[str, Passages]
) -> None:
    answers, given = answers_and_given(source)
    secret = {pair for answer in answers for pair in passages(answer) if not given & set(pair)}
    assert secret
    assert {name: found for name, text in read.items() if (found := secret & text)} == {}


def test_the_package_contains_no_passage_of_a_hidden_half(read: dict[str, Passages]) -> None:
    folder = REPO / "autograder/exercises"
    hidden = {
        path: path.read_text() for path in folder.rglob("*.py") if path.parent.name == "hidden"
    }
    public = "".join(path.read_text() for path in folder.rglob("*.py") if path not in hidden)
    # Passages of public modules are not secret, and imports are not either.
    secret = {pair for text in hidden.values() for pair in passages(text)} - passages(public)
    secret = {pair for pair in secret if not pair[1].startswith(("from ", "import "))}
    assert len(secret) > 2 * len(EXERCISES)
    checks = {name: text for name, text in read.items() if name.startswith("autograder/")}
    assert {name: found for name, text in checks.items() if (found := secret & text)} == {}


def test_recorded_references_are_small(files: dict[str, bytes]) -> None:
    recorded = {name: len(data) for name, data in files.items() if name.endswith(SUFFIX)}
    assert len(recorded) == len(EXERCISES)
    assert sum(recorded.values()) <= 5_000_000, sorted(recorded.items(), key=lambda item: -item[1])


def test_the_package_contains_no_hidden_case(texts: dict[str, str]) -> None:
    visible = {case.name for exercise in EXERCISES for case in exercise.cases if not case.hidden}
    hidden = {case.name for exercise in EXERCISES for case in exercise.cases if case.hidden}
    assert hidden - visible
    for name, text in texts.items():
        if not name.startswith("autograder/exercise/"):  # the form's own text
            assert [case for case in hidden - visible if case in text] == [], name
        assert "hidden=True" not in text or not name.startswith("autograder/exercises"), name


# ---- it works without this repository --------------------------------------------------------


@pytest.fixture(scope="module")
def student_python(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment like that of the package's `make lab`, without this repository."""
    root = tmp_path_factory.mktemp("student")
    write(files, root / "course")
    venv.create(root / "venv", with_pip=False, symlinks=True)
    (site_packages,) = root.glob("venv/lib/python*/site-packages")
    for path in Path(pytest.__file__).parents[1].iterdir():
        if "shardlab" not in path.name:
            (site_packages / path.name).symlink_to(path)
    course = root / "course"
    (site_packages / "students.pth").write_text(f"{course / 'course'}\n{course}\n")
    return root / "venv/bin/python"


CHECKS = """
import sys
from autograder import check, exercises
from autograder.evaluation.trial import VISIBLE_SEED, rng_for
name = sys.argv[1]
for source in sys.argv[2:]:
    cells = {}
    exec(compile("import torch\\nfrom torch import nn\\n" + source, "<answer>", "exec"), cells)
    try:
        check(name, cells[name.partition(".")[2]])
    except Exception as error:
        print(type(error).__name__, error)
for lab in exercises.labs():
    for exercise in exercises.of_lab(lab):
        assert not any(case.hidden for case in exercise.cases)
        for case in exercise.cases:  # everything that it looks up without an answer exists
            inputs = exercise.draw(case, rng_for(exercise, case, VISIBLE_SEED))
            assert len(exercise.expect(case, inputs)) == case.world_size
            for mistake, outputs in exercise.required_half.mistakes(case, inputs):
                assert outputs is None or len(outputs) == case.world_size
            for budget in exercise.budgets:
                exercise.limit_of(budget, case)
print("from here:", *[path for module in list(sys.modules.values())
      if (path := getattr(module, "__file__", None) or "").startswith(REPO)])
"""


@pytest.mark.ranks
def test_the_package_gives_the_same_output_as_the_repository(
    student_python: Path, tmp_path: Path
) -> None:
    right = planted.solution(LAB)[EXERCISE.partition(".")[2]]
    (wrong,) = (
        mistake.answers[EXERCISE.partition(".")[2]]
        for mistake in planted.of_lab(LAB)
        if mistake.name == MISTAKE
    )
    done = subprocess.run(
        [student_python, "-c", f"REPO = {str(REPO)!r}\n{CHECKS}", EXERCISE, right, wrong],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    exercise = exercises.load(EXERCISE)
    expected = ""
    for source in (right, wrong):
        cells = planted.subjects(LAB, planted.untouched(LAB) | {exercise.answer: source})
        blob = cloudpickle.dumps(cells[exercise.answer])
        verdict = decide(exercise, blob, VISIBLE_SEED, trust=Trust.OWN)
        expected += f"{as_text(verdict)}\n"
        if not verdict.passed:
            expected += f"CheckFailed {verdict.headline}\n"
    assert "never writes back" in expected
    assert done.stdout == f"{expected}from here:\n"
    assert done.stderr == ""


def test_the_package_has_the_visible_cases_and_nearly_all_mistakes(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    recorded = []
    for lab in exercises.labs():
        modules = exercises.lab_module(lab).EXERCISES
        for module, exercise in zip(modules, exercises.of_lab(lab), strict=True):
            path = tmp_path / f"{exercise.name}{SUFFIX}"
            path.write_bytes(files[f"autograder/exercises/lab{lab}/recorded/{module}{SUFFIX}"])
            package = exercises.lab_module(lab).__name__
            public = import_module(f"{package}.{module}").EXERCISE
            released = public.with_hidden_half(RecordedHalf(path), "lab", module, ())
            visible = [case for case in exercise.cases if not case.hidden]
            assert [*map(repr, released.cases)] == [*map(repr, visible)]
            for case in visible:
                mistakes = released.required_half.mistakes(case, ())
                recorded += [outputs is not None for _, outputs in mistakes]
    assert sum(recorded) > 0.98 * len(recorded)


# ---- recorded results ----------------------------------------------------------------------------


CALLS = [[("send", 1, 8), ("barrier", None, 0)], []]


def summed(case: Case, inputs: Sequence[torch.Tensor]) -> dict[str, Any]:
    return {"y": torch.stack(list(inputs)).sum(dim=0), "pairs": [(1, 2)]}


def recorded_half(tmp_path: Path, **changes: Any) -> tuple[Exercise, RecordedHalf]:
    settings = {
        "name": "lab.sum",
        "cases": (Case("α", 2, {"n": 3}), Case("hidden one", 2, hidden=True)),
        "inputs": lambda case, rng: [torch.from_numpy(rng.normal(size=3)) for _ in range(2)],
        "drive": lambda subject, given, case: subject(given),
        "reference": summed,
        "mistakes": {
            "halves": lambda case, inputs: {"y": summed(case, inputs)["y"] / 2},
            "fills": lambda case, inputs: {"y": torch.zeros(4_000_000)},
        },
    }
    exercise = on_ranks(**(settings | changes))
    content = record(exercise, inputs_of(exercise), {}, lambda case: CALLS)
    (tmp_path / "sum.plain").write_bytes(content)
    return exercise, RecordedHalf(tmp_path / "sum.plain")


def inputs_of(exercise: Exercise) -> Callable[[Case], Sequence[Any]]:
    return lambda case: exercise.draw(case, rng_for(exercise, case, VISIBLE_SEED))


def test_a_recorded_half_gives_the_same_results_as_the_hidden_one(tmp_path: Path) -> None:
    exercise, half = recorded_half(tmp_path)
    visible, hidden = exercise.cases
    inputs = inputs_of(exercise)(visible)
    expected = half.expected(visible, inputs)
    assert equal(list(exercise.expect(visible, inputs)), list(expected))
    (halves, outputs), (fills, none) = half.mistakes(visible, inputs)
    assert (halves, fills, none) == ("halves", "fills", None)  # too large to be recorded
    assert equal({"y": expected[1]["y"] / 2}, outputs[1])
    expected[0]["y"].zero_()  # changing a result does not change the record
    assert equal(list(exercise.expect(visible, inputs)), list(half.expected(visible, inputs)))
    assert half.right_calls(visible) == CALLS
    with pytest.raises(KeyError):
        half.expected(hidden, inputs)


def test_rounding_differences_are_not_other_inputs(tmp_path: Path) -> None:
    exercise, half = recorded_half(tmp_path)
    inputs = inputs_of(exercise)(exercise.cases[0])
    half.expected(exercise.cases[0], [tensor * (1 + 1e-9) for tensor in inputs])
    for other in ([inputs[0] + 1, inputs[1]], [inputs[0][:2], inputs[1]]):
        with pytest.raises(OtherInputs, match=r"α: this copy draws different inputs .* `make lab`"):
            half.expected(exercise.cases[0], other)


# ---- files ---------------------------------------------------------------------------------------

FILES = {"labs/01/01.ipynb": b"{}", "README.md": b"read", "autograder/x.plain": bytes(range(256))}


def test_a_release_replaces_only_an_unchanged_release(tmp_path: Path) -> None:
    folder = tmp_path / "to"
    folder.mkdir()
    write(FILES, folder)
    write({**FILES, "README.md": b"new"}, folder)
    assert (folder / "README.md").read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["to"]  # no partial files

    (folder / "labs/01/01.ipynb").write_text("somebody's work")
    with pytest.raises(ReleaseError, match=r"labs/01/01\.ipynb has changed since the release"):
        write(FILES, folder)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("")
    with pytest.raises(ReleaseError, match="not from a release: choose an empty folder"):
        write(FILES, other)


def test_archives_are_deterministic(tmp_path: Path) -> None:
    made = [path.read_bytes() for path in archives(FILES, tmp_path / "students")]
    backwards = dict(reversed(FILES.items()))
    paths = archives(backwards, tmp_path / "students")
    assert [path.read_bytes() for path in paths] == made
    wanted = {f"students/{name}": data for name, data in FILES.items()}
    with zipfile.ZipFile(paths[0]) as packed:
        assert {name: packed.read(name) for name in packed.namelist()} == wanted
    with tarfile.open(fileobj=io.BytesIO(made[1])) as packed:
        assert {entry.name: packed.extractfile(entry).read() for entry in packed} == wanted


def test_nothing_is_released_while_a_lab_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = products.Drift(REPO / "labs/x.ipynb", "is out of date")
    monkeypatch.setattr(products, "check", lambda repo: [stale])
    assert main(["release", "--repo", str(REPO), "--to", str(tmp_path / "to")]) == 1
    assert "labs/x.ipynb is out of date" in capsys.readouterr().err
    assert not (tmp_path / "to").exists()
