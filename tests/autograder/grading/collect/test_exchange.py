"""`nbgrader collect` keeps the submission that a newer one replaces, and the report lists it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderApp

from autograder.__main__ import main
from tests.autograder.grading.course import REPO, empty_gradebook

LAB = "03_ring_all_reduce"
TIMES = ("2026-10-01 10:00:00 UTC", "2026-10-02 11:00:00 UTC")


def test_a_resubmission_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(REPO / "nbgrader_config.py", tmp_path)
    (tmp_path / "grading").mkdir()
    (tmp_path / "grading/gradebook.db").write_bytes(empty_gradebook())
    monkeypatch.delenv("SHARDLAB_DB_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    with Gradebook(f"sqlite:///{tmp_path}/grading/gradebook.db", "shardlab") as gradebook:
        gradebook.add_assignment(LAB)
        gradebook.add_student("ada")

    def submit(number: int) -> None:
        """As `nbgrader submit` leaves it in the exchange."""
        inbound = tmp_path / "grading/exchange/shardlab/inbound"
        folder = inbound / f"ada+{LAB}+{TIMES[number]}+secret{number}"
        folder.mkdir(parents=True)
        (folder / f"{LAB}.ipynb").write_text(f'{{"cells": [{number}]}}')
        (folder / "timestamp.txt").write_text(TIMES[number])

    def collect(*options: str) -> None:
        NbGraderApp.clear_instance()
        NbGraderApp.launch_instance(["collect", LAB, "--Collect.check_owner=False", *options])
        NbGraderApp.clear_instance()

    current = tmp_path / f"grading/submitted/ada/{LAB}"
    earlier = tmp_path / f"grading/earlier/ada/{LAB}"
    submit(0)
    collect()
    collect("--update")
    assert not earlier.exists() or os.listdir(earlier) == []  # nothing newer
    submit(1)
    collect("--update")
    assert "[1]" in (current / f"{LAB}.ipynb").read_text()
    (kept,) = earlier.iterdir()
    assert kept.name == "2026-10-01_10-00-00"
    assert "[0]" in (kept / f"{LAB}.ipynb").read_text()
    assert (kept / "timestamp.txt").read_text() == TIMES[0]

    capsys.readouterr()
    assert main(["report", LAB]) == 0
    assert "ada: 1 (2026-10-01_10-00-00)" in capsys.readouterr().out
    page = (tmp_path / f"grading/reports/{LAB}.html").read_text()
    assert 'data-earlier="ada"' in page
    (address,) = re.findall(r'<a href="([^"]*)">2026-10-01_10-00-00</a>', page)
    assert (tmp_path / "grading/reports" / address / f"{LAB}.ipynb").exists()
    assert main(["report", LAB, "--to", "page.html"]) == 0
    assert (
        f'<a href="grading/earlier/ada/{LAB}/2026-10-01_10-00-00/">'
        in Path("page.html").read_text()
    )
