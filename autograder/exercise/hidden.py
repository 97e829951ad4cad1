"""The hidden half of an exercise, in an instructor's checkout: a module of ``hidden/``.

For an exercise on ranks it defines
    reference(case, inputs)     the correct outputs: a list by rank, or one value for every rank
    MISTAKES                    {message: function like ``reference`` with the mistake, or several}
    facts(case)                 parameters of a case that come from another exercise's reference
                                (see also `kept_from_ranks`)
for a formula
    right(*question)            the correct answer
    MISTAKES                    {message: wrong formula, or several}; if one returns None or divides
                                by 0, the mistake does not apply
    draw(case, rng)             the questions of a hidden case that lists none
and for both
    CASES                       the hidden cases
    LIMITS                      {label of a budget: case -> Limit, or None if there is none}
    BOUNDARIES                  {"one rank": name of the case that covers it, or why none does}
    EQUIVALENT_ANSWERS          other correct versions of the solution, each with its reason
If a reference output is a dict, only its keys are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autograder.exercise.budget import Limit
from autograder.exercise.form import Outputs
from autograder.exercise.on_ranks import on_every_rank
from autograder.guest.case import Case, Plain

# For each boundary an exercise names the case that covers it, or says why none does.
BOUNDARIES = ("divides", "does not divide", "one rank", "more ranks than elements")


def with_random_delays(case: Case) -> Case:
    """The case runs twice, with each rank's calls delayed: the ranks in a random order, then in the
    reverse order.  Thus each of two ranks overtakes the other wherever nothing synchronizes them,
    and an answer that depends on their timing fails."""
    return replace(case, random_delays=True)


@dataclass(frozen=True)
class EquivalentAnswer:
    """The solution stays correct if ``old`` in its cell is replaced by ``new``."""

    old: str
    new: str
    reason: str


@dataclass(frozen=True)
class HiddenHalf:
    """See `form.Half`. ``solution``: reads the course's answer, which it keeps elsewhere."""

    module: Any
    solution: Callable[[], object | None] = lambda: None

    @property
    def cases(self) -> Sequence[Case]:
        return [replace(case, hidden=True) for case in getattr(self.module, "CASES", ())]

    @property
    def equivalent_answers(self) -> Sequence[EquivalentAnswer]:
        return getattr(self.module, "EQUIVALENT_ANSWERS", ())

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
        for message in getattr(self.module, "MISTAKES", {}):
            if among is None or message in among:
                for outputs in self.outputs_with(message, case, inputs):
                    yield message, outputs

    def outputs_with(self, message: str, case: Case, inputs: Sequence[Plain]) -> Iterable[Outputs]:
        """The outputs of each wrong reference with this mistake that applies to the case."""
        wrong = self.module.MISTAKES[message]
        for each in wrong if isinstance(wrong, tuple) else (wrong,):
            if hasattr(self.module, "right"):
                yield [[_wrong_answer(each, question) for question in inputs[0]]]
            elif (outputs := each(case, inputs)) is not None:
                yield on_every_rank(outputs, case)

    def limit(self, label: str, case: Case) -> Limit | None:
        return self.module.LIMITS[label](case)

    def right_calls(self, case: Case) -> None:
        return None


def _answer(formula: Callable[..., Plain], question: Any) -> Plain:
    return formula(**question) if isinstance(question, Mapping) else formula(*question)


def _wrong_answer(formula: Callable[..., Plain], question: Any) -> Plain:
    with suppress(ZeroDivisionError):
        return _answer(formula, question)
    return None
