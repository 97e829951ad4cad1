"""What a student's own check shows about the first case that fails, besides its diagnosis."""

from __future__ import annotations

from dataclasses import replace

from autograder.evaluation.verdict import CaseResult
from autograder.evaluation.wording import printable
from autograder.exercise import Attempt
from autograder.exercise.call_difference import RightCalls, first_difference
from shardlab.run import Run

MAX_LINES, MAX_LINE_CHARS = 12, 160  # of what ranks printed


def with_help(result: CaseResult, attempt: Attempt, right: RightCalls | None) -> CaseResult:
    """``right``: the solution's calls, if no named mistake explains the case."""
    differ = first_difference(attempt, right) if right else ""
    printed = _printed(attempt.run) if attempt.run else ""
    return replace(result, calls_differ=printable(differ), printed=printable(printed))


def _printed(run: Run) -> str:
    """The first lines, each marked with its rank."""
    lines = [
        f"rank {rank} printed: {line[:MAX_LINE_CHARS]}{'…' * (len(line) > MAX_LINE_CHARS)}"
        for rank, text in enumerate(run.stdout)
        for line in text.splitlines()
    ]
    left_out = len(lines) - MAX_LINES
    return "\n".join(lines[:MAX_LINES] + [f"… {left_out:,} more lines"] * (left_out > 0))
