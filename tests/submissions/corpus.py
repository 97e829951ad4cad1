"""Malicious submissions, and honest ones that look suspicious: one file each, named by what it does.

``NAME.nb.py`` contains answers by grade id, as in planted.py, below a header:

    # /// shardlab-submission
    # lab = "03_ring_all_reduce"  used by most: each other lab means grading another class
    # kind = "forging"            forging, theft, destruction, smuggling, distributed; or honest
    # tries = "..."               what it attempts
    # seen_by = "points"          how harm would be detected, see below
    # state = "graded"            its final state, on any machine
    # earns = {chunk_bounds = 2}  maximum points (honest: exact points); 0 for answers not listed
    # ends_with = "name"          a file in endings/: the end of the last answer, which several share
    # ///

All other answers are unchanged stubs.  ``NAME.py`` does what percent text cannot express: its
``submit(place)`` creates the submission, and its constants are the header.  In the text, @HOME@,
@COURSE@, @MARK@, @HOST@ and @PORT@ are replaced by the actual values on the grading machine: we
assume that an attacker knows them.

Harm is detected as undeserved *points*; as *loot*, the word LOOT anywhere in the submission's
record; as a *canary*, a new or changed file in home, course or /tmp; as *neighbors* whose records
differ from those of a class without attacks; or as *survivors*, processes with the mark.  Every submission
is tested for all of these; ``seen_by`` names the relevant one.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import jupytext

from tests.submissions.planted import HEADER

HERE = Path(__file__).parent
LAB = "03_ring_all_reduce"  # of all NAME.py
NAME = f"{LAB}.ipynb"
LABS = HERE.parents[1] / "labs"  # tests may set it to another course's labs
Notebook = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a submission goes, and what its attacker knows about the machine."""

    folder: Path  # submitted/STUDENT/LAB
    course: Path
    home: Path
    mark: str
    neighbor: Path  # another student's folder of the same lab
    port: int = 0  # of a listening socket on the machine's loopback
    host: str = ""  # an address of the machine other than loopback

    def filled_in(self, text: str) -> str:
        known = {"HOME": self.home, "COURSE": self.course, "MARK": self.mark}
        for name, value in {**known, "PORT": self.port, "HOST": self.host}.items():
            text = text.replace(f"@{name}@", str(value))
        return text


@dataclass(frozen=True)
class Entry:
    name: str
    kind: str
    tries: str
    seen_by: str
    state: str
    submit: Callable[[Place], None]
    earns: Mapping[str, float] = field(default_factory=dict)
    lab: str = LAB


def attacks() -> list[Entry]:
    texts = sorted((HERE / "attacks").glob("*.nb.py"))
    modules = sorted(set((HERE / "attacks").glob("*.py")) - set(texts))
    entries = [*map(_read_text, texts), *map(_read_module, modules)]
    return sorted(entries, key=lambda entry: entry.name)


def honest() -> list[Entry]:
    return [_read_text(path) for path in sorted((HERE / "honest").glob("*.nb.py"))]


def _read_text(path: Path) -> Entry:
    text = path.read_text(encoding="utf-8")
    header = HEADER.search(text)
    assert header, f"{path.name} has no header"
    facts = tomllib.loads(re.sub(r"^# ?", "", header[1], flags=re.MULTILINE))
    lab, answers_text = facts["lab"], text[header.end() :]
    if ending := facts.get("ends_with"):
        shared = (HERE / "endings" / f"{ending}.nb.py").read_text(encoding="utf-8")
        answers_text += f"\n{shared}"

    def submit(place: Place) -> None:
        answers = answers_in(answers_text)
        notebook = released(lab)
        for cell in notebook["cells"]:
            if cell["id"] in answers:
                cell["source"] = place.filled_in(answers[cell["id"]])
        save(notebook, place.folder, f"{lab}.ipynb")

    return Entry(
        path.name.removesuffix(".nb.py"),
        facts["kind"],
        facts["tries"],
        facts["seen_by"],
        facts["state"],
        submit,
        facts.get("earns", {}),
        lab,
    )


def answers_in(text: str) -> dict[str, str]:
    """{grade id: source}, with magics as they are."""
    cells = jupytext.reads(text, fmt={"extension": ".py", "format_name": "percent"}).cells
    return {
        cell.metadata["nbgrader"]["grade_id"]: cell.source
        for cell in cells
        if "nbgrader" in cell.metadata
    }


def _read_module(path: Path) -> Entry:
    module = import_module(f"tests.submissions.attacks.{path.stem}")
    return Entry(
        path.stem,
        module.KIND,
        module.__doc__ or "",
        module.SEEN_BY,
        module.STATE,
        module.submit,
        getattr(module, "EARNS", {}),
    )


def released(lab: str = LAB) -> Notebook:
    """The released lab."""
    notebook: Notebook = json.loads((LABS / lab / f"{lab}.ipynb").read_text(encoding="utf-8"))
    return notebook


def save(notebook: Notebook, folder: Path, name: str = NAME) -> None:
    (folder / name).write_text(json.dumps(notebook), encoding="utf-8")
