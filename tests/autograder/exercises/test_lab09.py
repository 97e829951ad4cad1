"""Lab 09: gradients, limits, named mistakes, and no gain from tampering."""

from __future__ import annotations

from dataclasses import replace

import cloudpickle
import numpy as np
import pytest
import torch
from torch.nn import functional

from autograder import exercises
from autograder.evaluation.present import as_text
from autograder.evaluation.trial import RankPool, Trials
from autograder.evaluation.verdict import Verdict
from autograder.exercise import Attempt, Case
from autograder.exercises.lab09_pipeline import (
    interleaved_schedule,
    naive_step,
    one_f_one_b_schedule,
    plans,
    run_schedule,
    shared,
)
from autograder.exercises.lab09_pipeline.hidden import bubble_fraction
from autograder.exercises.lab09_pipeline.hidden import shared as hidden
from shardlab.errors import DeadlockError, Waiting
from shardlab.run import Call
from shardlab.simulate import pipeline as library
from tests.autograder.attempts import run_of
from tests.submissions import planted
from tests.submissions.deciding import inputs_of

LAB = "09_pipeline"
SEED = 11
BY_ANSWER = {exercise.answer: exercise for exercise in exercises.of_lab(LAB)}
SIZES = [(2, 4), (4, 8), (4, 2), (3, 7), (8, 12), (5, 5)]


def plain(schedule):
    return [[list(action) for action in actions] for actions in schedule]


def submitted(schedule, *sizes):
    return plans.Submitted(plain(schedule), *sizes, **plans.cost_of(plain(schedule)))


def results_of(answer, source, cases=slice(None)):
    exercise = BY_ANSWER[answer]
    cells = planted.subjects(LAB, planted.solution(LAB) | {answer: source})
    with RankPool() as ranks:
        ranks.expect(exercise, exercise.cases)
        trials = Trials(exercise, cloudpickle.dumps(cells[answer]), SEED, ranks)
        return tuple(trials.run(case)[1].result for case in exercise.cases[cases])


# ---- references and limits -----------------------------------------------------------------------


@pytest.mark.parametrize("case", BY_ANSWER["run_schedule"].cases, ids=lambda case: case.name)
def test_the_reference_is_the_gradient_of_the_mean_over_the_whole_batch(case):
    inputs = inputs_of(BY_ANSWER["run_schedule"], case)
    stages = hidden.stages_in(case, inputs)
    model = torch.nn.Sequential(*stages)
    batch, targets = hidden.ends_of(inputs)
    loss = functional.mse_loss(model(batch.flatten(0, 1)), targets.flatten(0, 1))
    loss.backward()
    outputs = hidden.reference(case, inputs)
    assert [output["loss"] for output in outputs if "loss" in output] == [loss.detach()]
    for own, output in zip(shared.stages_of_ranks(case), outputs, strict=True):
        mine = [stages[number] for number in own]
        for stage, given in zip(mine, output["gradients"], strict=True):
            torch.testing.assert_close(given, [stage.weight.grad, stage.bias.grad])


@pytest.mark.parametrize("answer", ["naive_step", "run_schedule"])
def test_wrong_gradients_cannot_be_confused(answer):
    exercise = BY_ANSWER[answer]
    case = exercise.cases[1]
    inputs = inputs_of(exercise, case)
    mistakes = [outputs for _, outputs in exercise.required_half.mistakes(case, inputs)]
    wrong = [outputs for outputs in mistakes if "gradients" in outputs[0]]
    first = [exercise.expect(case, inputs)[0]["gradients"][0][0]]
    for each in wrong:
        if not torch.equal(each[0]["gradients"][0][0], first[0]):  # else only the loss is wrong
            first.append(each[0]["gradients"][0][0])
    assert len(first) > 2
    for number, one in enumerate(first):
        for other in first[:number]:
            assert float((one - other).abs().max()) > 100 * shared.TOLERANCE


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_limits_match_the_published_schedules(p, m):
    idle = [(p - 1) * plans.F_AND_B] * p
    gpipe = library.simulate(library.gpipe(p, m))
    assert (list(gpipe.idle), list(gpipe.peak_in_flight)) == (idle, [m] * p)
    time = library.simulate(library.one_f_one_b(p, m))
    assert list(time.idle) == idle
    assert list(time.peak_in_flight) == one_f_one_b_schedule.in_flight(p, m)
    if m % p == 0:
        schedule = library.interleaved_one_f_one_b(p, m, 2)
        time = library.simulate(schedule)
        assert list(time.idle) == idle
        assert list(time.peak_in_flight) == interleaved_schedule.in_flight(p, m, 2)
        with_messages = plans.cost_of(plain(schedule), interleaved_schedule.MESSAGE)["idle"]
        assert with_messages == interleaved_schedule.idle(p, m, 2)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 4, 2), (4, 12, 3), (8, 16, 4)])
def test_messages_that_take_time_need_megatrons_warm_up(p, m, v):
    """With instantaneous messages, half of that warm-up adds no idle time."""
    short = [
        list(
            library.generators.alternate(
                [action for action in actions if action.kind == "F"],
                [action for action in actions if action.kind == "B"],
                warm_up=(v - 1) * p + p - 1 - device,
            )
        )
        for device, actions in enumerate(library.interleaved_one_f_one_b(p, m, v))
    ]
    assert list(library.simulate(short).idle) == [(p - 1) * plans.F_AND_B] * p
    idle = plans.cost_of(plain(short), interleaved_schedule.MESSAGE)["idle"]
    assert min(idle) > interleaved_schedule.idle(p, m, v)[0]


@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 6), (3, 3), (4, 8), (6, 14), (8, 8)])
def test_zb_h1_reaches_the_lower_bound(p, m):
    """The last device gets its first micro-batch after p - 1 forwards, whatever the schedule."""
    time = library.simulate(library.zb_h1(p, m))
    assert max(time.idle) == p - 1 == time.slots[-1][0].start
    assert max(time.peak_in_flight) == p
    assert max(library.simulate(library.one_f_one_b(p, m)).idle) == 3 * (p - 1)


def test_the_numbers_in_the_answer_to_the_last_question():
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


# ---- named mistakes ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", bubble_fraction.MISTAKES)
def test_each_wrong_formula_is_named(name):
    exercise = BY_ANSWER["bubble_fraction"]
    case = exercise.cases[-1]
    inputs = inputs_of(exercise, case)
    expected = exercise.expect(case, inputs)
    for mistake, outputs in exercise.required_half.mistakes(case, inputs):
        if mistake == name:
            named = exercise.named(Attempt(case, inputs, expected, outputs, None, None))
            assert [each.finding.mistake for each in named] == [name]


def test_a_warm_up_of_another_length_is_named():
    rule = plans.wrong_warm_up(library.one_f_one_b, "devices - 1 - stage")
    assert rule(submitted(library.one_f_one_b(4, 8), 4, 8)) is None
    mistake, evidence = rule(submitted(library.gpipe(4, 8), 4, 8))
    assert mistake.startswith("has a warm-up of the wrong length: devices - 1 - stage forwards")
    assert evidence == "device 0: first backward after 8 forwards, not 4"


def test_each_kind_of_wrong_action_is_named():
    right = plain(library.one_f_one_b(2, 3))
    assert plans.wrong_actions(submitted(right, 2, 3)) is None
    for wrong, mistake, evidence in (
        ([right[0][:-1], right[1]], "leaves out actions", "('B', 0, 2) is missing"),
        (
            [[*right[0][:-1], ["F", 0, 0]], right[1]],
            "leaves out actions",
            "('B', 0, 2) is missing, ('F', 0, 0) is extra",
        ),
        (
            [[[kind, k, s] for kind, s, k in each] for each in right],
            "leaves out actions",
            "('F', 0, 2) is missing, ('F', 2, 0) is extra",
        ),
        ([[*right[0], ["F", 0, 2]], right[1]], "has an action twice", "('F', 0, 2) is extra"),
        (
            [[*right[0], ["I", 0, 2]], right[1]],
            "has an action twice",
            "('I', 0, 2) is extra, a B counts as an I and a W",
        ),
        ([[*right[0], ["B", 0, -1]], right[1]], "does not exist", "('B', 0, -1) is extra"),
    ):
        found = plans.wrong_actions(submitted(wrong, 2, 3))
        assert mistake in found[0]
        assert found[1] == evidence
    assert "on the wrong devices" in plans.wrong_actions(submitted(right[::-1], 2, 3))


def test_an_unknown_schedule_is_described_by_its_first_different_action():
    in_twos = [[[kind, s, k + n] for k in (0, 2) for kind in "FB" for n in (0, 1)] for s in (0, 1)]
    rule = plans.differs_from("1F1B", library.one_f_one_b)
    expected = ("differs from 1F1B", "device 0, action 3: ('B', 0, 1), not ('F', 0, 2)")
    assert rule(submitted(in_twos, 2, 4)) == expected


@pytest.mark.parametrize(
    "returned",
    [
        *(None, "F00", [3], [[3]], [[("F", 0)]], [[("F", "0", 0)]], {0: []}),
        *([[("F", 0, 0)] * 30_000], [[]] * 1_000_000, [[("F", 10**5000, 0)]]),
    ],
    ids=range(10),
)
def test_an_invalid_schedule_is_described_and_rejected_quickly(returned):
    reason = plans.as_schedule(returned)
    assert isinstance(reason, str)
    assert plans.cost_of(reason)["rule"] == "form"


def test_what_is_not_a_schedule_is_quoted():
    assert plans.as_schedule(None) == "it is None: is a return missing?"
    reason = plans.as_schedule([[("F", "a stage", "a micro-batch of many names")]])
    assert reason == "('F', 'a stage', 'a micro-batch of many … is not (kind, stage, micro_batch)"


def test_stages_without_gradients_are_named():
    for gradients, had, says in (
        ([[None, None]], [True], "zero_grad() after the backward"),
        ([[1, 1], [None, None]], [True, False], "has a stage without gradients"),
        ([[1, 1]], [True], None),
    ):
        outputs = [{"gradients": gradients, "had_gradients": had}] * 2
        attempt = Attempt(Case("", 2), [{}] * 2, [{}] * 2, outputs, None, None)
        found = shared.no_gradients(attempt)
        assert says in found.mistake if says else found is None


def test_numpy_integers_and_tuples_are_accepted():
    returned = tuple(tuple(("F", np.int64(0), k) for k in range(2)) for _ in range(1))
    assert plans.as_schedule(returned) == [[["F", 0, 0], ["F", 0, 1]]]


def test_where_splitting_is_allowed_whole_and_split_backwards_may_be_mixed():
    mixed = [[["F", 0, 0], ["F", 0, 1], ["B", 0, 0], ["I", 0, 1], ["W", 0, 1]]]
    assert plans.wrong_actions(submitted(mixed, 1, 2)) is None
    assert plans.is_complete(mixed, [1, 2], may_split=True)
    assert not plans.is_complete(mixed, [1, 2], may_split=False)


def call(rank, op, peer, tag=0, end_s=1.0, dtype="float32"):
    return Call(rank, op, 8, peer, (0, 1), 0.0, end_s, "cell 3", 1, dtype, (2,), 0, 2, tag)


def deadlock(calls, *states):
    rows = tuple(
        Waiting(rank, "waiting" if state else "finished", state, (1 - rank,), "cell 3")
        for rank, state in enumerate(states)
    )
    error = DeadlockError("", table=rows)
    return Attempt(Case("2 ranks", 2), [], [], [None] * 2, run_of(calls), error)


@pytest.mark.parametrize(
    ("calls", "states", "says"),
    [
        (
            [call(0, "recv", 1, end_s=None), call(1, "recv", 0, end_s=None)],
            ("recv from rank 1", "recv from rank 0"),
            "rank 0 waits in a receive before it sends",
        ),
        (
            [
                call(0, "send", 1),
                call(0, "recv", 1, end_s=None),
                call(1, "recv", 0),
            ],
            ("recv from rank 1", ""),
            "rank 1 returns before it sends",
        ),
    ],
    ids=["both receive first", "early return"],
)
def test_the_message_that_never_arrives_is_named(calls, states, says):
    sign = shared.message_never_arrives(naive_step.in_turn)
    assert says in sign(deadlock(calls, *states)).text(hidden=False)


def test_a_rank_that_waits_for_an_earlier_message_is_not_blamed():
    """Rank 0 blocks in a send, so rank 1's wait is not its own mistake."""
    calls = [call(0, "send", 1, end_s=None), call(1, "send", 0, end_s=None)]
    attempt = deadlock(calls, "send to rank 1", "send to rank 0")
    assert shared.message_never_arrives(naive_step.in_turn)(attempt) is None


@pytest.mark.parametrize("is_right", [True, False])
def test_a_send_that_blocks_is_named_only_after_the_calls_of_a_right_run(is_right):
    plan = plain(library.one_f_one_b(2, 3))
    of_rank_1 = [call(1, "recv", 0)] * is_right + [call(1, "send", 0, end_s=None)]
    calls = [call(0, "send", 1), call(0, "send", 1, end_s=None), *of_rank_1]
    attempt = deadlock(calls, "send to rank 1", "send to rank 0")
    attempt = replace(attempt, case=Case("2 ranks", 2, {"plan": plan}))
    assert bool(run_schedule.waits_in_send(attempt)) is is_right


def test_a_result_of_another_action_is_named():
    """On real ranks it depends on the timing whether a changed tensor is sent."""
    of_rank_0 = {"used": [], "made": [["F", 0, 0, 5], ["F", 0, 1, 7]]}
    outputs = [of_rank_0, {"used": [["F", 1, 0, 7]], "made": []}]
    attempt = Attempt(Case("2 ranks", 2), [], [], outputs, None, None)
    assert "tags" in run_schedule.confuses_messages(attempt).mistake


# ---- costs claimed by student code are ignored ---------------------------------------------------


class FakeRun:
    """The part of a Run that budgets read."""

    def __init__(self, *outputs):
        self.outputs, self.world_size = outputs, len(outputs)


def test_costs_are_computed_where_no_student_code_runs():
    case = next(case for case in BY_ANSWER["gpipe_schedule"].cases if not case.params["runs"])
    whole = [plain(library.gpipe(*sizes)) for sizes in case.params["asked"]]
    claims = {"costs": [{"idle": [0]}], "is_complete": True}
    used = plans.measured("idle")
    for given, expected in ((whole, True), ([[]] * len(whole), False)):
        output = plans.execute([{"plans": given, **claims}], None, case)
        assert output["asked"] == case.params["asked"]
        assert output["is_complete"] is expected
        limit = BY_ANSWER["gpipe_schedule"].budgets[0].limit(case).most
        assert used(FakeRun({"plans": given, **claims, **output})) == [limit if expected else -1]


@pytest.mark.parametrize("output", [None, 3, {}, {"costs": []}])
def test_a_rank_without_costs_has_no_schedule(output):
    right = {"costs": [plans.cost_of(plain(library.gpipe(2, 4)))], "asked": [[2, 4]]}
    assert plans.measured("idle")(FakeRun(output, right)) == [plans.NOT_A_SCHEDULE, 3]


def test_a_device_does_not_make_up_for_another():
    case = next(case for case in BY_ANSWER["gpipe_schedule"].cases if not case.params["runs"])
    costs = [plans.cost_of(plain(library.gpipe(*sizes))) for sizes in case.params["asked"]]
    costs[0]["idle"] = [costs[0]["idle"][0] + 1, 0, 0]
    idle, limit = BY_ANSWER["gpipe_schedule"].budgets[0], BY_ANSWER["gpipe_schedule"].budgets[0]
    used = idle.used(FakeRun({"costs": costs, "asked": case.params["asked"]}))
    assert used[0] == limit.limit(case).most + 1


PATCHES_THE_SIMULATOR = """
def gpipe_schedule(devices, micro_batches):
    from shardlab.simulate.pipeline import simulator
    simulator.PipelineTimeline.idle = property(lambda time: (0,) * devices)
    simulator.simulate.__code__ = (lambda *_: None).__code__
    return [[(kind, s, k) for k in range(micro_batches) for kind in "FB"] for s in range(devices)]
"""


@pytest.mark.ranks
def test_patching_the_simulator_does_not_change_the_verdict():
    for result in results_of("gpipe_schedule", PATCHES_THE_SIMULATOR):
        assert "runs a backward before the last forward" in result.diagnosis


# ---- on ranks: other correct answers -------------------------------------------------------------

SIMULATES = """
def gpipe_schedule(devices, micro_batches):
    from shardlab.simulate.pipeline import simulate
    every = range(micro_batches)
    schedule = [
        [("F", s, k) for k in every] + [("B", s, k) for k in every] for s in range(devices)
    ]
    assert simulate(schedule).peak_in_flight[0] == micro_batches
    return schedule
"""

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


RECEIVES_IN_ADVANCE = """
def run_schedule(schedule, stages, inputs, targets, shape):
    rank_of = {s: rank for rank, actions in enumerate(schedule) for _, s, _ in actions}
    mine, last, boxes = schedule[dist.get_rank()], max(rank_of), {}
    for kind, s, k in mine:
        source = s - 1 if kind == "F" else s + 1
        if source in rank_of:
            box = torch.empty(shape)
            boxes[kind, s, k] = box, dist.irecv(box, rank_of[source], tag=k)
    kept, sent, loss = {}, [], None
    for kind, s, k in mine:
        got = None
        if (kind, s, k) in boxes:
            got, work = boxes.pop((kind, s, k))
            work.wait()
        if kind == "F":
            x = inputs[k] if s == 0 else got.requires_grad_()
            y = stages[s](x)
            if s == last:
                y = F.mse_loss(y, targets[k]) / len(targets)
                loss = y.detach() + (0 if loss is None else loss)
            else:
                sent.append((y.detach(), dist.isend(y.detach(), rank_of[s + 1], tag=k)))
            kept[s, k] = x, y
        else:
            x, y = kept.pop((s, k))
            y.backward(got, retain_graph=True)
            if s > 0:
                sent.append((x.grad, dist.isend(x.grad, rank_of[s - 1], tag=k)))
    for _, work in sent:
        work.wait()
    return loss
"""


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("answer", "source"),
    [
        ("naive_step", BATCHED),
        ("gpipe_schedule", SIMULATES),
        ("run_schedule", RECEIVES_IN_ADVANCE),
    ],
)
def test_other_correct_answers_pass(answer, source):
    for result in results_of(answer, source):
        assert result.passed, result.diagnosis


@pytest.mark.ranks
def test_the_puzzle_gives_partial_credit_and_shows_the_score():
    """The greedy answer starts whatever can start: gradients, then forwards, then weights."""
    results = results_of("zero_bubble_schedule", GREEDY, slice(3))
    assert [result.passed for result in results] == [True, True, False]
    text = as_text(Verdict("pipeline.zero_bubble_schedule", 5, results, SEED))
    assert "idles 4 slots, 1F1B 9, the optimum is 3: a score of 83%" in text
    assert "idle 4 slots, limit ≤ 3 slots" in text


@pytest.mark.ranks
def test_a_schedule_that_cannot_run_is_explained_and_has_no_slots():
    source = """
def gpipe_schedule(devices, micro_batches):
    every = range(micro_batches)
    return [[(kind, s, k) for kind in "BF" for k in every] for s in range(devices)]
"""
    results = results_of("gpipe_schedule", source, slice(1))
    text = as_text(Verdict("pipeline.gpipe_schedule", 3, results, SEED))
    assert "needs its forward first" in text
    assert "idle –, limit ≤ 9 slots" in text
