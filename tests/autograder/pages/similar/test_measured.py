"""How often `similar` is wrong: the figures that docs/instructors.md states, for 12 labs.

tests/submissions/independent has eight complete answers to lab 03, written independently and in
different styles; all pass all cases. They are by one author, so real students may differ more or
less.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest

from autograder import exercises
from autograder.pages.similar.compare import Text, Work, compare
from autograder.pages.similar.read import given_code
from tests.autograder.pages.similar import disguises
from tests.submissions import planted
from tests.submissions.corpus import answers_in
from tests.submissions.planted import solution

REPO = Path(__file__).parents[4]
LAB = "03_ring_all_reduce"
LONG = 100  # tokens: about ten lines


def work(name: str, answers: dict[str, str]) -> Work:
    return Work(name, tuple(Text(cell, source) for cell, source in answers.items()))


@cache
def given(lab: str) -> list[Text]:
    return given_code(REPO / "labs" / lab / f"{lab}.ipynb", REPO / f"course/chapters/{lab}.ipynb")


@pytest.mark.parametrize(("folder", "most_shared"), [("independent", 64), ("honest", 76)])
def test_right_answers_to_the_same_lab_are_not_listed(
    folder: str, most_shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 of 36 pairs and 0 of 55, each with the course's solution. In honest/ one author wrote the
    same short `chunk_bounds` several times: pairs are compared one by one, so that this counts."""
    files = sorted((REPO / "tests/submissions" / folder).glob("*.nb.py"))
    works = [work(path.name, answers_in(path.read_text())) for path in files]
    pairs = list(combinations([*works, work("solution", solution(LAB))], 2))
    assert len(pairs) == {"independent": 36, "honest": 55}[folder]
    assert [pair for each in pairs for pair in compare(each, given(LAB)).pairs] == []
    monkeypatch.setattr("autograder.pages.similar.compare.MIN_TOKENS", 1)
    shared = [pair.tokens for each in pairs for pair in compare(each, given(LAB)).pairs]
    assert max(shared) == most_shared


def test_answers_to_different_exercises_are_not_listed() -> None:
    """0 of 1953 pairs of 12 labs."""
    answers = [
        work(cell, {cell: source})
        for lab in exercises.labs()
        for cell, source in solution(lab).items()
    ]
    pairs = list(combinations(answers, 2))
    assert len(pairs) >= 1953
    listed = [(a.student, b.student) for a, b in pairs if compare([a, b], []).pairs]
    assert listed == []


def test_solutions_with_a_planted_mistake_are_listed() -> None:
    """About 6 in 7, of more than 600 pairs in 12 labs. The others differ in more than the mistake,
    or are short."""
    listed = compared = 0
    for lab in exercises.labs():
        solved = {cell: work("", {cell: source}) for cell, source in solution(lab).items()}
        for submission in planted.of_lab(lab):
            for cell, source in submission.answers.items():
                both = [solved[cell], work("", {cell: source})] if cell in solved else []
                if both and all(each.length(each.hashes) >= LONG for each in both):
                    compared += 1
                    listed += len(compare(both, given(lab)).pairs)
    assert compared > 600
    assert listed / compared > 0.85


@pytest.mark.parametrize(
    "disguise",
    [
        disguises.renamed, disguises.other_comments, disguises.other_layout, disguises.reordered,
        disguises.all_disguises,
    ],
)  # fmt: skip
def test_disguised_copies_are_listed(disguise: Callable[[str], str]) -> None:
    """Every lab, and 191 of 200 single answers of ten lines or more in 12 labs: parentheses added
    or left out cut some of the shortest below the limit."""
    missed, answers = [], 0
    for lab in exercises.labs():
        copied = {cell: disguise(source) for cell, source in solution(lab).items()}
        given_to_all = given(lab)
        (pair,) = compare([work("a", solution(lab)), work("b", copied)], given_to_all).pairs
        assert pair.share > 0.7
        for cell, source in solution(lab).items():
            original = work("a", {cell: source})
            if original.length(original.hashes) < LONG:
                continue
            answers += 1
            if not compare([original, work("b", {cell: copied[cell]})], given_to_all).pairs:
                missed.append(cell)
    assert answers >= 40
    assert len(missed) <= 3, missed
