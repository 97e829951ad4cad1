"""What the feedback shows of a student's own run, made from plain data only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from autograder import exercises
from autograder.evaluation.trial import rng_for
from autograder.evaluation.verdict import CaseResult, Verdict
from autograder.exercise import Attempt, Case, Curves, Exercise, Plain
from autograder.grading.record import curves
from autograder.grading.record.pictures import MAX_BYTES, MAX_ROWS, VisibleAttempts
from shardlab.run import Run, Traffic
from shardlab.run.live_memory import CATEGORIES, Memory, RankMemory

SEED = 5


def run_of(outputs: Sequence[Plain], sent: Sequence[Sequence[int]] | None = None) -> Run:
    n = len(outputs)
    traffic = Traffic(np.array(sent if sent else np.zeros((n, n), np.int64)), "made by hand")
    memory = Memory([memory_of(1000 + rank) for rank in range(n)])
    nothing = [""] * n
    return Run(n, "cpu", "", list(outputs), nothing, nothing, traffic, [], 0.1, 0.2, _memory=memory)


def memory_of(most: int) -> RankMemory:
    live = {name: np.array([0, most if name == "activations" else 0, 0]) for name in CATEGORIES}
    most_by_name = {name: int(values.max()) for name, values in live.items()}
    return RankMemory(np.array([0.0, 0.1, 0.2]), live, (), 0.1, most_by_name, most_by_name)


def attempt_at(exercise: Exercise, case: Case, got: Plain = None, **facts: Any) -> Attempt:
    """A right attempt, or one in which the only rank returned ``got``."""
    inputs = list(exercise.draw(case, rng_for(exercise, case, SEED)))
    expected = list(exercise.expect(case, inputs))
    outputs = [got] if got is not None else expected
    return Attempt(case, inputs, expected, outputs, run_of(outputs, **facts), None)


def pictures_of(
    exercise: Exercise, attempts: Sequence[Attempt], failing: Sequence[str] = ()
) -> list[dict[str, Any]]:
    visible_attempts = VisibleAttempts(exercise)
    for attempt in attempts:
        visible_attempts(attempt)
    cases = [
        CaseResult(case.name, case.hidden, 1.0, case.name not in failing) for case in exercise.cases
    ]
    return visible_attempts.pictures(Verdict(exercise.name, 5.0, tuple(cases), SEED))


def visible(exercise: Exercise) -> list[Case]:
    return [case for case in exercise.cases if not case.hidden]


def test_a_formula_is_shown_with_its_questions() -> None:
    exercise = exercises.load("ring_all_reduce.chunk_bounds")
    first, *others = visible(exercise)
    wrong = [[[0, 1], [1, 2], [2, 3], [3, 12]]]
    attempts = [attempt_at(exercise, first, wrong)]
    attempts += [attempt_at(exercise, case) for case in others]
    (table,) = pictures_of(exercise, attempts, [first.name])
    assert table["rows"][0] == [
        False,
        [
            "chunk_bounds(12, 4)",
            "((0, 3), (3, 6), (6, 9), (9, 12))",
            "((0, 1), (1, 2), (2, 3), (3, 12))",
        ],
    ]
    assert all(is_right for is_right, _ in table["rows"][1:])
    assert 1 < len(table["rows"]) <= MAX_ROWS


def test_long_results_are_shortened_to_what_differs() -> None:
    exercise = exercises.load("ring_all_reduce.chunk_bounds")
    case = visible(exercise)[0]
    right = [[k * 10**17, (k + 1) * 10**17] for k in range(8)]
    wrong = [*right[:5], [right[5][0] + 1, right[5][1]], *right[6:]]
    question = [8 * 10**17, 8]
    attempt = Attempt(case, [[question]], [[right]], [[wrong]], run_of([[wrong]]), None)
    (table,) = pictures_of(exercise, [attempt], [case.name])
    ((is_right, (_, wanted, got)),) = table["rows"]
    assert not is_right
    assert wanted == "[5]: (500,000,000,000,000,000, 600,000,000,000,000,000)"
    assert got == "[5]: (500,000,000,000,000,001, 600,000,000,000,000,000)"
    long = Attempt(case, [[question]], [["a" * 50]], [[10**55]], run_of([[0]]), None)
    (table,) = pictures_of(exercise, [long], [case.name])
    assert all(len(text) < 70 for text in table["rows"][0][1])


def test_messages_of_our_own_functions_are_not_drawn_as_the_students() -> None:
    around = [[8 if b == (a + 1) % 4 else 0 for b in range(4)] for a in range(4)]
    for name, titles in (
        ("ring_all_reduce.ring_all_reduce", []),
        ("ring_all_reduce.all_gather", ["Who sent how much to whom"]),
    ):
        exercise = exercises.load(name)
        case = next(case for case in visible(exercise) if case.world_size == 4)
        pictures = pictures_of(exercise, [attempt_at(exercise, case, sent=around)])
        assert [picture["title"].partition(":")[0] for picture in pictures] == titles


def test_a_dict_has_a_row_for_each_key() -> None:
    exercise = exercises.load("one_device.step_bytes")
    case = visible(exercise)[0]
    (table,) = pictures_of(exercise, [attempt_at(exercise, case)])
    assert [texts[0] for _, texts in table["rows"]] == [
        f"{case.name} · {name}" for name in ("parameters", "gradients", "optimizer", "activations")
    ]
    assert table["rows"][0] == [True, ["fp32, Adam · parameters", "19,488", "19,488"]]


def test_right_numbers_are_not_shown_if_the_case_failed_for_another_reason() -> None:
    exercise = exercises.load("one_device.step_bytes")
    case = visible(exercise)[0]
    assert pictures_of(exercise, [attempt_at(exercise, case)], [case.name]) == []


@pytest.mark.parametrize("lab", exercises.labs())
def test_hidden_cases_are_in_no_table(lab: str) -> None:
    for exercise in exercises.of_lab(lab):
        visible_attempts = VisibleAttempts(exercise)
        hidden = [case for case in exercise.cases if case.hidden]
        for case in hidden:
            visible_attempts(Attempt(case, [[1]], [[1]], [[1]], run_of([[1]]), None))
        results = tuple(CaseResult(case.name, case.hidden, 1.0, False) for case in exercise.cases)
        assert visible_attempts.pictures(Verdict(exercise.name, 5.0, results, SEED)) == []


@pytest.mark.parametrize(
    "got",
    [7, "text", [], [None], {}, [{"a": 1}], [10**5000], [float("nan")], [[]] * 50, [b"\x00" * 9999],
     ["<script>" * 9999], [np.zeros(3)], [object()]],
)  # fmt: skip
def test_an_output_of_any_type_does_not_stop_grading(got: Plain) -> None:
    for name in ("ring_all_reduce.chunk_bounds", "one_device.step_bytes"):
        exercise = exercises.load(name)
        case = visible(exercise)[0]
        for table in pictures_of(exercise, [attempt_at(exercise, case, got)], [case.name]):
            for _, texts in table["rows"]:
                assert all(type(text) is str and len(text) < 1000 for text in texts)


def test_memory_is_drawn_where_it_was_recorded() -> None:
    exercise = exercises.load("one_device.accumulate")
    (picture,) = pictures_of(exercise, [attempt_at(exercise, visible(exercise)[0])])
    assert picture["title"] == "What was in memory: 12 equal micro-batches"
    assert "Live memory by category" in picture["svg"]
    assert len(picture["svg"]) <= MAX_BYTES


def test_the_scale_of_each_rank_is_drawn_next_to_the_expected_one() -> None:
    exercise = exercises.load("one_device.DynamicLossScaler")
    alone, _, several = visible(exercise)[:3]
    sent = [[0 if a == b else 8 for a in range(3)] for b in range(3)]
    attempts = [attempt_at(exercise, alone), attempt_at(exercise, several, sent=sent)]
    traffic, scale = pictures_of(exercise, attempts)
    assert traffic["title"] == f"Who sent how much to whom: {several.name}"  # not `alone`
    assert scale["title"] == f"log₂ of the scale: {several.name}"
    assert all(name in scale["svg"] for name in ("rank 0", "rank 1", "rank 2", "expected"))


@pytest.mark.parametrize("path", [[], [float("nan")] * 3, "abc", None, 7])
def test_a_path_of_any_type_does_not_stop_grading(path: Plain) -> None:
    exercise = exercises.load("one_device.sgd_with_master_weights")
    case = visible(exercise)[0]
    right = attempt_at(exercise, case).expected[0]
    assert all("svg" not in p or p["svg"].startswith("<svg") for p in pictures_of(
        exercise, [attempt_at(exercise, case, {**right, "state": [], "path": path})]
    ))  # fmt: skip


def test_curves_have_gaps_and_labels() -> None:
    svg = curves.draw(Curves("a < b", {"yours": [1.0, float("inf"), 2.0]}, level=1.5))
    assert "a &lt; b" in svg
    assert "expected at the end" in svg
    with pytest.raises(ValueError, match="no finite number"):
        curves.draw(Curves("nothing", {"yours": [float("nan")]}))
