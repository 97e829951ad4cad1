"""Lab 08: right gradients, tight limits, slips by their names."""

from __future__ import annotations

import importlib

import cloudpickle
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from autograder.evaluation.present import as_text
from autograder.evaluation.threads import one_thread
from autograder.evaluation.trial import KeptRanks, Trials, rng_for
from autograder.evaluation.verdict import Verdict
from autograder.exercise import Attempt, Case
from autograder.exercises import (
    pipeline,
    pipeline_bubble,
    pipeline_plans,
    pipeline_run,
    pipeline_schedules,
    pipeline_zero_bubble,
)
from autograder.guest.on_rank import on_rank
from shardlab.errors import DeadlockError, Waiting
from shardlab.simulate import pipeline as library
from tests.submissions import planted

LAB = "08_pipeline"
SEED = 11
lab = importlib.import_module(f"autograder.exercises.{LAB}")
SIZES = [(2, 4), (4, 8), (4, 2), (3, 7), (8, 12), (5, 5)]


@pytest.fixture(autouse=True)
def as_in_the_checker():
    with one_thread():
        yield


def plain(schedule):
    return [[list(action) for action in actions] for actions in schedule]


def look(schedule, *sizes):
    return pipeline_plans.Look(pipeline_plans.facts_of(plain(schedule)), list(sizes))


def inputs_of(exercise, case):
    return list(exercise.draw(case, rng_for(exercise, case, SEED)))


def result_of(exercise, case, answers):
    cells = planted.subjects(LAB, planted.solution(LAB) | answers)
    blob = cloudpickle.dumps(cells[exercise.answer])
    with KeptRanks() as ranks:
        ranks.expect(exercise, [case])
        return Trials(exercise, blob, SEED, ranks).of(case)[1]


# ---- oracles and limits --------------------------------------------------------------------------


@pytest.mark.parametrize("case", lab.RUN_SCHEDULE.cases, ids=lambda case: case.name)
def test_the_oracle_is_the_gradient_of_the_mean_over_the_whole_batch(case):
    inputs = inputs_of(lab.RUN_SCHEDULE, case)
    stages = pipeline.stages_in(inputs)
    model = torch.nn.Sequential(*stages)
    batch, targets = inputs[0]["inputs"], inputs[-1]["targets"]
    loss = F.mse_loss(model(batch.flatten(0, 1)), targets.flatten(0, 1))
    loss.backward()
    torch.testing.assert_close(pipeline.loss_of_all(inputs), loss.detach())
    for rank, given in enumerate(pipeline.gradients_by_rank(case, inputs)):
        mine = stages[rank :: case.world_size]
        for stage, (weight, bias) in zip(mine, given, strict=True):
            torch.testing.assert_close(weight, stage.weight.grad)
            torch.testing.assert_close(bias, stage.bias.grad)


def test_mistakes_in_gradients_cannot_be_confused():
    case = lab.NAIVE_STEP.cases[1]
    inputs = inputs_of(lab.NAIVE_STEP, case)
    rules = [None, *(rule for rule, _ in pipeline.WRONG_PASSES)]
    first = [pipeline.gradients_by_rank(case, inputs, rule)[0][0][0] for rule in rules]
    for number, one in enumerate(first):
        for other in first[:number]:
            assert float((one - other).abs().max()) > 100 * pipeline.NEAR


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_limits_are_those_of_the_published_schedules(p, m):
    for rule, schedule in (
        (pipeline_schedules.all_of_them, library.gpipe(p, m)),
        (pipeline_schedules.until_the_first_is_back, library.one_f_one_b(p, m)),
    ):
        time = library.simulate(schedule)
        assert list(time.idle) == pipeline_schedules.filled_and_drained(p, m)
        assert list(time.peak_in_flight) == rule(p, m)
    if m % p == 0:
        time = library.simulate(library.interleaved_one_f_one_b(p, m, 2))
        assert list(time.idle) == pipeline_schedules.filled_and_drained(p, m, 2)
        wanted = pipeline_schedules.rounds_until_the_first_is_back(p, m, 2)
        assert list(time.peak_in_flight) == wanted


@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 6), (3, 3), (4, 8), (6, 14), (8, 8)])
def test_zb_h1_is_at_the_optimum_and_nothing_can_be_below(p, m):
    """The last device gets its first micro-batch after p − 1 forwards, whatever the schedule."""
    time = library.simulate(library.zb_h1(p, m))
    assert max(time.idle) == pipeline_zero_bubble.best_idles(p) == time.slots[-1][0].start
    assert max(time.peak_in_flight) == p
    worst = library.simulate(library.one_f_one_b(p, m))
    assert max(worst.idle) == pipeline_zero_bubble.one_f_one_b_idles(p)


def test_the_figures_of_the_last_question():
    """8 devices, 16 micro-batches, room for 8."""
    peaks = {
        "gpipe": max(library.simulate(library.gpipe(8, 16)).peak_in_flight),
        "1f1b": max(library.simulate(library.one_f_one_b(8, 16)).peak_in_flight),
        "interleaved": max(
            library.simulate(library.interleaved_one_f_one_b(8, 16, 2)).peak_in_flight
        )
        / 2,
        "split": max(library.simulate(library.zb_h1(8, 16)).peak_in_flight),
    }
    assert peaks == {"gpipe": 16, "1f1b": 8, "interleaved": 11.5, "split": 8}
    fractions = [
        library.simulate(schedule).bubble_fraction
        for schedule in (
            library.one_f_one_b(8, 16),
            library.interleaved_one_f_one_b(8, 16, 2),
            library.zb_h1(8, 16),
        )
    ]
    assert np.round(fractions, 3).tolist() == [0.304, 0.179, 0.127]


# ---- slips by their names ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (3 / 8, "counts against the ideal time"),
        (4 / 12, "counts p slots"),
        (4 / 11, "counts p slots"),
        (8 / 11, "busy share"),
        (300 / 11, "percent"),
        (3 / 4, "naive model parallelism"),
        (3 / 12, "m + p - 1"),
    ],
)
def test_each_slip_in_the_bubble_has_its_name(wrong, says):
    assert says in pipeline_bubble.name_wrong_fraction(4, 8, 1, 3 / 11, wrong)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (3 / 11, "forgets the chunks"),
        (3 / 22, "divides the whole fraction"),
        (6 / 14, "multiplies the bubble"),
        (3 / 16, "counts against the ideal time"),
    ],
)
def test_each_slip_with_chunks_has_its_name(wrong, says):
    assert says in pipeline_bubble.name_wrong_fraction(4, 8, 2, 3 / 19, wrong)


def warmed_up(p, m, warm_up):
    return [
        list(
            library.generators.in_turn(
                [library.Action("F", s, k) for k in range(m)],
                [library.Action("B", s, k) for k in range(m)],
                warm_up=warm_up(s),
            )
        )
        for s in range(p)
    ]


@pytest.mark.parametrize(
    ("warm_up", "says"),
    [
        (lambda s: 8, "is GPipe"),
        (lambda s: 4 - s, "by one forward"),
        (lambda s: 3, "the later the stage"),
        (lambda s: s and 0, "too briefly"),
    ],
)
def test_each_wrong_warm_up_has_its_name(warm_up, says):
    assert says in pipeline_schedules.wrong_warm_up(look(warmed_up(4, 8, warm_up), 4, 8))


def test_what_stands_there_wrongly_is_named():
    right = plain(library.one_f_one_b(2, 3))
    assert pipeline_plans.wrong_actions(look(right, 2, 3)) is None
    for wrong, says in (
        ([right[0][:-1], right[1]], "leaves out backwards"),
        ([right[0][1:], right[1]], "leaves out forwards"),
        ([[*right[0], ["F", 0, 3]], right[1]], "past the last micro-batch"),
        ([[*right[0], ["F", 0, 2]], right[1]], "twice"),
        (right[::-1], "on the wrong devices"),
    ):
        assert says in pipeline_plans.wrong_actions(look(wrong, 2, 3))


@pytest.mark.parametrize(
    "returned",
    [
        *(None, "F00", [3], [[3]], [[("F", 0)]], [[("F", "0", 0)]], {0: []}),
        *([[("F", 0, 0)] * 30_000], [[]] * 1_000_000, [[("F", 10**5000, 0)]]),
    ],
    ids=range(10),
)
def test_what_is_no_schedule_is_told_and_costs_no_time(returned):
    told = pipeline_plans.as_schedule(returned)
    assert not pipeline_plans.is_schedule(told)
    assert pipeline_plans.facts_of(told).timeline is None


def test_numpys_numbers_and_tuples_will_do():
    returned = tuple(tuple(("F", np.int64(0), k) for k in range(2)) for _ in range(1))
    assert pipeline_plans.as_schedule(returned) == [[["F", 0, 0], ["F", 0, 1]]]


class RunOf:
    """As much of a Run as budgets read."""

    def __init__(self, *outputs):
        self.outputs, self.world_size = outputs, len(outputs)


def test_what_a_rank_says_of_its_schedule_is_not_taken_for_granted():
    """Its actions are counted again where no student code runs."""
    short, whole = plain(library.gpipe(2, 1)), plain(library.gpipe(2, 4))
    honest = {"plans": [whole], "actions": [pipeline_plans.actions_of(whole)]}
    forged = {"plans": [short], "actions": honest["actions"]}
    idle = lambda facts: facts.idle  # noqa: E731
    assert pipeline_plans.measured(RunOf(honest, honest), idle) == [3, 3]
    for odd in (forged, None, {}, {"plans": 3}, {"plans": [3], "actions": [[]]}):
        found = pipeline_plans.measured(RunOf(odd, honest), idle)
        assert found == [pipeline_plans.NOT_A_SCHEDULE, 3]


def test_ranks_that_all_receive_first_are_named():
    rows = tuple(Waiting(rank, "waiting", "recv", (1 - rank,), "cell 3") for rank in range(2))
    attempt = Attempt(Case("2 ranks", 2), [], [], [], None, DeadlockError("", table=rows))
    assert "receive before they send" in pipeline.all_wait_in_recv(attempt).mistake


# ---- on ranks: other ways to be right ------------------------------------------------------------

GREEDY = """
def zero_bubble_schedule(devices, micro_batches):
    p, m = devices, micro_batches
    schedule, end, slot = [[] for _ in range(p)], {}, 0
    done = [{"F": 0, "I": 0, "W": 0} for _ in range(p)]
    while any(each["W"] < m for each in done):
        for s, each in enumerate(done):
            def there(kind, stage):
                return stage in (-1, p) or end.get((kind, stage, each[kind]), slot + 1) <= slot
            if each["I"] < each["F"] and there("I", s + 1):
                kind = "I"
            elif each["F"] < m and each["F"] - each["W"] < p and there("F", s - 1):
                kind = "F"
            elif each["W"] < each["I"]:
                kind = "W"
            else:
                continue
            schedule[s].append((kind, s, each[kind]))
            end[kind, s, each[kind]] = slot + 1
            each[kind] += 1
        slot += 1
    return schedule
"""

BATCHED = """
def naive_step(stage, x, target, shape):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    def exchange(op, tensor, peer):
        for work in dist.batch_isend_irecv([dist.P2POp(op, tensor, peer)]):
            work.wait()
        return tensor
    if rank > 0:
        x = exchange(dist.irecv, torch.empty(shape), rank - 1).requires_grad_()
    y = stage(x)
    if rank < last:
        exchange(dist.isend, y.detach(), rank + 1)
        upstream = exchange(dist.irecv, torch.empty(shape), rank + 1)
    else:
        loss = F.mse_loss(y, target)
        upstream = torch.autograd.grad(loss, y, retain_graph=True)[0]
    torch.autograd.backward(y, upstream)
    if rank > 0:
        exchange(dist.isend, x.grad, rank - 1)
    return loss if rank == last else None
"""


@pytest.mark.ranks
def test_messages_in_batches_are_as_good():
    for case in lab.NAIVE_STEP.cases:
        result = result_of(lab.NAIVE_STEP, case, {"naive_step": BATCHED})
        assert result.passed, result.diagnosis


@pytest.mark.ranks
def test_the_puzzle_pays_by_how_far_one_came_and_shows_the_score():
    """Whatever can start, starts: gradients first, then forwards, then weights."""
    exercise, answers = lab.ZERO_BUBBLE, {"zero_bubble_schedule": GREEDY}
    results = [result_of(exercise, case, answers) for case in exercise.cases[:3]]
    assert [result.passed for result in results] == [True, True, False]
    told = as_text(Verdict(exercise.name, exercise.points, tuple(results), SEED))
    assert "idles 5 slots, 1F1B 9, the optimum is 3: a score of 67%" in told
    assert "idle 5 slots of at most 3 slots" in told


@pytest.mark.ranks
def test_a_schedule_that_cannot_run_says_why_and_counts_no_slots():
    exercise = lab.GPIPE
    source = """
def gpipe_schedule(devices, micro_batches):
    every = range(micro_batches)
    return [[(kind, s, k) for kind in "BF" for k in every] for s in range(devices)]
"""
    result = result_of(exercise, exercise.cases[0], {"gpipe_schedule": source})
    told = as_text(Verdict(exercise.name, exercise.points, (result,), SEED))
    assert "needs its forward first" in told
    assert "idle – of at most 3 slots" in told


def test_what_the_drive_runs_travels():
    for exercise in lab.EXERCISES:
        blob = cloudpickle.dumps((on_rank, exercise.drive))
        assert callable(cloudpickle.loads(blob)[1])
    assert pipeline_run.across(lab.RUN_SCHEDULE.cases[0]) == [3, 3]
