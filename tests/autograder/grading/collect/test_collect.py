"""`python -m autograder roster` and `collect`: from a platform's download to grading/submitted."""

from __future__ import annotations

import json
import os
import shutil
import stat
import unicodedata
import zipfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config

from autograder.__main__ import main
from autograder.grading.collect.collect_command import PLATFORMS
from autograder.grading.collect.platforms import READERS
from autograder.grading.course_time import use_timezone
from autograder.grading.nbgrader_app import nbgrader_app
from autograder.grading.submission.folders import read_submission
from autograder.grading.submission.lab_cells import cells_of_lab
from autograder.grading.submission.reader import find_notebook, read_notebook
from tests.autograder.grading.collect.downloads import AT, Content, folder, notebook, zipped
from tests.autograder.grading.copied_course import REPO, empty_gradebook

LAB, OTHER = "03_ring_all_reduce", "04_zero"
DECOMPOSED = unicodedata.normalize("NFD", "José")
STUDENTS = f"""\
student;First name;Last name;E-mail;Canvas ID;Moodle name;Section
ada;Ada;Lovelace;ada@example.org;12345;;A
jose;{DECOMPOSED};García-Márquez;jose@example.org;222;;A
bob;Bob;O'Neil;bob@example.org;333;Robert O'Neil;B
cyd;Cyd;Charisse;cyd@example.org;444;;B
"""


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "course"
    root.mkdir()
    shutil.copy(REPO / "nbgrader_config.py", root)
    (root / "solutions").symlink_to(REPO / "solutions")
    (root / "grading").mkdir()
    (root / "grading/gradebook.db").write_bytes(empty_gradebook())
    monkeypatch.delenv("SHARDLAB_DB_URL", raising=False)
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def run(course: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command, which must end with this code, and returns what it prints."""

    def run(*arguments: str | Path, code: int = 0) -> str:
        ended = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert ended == code, printed
        return printed.err if code == 2 else printed.out

    return run


@pytest.fixture
def enrolled(course: Path, run: Callable[..., str]) -> Path:
    (course / "students.csv").write_text(STUDENTS, encoding="utf-8-sig")
    assert "4 added" in run("roster", "students.csv")
    return course


def snapshot(course: Path) -> dict[str, tuple[bytes, float]]:
    files = [p for p in (course / "grading").rglob("*") if p.is_file() and p.suffix != ".db"]
    return {
        str(path.relative_to(course / "grading")): (path.read_bytes(), path.stat().st_mtime)
        for path in files
    }


def submitted(course: Path, student: str, name: str = f"{LAB}.ipynb") -> str:
    return (course / "grading/submitted" / student / LAB / name).read_text()


def earlier(course: Path, student: str) -> dict[str, str]:
    """{TIME: notebook}"""
    found = (course / "grading/earlier" / student / LAB).glob(f"*/{LAB}.ipynb")
    return {path.parent.name: path.read_text() for path in found}


def test_a_term_with_canvas(enrolled: Path, run: Callable[..., str], tmp_path: Path) -> None:
    first = {
        f"lovelaceada_LATE_12345_678901_{LAB}.ipynb": notebook(LAB, "first"),
        f"lovelaceada_LATE_12345_678955_{LAB}-1.ipynb": notebook(LAB, "second"),
        # The id takes precedence over the name.
        "garcíamárquezjosé_222_678902_Untitled (1).ipynb": notebook(LAB, "jose"),
        "oneilbob_999_678903_my lab.ipynb": notebook(LAB, "bob"),  # no such id, so the name is used
        "charissecyd_444_678904_lab.ipynb": notebook(OTHER),
        "charissecyd_444_678905_lab.ipynb": "{ broken",
        "nobodyned_555_678906_lab.ipynb": notebook(LAB),
        "charissecyd_444_678907_notes.pdf": "%PDF",
        f"__MACOSX/._lovelaceada_12345_678901_{LAB}.ipynb": "x",
    }
    download = zipped(tmp_path / "submissions.zip", first)
    before = snapshot(enrolled)
    dry = run("collect", LAB, "--from", download, "--dry-run", code=3)
    assert "dry run, nothing was changed: 3 new, 1 skipped, 1 without a notebook" in dry
    assert snapshot(enrolled) == before

    printed = run("collect", LAB, "--from", download, code=3)
    assert "from canvas: 3 new, 1 skipped" in printed
    assert "_678906_lab.ipynb: nobodyned, 555 is not on the roster" in printed
    assert "cyd submitted charissecyd_444_678904_lab.ipynb: it is 04_zero" in printed
    assert "cyd submitted charissecyd_444_678905_lab.ipynb: it is not a Jupyter notebook" in printed
    assert "cyd submitted charissecyd_444_678907_notes.pdf: it is no notebook" in printed
    assert all(printed.count(name) == 1 for name in first if name.startswith("charisse"))
    assert not (enrolled / "grading/submitted/cyd").exists()  # a download of several labs
    assert "late according to canvas: ada" in printed
    assert "no timestamp.txt" in printed  # the zip has only the time of the download
    assert "on the roster, without a submission" not in printed
    assert submitted(enrolled, "ada") == notebook(LAB, "second")
    assert list(earlier(enrolled, "ada").values()) == [notebook(LAB, "first")]
    assert submitted(enrolled, "jose") == notebook(LAB, "jose")

    after = snapshot(enrolled)
    unpacked = folder(tmp_path / "unpacked", dict(list(first.items())[:4]))
    for again in (download, unpacked):  # the same files
        printed = run("collect", LAB, "--from", again, code=3 if again == download else 0)
        assert "3 unchanged" in printed
        assert snapshot(enrolled) == after

    # A week later, Ada and Bob have resubmitted; in the third week, Bob submits his first version.
    week, two = AT + timedelta(days=7), AT + timedelta(days=14)
    name = "oneilbob_333_{}_lab.ipynb"
    third = f"lovelaceada_12345_700001_{LAB}-2.ipynb"
    jose = {"garcíamárquezjosé_222_678902_Untitled.ipynb": notebook(LAB, "jose")}
    later = {third: notebook(LAB, "third"), name.format(7): notebook(LAB, "other")} | jose
    printed = run("collect", LAB, "--from", zipped(tmp_path / "2.zip", later, week))
    assert "2 resubmitted, 1 unchanged" in printed
    assert submitted(enrolled, "ada") == notebook(LAB, "third")
    assert sorted(earlier(enrolled, "ada").values()) == sorted(
        [notebook(LAB, "first"), notebook(LAB, "second")]
    )
    back = {name.format(8): notebook(LAB, "bob")}
    run("collect", LAB, "--from", zipped(tmp_path / "3.zip", back, two))
    assert submitted(enrolled, "bob") == notebook(LAB, "bob")
    # Collecting an old download again changes nothing.
    after = snapshot(enrolled)
    run("collect", LAB, "--from", download, code=3)
    assert snapshot(enrolled) == after


def test_namesakes_are_no_group(enrolled: Path, run: Callable[..., str], tmp_path: Path) -> None:
    (enrolled / "kims.csv").write_text("student,first_name,last_name\nkim1,Kim,Lee\nkim2,Kim,Lee\n")
    run("roster", enrolled / "kims.csv")
    submitted = {f"Kim Lee_9005_assignsubmission_file/{LAB}.ipynb": notebook(LAB)}
    download = zipped(tmp_path / "1.zip", submitted)
    printed = run("collect", LAB, "--from", download, "--platform", "moodle", code=3)
    assert "could be kim1 or kim2" in printed
    assert "groups" not in printed
    by_id = zipped(tmp_path / "2.zip", {f"kim2/{LAB}.ipynb": notebook(LAB)})
    assert "1 new" in run("collect", LAB, "--from", by_id, "--platform", "folder")


def test_moodle_in_folders_and_flat(
    enrolled: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    files = {
        f"{DECOMPOSED} García-Márquez_81_assignsubmission_file_/{LAB}.ipynb": notebook(LAB, "1"),
        f"{DECOMPOSED} García-Márquez_81_assignsubmission_file_/{LAB} (1).ipynb": notebook(LAB),
        "Robert O'Neil_82_assignsubmission_file/src/lab.ipynb": notebook(LAB, "bob"),
        f"Ada Lovelace_83_assignsubmission_file_{LAB}.ipynb": notebook(LAB, "ada"),
        "Ada Lovelace_83_assignsubmission_onlinetext_/onlinetext.html": "<p>",
    }
    printed = run("collect", LAB, "--from", zipped(tmp_path / "m.zip", files))
    assert "from moodle: 3 new" in printed
    assert submitted(enrolled, "jose") == notebook(LAB)
    assert list(earlier(enrolled, "jose").values()) == [notebook(LAB, "1")]
    assert submitted(enrolled, "bob") == notebook(LAB, "bob")
    one = {"lab/Dr. Cyd Charisse_84_assignsubmission_file_/lab.ipynb": notebook(LAB)}
    printed = run("collect", LAB, "--from", zipped(tmp_path / "one.zip", one), code=3)
    assert "Dr. Cyd Charisse is not on the roster" in printed  # Moodle's name differs
    (enrolled / "fix.csv").write_text("student,moodle_name\ncyd,Dr. Cyd Charisse\n")
    run("roster", "fix.csv")
    assert "from moodle: 1 new" in run("collect", LAB, "--from", tmp_path / "one.zip")


METADATA = """\
submission_1:
  :submitters:
  - :name: Ada L.
    :sid: '100'
    :email: ADA@example.org
  - :name: Robert O'Neil
    :sid: bob
    :email: somebody@else.org
  :created_at: 2026-09-30 23:59:59.123456789 -07:00
  :results: !ruby/hash:ActiveSupport::HashWithIndifferentAccess
    score: 1.0
submission_2:
  :submitters: []
"""


def test_gradescope_names_submitters_and_times(
    enrolled: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    root = "assignment_9_export/"
    files = {
        f"{root}submission_metadata.yml": METADATA,
        f"{root}submission_1/lab.ipynb": notebook(LAB, "pair"),
        f"{root}submission_1/lab.py": "def f(): pass",
        f"{root}submission_2/lab.ipynb": notebook(LAB),
        # A student's own file, which sorts before the real one.
        f"{root}submission_1/submission_metadata.yml": METADATA.replace("ADA@", "cyd@"),
    }
    printed = run("collect", LAB, "--from", folder(tmp_path / "g", files), code=3)
    assert "submission_2/lab.ipynb: submission_metadata.yml does not say" in printed
    for student in ("ada", "bob"):  # a group
        assert submitted(enrolled, student) == notebook(LAB, "pair")
        assert submitted(enrolled, student, "timestamp.txt") == "2026-10-01 06:59:59 UTC\n"
    files[f"{root}submission_metadata.yml"] = METADATA.replace("2026-09-30", "2026-09-29")
    files[f"{root}submission_1/lab.ipynb"] = notebook(LAB, "older")
    printed = run("collect", LAB, "--from", folder(tmp_path / "h", files), code=3)
    assert "2 earlier" in printed
    assert "because a later submission is in grading/submitted" in printed
    assert submitted(enrolled, "ada") == notebook(LAB, "pair")
    assert earlier(enrolled, "ada") == {"2026-09-30_06-59-59": notebook(LAB, "older")}


def test_hostile_and_unusual_files_do_not_affect_other_students(
    course: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    """Without a roster: STUDENT is the name of the folder or file."""
    path = zipped(
        tmp_path / "z.zip",
        {
            "../../ada/lab.ipynb": notebook(LAB),
            "/etc/lab.ipynb": notebook(LAB),
            "eve/bomb.ipynb": b" " * 30_000_000,
            ".hidden/lab.ipynb": notebook(LAB),
            "dan (1).ipynb": notebook(LAB, "second"),
            "dan.ipynb": notebook(LAB, "first"),
            "flo/renamed.ipynb": notebook(LAB).replace('"grade_id"', '"gone"'),
            "guy/other.ipynb": '{"cells": [{"cell_type": "code", "source": "import torch"}]}',
            f"gus/{LAB}-Copy1.ipynb": notebook(LAB).replace('"grade_id"', '"gone"'),
        },
    )
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo("fay/link.ipynb")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    printed = run("collect", LAB, "--from", path, code=3)
    assert "from folder: 3 new, 6 skipped" in printed
    assert printed.count("its path leads out of the download") == 2
    assert "eve/bomb.ipynb: it is larger than 20 MB" in printed
    assert "fay/link.ipynb: it is a link" in printed
    assert "begins with a dot" in printed
    assert "guy/other.ipynb: it is not a lab of this course" in printed
    assert submitted(course, "dan") == notebook(LAB, "second")
    assert sorted(path.name for path in (course / "grading/submitted").iterdir()) == [
        "dan",
        "flo",
        "gus",
    ]

    # A folder with another student's name inside a student's own is not that student's submission.
    roster = course / "grading/roster.csv"
    roster.write_text("student\nada\nbob\n")
    nested = {"class/mallory/ada/lab.ipynb": notebook(LAB), "class/bob-1.ipynb": notebook(LAB)}
    spoof = f"class/bob/x_1_assignsubmission_file_{LAB}.ipynb"
    nested |= {"class/submission_metadata/ada.ipynb": notebook(LAB), spoof: notebook(LAB, "bob")}
    printed = run("collect", LAB, "--from", zipped(tmp_path / "n.zip", nested), code=3)
    assert "from folder: 1 new, 2 skipped" in printed
    assert "class/mallory/ada/lab.ipynb: class is not on the roster" in printed
    roster.unlink()

    files = folder(tmp_path / "f", {"hal/lab.ipynb": notebook(LAB)})
    (files / "ivy").mkdir()
    (files / "ivy/lab.ipynb").symlink_to("/etc/passwd")
    (files / "joe").symlink_to(files / "hal")
    os.mkfifo(files / "hal/pipe.ipynb")
    printed = run("collect", LAB, "--from", files, code=3)
    assert "1 new, 3 skipped" in printed
    # Copied by hand, under another name: its whole folder is moved to the history.
    by_hand = folder(course / "grading/submitted/kim" / LAB, {"my.ipynb": notebook(LAB)})
    run("collect", LAB, "--from", folder(tmp_path / "k", {"kim.ipynb": notebook(LAB, "k")}))
    assert submitted(course, "kim") == notebook(LAB, "k")
    moved = list((course / "grading/earlier/kim" / LAB).iterdir())
    assert [path.name for path in moved[0].iterdir()] == ["my.ipynb"]
    assert not (by_hand / "my.ipynb").exists()


def test_a_folder_around_all_students_is_not_a_student(
    course: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    """Without a roster."""
    wrapped = {f"term/lab 3/{name}/lab.ipynb": notebook(LAB, name) for name in ("ada", "bob")}
    wrapped["term/lab 3/ada/src/old.ipynb"] = "{}"
    run("collect", LAB, "--from", zipped(tmp_path / "1.zip", wrapped), code=3)
    assert [submitted(course, name) for name in ("ada", "bob")] == [
        notebook(LAB, name) for name in ("ada", "bob")
    ]
    before = snapshot(course)
    for unclear in (
        {"lab 3/ada.ipynb": notebook(LAB), "lab 3/bob.ipynb": notebook(LAB)},
        {"eve/draft.ipynb": notebook(LAB), "eve/final.ipynb": notebook(LAB)},
        {"lab 3/ada/lab.ipynb": notebook(LAB)},
        {"lab 3/ada/lab.ipynb": notebook(LAB), "lab 3/bob.ipynb": notebook(LAB)},
    ):
        refused = run("collect", LAB, "--from", zipped(tmp_path / "2.zip", unclear), code=2)
        assert "it is unclear whether a folder is a student" in refused
        assert snapshot(course) == before


def test_files_that_are_equally_new_are_named(
    course: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    files = {
        "ada/one.ipynb": notebook(LAB, "1"), "ada/two.ipynb": notebook(LAB, "2"),
        "bob/one.ipynb": notebook(LAB), "bob/two.ipynb": notebook(LAB),  # the same content
    }  # fmt: skip
    printed = run("collect", LAB, "--from", zipped(tmp_path / "1.zip", files))
    assert "equally new, so the last by name was taken" in printed
    assert "  ada: ada/two.ipynb, not ada/one.ipynb\n" in printed
    assert "bob: bob/two" not in printed
    assert submitted(course, "ada") == notebook(LAB, "2")


def test_many_equal_times_are_those_of_a_copy(
    course: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    files = {f"{student}/lab.ipynb": notebook(LAB, student) for student in ("ada", "bob", "cyd")}
    printed = run("collect", LAB, "--from", folder(tmp_path / "1", files))
    assert "3 of 3 files were changed in the minute 2026-10-05 09:30 UTC: if they were" in printed
    both = {name: notebook(LAB, "two") for name in [*files][:2]}
    printed = run("collect", LAB, "--from", folder(tmp_path / "2", both), "--dry-run")
    assert "2 of 2 files were changed in the minute" in printed
    for number, name in enumerate(files):
        folder(tmp_path / "1", {name: notebook(LAB, "2")}, AT + timedelta(hours=number))
    assert "in the minute" not in run("collect", LAB, "--from", tmp_path / "1")


def test_times_in_a_zip_are_in_the_courses_time_zone(
    course: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    """A zip stores local times, and the collecting machine may be in another time zone."""
    with (course / "nbgrader_config.py").open("a") as config:
        config.write('use_timezone(c, "Europe/Berlin")\n')
    try:
        run("collect", LAB, "--from", zipped(tmp_path / "1.zip", {"ada.ipynb": notebook(LAB)}))
    finally:
        use_timezone(Config(), "UTC")
    assert submitted(course, "ada", "timestamp.txt") == "2026-10-05 07:30:00 UTC\n"


def test_an_interrupted_run_loses_nothing(
    course: Path, run: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = folder(tmp_path / "1", {"ada/lab.ipynb": notebook(LAB, "first")})
    second = folder(tmp_path / "2", {"ada.ipynb": notebook(LAB, "2")}, AT + timedelta(days=1))
    run("collect", LAB, "--from", first)
    move = shutil.move

    def stop(*paths: Path) -> None:
        move(*paths)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "move", stop)
        with pytest.raises(KeyboardInterrupt):
            main(["collect", LAB, "--from", str(second)])
    run("collect", LAB, "--from", second)
    assert submitted(course, "ada") == notebook(LAB, "2")
    assert list(earlier(course, "ada").values()) == [notebook(LAB, "first")]
    assert [path.name for path in (course / "grading/submitted/ada").iterdir()] == [LAB]

    # Killed before the folder of an older version got its name.
    older = folder(tmp_path / "0", {"ada.ipynb": notebook(LAB, "0")}, AT - timedelta(days=1))
    run("collect", LAB, "--from", older)
    history = course / "grading/earlier/ada" / LAB
    (kept,) = history.glob("2026-10-04*")
    kept.rename(history / f".{kept.name}.123")
    run("collect", LAB, "--from", older)
    assert earlier(course, "ada")[kept.name] == notebook(LAB, "0")


def test_errors_of_collect_say_what_to_do(
    course: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    assert set(PLATFORMS) == set(READERS)
    download = folder(tmp_path / "d", {f"lovelaceada_1_2_{LAB}.ipynb": notebook(LAB)})
    assert "choose from 01_one_device" in run("collect", "3", "--from", download, code=2)
    assert "there is no roster" in run("collect", LAB, "--from", download, code=2)
    assert "there is no /gone" in run("collect", LAB, "--from", "/gone", code=2)
    broken = tmp_path / "broken.zip"
    broken.write_bytes(b"PK\x03\x04")
    assert "download it again" in run("collect", LAB, "--from", broken, code=2)


def test_a_students_file_that_is_no_notebook_is_kept_and_named(
    enrolled: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    """Canvas's text entries and links have no upload's id."""
    files: dict[str, Content] = {
        "lovelaceada_LATE_12345_text.html": "<p>see Colab</p>",
        "garcíamárquezjosé_222_link.html": "<a>",
        "oneilbob_333_678903_lab 3.tar.gz": b"\x1f\x8b",
        "charissecyd_444_678904_big.rar": b"x" * 21_000_000,
    }
    download = zipped(tmp_path / "1.zip", files)
    printed = run("collect", LAB, "--from", download, code=3)
    assert "from canvas: 4 without a notebook" in printed
    assert "ada submitted lovelaceada_LATE_12345_text.html: it is no notebook" in printed
    assert "bob submitted oneilbob_333_678903_lab 3.tar.gz: it is no notebook" in printed
    assert "cyd submitted charissecyd_444_678904_big.rar: it is larger than 20 MB" in printed
    assert "on the roster, without a submission" not in printed
    kept = sorted(path.name for path in (enrolled / "grading/submitted").glob("*/*/*"))
    assert [name for name in kept if name not in files] == [
        "charissecyd_444_678904_big.rar.not_collected.txt",
    ]
    before = snapshot(enrolled)
    run("collect", LAB, "--from", download, code=3)
    assert snapshot(enrolled) == before
    course = CourseDirectory(parent=nbgrader_app())
    _, why, _ = read_submission(course, LAB, "bob")
    assert why.startswith("You submitted `oneilbob_333_678903_lab 3.tar.gz`, which is no notebook")
    # A notebook replaces it, and it does not replace a notebook.
    run(
        "collect",
        LAB,
        "--from",
        zipped(tmp_path / "2.zip", {"x_333_9_a.ipynb": notebook(LAB)}),
        code=3,
    )
    assert submitted(enrolled, "bob") == notebook(LAB)
    printed = run("collect", LAB, "--from", download, code=3)
    assert "no notebooks of a lab, ignored: oneilbob_333_678903_lab 3.tar.gz" in printed
    assert submitted(enrolled, "bob") == notebook(LAB)


def test_each_file_is_listed_once_also_when_it_is_collected_again(
    enrolled: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    scratch = '{"cells": [{"cell_type": "code", "source": "1 + 1"}]}'
    files: dict[str, Content] = {
        "ada/lab.ipynb": b"", "bob/scratch.ipynb": scratch,
        "cyd/lab.ipynb": notebook(LAB), "cyd/scratch.ipynb": scratch, "cyd/broken.ipynb": "{",
    }  # fmt: skip
    download = zipped(tmp_path / "1.zip", files)
    for outcome in ("1 new", "1 unchanged"):
        printed = run("collect", LAB, "--from", download, code=3)
        assert f"{outcome}, 1 skipped, 2 without a notebook" in printed
        assert "ada submitted ada/lab.ipynb: it is empty" in printed
        assert "bob submitted bob/scratch.ipynb: it is not a lab of this course" in printed
        assert "cyd/broken.ipynb: it is not a Jupyter notebook" in printed
        assert "no notebooks of a lab, ignored: cyd/scratch.ipynb" in printed
        assert all(printed.count(name) == 1 for name in files)


def test_a_truncated_notebook_is_marked(
    course: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    whole = notebook(LAB)
    files: dict[str, Content] = {"ada.ipynb": whole[: len(whole) // 2], "bob.ipynb": whole}
    printed = run("collect", LAB, "--from", folder(tmp_path / "1", files))
    ada, repaired, bob = printed.splitlines()[1:4]
    assert "ada.ipynb" in ada
    assert repaired.strip().startswith("repaired: The file was damaged: ")
    assert "bob.ipynb" in bob


def test_who_changes_groups_keeps_what_the_old_group_submitted(
    enrolled: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    def download(name: str, red: str, at: timedelta) -> Path:
        files: dict[str, Content] = {
            "Blue team_1_assignsubmission_file_/lab.ipynb": notebook(LAB, "blue"),
            "Red team_2_assignsubmission_file_/lab.ipynb": notebook(LAB, red),
        }
        return zipped(tmp_path / name, files, AT + at)

    first = download("1.zip", "red", timedelta(0))
    table = enrolled / "grading/groups.csv"
    blue, red = "group,student,lab\nBlue team,ada,\n", "Red team,cyd,\n"
    table.write_text(f"{blue}Blue team,bob,\n{red}Red team,jose,\n")
    assert "4 new" in run("collect", LAB, "--from", first)
    before = snapshot(enrolled)
    moved = f"{blue}Blue team,jose,\n{red}Red team,bob,\n"  # for the next lab
    table.write_text(moved)
    again = download("2.zip", "red", timedelta(days=1))  # with other times
    for old in (first, again):
        printed = run("collect", LAB, "--from", old, code=3)
        assert "2 unchanged, 2 kept" in printed
        assert f"(GROUP,STUDENT,{LAB})" in printed
        assert "  bob, not replaced by Red team_2_assignsubmission_file_/lab.ipynb" in printed
        assert "  jose, not replaced by Blue team_1_assignsubmission_file_/lab.ipynb" in printed
        assert snapshot(enrolled) | {"groups.csv": None} == before | {"groups.csv": None}
    # What the new group has really submitted again counts, also for who moved.
    resubmitted = download("3.zip", "red, again", timedelta(days=2))
    printed = run("collect", LAB, "--from", resubmitted, "--dry-run", code=3)
    assert "1 unchanged, 2 resubmitted, 1 kept" in printed
    # A row with the lab takes precedence, whatever others had.
    table.write_text(f"{moved}Blue team,bob,{LAB}\nRed team,jose,{LAB}\n")
    assert "4 unchanged" in run("collect", LAB, "--from", again)
    table.write_text(moved.replace("bob,", f"bob,{LAB}"))
    assert "2 unchanged, 1 resubmitted, 1 kept" in run("collect", LAB, "--from", again, code=3)
    assert submitted(enrolled, "bob") == notebook(LAB, "red")


def test_moodle_may_write_the_group_before_each_members_name(
    enrolled: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    (enrolled / "lena.csv").write_text("student,first_name,last_name\nlena,Lena,O'Neil\n")
    run("roster", "lena.csv")
    name = "{}_81{}_assignsubmission_file/lab.ipynb"
    who = ("Team-1-Ada Lovelace", "Team-1-José García-Márquez", "Red-Robert O'Neil")
    files: dict[str, Content] = {
        name.format(each, number): notebook(LAB, each) for number, each in enumerate(who)
    }
    stranger = name.format("Anna-Lena O'Neil", 9)
    download = zipped(tmp_path / "1.zip", files | {stranger: notebook(LAB)})
    printed = run("collect", LAB, "--from", download, code=3)
    assert "from moodle: 2 new, 2 skipped" in printed
    assert submitted(enrolled, "ada") == notebook(LAB, "Team-1-Ada Lovelace")
    assert "on the roster, without a submission: bob, cyd, lena" in printed
    assert "  Red-Robert O'Neil, not collected" in printed  # one name may be anything
    # With the table, also a member whom Moodle calls otherwise.
    (enrolled / "grading/groups.csv").write_text("group,student\nRed,bob\nRed,cyd\n")
    files[name.format("Red-C. Charisse", 4)] = notebook(LAB, who[2])
    printed = run("collect", LAB, "--from", zipped(tmp_path / "2.zip", files))
    assert "2 unchanged, 2 new" in printed
    assert submitted(enrolled, "bob") == submitted(enrolled, "cyd") == notebook(LAB, who[2])


def test_each_member_of_a_group_gets_a_copy(
    enrolled: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    """Canvas puts the group's name in the place of the student's, and one member's id after it."""
    canvas = zipped(
        tmp_path / "c.zip",
        {
            "team_1_12345_678901_lab.ipynb": notebook(LAB, "team 1"),
            "blueteam_LATE_333_678902_lab.ipynb": notebook(LAB, "blue"),
        },
    )
    # Not a member, but with the group's name
    spoof = {"blueteam_12345_678903_lab.ipynb": notebook(LAB, "spoof")}
    printed = run("collect", LAB, "--from", canvas, code=3)
    assert "names that no student has: those of groups?" in printed
    assert "  blueteam, collected for bob only" in printed
    table = enrolled / "grading/groups.csv"
    rows = "group,student,lab\nTeam 1,ada,\nTeam 1,jose@example.org,\nBlue team,bob,\n"
    table.write_text(f"{rows}Blue team,cyd,{LAB}\nRed,cyd,{OTHER}\n")
    printed = run("collect", LAB, "--from", canvas)
    assert "from canvas: 3 new, 1 unchanged" in printed
    assert "late according to canvas: bob, cyd" in printed
    for student, team in (("ada", "team 1"), ("jose", "team 1"), ("cyd", "blue")):
        assert submitted(enrolled, student) == notebook(LAB, team)
    printed = run("collect", LAB, "--from", zipped(tmp_path / "s.zip", spoof), code=3)
    assert "1 resubmitted" in printed
    assert "  blueteam, collected for ada only" in printed
    moodle = zipped(
        tmp_path / "m.zip",
        {"Blue team_7_assignsubmission_file_/lab.ipynb": notebook(LAB, "again")},
        AT + timedelta(days=1),
    )
    assert "from moodle: 2 resubmitted" in run("collect", LAB, "--from", moodle)
    table.unlink()
    printed = run("collect", LAB, "--from", moodle, code=3)
    assert "lab.ipynb: Blue team is not on the roster" in printed


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            "A,ada\nB,ada\n",
            "groups.csv, line 3 (B,ada): ada is in the group 'A' already, in line 2",
        ),
        ("A,ada\nA,ada\n", "line 3 (A,ada): ada is in this group already, in line 2"),
        ("A,eve\n", "line 2 (A,eve): eve is not on the roster"),
        ("A,\n", "line 2 (A,): the student is missing"),
        ("Bob O'Neil,ada\n", '"Bob O\'Neil" is also the name of a student'),
        ("A,ada,lab 3\n", "there is no lab 'lab 3': choose from 01_one_device"),
    ],
)
def test_a_wrong_table_of_groups_is_quoted(
    enrolled: Path, run: Callable[..., str], tmp_path: Path, rows: str, message: str
) -> None:
    (enrolled / "grading/groups.csv").write_text(f"group,student,lab\n{rows}")
    download = zipped(tmp_path / "1.zip", {"a_333_9_a.ipynb": notebook(LAB)})
    assert message in run("collect", LAB, "--from", download, code=2)
    assert not (enrolled / "grading/submitted").exists()


@pytest.mark.parametrize(
    ("names", "setting"),
    [
        (("anon_12345_678901_lab.ipynb", "LATE_anon_Xy1Zk_2_lab.ipynb"), "Anonymous Grading"),
        (("anon_12345_text.html",), "Anonymous Grading"),
        (("Participant_12_assignsubmission_file_/lab.ipynb",), "Reveal student identities"),
        (
            ("Ucasnik_1_assignsubmission_file/a.ipynb", "Ucasnik_2_assignsubmission_file/a.py"),
            "Reveal student identities",
        ),
    ],
)  # fmt: skip
def test_an_anonymous_download_is_recognized(
    enrolled: Path, run: Callable[..., str], tmp_path: Path, names: tuple[str, ...], setting: str
) -> None:
    """Its numbers may be those of other students."""
    download = zipped(tmp_path / "1.zip", {name: notebook(LAB) for name in names})
    assert setting in run("collect", LAB, "--from", download, code=2)
    assert not (enrolled / "grading/submitted").exists()


def test_a_file_is_recognized_by_what_grading_reads(
    course: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    content = json.loads(notebook(LAB))
    for cell in content["cells"]:
        cell["metadata"] = {}
    renamed = json.dumps(content)  # as JupyterLab saves it after a copy into a new notebook
    bare = json.dumps(
        {"cells": [{k: c[k] for k in ("cell_type", "source")} for c in content["cells"]]}
    )
    script = "def chunk_bounds(length, world_size):\n    return []\n"
    finder = zipped(
        tmp_path / "finder.zip",
        {
            "lab/Untitled.ipynb": notebook(LAB), "lab/._Untitled.ipynb": b"\x00\x05\x16\x07",
            "__MACOSX/lab/._Untitled.ipynb": b"\x00\x05\x16\x07", "lab/.DS_Store": b"\x00",
            "lab/chapter.ipynb": '{"cells": []}', "lab/other.ipynb": notebook(OTHER),
        },
    ).read_bytes()  # fmt: skip
    files: dict[str, Content] = {
        "ada/a.ipynb": renamed, "bob/b.ipynb": bare, "cyd/c.ipynb.txt": notebook(LAB),
        "dan/d.ipynb.json": notebook(LAB), "eve/e.py": script, "fay/f.zip": finder,
    }  # fmt: skip
    scratch = {"ada/scratch.ipynb": '{"cells": [{"cell_type": "code", "source": "1 + 1"}]}'}
    printed = run("collect", LAB, "--from", zipped(tmp_path / "1.zip", files | scratch), code=0)
    assert "6 new\n" in printed
    assert "no notebooks of a lab, ignored: ada/scratch.ipynb" in printed
    # The same files by hand, or through the exchange
    directory = CourseDirectory(parent=nbgrader_app())
    for name, data in files.items():
        student, file = name.split("/")
        by_hand = folder(tmp_path / "hand" / student, {file: data, f"._{file}": b"\x00\x05"})
        path, _ = find_notebook(by_hand, LAB, cells_of_lab(directory, LAB))
        assert path is not None
        found, _ = read_notebook(path.read_bytes(), cells_of_lab(directory, LAB))
        assert found.cells
    both = folder(
        tmp_path / "both",
        {"a.ipynb": notebook(OTHER), "b.ipynb": notebook(LAB), f"{LAB}.ipynb": "{}"},
    )
    path, note = find_notebook(both, LAB, cells_of_lab(directory, LAB))
    assert path == both / "b.ipynb"
    assert "has none of its cells" in note
