"""The students' package: it works by itself, and it holds no answer."""

from __future__ import annotations

import inspect
import io
import json
import subprocess
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import cloudpickle
import pytest
import torch

from autograder import build, exercises
from autograder.__main__ import main
from autograder.evaluation.decide import decide
from autograder.evaluation.present import as_text
from autograder.evaluation.trial import VISIBLE_SEED
from autograder.exercise import Case, Exercise, recorded
from autograder.exercise.compare import equal
from autograder.exercise.kept_back import KEPT_BACK
from autograder.exercise.recorded import NotRecorded, Recorded, key_of, pack
from autograder.release.package import package
from autograder.release.refusal import ReleaseError
from autograder.release.strip import Stripped
from autograder.release.write import archives, write
from shardlab.ranks.trust import Trust
from tests.autograder.build.test_repository import SOLUTION, SOURCES, passages, telling
from tests.submissions import planted

REPO = Path(__file__).parents[3]
EXERCISES = [exercise for lab in exercises.labs() for exercise in exercises.of_lab(lab)]
LAB, EXERCISE, MISTAKE = "01_one_device", "one_device.sgd_with_master_weights", "never_writes_back"
Passages = set[tuple[str, str]]


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return package(REPO)


@pytest.fixture(scope="module")
def texts(files: dict[str, bytes]) -> dict[str, str]:
    """All that a student can read: of tables their words, of notebooks their cells."""
    words = {}
    for name, content in files.items():
        if name.endswith(".plain"):
            content = content[8 : 8 + int.from_bytes(content[:8], "little")]
        words[name] = content.decode("utf-8")
        if name.endswith(".ipynb"):
            cells = json.loads(content)["cells"]
            words[name] = "\n".join("".join(cell["source"]) for cell in cells)
    return words


@pytest.fixture(scope="module")
def read(texts: dict[str, str]) -> dict[str, Passages]:
    return {name: passages(text) for name, text in texts.items()}


# ---- no answer -----------------------------------------------------------------------------------


def test_the_package_is_the_course_the_labs_and_checks(files: dict[str, bytes]) -> None:
    for name in ("README.md", "Makefile", "pyproject.toml", "requirements.lock", "tools/lab.py"):
        assert name in files
    for lab in exercises.labs():
        assert f"labs/{lab}/{lab}.ipynb" in files
        assert f"course/chapters/{lab}.ipynb" in files
    assert "course/shardlab/widgets/widgets.css" in files
    folders = {name.rpartition("/")[0] for name in files if name.startswith("autograder/")}
    assert folders == {"autograder", "autograder/exercises", "autograder/references"}
    assert not [name for name in files if name.endswith(".nb.py")]
    assert not [name for name in files if name.startswith(("solutions", "tests", "grading"))]
    project = tomllib.loads(files["pyproject.toml"].decode())
    assert set(project) == {"build-system", "project", "tool"}
    assert set(project["tool"]) == {"setuptools"}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.parent.name)
def test_no_passage_of_a_solution_is_in_it(source: Path, read: dict[str, Passages]) -> None:
    answers = [
        answer
        for cell in build.notebook_from_text(source).cells
        if cell.metadata.get("nbgrader", {}).get("solution")
        for answer in SOLUTION.findall(cell.source) or [cell.source]
    ]
    given = set(telling(SOLUTION.sub("", source.read_text().replace("\n# ", "\n"))))
    secret = {pair for answer in answers for pair in passages(answer) if not given & set(pair)}
    assert secret
    assert {name: found for name, said in read.items() if (found := secret & said)} == {}


def test_no_passage_of_an_oracle_is_in_it(read: dict[str, Passages]) -> None:
    oracles = {*KEPT_BACK, *(exercise.expect for exercise in EXERCISES)}
    sources = [inspect.getsource(oracle) for oracle in oracles]
    text = "".join(path.read_text() for path in (REPO / "autograder/exercises").glob("*.py"))
    for source in sources:
        text = text.replace(source, "")
    # What other functions say as well is nobody's secret.
    secret = {pair for source in sources for pair in passages(source)} - passages(text)
    assert len(secret) > 2 * len(EXERCISES)
    checks = {name: said for name, said in read.items() if name.startswith("autograder/")}
    assert {name: found for name, said in checks.items() if (found := secret & said)} == {}


def test_no_hidden_case_is_in_it(texts: dict[str, str]) -> None:
    visible = {case.name for exercise in EXERCISES for case in exercise.cases if not case.hidden}
    hidden = {case.name for exercise in EXERCISES for case in exercise.cases if case.hidden}
    assert hidden - visible
    for name, text in texts.items():
        assert [case for case in hidden - visible if case in text] == [], name
        assert "hidden=True" not in text, name


# ---- it works by itself --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def students_python(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of an environment as the package's `make lab` makes it, without this repository."""
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
name, told = sys.argv[1], []
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
        for case in exercise.cases:  # all that it looks up without an answer is there
            for budget in exercise.budgets:
                budget.limit(case), budget.least and budget.least(case)
print("from here:", *[path for module in list(sys.modules.values())
      if (path := getattr(module, "__file__", None) or "").startswith(REPO)])
"""


@pytest.mark.ranks
def test_a_copy_alone_says_what_the_repository_says(students_python: Path, tmp_path: Path) -> None:
    right = planted.solution(LAB)[EXERCISE.partition(".")[2]]
    (wrong,) = (
        mistake.answers[EXERCISE.partition(".")[2]]
        for mistake in planted.of_lab(LAB)
        if mistake.name == MISTAKE
    )
    told = subprocess.run(
        [students_python, "-c", f"REPO = {str(REPO)!r}\n{CHECKS}", EXERCISE, right, wrong],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert told.returncode == 0, told.stderr
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
    assert told.stdout == f"{expected}from here:\n"
    assert told.stderr == ""


# ---- recorded results ----------------------------------------------------------------------------


def test_a_recorded_function_returns_what_it_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, tensor = Case("2 ranks", 2, {"plan": {3: (1, "inf")}}), torch.arange(4.0)
    calls = [
        ((10, 4), [(0, 3)]),
        ((case, tensor), [{"x": tensor}] * 2),
        ((case, "mean"), {"y": 0.5}),
    ]
    results = {key_of(arguments): result for arguments, result in calls}
    (tmp_path / "ring.bounds_of.plain").write_bytes(pack(results, {"seed": VISIBLE_SEED}))
    monkeypatch.setattr(recorded, "REFERENCES", tmp_path)
    function = Recorded("ring.bounds_of")
    for arguments, result in calls:
        assert equal(result, function(*arguments))
    function(10, 4).clear()
    assert function(10, 4) == [(0, 3)]
    # another machine's last digits make no other case, another shape does
    assert equal(function(case, tensor + 1e-7), [{"x": tensor}] * 2)
    with pytest.raises(NotRecorded, match=r"ring\.bounds_of .* visible cases only"):
        function(case, torch.arange(5.0))


# ---- taking exercises apart ----------------------------------------------------------------------

HELPERS = """
from autograder.exercise.kept_back import by_case, kept_back

HIDDEN_WIDTH = 77

def shared(case):
    return 2 * formula(case)

@kept_back(by_case)
def formula(case):
    return secret_of(case)

def secret_of(case):
    return 41

def only_for_the_oracle(case):
    return 42
"""
LAB_TEXT = """
from autograder.exercise import Case, Exercise
from autograder.exercises import helpers
from autograder.exercises.helpers import HIDDEN_WIDTH, only_for_the_oracle

def drive(subject, given, case):
    return helpers.shared(case)  # a remark

def expect(case, inputs):
    return [only_for_the_oracle(case)]

SUM = Exercise(
    name="lab.sum",
    points=2,
    cases=(Case("α", 1), Case("hidden one", 1, {"width": HIDDEN_WIDTH}, hidden=True)),
    draw=lambda case, rng: [None],
    drive=drive,
    expect=expect,
)
EXERCISES = (SUM,)
"""


def an_exercise() -> Exercise:
    cases = (Case("α", 1, {"n": 3}, weight=0.5), Case("hidden one", 1, hidden=True))
    nothing = lambda *_: [None]  # noqa: E731
    return Exercise("lab.sum", 2, cases, nothing, nothing, nothing)


def test_what_only_oracles_and_hidden_cases_need_is_left_out() -> None:
    stripped = Stripped({"00_lab": LAB_TEXT, "helpers": HELPERS}, [an_exercise()])
    assert stripped.kept_back == {"lab.sum": {"helpers.formula"}}
    lab, helpers = stripped.texts["00_lab"], stripped.texts["helpers"]
    assert "Case('α', 1, {'n': 3}, weight=0.5)," in lab
    assert 'expect=Recorded("lab.sum.expected"),' in lab
    assert "return helpers.shared(case)  # a remark" in lab
    assert 'formula = Recorded("helpers.formula")' in helpers
    for secret in ("hidden", "only_for_the_oracle", "HIDDEN_WIDTH", "41", "42", "kept_back"):
        assert secret not in lab + helpers


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LAB_TEXT.replace("SUM = Exercise(", "SUM = made("), "lab.sum: declare it as NAME ="),
        (LAB_TEXT + "if drive:\n    pass\n", "00_lab, line 21: a module of exercises holds"),
    ],
)
def test_exercises_that_cannot_be_taken_apart_are_refused(text: str, said: str) -> None:
    with pytest.raises(ReleaseError, match=said):
        Stripped({"00_lab": text, "helpers": HELPERS}, [an_exercise()])


# ---- files ---------------------------------------------------------------------------------------

FILES = {"labs/01/01.ipynb": b"{}", "README.md": b"read", "autograder/x.plain": bytes(range(256))}


def test_a_release_takes_the_place_of_a_release_and_of_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "to"
    folder.mkdir()
    write(FILES, folder)
    write({**FILES, "README.md": b"new"}, folder)
    assert (folder / "README.md").read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["to"]  # nothing half-made

    (folder / "labs/01/01.ipynb").write_text("somebody's work")
    with pytest.raises(ReleaseError, match=r"somebody has worked there, labs/01/01\.ipynb"):
        write(FILES, folder)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("")
    with pytest.raises(ReleaseError, match="no release made: name an empty folder"):
        write(FILES, other)


def test_archives_are_the_same_bytes_each_time(tmp_path: Path) -> None:
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
    stale = build.Drift(REPO / "labs/x.ipynb", "is not what its source makes")
    monkeypatch.setattr(build, "check", lambda repo: [stale])
    assert main(["release", "--repo", str(REPO), "--to", str(tmp_path / "to")]) == 1
    assert "labs/x.ipynb is not what its source makes" in capsys.readouterr().err
    assert not (tmp_path / "to").exists()
