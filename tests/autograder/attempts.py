"""An exercise whose right output is 1 on every rank, and attempts at it, made without ranks."""

from __future__ import annotations

import numpy as np

from autograder.exercise import Attempt, Case
from shardlab.ranks.trust import Trust
from shardlab.run import Call, Run, Traffic
from tests.autograder.exercise_halves import on_ranks

VISIBLE = Case("2 ranks", 2)
HIDDEN = Case("2 ranks, 987 elements", 2, hidden=True)


def exercise(cases=(VISIBLE, HIDDEN), **more):
    return on_ranks(
        name="lab.answer",
        points=4,
        cases=cases,
        inputs=lambda case, rng: 0,
        drive=lambda subject, given, case: subject,
        reference=lambda case, inputs: 1,
        **more,
    )


def run_of(calls=(), sent=((0, 10), (10, 0)), collectives=None):
    traffic = Traffic(np.array(sent), "test", collectives=collectives)
    return Run(2, "cpu", "", [1, 1], ["", ""], ["", ""], traffic, list(calls), 0.1, 0.2)


def call(op, rank=0):
    return Call(rank, op, 4, None, (0, 1), 0.0, 0.1, "cell 5, line 3", 1, "float32", (1,), 0, 1)


def attempt(case=VISIBLE, outputs=(1, 1), run=None, error=None, spent=(), trust=Trust.OWN):
    known, n = run or run_of(), case.world_size
    return Attempt(case, [0] * n, [1] * n, list(outputs), known, error, tuple(spent), trust)
