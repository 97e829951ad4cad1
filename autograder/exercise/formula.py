"""Exercises whose answer is a formula: a plain function, called with questions on one rank."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autograder.exercise.attempt import Attempt, Finding
from autograder.exercise.compare import difference, equal, is_number, with_key
from autograder.exercise.form import Exercise, Named, Outputs
from autograder.exercise.signs import MistakeText
from autograder.guest.case import Case, Plain
from autograder.guest.on_rank import formula_results, identity

BOTH = "; and "  # joins the messages of two mistakes
Question = Any  # a list of arguments, or a dict of named ones
# (question, right answer, answer) -> what is wrong with the form of the answer, not its numbers;
# without evidence, the first difference is shown
FormSign = Callable[[Question, Plain, Plain], MistakeText]
_partial = functools.cache(functools.partial)  # one object for all submissions, pickled once


def questions(name: str, *asked: Any, weight: float = 1.0) -> Case:
    """A case of a formula: the arguments of each call, as a tuple or a dict.

    Without arguments, the hidden half's ``draw(case, rng)`` draws them.
    """
    params = {"questions": [_plain(each) for each in asked]} if asked else {}
    return Case(name, 1, params, weight=weight)


def _plain(question: Any) -> Question:
    return dict(question) if isinstance(question, Mapping) else list(question)


@dataclass(frozen=True, kw_only=True)
class Formula(Exercise):
    """``read``: converts an answer to plain data, for instance lists to pairs.

    A named mistake is reported if its wrong formula reproduces every wrong answer exactly; of
    several, the first that reproduces the right answers too, or else the first.  Two mistakes at
    once, "one; and another", must reproduce the right answers too, because there are many pairs.
    Without a mistake, the first wrong question is shown with both answers, and ``how_far`` they are
    apart.
    """

    read: Callable[[Any], Plain] = identity
    forms: tuple[FormSign, ...] = ()
    shown: Callable[[str, Question], str] | None = None  # a call in a message; None: `call_of`
    how_far: Callable[[Question, Plain, Plain], str] | None = None  # None: the ratio
    tolerance: float | None = 1e-9
    allows: frozenset[str] | None = frozenset()
    drive: Callable[[Any, Plain, Case], Plain] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "drive", _partial(formula_results, self.read))
        super().__post_init__()

    def draw(self, case: Case, rng: np.random.Generator) -> Sequence[Plain]:
        if "questions" in case.params:
            return [case.params["questions"]]
        return [[_plain(question) for question in self.required_half.draw(case, rng)]]

    def difference(self, attempt: Attempt) -> Finding | None:
        wrong = self._wrong(attempt)
        if not wrong:
            return super().difference(attempt)
        (asked,), (expected,), (got,) = attempt.inputs, attempt.expected, attempt.outputs
        question, right, answer = asked[wrong[0]], expected[wrong[0]], got[wrong[0]]
        mistake, evidence = difference(right, answer, self.tolerance) or ("", "")
        if form := self._wrong_form(question, right, answer):
            mistake, evidence = (form, evidence) if isinstance(form, str) else form
        far = self.how_far(question, right, answer) if self.how_far else _ratio(right, answer)
        return self._finding(question, mistake, evidence + far)

    def named(
        self, attempt: Attempt, among: Container[str] | None = None
    ) -> tuple[Named, ...] | None:
        if attempt.error is not None or self.difference(attempt) is None:
            return None
        wrong = self._wrong(attempt)
        (asked,), (expected,), (got,) = attempt.inputs, attempt.expected, attempt.outputs
        if not wrong or any(self._wrong_form(asked[i], expected[i], got[i]) for i in wrong):
            return ()
        first = wrong[0]
        evidence = with_key(*difference(expected[first], got[first], self.tolerance) or ("", ""))
        in_all: list[Named] = []
        in_wrong: list[Named] = []
        for mistake, outputs in self.required_half.mistakes(attempt.case, attempt.inputs, among):
            if outputs is None or all(
                outputs[0][i] is not None
                and equal(outputs[0][i], got[i], self.tolerance)
                and not equal(outputs[0][i], expected[i], self.tolerance)
                for i in wrong
            ):
                finding = self._finding(asked[first], mistake, evidence)
                found = in_all if self._agree(outputs, got) else in_wrong
                if found is in_wrong and BOTH in mistake:
                    continue
                found.append(Named(finding, is_certain=outputs is not None))
        return *in_all, *in_wrong

    def _agree(self, outputs: Outputs | None, got: Sequence[Plain]) -> bool:
        """Whether a wrong formula, where it applies, gives all of the answers, right ones too."""
        return outputs is None or all(
            each is None or equal(each, answer, self.tolerance)
            for each, answer in zip(outputs[0], got, strict=True)
        )

    def _wrong(self, attempt: Attempt) -> list[int]:
        """Indices of the questions with a wrong answer; [] if not every question has an answer."""
        (expected,), (got,) = attempt.expected, attempt.outputs
        if not isinstance(got, list) or len(got) != len(expected):
            return []
        return [i for i, right in enumerate(expected) if not equal(right, got[i], self.tolerance)]

    def _wrong_form(self, question: Question, right: Plain, got: Plain) -> MistakeText:
        return next((found for form in self.forms if (found := form(question, right, got))), None)

    def _finding(self, question: Question, mistake: str, evidence: str) -> Finding:
        call = (self.shown or call_of)(self.answer, question)
        return Finding(call, mistake, evidence, who_if_hidden=self.answer)


def call_of(answer: str, question: Question) -> str:
    """The call as Python code: ``zero_bytes(7_500_000_000, 64, stage=1)``."""
    named = isinstance(question, Mapping)
    arguments = [f"{each}={_typed(question[each])}" if named else _typed(each) for each in question]
    return f"{answer}({', '.join(arguments)})"


def _typed(value: Any) -> str:
    return f"{value:_}" if type(value) is int and abs(value) >= 10_000 else repr(value)


def _ratio(right: Plain, got: Plain) -> str:
    if not (is_number(right) and right and is_number(got) and got and np.isfinite(got)):
        return ""
    factor = f"{got / right:.4g}"
    return f", {factor} × the expected value" if factor != "1" else ""
