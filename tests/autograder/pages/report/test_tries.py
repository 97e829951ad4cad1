"""Tries in a submitted notebook, which may contain anything."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autograder.course.tries import MAX_MISTAKES, MAX_TRIES, Tries
from autograder.pages.report.tries import tries_in

LAB = "03_ring_all_reduce"
NAME = "ring_all_reduce.all_gather"
SHOWN = Tries(4, 3, {"sends first": 2})


def notebook(*metadata: Any) -> bytes:
    """A notebook with one output for each metadata, and a cell without outputs."""
    outputs = [{"output_type": "display_data", "metadata": each} for each in metadata]
    return json.dumps({"cells": [{"source": "text"}, {"outputs": outputs}]}).encode()


def test_the_output_with_the_most_tries_counts() -> None:
    earlier, other = Tries(2), Tries(1).as_metadata("zero.all_gather")
    outputs = [earlier.as_metadata(NAME), SHOWN.as_metadata(NAME), {}, other]
    assert tries_in(notebook(*outputs), LAB) == {"all_gather": SHOWN}


def forged(**changes: Any) -> dict[str, Any]:
    stored = SHOWN.as_metadata(NAME)
    stored["shardlab"]["tries"] |= changes
    return stored


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        [],
        {"shardlab": "5"},
        {"shardlab": {"exercise": NAME, "tries": []}},
        forged(total=-1),
        forged(total=MAX_TRIES + 1),
        forged(total=10**400),
        forged(total=True),
        forged(total=3.5),
        forged(total=float("nan")),
        forged(to_pass="3"),
        forged(mistakes={"sends first": -1}),
        forged(mistakes={"x" * 10_000: 1}),
        forged(mistakes={str(n): 1 for n in range(MAX_MISTAKES + 1)}),
    ],
)
def test_metadata_that_no_check_stores_is_ignored(metadata: Any) -> None:
    kept = Tries(1).as_metadata("ring_all_reduce.chunk_bounds")
    assert tries_in(notebook(metadata, kept), LAB) == {"chunk_bounds": Tries(1)}


@pytest.mark.parametrize(
    "content",
    [None, b"", b"PK\x03\x04", b"\xff\xfe\x00", b"[" * 100_000, b"[]", b'{"cells": 1}',
     b'{"cells": [1]}', b'{"cells": [{"outputs": 1}]}', b'{"cells": [{"outputs": [1]}]}'],
)  # fmt: skip
def test_a_file_that_is_not_a_notebook_has_no_tries(content: bytes | None) -> None:
    assert tries_in(content, LAB) == {}
