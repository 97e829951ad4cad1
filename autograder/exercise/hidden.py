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

from collections.abc import Callable, Iterator, Mapping, Sequence
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
        return [replace(case, hidden=True) for case in self._has("CASES", ())]

    def facts(self, case: Case) -> Mapping[str, Plain]:
        facts: Mapping[str, Plain] = self._has("facts", lambda case: {})(case)
        return facts

    def draw(self, case: Case, rng: np.random.Generator) -> Plain:
        return self.module.draw(case, rng)

    def expected(self, case: Case, inputs: Sequence[Plain]) -> Outputs:
        return self._outputs(case, inputs, self._has("right", None), self._has("reference", None))

    def mistakes(self, case: Case, inputs: Sequence[Plain]) -> Iterator[tuple[str, Outputs | None]]:
        for said, wrong in self._has("MISTAKES", {}).items():
            for each in wrong if isinstance(wrong, tuple) else (wrong,):
                if hasattr(self.module, "right"):
                    yield said, self._outputs(case, inputs, _or_none(each), None)
                elif (outputs := each(case, inputs)) is not None:
                    yield said, on_every_rank(outputs, case)

    def limit(self, label: str, case: Case) -> Limit | None:
        limits: Mapping[str, Callable[[Case], Limit | None]] = self._has("LIMITS", {})
        return limits[label](case)

    def _outputs(
        self, case: Case, inputs: Sequence[Plain], formula: Any, reference: Any
    ) -> Outputs:
        if formula is None:
            return on_every_rank(reference(case, inputs), case)
        (asked,) = inputs
        return [[formula(**q) if isinstance(q, Mapping) else formula(*q) for q in asked]]

    def _has(self, name: str, otherwise: Any) -> Any:
        return getattr(self.module, name, otherwise)


def _or_none(formula: Callable[..., Plain]) -> Callable[..., Plain]:
    def wrong(*question: Any, **named: Any) -> Plain:
        try:
            return formula(*question, **named)
        except ZeroDivisionError:
            return None

    return wrong
