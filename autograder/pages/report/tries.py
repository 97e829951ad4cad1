"""How many tries exercises took, as stored by students' own checks in the submitted notebooks.

Students can edit a notebook, so these numbers are used only for a median of the class.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable

from autograder.course.tries import Tries, from_metadata


def tries_in(submitted: bytes | None, lab: str) -> dict[str, Tries]:
    """{answer: tries} in a notebook as submitted; empty if it cannot be read.

    If an exercise was checked in several cells, the output with the most tries counts.
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
            found[answer] = max(tries, found.get(answer, tries), key=lambda one: one.total)
    return found


def median_tries(counts: Iterable[int]) -> float | None:
    """The median of the students with at least one try; None if there are none."""
    known = [count for count in counts if count]
    return statistics.median(known) if known else None
