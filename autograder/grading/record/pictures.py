"""Pictures and tables of a student's own run, for the feedback.

Drawn from the checker's plain data about visible cases; student code draws none of them.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch

from autograder.evaluation.verdict import Verdict
from autograder.exercise import Attempt, Exercise, Plain
from autograder.exercise.compare import equal
from autograder.grading.record import curves
from shardlab.widgets import memory_timeline, timeline, traffic_map

MAX_BYTES = 120_000  # of one picture; live memory of a busy step takes 80,000
MAX_CALLS = 2_000  # more do not fit a timeline, or would take too long to draw
MAX_ROWS = 12  # of a table
MAX_ITEMS = 8  # of a list in a cell of a table
MAX_TEXT = 60  # characters of a value in a cell of a table: two lines

Picture = dict[str, Any]  # title and svg; or title, heads and rows, each (is right, texts)

Row = list[Any]  # is right, [question, expected, actual]


class VisibleAttempts:
    """The visible attempts at one answer: ``decide(..., on_attempt=attempts)``."""

    def __init__(self, exercise: Exercise) -> None:
        self._exercise = exercise
        self._attempts: dict[str, Attempt] = {}

    def __call__(self, attempt: Attempt) -> None:
        if attempt.run is not None and not attempt.case.hidden:
            self._attempts[attempt.case.name] = attempt

    def pictures(self, verdict: Verdict) -> list[Picture]:
        """Of the first visible case that fails, else of the first in which ranks sent anything,
        those whose memory was recorded before others.

        If nothing of a run can be drawn: a table of expected and actual results of visible cases.
        """
        visible = [case for case in verdict.cases if case.name in self._attempts]
        if verdict.unwritten or not visible:
            return []
        failed = [self._attempts[case.name] for case in visible if not case.passed]
        passed = [self._attempts[case.name] for case in visible]
        by_worth = sorted(passed, key=lambda each: not self._exercise.records_memory(each.case))
        attempt = failed[0] if failed else next(filter(_sent, by_worth), by_worth[0])
        pictures = [
            picture
            for title, draw in self._drawings(attempt)
            for picture in _drawn(f"{title}: {attempt.case.name}", draw)
        ]
        with suppress(Exception):  # outputs may have any type
            return pictures or self._table(passed, must_show_wrong=bool(failed))
        return pictures

    def _drawings(self, attempt: Attempt) -> Iterator[tuple[str, Callable[[], str]]]:
        """(title, function that draws it)."""
        run, error = attempt.run, attempt.error
        assert run is not None
        draws_messages = self._exercise.draws_messages
        if draws_messages and _sent(attempt):
            yield "Who sent how much to whom", lambda: traffic_map(run).static_svg()
        if draws_messages and 0 < len(run.calls) <= MAX_CALLS and run.world_size > 1:
            shown = error if error is not None and error.run is not None else run
            yield "Which rank was in which call", lambda: timeline(shown).static_svg()
        if self._exercise.records_memory(attempt.case) and error is None:
            rank = int(run.memory.peak_bytes.argmax())
            yield "What was in memory", lambda: memory_timeline(run, rank).static_svg()
        if self._exercise.curves is not None and error is None:
            with suppress(Exception):
                found = self._exercise.curves(attempt)
                yield found.title, lambda: curves.draw(found)

    def _table(self, attempts: Sequence[Attempt], must_show_wrong: bool) -> list[Picture]:
        """All wrong rows, and as many right ones as there is room for.

        Empty if a case failed for another reason: a table of right answers would mislead.
        """
        rows = [row for attempt in attempts for row in self._rows(attempt)]
        if not rows or (must_show_wrong and all(is_right for is_right, _ in rows)):
            return []
        kept = sorted(range(len(rows)), key=lambda at: rows[at][0])[:MAX_ROWS]
        more = len(rows) - len(kept)
        title = "Expected results and yours"
        return [
            {
                "title": f"{title} ({more:,} more rows left out)" if more else title,
                "heads": ["", "expected", "yours"],
                "rows": [rows[at] for at in sorted(kept)],
            }
        ]

    def _rows(self, attempt: Attempt) -> Iterator[Row]:
        """For a formula a row for each question, else one for each value that a run reports."""
        if attempt.error is not None or len(attempt.outputs) != 1:
            return
        name, (given,), (wanted,), (got,) = (
            attempt.case.name, attempt.inputs, attempt.expected, attempt.outputs
        )  # fmt: skip
        asked = [(name, wanted, got)] if isinstance(wanted, dict) else []
        if isinstance(wanted, list) and isinstance(given, list) and len(given) == len(wanted):
            fits = isinstance(got, list) and len(got) == len(wanted)
            questions = [self._call(question, name) for question in given]
            asked = [*zip(questions, wanted, got if fits else [None] * len(wanted), strict=True)]
        for question, right, answer in asked:
            if not isinstance(right, dict):
                yield self._row(question, right, answer)
                continue
            for key, part in right.items():
                if _is_short(part):
                    its = answer.get(key) if isinstance(answer, dict) else answer
                    yield self._row(f"{question} · {key}", part, its)

    def _row(self, asked: str, wanted: Plain, got: Plain) -> Row:
        is_right = equal(wanted, got, self._exercise.tolerance)
        return [is_right, [_cut(asked), *self._as_texts(wanted, got)]]

    def _as_texts(self, wanted: Plain, got: Plain) -> tuple[str, str]:
        """Both as text; of long lists the first item that differs, or else the first."""
        texts = _as_text(wanted), _as_text(got)
        if max(map(len, texts)) <= MAX_TEXT:
            return texts
        lists = isinstance(wanted, list | tuple) and isinstance(got, list | tuple)
        if lists and len(wanted) == len(got) > 0:
            pairs = [*zip(wanted, got, strict=True)]
            right = [equal(*pair, self._exercise.tolerance) for pair in pairs]
            at = 0 if all(right) else right.index(False)
            item = self._as_texts(*pairs[at])
            return f"[{at}]: {item[0]}", f"[{at}]: {item[1]}"
        return _cut(texts[0]), _cut(texts[1])

    def _call(self, question: Plain, case: str) -> str:
        """A question is a function's arguments; if they have names, the case's name is enough."""
        if isinstance(question, dict):
            return case
        return f"{self._exercise.answer}({', '.join(map(_as_text, question))})"


def _cut(text: str) -> str:
    """A long text without its middle."""
    half = MAX_TEXT // 2
    return text if len(text) <= MAX_TEXT else f"{text[:half]} … {text[-half:]}"


def _sent(attempt: Attempt) -> bool:
    return attempt.run is not None and bool(attempt.run.traffic.sent_bytes.any())


def _is_short(value: Plain) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= MAX_ITEMS and all(map(_is_short, value))
    return value is None or isinstance(value, bool | int | float | str)


_QUOTE = reprlib.Repr()
_QUOTE.maxlist = _QUOTE.maxtuple = MAX_ITEMS
_QUOTE.maxstring = _QUOTE.maxother = _QUOTE.maxlong = 60


def _as_text(value: Plain) -> str:
    """A value as the text of a table's cell."""
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"
    if isinstance(value, list | tuple) and len(value) <= MAX_ITEMS and _is_short(value):
        return f"({', '.join(map(_as_text, value))})"
    return _QUOTE.repr(value)


def _drawn(title: str, draw: Callable[[], str]) -> list[Picture]:
    """One picture, or none: an error in drawing a student's run must not stop grading."""
    with suppress(Exception):
        svg = draw()
        if len(svg.encode()) <= MAX_BYTES:
            return [{"title": title, "svg": svg}]
    return []
