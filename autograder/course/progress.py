"""``progress()``: the results of the student's last checks, lab by lab, with links."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from autograder import exercises
from autograder.course.checks import LastCheck, folder, last_checks
from autograder.course.pages import FRONT_PAGE, Course, Page, installed

ROOT = Path(__file__).resolve().parents[2]
# Words as well as marks: a screen reader may skip ✓.
PASSES, FAILS, OPEN = "✓", "✗", "○"
_STYLE = """<style>
.shardlab-progress { color: var(--jp-ui-font-color1, inherit); font-size: 13px; }
.shardlab-progress a { color: var(--jp-content-link-color, #0062b1); }
.shardlab-progress table.labs { border-collapse: collapse; margin: 6px 0; font-size: inherit;
  color: inherit; }
.shardlab-progress table.labs tr { background: transparent; }
.shardlab-progress table.labs tr > * { text-align: left; vertical-align: top;
  padding: 4px 20px 4px 0; border: 0; border-bottom: 1px solid var(--jp-border-color2, #cccccc);
  max-width: none; white-space: normal; }
.shardlab-progress span { display: inline-block; margin-right: 14px; white-space: nowrap; }
.shardlab-progress td:nth-child(-n+2) { white-space: nowrap !important; }
.shardlab-progress .open { color: var(--jp-ui-font-color2, inherit); }
</style>"""


def progress() -> Progress:
    """The exercises of all labs with the result of each one's last check on this computer."""
    return Progress(installed(ROOT), last_checks())


@dataclass(frozen=True)
class Progress:
    """Shown by a notebook as a table with links, elsewhere as text."""

    course: Course
    checks: Mapping[str, LastCheck]

    def exercises_of(self, lab: str) -> list[str]:
        """Full names of the lab's exercises that have a check."""
        prefix = lab.partition("_")[2]
        return [f"{prefix}.{name}" for name in exercises.lab_module(lab).EXERCISES]

    def passed(self, lab: str) -> int:
        checks = map(self.checks.get, self.exercises_of(lab))
        return sum(check is not None and check.all_pass for check in checks)

    def next_lab(self) -> Page | None:
        """The first lab with an exercise that does not pass."""
        for name, page in self.course.labs.items():
            if self.passed(name) < len(self.exercises_of(name)):
                return page
        return None

    def _lines(self) -> Iterator[tuple[str, Page | None]]:
        """What to do next; a line ends with a link to its page."""
        later = self.next_lab()
        if not self.checks and self.course.chapters:
            yield "No check has run on this computer yet. Start with", self.course.chapters[0]
        elif later and not any(name in self.checks for name in self.exercises_of(later.name)):
            yield "Next: read", self.course.chapter(later.name)
            yield "Then write", later
        elif later:
            yield "Continue with", later
        else:
            yield "Every check passes.", None

    def _repr_html_(self) -> str:
        lines = [
            f"<p>{escape(words)} {_link(page) + '.' if page else ''}</p>"
            for words, page in self._lines()
        ]
        rows = []
        for name, page in self.course.labs.items():
            all_of_it = self.exercises_of(name)
            results = "".join(self._result(exercise) for exercise in all_of_it)
            done = f"{self.passed(name)} of {len(all_of_it)}"
            rows.append(
                f'<tr data-lab="{escape(name)}" data-passed="{self.passed(name)}">'
                f"<td>{_link(page)}</td><td>{done} pass</td><td>{results}</td></tr>"
            )
        table = (
            '<table class="labs"><thead><tr><th>lab</th><th>checks</th><th>last result of each '
            f"exercise</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
        )
        kept = f"<p>Read from {escape(str(folder()))}. To start over, delete that folder.</p>"
        return f'{_STYLE}<div class="shardlab-progress">{"".join(lines)}{table}{kept}</div>'

    def _result(self, exercise: str) -> str:
        check, name = self.checks.get(exercise), escape(exercise.partition(".")[2])
        if check is None:
            return f'<span class="open" title="not checked yet">{OPEN} {name}</span>'
        said = f"{check.passed} of {check.cases} cases pass"
        if check.all_pass:
            return f'<span title="{said}">{PASSES} {name}</span>'
        return f"<span>{FAILS} {name}: {said}</span>"

    def __repr__(self) -> str:
        lines = [f"{words} {page.title if page else ''}".strip() for words, page in self._lines()]
        for name, page in self.course.labs.items():
            lines.append(f"{page.title}: {self.passed(name)} of {len(self.exercises_of(name))}")
        return "\n".join(lines)


def _link(page: Page) -> str:
    """Relative to the front page, which shows it."""
    return (
        f'<a href="{os.path.relpath(page.path, Path(FRONT_PAGE).parent)}">{escape(page.title)}</a>'
    )
