"""Bytes that a rank moves in one step: down to its host, up to its device."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from autograder.exercise import Formula, Plain, questions


def as_pair(answer: Any) -> Plain:
    """Accepts a list or a named tuple for a tuple, and fractions for numbers."""
    if not isinstance(answer, list | tuple):
        return answer
    return tuple(float(each) if isinstance(each, Fraction) else each for each in answer)


EXERCISE = Formula(
    points=3,
    cases=(
        questions(
            "ZeRO-Offload on one device",
            ("zero-offload", 10**9, 1, "bf16", 1),
            ("zero-offload", 1000, 1),
        ),
        questions("on 8 ranks, 4 micro-batches", ("zero-offload", 8000, 8, "fp16", 4)),
        questions("ZeRO-Offload in fp32", ("zero-offload", 8000, 4, "fp32", 3)),
        questions(
            "states that swap, bf16, fp16 and fp32",
            ("swap", 6000, 5, "bf16", 3),
            ("swap", 6000, 5, "fp16", 2),
            ("swap", 6000, 5, "fp32"),
        ),
        questions(
            "parameters on the host, bf16 and fp32",
            ("parameters", 6000, 4, "bf16", 2),
            ("parameters", 6000, 4, "fp32", 2),
            ("parameters", 6000, 1, "fp32", 2),
            ("parameters", 6000, 1, "fp32", 1),
        ),
    ),
    read=as_pair,
)
