"""Building a small repository: what is written, what is left alone, what is reported."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nbgrader.apps import GenerateAssignmentApp

from autograder import exercises
from autograder.__main__ import main
from autograder.build.points import TABLE

REPO = Path(__file__).parents[3]

LAB = """\
# %% [markdown]
# # A lab

# %%
from autograder import check

# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
def chunk_bounds(length, world_size):
    ### BEGIN SOLUTION
    cuts = [length * rank // world_size for rank in range(world_size + 1)]
    return list(zip(cuts, cuts[1:]))
    ### END SOLUTION

# %% nbgrader={"grade_id": "chunk_bounds_check", "grade": true}
check("ring_all_reduce.chunk_bounds", chunk_bounds)
"""


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    shutil.copy(REPO / "nbgrader_config.py", tmp_path)
    (tmp_path / "course/chapters").mkdir(parents=True)
    (tmp_path / "course/chapters/00_hello.nb.py").write_text("# %%\nprint('hello')\n")
    (tmp_path / "solutions/03_lab").mkdir(parents=True)
    (tmp_path / "solutions/03_lab/03_lab.nb.py").write_text(LAB)
    return tmp_path


def run(repo: Path, *arguments: str) -> int:
    return main(["build", "--repo", str(repo), *arguments])


def snapshot(repo: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in repo.rglob("*") if path.is_file()}


def test_a_second_build_writes_nothing(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(repo, "--check") == 1
    assert "labs/03_lab/03_lab.ipynb is not built yet: run `python -m" in capsys.readouterr().err
    assert run(repo) == 0
    assert capsys.readouterr().out.splitlines() == [
        "built course/chapters/00_hello.ipynb",
        "built labs/03_lab/03_lab.ipynb",
        "built solutions/03_lab/03_lab.ipynb",
    ]
    before = snapshot(repo)
    assert run(repo) == 0
    assert run(repo, "--check") == 0
    assert snapshot(repo) == before
    assert [path.name for path in (repo / "labs").rglob("*") if path.is_file()] == ["03_lab.ipynb"]


def test_drift_is_reported(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(repo)
    built = repo / "course/chapters/00_hello.ipynb"
    built.write_bytes(built.read_bytes().replace(b"hello", b"bye"))
    assert run(repo, "--check") == 1
    assert "00_hello.ipynb is out of date: run" in capsys.readouterr().err


@pytest.mark.parametrize("stray", ["labs/03_lab/notes.md", "solutions/03_lab/reference.npz"])
def test_a_file_that_students_would_get_by_accident_is_reported(
    repo: Path, stray: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(repo)
    (repo / stray).write_text("x")
    assert run(repo, "--check") == 1
    assert f"{stray} has no source" in capsys.readouterr().err


def test_a_broken_source_changes_nothing(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(repo)
    (repo / "course/chapters/00_hello.nb.py").write_text("# %%\nprint('bye')\n")
    source = repo / "solutions/03_lab/03_lab.nb.py"
    source.write_text(LAB.replace("return list(", "return list(("))
    before = snapshot(repo)
    assert run(repo) == 2
    assert f"{source}, cell 3 (line 11): SyntaxError" in capsys.readouterr().err
    assert snapshot(repo) == before


def test_a_check_must_name_an_exercise(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = repo / "solutions/03_lab/03_lab.nb.py"
    source.write_text(LAB.replace('chunk_bounds",', 'chunk_round",'))
    assert run(repo) == 2
    assert "no exercise 'ring_all_reduce.chunk_round'" in capsys.readouterr().err


@pytest.mark.parametrize("heading", ["", "## 1 · A puzzle: `chunk_bounds`"])
def test_points_and_their_table_come_from_the_exercise(repo: Path, heading: str) -> None:
    """A question has neither a name nor an exercise."""
    text = LAB.replace("# # A lab\n", f"# # A lab\n#\n# {TABLE}\n#\n# {heading}\n")
    text += '\n# %% [markdown] nbgrader={"grade_id": "why", "grade": true, "points": 1.5,'
    text += ' "solution": true}\n# Why?\n'
    (repo / "solutions/03_lab/03_lab.nb.py").write_text(text)
    assert run(repo) == 0
    for folder in ("solutions", "labs"):
        cells = json.loads((repo / folder / "03_lab/03_lab.ipynb").read_text())["cells"]
        points = [cell["metadata"].get("nbgrader", {}).get("points") for cell in cells]
        assert [each for each in points if each] == [2, 1.5]
        name = "a puzzle: `chunk_bounds`" if heading else "`chunk_bounds`"
        rows = f"|---|---|\n| 1 · {name} | 2 |\n| 2 · a question | 1.5 |"
        assert f"| exercise | points |\n{rows}" in "".join(cells[0]["source"])


def test_a_lab_that_was_run_is_not_overwritten(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(repo)
    lab = repo / "labs/03_lab/03_lab.ipynb"
    notebook = json.loads(lab.read_text())
    notebook["cells"][1]["execution_count"] = 1
    lab.write_text(json.dumps(notebook))
    before = lab.read_bytes()
    assert run(repo) == 1
    assert "maybe someone's work: to replace it, add --overwrite" in capsys.readouterr().err
    assert lab.read_bytes() == before
    assert run(repo, "--overwrite") == 0
    assert lab.read_bytes() != before


def test_a_lab_is_not_generated_after_a_failed_build(
    repo: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run(repo)
    source = repo / "solutions/03_lab/03_lab.nb.py"
    source.write_text(LAB.replace('"grade": true', '"grade": true, "points": 7'))
    assert run(repo) == 2
    before = snapshot(repo)
    monkeypatch.chdir(repo)

    def generate() -> str:
        app = GenerateAssignmentApp()
        app.initialize(["03_lab"])
        with pytest.raises(SystemExit, match="1"):
            app.start()
        return capfd.readouterr().err

    printed = generate()
    assert "must not set points" in printed
    assert "Nothing was released or changed" in printed
    source.write_text(LAB.replace("rank // world_size", "rank / world_size"))
    stale = "was not built from the current 03_lab.nb.py and exercises: run `python -m"
    assert stale in generate()
    # A line of the first cell was removed after the build.
    long = LAB.replace("# # A lab\n", "# # A lab\n#\n# Due on Friday.\n")
    source.write_text(long)
    assert run(repo) == 0
    before = snapshot(repo)
    source.write_text(LAB)
    assert stale in generate()
    assert snapshot(repo) == before | {str(source): source.read_bytes()}
    # The points of an exercise changed after the build.
    assert run(repo) == 0
    monkeypatch.setattr(exercises, "points_of", lambda name: 3)
    assert stale in generate()


def test_a_lab_is_compared_with_its_source_without_torch() -> None:
    """It takes seconds to import, and each grading command makes this comparison."""
    lab = REPO / "solutions/03_ring_all_reduce/03_ring_all_reduce.ipynb"
    code = f"""
import sys
from pathlib import Path
from autograder.build.lab import require_built
require_built(Path({str(lab)!r}))
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=REPO, check=True)
