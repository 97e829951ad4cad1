"""How many tries exercises took, as students' own checks stored it in the notebooks they submitted.

Anybody can edit a notebook, so these are numbers for a median of the class, and nothing else.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable

from autograder.course.tries import Tries, from_metadata


def tries_in(submitted: bytes | None, lab: str) -> dict[str, Tries]:
    """{answer: tries} of a notebook as submitted; empty if it cannot be read.

    Of an exercise that was checked in several cells, the output with the most tries counts.
    """
    try:
        cells = json.loads(submitted or b"")["cells"]
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
        stored = [from_metadata(output.get("metadata")) for output in outputs]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    found: dict[str, Tries] = {}
    for exercise, tries in filter(None, stored):
        chapter, _, answer = exercise.partition(".")
        if chapter == lab.partition("_")[2]:
            found[answer] = max(tries, found.get(answer, tries), key=lambda each: each.total)
    return found


def median_tries(counts: Iterable[int]) -> float | None:
    """Of the students with at least one; None if there are none."""
    known = [count for count in counts if count]
    return statistics.median(known) if known else None
