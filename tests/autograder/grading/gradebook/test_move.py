"""`python -m autograder move-gradebook` copies a whole gradebook to another database."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from nbgrader.api import Base, Gradebook
from sqlalchemy import create_engine, inspect, select, text

from autograder.__main__ import main
from autograder.grading.gradebook import move
from autograder.grading.gradebook.database import without_password
from tests.autograder.grading.copied_course import REPO, empty_gradebook
from tests.running_postgres import postgres_or_skip

LAB = "one"


@pytest.fixture(params=["sqlite", "postgresql"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/new.db"
        return
    with postgres_or_skip() as url:
        yield url


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A course's gradebook in SQLite with everything that a person can enter."""
    shutil.copy(REPO / "nbgrader_config.py", tmp_path)
    (tmp_path / "grading").mkdir()
    (tmp_path / "grading/gradebook.db").write_bytes(empty_gradebook())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHARDLAB_DB_URL", raising=False)
    url = f"sqlite:///{tmp_path}/grading/gradebook.db"
    with Gradebook(url, "shardlab") as gradebook:
        gradebook.add_assignment(LAB, duedate=datetime(2026, 10, 1, 12))
        gradebook.add_notebook(LAB, LAB)
        gradebook.add_grade_cell("check", LAB, LAB, max_score=3, cell_type="code")
        gradebook.add_grade_cell("words", LAB, LAB, max_score=2, cell_type="markdown")
        gradebook.add_task_cell("task", LAB, LAB, max_score=1, cell_type="markdown")
        gradebook.add_solution_cell("words", LAB, LAB)
        gradebook.add_source_cell("check", LAB, LAB, cell_type="code", source="# ä\npass")
        gradebook.add_student("söhne@x.org", first_name="Ada", last_name="O'Brien")
        gradebook.add_student("absent")
        gradebook.add_submission(
            LAB, "söhne@x.org", timestamp=datetime(2026, 10, 2, 13, 5, 1, 250),
            extension=timedelta(days=1, hours=2),
        )  # fmt: skip
        notebook = gradebook.find_submission_notebook(LAB, LAB, "söhne@x.org")
        notebook.late_submission_penalty, notebook.flagged = 0.1 + 0.2, True
        for grade in notebook.grades:
            grade.auto_score, grade.manual_score, grade.extra_credit = 1 / 3, 2.25, 0.5
            grade.needs_manual_grade = False
        notebook.comments[0].manual_comment = "Well put.\nReally: 😀"
        gradebook.db.commit()
    return url


def rows_of(url: str) -> dict[str, set[tuple[Any, ...]]]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = {
            table.name: set(map(tuple, connection.execute(select(table))))
            for table in Base.metadata.sorted_tables
        }
    engine.dispose()
    return found


def change(url: str, statement: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def test_everything_is_moved_once(
    source: str, target: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows_of(source)
    if target.startswith("postgresql"):  # SQLite stores names of any length
        change(source, f"INSERT INTO student (id) VALUES ('{'x' * 129}')")
        assert main(["move-gradebook", "--to", target]) == 2
        refused = "cannot store a row of the table student: value too long"
        assert refused in capsys.readouterr().err
        assert not any(rows for table, rows in rows_of(target).items() if table != "course")
        change(source, "DELETE FROM student WHERE length(id) = 129")
    assert main(["move-gradebook", "--to", target]) == 0
    printed = capsys.readouterr().out
    assert "       3  grade\n" in printed
    assert "export SHARDLAB_DB_URL='" in printed
    assert rows_of(target) == before == rows_of(source)
    assert {len(rows) for rows in before.values()} >= {1, 2, 3}
    assert all(before.values())
    engine = create_engine(target)
    with engine.begin() as connection:
        indexes = {index["name"] for index in inspect(connection).get_indexes("grade")}
        assert "ix_shardlab_grade_notebook_id" in indexes
    engine.dispose()

    # nbgrader reads it, and finds nothing to upgrade
    with Gradebook(target, "shardlab") as gradebook:
        submission = gradebook.find_submission(LAB, "söhne@x.org")
        assert submission.score == 3 * 2.75
        assert submission.extension == timedelta(days=1, hours=2)

    # Commands in a shell with the old address name the new one, and change nothing.
    commands = (["late"], ["report", LAB], ["export"], ["feedback", LAB], ["roster", "people.csv"])
    Path("people.csv").write_text("student\nnew\n")
    for command in commands:
        assert main(command) == 2
        assert f"export SHARDLAB_DB_URL='{target}'" in capsys.readouterr().err
    assert rows_of(source) == before
    with monkeypatch.context() as patch:
        patch.setenv("SHARDLAB_DB_URL", target)
        assert main(["late"]) == 0
        capsys.readouterr()

    assert main(["move-gradebook", "--to", target]) == 2
    assert "is not empty (it has rows in student, assignment," in capsys.readouterr().err
    monkeypatch.setenv("SHARDLAB_DB_URL", target)
    assert main(["move-gradebook", "--to", target]) == 2
    assert "is the source as well as the target" in capsys.readouterr().err
    assert rows_of(target) == before


def test_a_failed_move_changes_nothing(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written for a missing source, and no row is left after a failure."""
    target = f"sqlite:///{tmp_path}/new.db"
    missing = f"sqlite:///{tmp_path}/typo.db"
    (tmp_path / "other.db").touch()
    for wrong in (missing, f"sqlite:///{tmp_path}/other.db"):
        assert main(["move-gradebook", "--from", wrong, "--to", target]) == 2
        assert "there is no gradebook at" in capsys.readouterr().err
    assert not (tmp_path / "typo.db").exists()
    assert not (tmp_path / "new.db").exists()
    assert main(["move-gradebook", "--to", "postgres at localhost"]) == 2
    assert "postgresql+psycopg://user@host/database" in capsys.readouterr().err

    (tmp_path / "new.db").write_bytes(empty_gradebook())

    def loses_values(table: Any, here: Any, there: Any, copy: Any = move._copy) -> None:
        copy(table, here, there)
        if table.name == "grade":
            there.execute(text("UPDATE grade SET extra_credit = 0"))

    with monkeypatch.context() as patch:
        patch.setattr(move, "_copy", loses_values)
        assert main(["move-gradebook", "--to", target]) == 2
    assert "the table grade differs (3 rows, copied 3)" in capsys.readouterr().err
    left = rows_of(target)
    assert not any(rows for table, rows in left.items() if table != "course")

    assert main(["move-gradebook", "--to", target]) == 0
    assert rows_of(target) == rows_of(source)


def test_the_printed_address_works_without_the_password() -> None:
    """It is meant for a shell profile, so it has neither a password nor *** in its place."""
    query = "?connect_timeout=10"
    shown = f"postgresql+psycopg://ada@host:5433/course{query}"
    for password in (f":s3cr%40t@host:5433/course{query}", f"@host:5433/course{query}&password=x"):
        assert without_password(f"postgresql+psycopg://ada{password}") == shown
    for address in (shown, "sqlite:////a/b.db?timeout=60"):
        assert without_password(address) == address


@pytest.mark.parametrize(
    "command", [["late"], ["report", LAB], ["export"], ["export", "--platform", "canvas"],
                ["feedback", LAB], ["roster", "people.csv"]],
)  # fmt: skip
@pytest.mark.parametrize("damage", ["not a database", "no such folder"])
def test_the_error_for_an_unusable_database_says_what_to_do(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str],
    damage: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "people.csv").write_text("student\nnew\n")
    if damage == "not a database":
        (tmp_path / "grading/gradebook.db").write_bytes(b"no database" * 1000)
    else:
        monkeypatch.setenv("SHARDLAB_DB_URL", "sqlite:////gone/gradebook.db")
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "cannot use the gradebook at sqlite:///" in error
    assert "Start the database, or fix SHARDLAB_DB_URL" in error


def test_a_gradebook_of_another_nbgrader_is_not_copied(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(source, "UPDATE alembic_version SET version_num = 'old'")
    (tmp_path / "new.db").write_bytes(empty_gradebook())
    assert main(["move-gradebook", "--to", f"sqlite:///{tmp_path}/new.db"]) == 2
    assert "nbgrader db upgrade" in capsys.readouterr().err
