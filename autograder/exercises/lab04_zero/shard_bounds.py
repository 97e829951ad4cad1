"""Where each rank's slice of the flat parameters begins and ends."""

from __future__ import annotations

from typing import Any

import numpy as np

from autograder.exercise import Formula, Plain, questions
from autograder.exercises.common import as_pairs, is_pairs


def wrong_form(question: list[Any], right: Plain, bounds: Plain) -> str | None:
    sizes, world_size = question
    if not is_pairs(bounds):
        return None
    if len(bounds) != world_size:
        return "should return one pair per rank: world_size pairs"
    length, end = sum(sizes), bounds[-1][1]
    lengths = [stop - start for start, stop in bounds]
    if end == length and len(set(lengths[:-1])) == 1 and lengths[-1] > lengths[0]:
        return "gives the last rank the rest: pad so that all slices are equal"
    if {edge for pair in bounds for edge in pair} <= set(np.cumsum([0, *sizes]).tolist()):
        return "splits by layer: a slice may begin and end in the middle of a parameter"
    if end == length:
        return "forgets the padding: the last slice ends at a multiple of N"
    if len(set(lengths)) > 1:
        return "makes unequal slices: collectives need the same length on every rank"
    if end < length:
        return "drops the last elements: N slices of ⌊Ψ/N⌋ do not cover Ψ"
    return "pads too much: a slice has ⌈Ψ/N⌉ elements"


EXERCISE = Formula(
    points=2,
    cases=(
        questions("parameters of 3, 4 and 3 for 4 ranks", ([3, 4, 3], 4)),
        questions("parameters of 100 and 7 for 8 ranks", ([100, 7], 8)),
    ),
    read=as_pairs,
    forms=(wrong_form,),
)
