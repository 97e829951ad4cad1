"""Pictures of a student's own run, for the feedback: who sent what to whom, and when."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from autograder.exercise import Attempt
from autograder.verdict import Verdict
from shardlab.errors import LaunchError
from shardlab.run import Run
from shardlab.widgets import timeline, traffic_map

MAX_BYTES = 60_000  # of one picture
MAX_CALLS = 2_000  # that a timeline can show, or that a student should make us draw

Picture = dict[str, str]  # title, svg


class Seen:
    """The visible attempts at one answer: ``grade.decide(..., on_attempt=seen)``."""

    def __init__(self) -> None:
        self._runs: dict[str, tuple[Run, LaunchError | None]] = {}

    def __call__(self, attempt: Attempt) -> None:
        if attempt.run is not None and not attempt.case.hidden:
            self._runs[attempt.case.name] = (attempt.run, attempt.error)

    def pictures(self, verdict: Verdict) -> list[Picture]:
        """Of the first visible case that fails, else of the first one; none of silent ranks."""
        visible = [case for case in verdict.cases if case.name in self._runs]
        if verdict.unwritten or not visible:
            return []
        name = next((case.name for case in visible if not case.passed), visible[0].name)
        run, error = self._runs[name]
        pictures = []
        if run.traffic.sent_bytes.any():
            pictures += _drawn(f"Who sent how much to whom: {name}", lambda: traffic_map(run))
        if 0 < len(run.calls) <= MAX_CALLS:
            of = error if error is not None and error.run is not None else run
            pictures += _drawn(f"Which rank was in which call: {name}", lambda: timeline(of))
        return pictures


def _drawn(title: str, draw: Callable[[], object]) -> list[Picture]:
    """One picture, or none: what a student's ranks did must not stop a grade."""
    with suppress(Exception):
        svg = draw().static_svg()  # type: ignore[attr-defined]
        if len(svg.encode()) <= MAX_BYTES:
            return [{"title": title, "svg": svg}]
    return []
