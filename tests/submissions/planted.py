"""Wrong answers, with the points they lose and the checker's message.

Most are changes of the solution, in ``NN_name/ANSWER.toml``:

    [returns_the_sum]
    loses = 2.5
    says = "returns the sum, not the mean"
    diff = '''
    -    return total / dist.get_world_size()
    +    return total
    '''

`diff.changed` says what a diff may contain; `python -m tests.submissions NN_name returns_the_sum` prints
the changed answer.  Where nearly the whole answer is different, where several answers are wrong, or
a test in the browser types it, a mistake is a file ``NN_name/returns_the_sum.nb.py``: TOML in comments,
like inline script metadata, then the cells with wrong answers, by grade id.

    # /// shardlab-submission
    # lab = "03_ring_all_reduce"
    # loses = {ring_all_reduce = 2.5}
    # says = {ring_all_reduce = "returns the sum, not the mean"}
    # ///
    # %% nbgrader={"grade_id": "ring_all_reduce", "solution": true}

``cheats = true`` marks deliberate cheating; with ``typed = true`` the browser test types the answer,
after running the cell that begins with ``above``.  All other answers are from the solution.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jupytext

from autograder.exercises.hidden.answers import code_cells, solution, subjects
from tests.submissions.diff import changed

__all__ = ["Submission", "code_cells", "of_lab", "read", "solution", "subjects", "untouched"]

HEADER = re.compile(r"^# /// shardlab-submission\n((?:#.*\n)+?)# ///$", re.MULTILINE)
MARKER = re.compile(r"^ *### (?:BEGIN|END) SOLUTION\n?", re.MULTILINE)


@dataclass(frozen=True)
class Submission:
    """Either ``cells`` or ``diff`` contains the wrong answers: see `answers`."""

    name: str  # states the mistake
    lab: str
    loses: dict[str, float]  # {answer: points}
    says: dict[str, str]  # {answer: part of the message}
    cells: str = ""  # percent text
    diff: str = ""  # of the solution of the only answer in ``loses``
    cheats: bool = False
    typed: bool = False
    above: str = ""

    @property
    def answers(self) -> dict[str, str]:
        """{grade id: source of the cell}. Parsed only on access: collecting tests needs only names.

        Raises ValueError with the mistake's name if its diff does not apply to the solution.
        """
        if self.diff:
            (answer,) = self.loses
            try:
                source = changed(solution(self.lab)[answer], self.diff)
            except ValueError as error:
                raise ValueError(f"{self.lab}/{answer}.toml, {self.name}: {error}") from error
            return {answer: MARKER.sub("", source)}
        cells = jupytext.reads(self.cells, fmt="py:percent").cells
        return {
            cell.metadata["nbgrader"]["grade_id"]: cell.source
            for cell in cells
            if "nbgrader" in cell.metadata
        }


def read(path: Path) -> Submission:
    """One file with cells."""
    text = path.read_text(encoding="utf-8")
    header = HEADER.search(text)
    assert header, f"{path.name} has no header"
    facts = tomllib.loads(re.sub(r"^# ?", "", header[1], flags=re.MULTILINE))
    return Submission(name=path.name.removesuffix(".nb.py"), cells=text[header.end() :], **facts)


def read_changes(path: Path) -> Iterator[Submission]:
    """The mistakes of one answer, which the file is named after."""
    for name, facts in tomllib.loads(path.read_text(encoding="utf-8")).items():
        yield Submission(
            name=name,
            lab=path.parent.name,
            loses={path.stem: facts["loses"]},
            says={path.stem: facts["says"]},
            diff=facts["diff"],
        )


@functools.cache
def of_lab(lab: str) -> tuple[Submission, ...]:
    """Sorted by name. Raises ValueError if two mistakes have the same name."""
    folder = Path(__file__).parent / lab
    found = [read(path) for path in folder.glob("*.nb.py")]
    found += [mistake for path in folder.glob("*.toml") for mistake in read_changes(path)]
    found.sort(key=lambda mistake: mistake.name)
    names = [mistake.name for mistake in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{lab}: two mistakes are called {', '.join(sorted(twice))}")
    return tuple(found)


def untouched(lab: str) -> dict[str, str]:
    """{grade id: stub}, as in the released lab."""
    region = re.compile(r"### BEGIN SOLUTION.*?### END SOLUTION", re.DOTALL)
    return {
        grade_id: region.sub("raise NotImplementedError()", source)
        for grade_id, source in solution(lab).items()
    }
