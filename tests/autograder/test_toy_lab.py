"""Adding a lab: files in four folders, without changing any other file.

The test adds a chapter, a formula, an exercise on ranks and two planted mistakes to a copy of the
repository with one other lab, and then builds, checks, grades and releases them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.running_lab import copy_repository
from tests.tools.forks import WITHOUT_TORCH, forking
from tests.tools.shell import environment, shell

pytestmark = [pytest.mark.ranks, pytest.mark.nbgrader, pytest.mark.timeout(600)]
LAB = "05_toy"
OTHER_LAB = "03_ring_all_reduce"
EXERCISES = f"autograder/exercises/lab{LAB}"
FILES = {
    f"course/chapters/{LAB}.nb.py": "# %% [markdown]\n# # Means\n\n# %%\n1 + 1\n",
    f"solutions/{LAB}/{LAB}.nb.py": """# %% [markdown]
# # Lab 05

# %%
import torch.distributed as dist
from autograder import check

# %% nbgrader={"grade_id": "mean_bytes", "solution": true}
def mean_bytes(length, world_size):
    ### BEGIN SOLUTION
    return 2 * (world_size - 1) * 4 * length / world_size
    ### END SOLUTION

# %% nbgrader={"grade_id": "check_mean_bytes", "grade": true}
check("toy.mean_bytes", mean_bytes)

# %% nbgrader={"grade_id": "mean_of_all", "solution": true}
def mean_of_all(tensor):
    ### BEGIN SOLUTION
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check_mean_of_all", "grade": true}
check("toy.mean_of_all", mean_of_all)
""",
    f"{EXERCISES}/__init__.py": '"""Lab 05."""\n\nEXERCISES = ("mean_bytes", "mean_of_all")\n',
    f"{EXERCISES}/mean_bytes.py": """from autograder.exercise import Formula, questions

EXERCISE = Formula(points=2, cases=(questions("4 ranks", (12, 4)), questions("2 ranks", (7, 2))))
""",
    f"{EXERCISES}/mean_of_all.py": """import torch

from autograder.exercise import Case, OnRanks


def draw(case, rng):
    return [torch.from_numpy(rng.normal(size=5)) for _ in range(case.world_size)]


def drive(subject, given, case):
    return subject(given)


EXERCISE = OnRanks(
    points=3,
    cases=(Case("2 ranks", 2),),
    inputs=draw,
    drive=drive,
    allows=frozenset({"all_reduce"}),
)
""",
    f"{EXERCISES}/hidden/__init__.py": "",
    f"{EXERCISES}/hidden/mean_bytes.py": """from autograder.exercise import questions

CASES = (questions("drawn"),)
BOUNDARIES = {
    "divides": "4 ranks",
    "does not divide": "2 ranks",
    "one rank": "not tested: nothing is sent",
    "more ranks than elements": "not tested: the formula is the same",
}


def right(length, world_size):
    return 2 * (world_size - 1) * 4 * length / world_size


def draw(case, rng):
    return [(int(rng.integers(100, 1000)), int(rng.integers(3, 9))) for _ in range(5)]


MISTAKES = {"counts elements: the answer is in bytes": lambda length, n: right(length, n) / 4}
""",
    f"{EXERCISES}/hidden/mean_of_all.py": """import torch

from autograder.exercise import Case
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays

CASES = (with_random_delays(Case("3 ranks", 3)),)
BOUNDARIES = {
    "divides": "not tested: whole tensors are summed",
    "does not divide": "not tested",
    "one rank": "not tested: the mean of one",
    "more ranks than elements": "not tested",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "tensor / dist.get_world_size()", "tensor.div(dist.get_world_size())", "a name"
    ),
)


def reference(case, inputs):
    return torch.stack(inputs).mean(dim=0)


def total(case, inputs):
    return torch.stack(inputs).sum(dim=0)


MISTAKES = {"returns the sum, not the mean": total}
""",
    f"tests/submissions/{LAB}/mean_bytes.toml": """[counts_elements]
loses = 2.0
says = "counts elements"
diff = '''
-    return 2 * (world_size - 1) * 4 * length / world_size
+    return 2 * (world_size - 1) * length / world_size
'''
""",
    f"tests/submissions/{LAB}/mean_of_all.toml": """[sums]
loses = 3.0
says = "returns the sum, not the mean"
diff = '''
-    return tensor / dist.get_world_size()
+    return tensor
'''
""",
}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = copy_repository(tmp_path_factory.mktemp("repo"), only_lab=OTHER_LAB)
    for name, text in FILES.items():
        path = root / name
        assert not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture(scope="module")
def run(repo: Path) -> Iterator[Callable[..., str]]:
    """Runs `python -m ...`, which must succeed, and returns its output. The lab is built."""
    preloaded = (*WITHOUT_TORCH, "autograder.release.package")  # the last imports torch
    with forking(repo, environment(repo), preloaded) as fork:

        def run(*arguments: str) -> str:
            done = fork(["python", "-m", *arguments], repo)
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
            return done.stdout

        run("autograder", "build")
        yield run


@pytest.mark.usefixtures("run")
def test_a_lab_needs_files_in_four_folders(repo: Path) -> None:
    folders = {tuple(name.split("/")[:2]) for name in FILES}
    assert {first for first, _ in folders} == {"course", "solutions", "autograder", "tests"}
    lab = json.loads((repo / f"labs/{LAB}/{LAB}.ipynb").read_text())
    assert "raise NotImplementedError()" in json.dumps(lab)


def test_a_student_can_check(repo: Path) -> None:
    answer = "lambda n, ranks: 8 * n * (ranks - 1) / ranks"
    code = f"from autograder import check; check('toy.mean_bytes', {answer})"
    output = shell(repo, f'{sys.executable} -c "{code}"')
    assert output.startswith("✓ mean_bytes: all 2 cases pass")


def test_planted_mistakes_are_found_and_named(run: Callable[..., str]) -> None:
    tests = [f"tests/autograder/exercises/test_{name}.py" for name in ("planted", "hidden")]
    selected = ("-k", "toy and not three", *tests)
    output = run("pytest", "-v", "-n0", "-p", "no:cacheprovider", *selected)
    for name in ("counts_elements", "sums", "mean_of_all", "mean_bytes"):
        assert re.search(rf"{name}.* PASSED", output), output


def test_nbgrader_grades_the_lab(repo: Path, run: Callable[..., str]) -> None:
    run("nbgrader", "generate_assignment", LAB)
    solved = repo / f"grading/submitted/anna/{LAB}/{LAB}.ipynb"
    solved.parent.mkdir(parents=True)
    solved.write_bytes((repo / f"solutions/{LAB}/{LAB}.ipynb").read_bytes())
    run("nbgrader", "autograde", LAB)
    run("autograder", "export", "--to", "scores.csv")
    assert ",2,3,0,0,5,5" in (repo / "scores.csv").read_text()


def test_the_lab_is_released_without_its_hidden_half(
    run: Callable[..., str], tmp_path: Path
) -> None:
    run("autograder", "release", "--to", str(tmp_path / "students"))
    names = {str(path.relative_to(tmp_path / "students")) for path in tmp_path.rglob("*.p*")}
    assert f"{EXERCISES}/recorded/mean_of_all.plain" in names
    assert not [name for name in names if "hidden/" in name]
