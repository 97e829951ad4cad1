"""Labs released one by one: what students get first, and how they get the rest later."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autograder.__main__ import main
from autograder.release import package as packages
from autograder.release.chosen_labs import NOT_RELEASED
from autograder.release.package import package
from autograder.release.write import MANIFEST, archives, manifest, write

REPO = Path(__file__).parents[3]
FIRST, SECOND, THIRD = "03_ring_all_reduce", "05_fsdp", "04_zero"
MAKE = ("make", "--no-print-directory")  # `make suite` alone makes it print its folder
LINK = re.compile(r"""(?:\]\(|href=")([^()\s"]+\.ipynb)""")


@pytest.fixture
def without_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recording takes long and is tested with the whole package."""
    made = "lab{}/recorded/all.plain"
    monkeypatch.setattr(packages, "recorded", lambda labs: {made.format(lab): b"" for lab in labs})


def texts(notebook: bytes) -> str:
    return "\n".join("".join(cell["source"]) for cell in json.loads(notebook)["cells"])


def zipped(files: dict[str, bytes], folder: Path) -> Path:
    folder.parent.mkdir()
    return archives({**files, MANIFEST: manifest(files)}, folder)[0]


@pytest.mark.usefixtures("without_records")
def test_a_package_with_one_lab_links_nowhere_else() -> None:
    files = package(REPO, [FIRST])
    assert [name for name in files if name.startswith("labs/")] == [f"labs/{FIRST}/{FIRST}.ipynb"]
    checks = {name.split("/")[2] for name in files if name.startswith("autograder/exercises/lab")}
    assert checks == {f"lab{FIRST}"}
    chapters = {path.name for path in (REPO / "course/chapters").glob("*.ipynb")}
    assert {Path(name).name for name in files if name.startswith("course/chapters/")} >= chapters
    for name, content in files.items():
        if name.endswith(".ipynb"):
            for target in LINK.findall(texts(content)):
                if "://" not in target:
                    path = (REPO / name).parent / target
                    assert str(path.resolve().relative_to(REPO)) in files, (name, target)
    front_page = texts(files["course/front_page.ipynb"])
    assert f"lab 04 {NOT_RELEASED}" in front_page
    assert f"labs/{FIRST}/{FIRST}.ipynb" in front_page


@pytest.mark.usefixtures("without_records")
def test_checks_of_one_lab_import_without_the_others(tmp_path: Path) -> None:
    """Lab 05's exercises share a module with lab 04."""
    files = package(REPO, [SECOND])
    write(files, tmp_path / "to")
    public = "import_module(f'autograder.exercises.lab{lab}.{name}')"
    code = (
        "from importlib import import_module; from autograder import exercises; "
        f"lab = '{SECOND}'; [{public} for name in exercises.lab_module(lab).EXERCISES]; "
        "import autograder; print(autograder.__file__)"
    )
    path = f"{tmp_path}/to:{tmp_path}/to/course"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path}/to/")
    assert [name for name in files if "lab04_zero" in name] == [
        "autograder/exercises/lab04_zero/__init__.py",
        "autograder/exercises/lab04_zero/shared.py",
    ]


@pytest.mark.usefixtures("without_records")
def test_students_have_one_command(tmp_path: Path) -> None:
    files = package(REPO, [FIRST])
    write(files, tmp_path / "to")

    listed = subprocess.run(
        [sys.executable, "-m", "autograder", "--help"],
        env={"PYTHONPATH": f"{tmp_path}/to:{tmp_path}/to/course", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=True, cwd=tmp_path / "to",
    ).stdout  # fmt: skip
    assert re.findall(r"^    ([a-z-]+)", listed, re.MULTILINE) == ["script"]


@pytest.mark.usefixtures("without_records")
def test_an_update_with_more_labs_replaces_no_work(tmp_path: Path) -> None:
    write(package(REPO, [FIRST]), tmp_path / "mine")
    work = tmp_path / f"mine/labs/{FIRST}/{FIRST}.ipynb"
    work.write_bytes(work.read_bytes().replace(b"NotImplementedError()", b"my answer"))
    written = work.read_bytes()
    front_page = tmp_path / "mine/course/front_page.ipynb"  # it was run: its map must be updated
    front_page.write_bytes(front_page.read_bytes().replace(b'"outputs": []', b'"outputs": [{}]'))
    assert b"[{}]" in front_page.read_bytes()
    (tmp_path / "mine/notes.txt").write_text("mine")
    later = package(REPO, [FIRST, THIRD])
    new = zipped(later, tmp_path / "download/shardlab-students")

    def update(archive: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*MAKE, "update", f"PYTHON={sys.executable}", f"FROM={archive}"],
            cwd=tmp_path / "mine", capture_output=True, text=True,
        )  # fmt: skip

    for name, advice in (("broken.zip", "download it again"), ("package.tar.gz", "use the .zip")):
        (tmp_path / name).write_bytes(new.read_bytes()[:5000])
        refused = update(tmp_path / name)
        assert refused.returncode
        assert advice in refused.stderr
    assert not (tmp_path / f"mine/labs/{THIRD}").exists()

    done = update(new)
    assert done.returncode == 0, done.stderr
    assert f"  labs/{THIRD}/{THIRD}.ipynb" in done.stdout
    assert f"kept labs/{FIRST}/{FIRST}.ipynb: you ran or changed it" in done.stdout
    assert work.read_bytes() == written
    assert (tmp_path / "mine/notes.txt").read_text() == "mine"
    for name, content in later.items():
        assert name == f"labs/{FIRST}/{FIRST}.ipynb" or (
            (tmp_path / "mine" / name).read_bytes() == content
        )
    again = update(new)  # the kept work is kept again
    assert work.read_bytes() == written
    assert again.stdout.startswith("0 files are new or changed\nkept ")


def test_an_unknown_lab_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["release", "--lab", "03_ring", "--repo", str(REPO), "--to", str(tmp_path / "to")]
    assert main(arguments) == 1
    assert "no lab 03_ring; there are: 01_one_device, " in capsys.readouterr().err
    assert not (tmp_path / "to").exists()
