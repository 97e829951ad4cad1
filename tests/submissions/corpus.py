"""Submissions that mean harm, and honest ones that look odd: a file each, named by what they do.

``NAME.nb.py`` holds answers by grade id, as in planted.py, below a header:

    # /// shardlab-submission
    # lab = "03_ring_all_reduce"
    # kind = "forging"            forging, theft, destruction, smuggling, distributed; or honest
    # tries = "..."               what it is up to
    # seen_by = "points"          how it would be seen that it did harm, see below
    # state = "graded"            the one that it ends in, whatever the machine is like
    # earns = {chunk_bounds = 2}  points at most (honest: exactly); 0 for answers not named
    # ///

All other answers are the blanks that students find.  ``NAME.py`` does what text cannot: its
``hand_in(place)`` lays out the submission, and its constants are the header.  In the text @HOME@,
@COURSE@, @MARK@, @HOST@ and @PORT@ stand for the very places on the grader's machine: an attacker
is taken to know them.

Harm is seen by *points* not earned; by *loot*, the word LOOT in anything that was recorded of the
submission; by a *canary*, a file that is new or changed in home, course or /tmp; by *neighbours*
whose records differ from those of a quiet class; by *survivors* that bear the mark.  All of these
are looked for with each; ``seen_by`` names the one that is to the point.
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
LAB = "03_ring_all_reduce"
NAME = f"{LAB}.ipynb"
LABS = HERE.parents[1] / "labs"  # a test may hand in another course's
Notebook = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a submission is handed in, and what its attacker knows of the machine."""

    folder: Path  # submitted/STUDENT/LAB
    course: Path
    home: Path
    mark: str
    neighbour: Path  # another student's folder of the same lab
    port: int = 0  # somebody listens there, on the machine's loopback
    host: str = ""  # the machine's other address

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
    hand_in: Callable[[Place], None]
    earns: Mapping[str, float] = field(default_factory=dict)


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
    answers = answers_in(text[header.end() :])

    def hand_in(place: Place) -> None:
        notebook = released()
        for cell in notebook["cells"]:
            if cell["id"] in answers:
                cell["source"] = place.filled_in(answers[cell["id"]])
        save(notebook, place.folder)

    return Entry(
        path.name.removesuffix(".nb.py"),
        facts["kind"],
        facts["tries"],
        facts["seen_by"],
        facts["state"],
        hand_in,
        facts.get("earns", {}),
    )


def answers_in(text: str) -> dict[str, str]:
    """{grade id: source}; magics stay as they are."""
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
        module.hand_in,
        getattr(module, "EARNS", {}),
    )


def released() -> Notebook:
    """The lab as students get it."""
    notebook: Notebook = json.loads((LABS / LAB / NAME).read_text(encoding="utf-8"))
    return notebook


def save(notebook: Notebook, folder: Path, name: str = NAME) -> None:
    (folder / name).write_text(json.dumps(notebook), encoding="utf-8")
