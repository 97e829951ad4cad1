"""The hidden half of an exercise, in an instructor's checkout: a module of ``hidden/``.

It defines, on ranks
    reference(case, inputs)     the right outputs: a list by rank, or one thing for every rank
    MISTAKES                    {what is said of it: outputs as of ``reference``, or several such}
    facts(case)                 parameters of a case that are another exercise's answer; what is
                                this one's own, `kept_from_ranks` names
and of a formula
    right(*question)            the right answer
    MISTAKES                    {what is said of it: wrong formula, or several}; an answer of None,
                                or a division by 0, says that it does not apply
    draw(case, rng)             the questions of a hidden case that names none
and of both
    CASES                       the hidden cases
    LIMITS                      {label of a budget: case -> Limit, or None where it has none}
    BOUNDARIES                  {"one rank": name of the case that has it, or why none has}
    EQUAL_ANSWERS               changes of the solution that are right as well, each with its reason
Where a dict of outputs lacks keys, only those that it has are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autograder.exercise.budget import Limit
from autograder.exercise.form import Outputs
from autograder.exercise.on_ranks import on_every_rank
from autograder.guest.case import Case, Plain

# What every exercise says of itself: which case has it, or why it is not asked.
BOUNDARIES = ("divides", "does not divide", "one rank", "more ranks than elements")


def shaken(case: Case) -> Case:
    """Ranks pause at drawn moments: what is only right when they arrive together fails here."""
    return replace(case, shaken=True)


@dataclass(frozen=True)
class EqualAnswer:
    """``old`` in the solution's cell, replaced by ``new``, is right as well."""

    old: str
    new: str
    reason: str


@dataclass(frozen=True)
class HiddenHalf:
    """See `form.Half`."""

    module: Any

    @property
    def cases(self) -> Sequence[Case]:
        return [replace(case, hidden=True) for case in getattr(self.module, "CASES", ())]

    def facts(self, case: Case) -> Mapping[str, Plain]:
        return getattr(self.module, "facts", lambda case: {})(case)

    def draw(self, case: Case, rng: np.random.Generator) -> Plain:
        return self.module.draw(case, rng)

    def expected(self, case: Case, inputs: Sequence[Plain]) -> Outputs:
        if hasattr(self.module, "right"):
            return [[_answer(self.module.right, question) for question in inputs[0]]]
        return on_every_rank(self.module.reference(case, inputs), case)

    def mistakes(
        self, case: Case, inputs: Sequence[Plain], among: Container[str] | None = None
    ) -> Iterator[tuple[str, Outputs | None]]:
        for said, wrong in getattr(self.module, "MISTAKES", {}).items():
            if among is not None and said not in among:
                continue
            for each in wrong if isinstance(wrong, tuple) else (wrong,):
                if hasattr(self.module, "right"):
                    yield said, [[_wrong_answer(each, question) for question in inputs[0]]]
                elif (outputs := each(case, inputs)) is not None:
                    yield said, on_every_rank(outputs, case)

    def limit(self, label: str, case: Case) -> Limit | None:
        return self.module.LIMITS[label](case)


def _answer(formula: Callable[..., Plain], question: Any) -> Plain:
    return formula(**question) if isinstance(question, Mapping) else formula(*question)


def _wrong_answer(formula: Callable[..., Plain], question: Any) -> Plain:
    with suppress(ZeroDivisionError):
        return _answer(formula, question)
    return None
