"""Each exercise declares what makes its check sound: boundaries, delays, equivalent answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autograder import exercises
from autograder.evaluation.decide import decide
from autograder.evaluation.trial import RankPool
from autograder.exercise import Exercise, Formula
from autograder.exercise.hidden import BOUNDARIES, EquivalentAnswer
from shardlab.ranks import codec
from shardlab.ranks.trust import Trust
from tests.submissions import planted
from tests.submissions.deciding import exercise_of

pytestmark = pytest.mark.long
EXERCISES = [(lab, exercise) for lab in exercises.labs() for exercise in exercises.of_lab(lab)]
NAMES = [exercise.name for _, exercise in EXERCISES]
EQUIVALENT = [
    pytest.param(lab, exercise, equivalent, id=f"{exercise.name}: {equivalent.new}")
    for lab, exercise in EXERCISES
    for equivalent in getattr(exercise.required_half.module, "EQUIVALENT_ANSWERS", ())
]


@pytest.mark.parametrize(("lab", "exercise"), EXERCISES, ids=NAMES)
def test_boundaries_are_declared(lab: str, exercise: Exercise) -> None:
    """Each names the case that covers it, or says why none does."""
    declared = exercise.required_half.module.BOUNDARIES
    assert set(BOUNDARIES) <= set(declared)
    names = {case.name for case in exercise.cases}
    unknown = {what for what in declared.values() if what not in names and "not tested" not in what}
    assert unknown == set()
    visible = {case.name for case in exercise.cases if not case.hidden}
    must_be_visible = BOUNDARIES if isinstance(exercise, Formula) else BOUNDARIES[:-1]
    only_hidden = {what for what in must_be_visible if declared[what] in names - visible}
    assert only_hidden == set()  # students could pass every visible case and still have them wrong


@pytest.mark.parametrize(("lab", "exercise"), EXERCISES, ids=NAMES)
def test_a_hidden_case_has_random_delays_if_ranks_communicate(lab: str, exercise: Exercise) -> None:
    on_several = [case for case in exercise.cases if case.hidden and case.world_size > 1]
    if not isinstance(exercise, Formula) and on_several and exercise.engine != "deepspeed":
        assert any(case.random_delays for case in on_several)
    assert not any(case.random_delays for case in exercise.cases if not case.hidden)


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    """Ranks shared by all answers, as one student's answers share them."""
    with RankPool(trust=Trust.UNTRUSTED) as pool:
        for _, exercise in EXERCISES:
            pool.expect(exercise, exercise.cases)
        yield pool


@pytest.mark.ranks
@pytest.mark.exhaustive
@pytest.mark.parametrize(("lab", "exercise", "equivalent"), EQUIVALENT)
def test_an_equivalent_answer_earns_all_points(
    lab: str, exercise: Exercise, equivalent: EquivalentAnswer, ranks: RankPool
) -> None:
    solution = planted.solution(lab)
    source = solution[exercise.answer]
    assert source.count(equivalent.old) == 1
    assert equivalent.reason
    answers = solution | {exercise.answer: source.replace(equivalent.old, equivalent.new)}
    subject = planted.subjects(lab, answers)[exercise.answer]
    exercise = exercise_of(lab, exercise.answer)
    verdict = decide(exercise, codec.encode_any(subject), seed=13, ranks=ranks)
    assert verdict.passed, verdict.headline
