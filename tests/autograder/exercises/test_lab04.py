"""Lab 04: references against plain training, named mistakes, other right answers."""

from __future__ import annotations

from itertools import combinations

import cloudpickle
import pytest
import torch

from autograder import exercises
from autograder.evaluation.judge import judge
from autograder.evaluation.trial import RankPool, Trials
from autograder.exercise import Attempt
from autograder.exercises.common import linear_of
from autograder.exercises.lab04_zero import shared, zero1_adamw
from autograder.exercises.lab04_zero.hidden import shard_bounds, zero_bytes
from autograder.exercises.lab04_zero.hidden import shared as rules
from autograder.exercises.lab04_zero.hidden import zero1_adamw as hidden1
from autograder.exercises.lab04_zero.hidden import zero2_backward as hidden2
from autograder.exercises.lab04_zero.hidden import zero3_linear as hidden3
from shardlab.estimate import memory, traffic
from tests.submissions import planted
from tests.submissions.deciding import inputs_of

LAB = "04_zero"
SEED = 11
ZERO_BYTES, SHARD_BOUNDS, *ON_RANKS = exercises.of_lab(LAB)
ZERO1_ADAMW, ZERO2_BACKWARD, ZERO3_LINEAR = ON_RANKS


def case_of(exercise, name):
    return next(case for case in exercise.cases if case.name == name)


def whole_batch(batches):
    return [torch.cat(side) for side in zip(*batches, strict=True)]


# ---- references ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ZERO1_ADAMW.cases, ids=lambda case: case.name)
def test_the_reference_of_stage_1_is_adamw_on_all_batches_together(case):
    inputs = inputs_of(ZERO1_ADAMW, case)
    model = shared.mlp([tensor.clone() for tensor in inputs[0]["layers"]])
    adamw = torch.optim.AdamW(model.parameters(), **zero1_adamw.ADAMW)
    for step in range(case.params["steps"]):
        adamw.zero_grad()
        batch = whole_batch([given["batches"][step] for given in inputs])
        shared.loss_of(model, batch).backward()
        adamw.step()
    trained = [parameter.detach() for parameter in model.parameters()]
    for expected in ZERO1_ADAMW.expect(case, inputs):
        for parameter, right in zip(expected["parameters"], trained, strict=True):
            torch.testing.assert_close(
                parameter, right, rtol=shared.TOLERANCE / 5, atol=shared.TOLERANCE / 5
            )


@pytest.mark.parametrize("case", ZERO2_BACKWARD.cases, ids=lambda case: case.name)
def test_the_slices_of_stage_2_are_the_gradient_of_all_batches_together(case):
    inputs = inputs_of(ZERO2_BACKWARD, case)
    model = shared.mlp([tensor.clone() for tensor in inputs[0]["layers"]])
    last = [given["batches"][-1] for given in inputs]
    shared.loss_of(model, whole_batch(last)).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    buckets = shared.buckets_of(gradients, case)
    for rank, expected in enumerate(ZERO2_BACKWARD.expect(case, inputs)):
        slices = []
        for bucket in buckets:
            start, stop = shard_bounds.right([each.numel() for each in bucket], case.world_size)[
                rank
            ]
            slices.append(rules.flatten(bucket, case.world_size)[start:stop])
        for got, right in zip(expected["slices"][-1], slices, strict=True):
            torch.testing.assert_close(
                got, right, rtol=shared.TOLERANCE / 5, atol=shared.TOLERANCE / 5
            )


def test_buckets_are_in_the_order_of_backward():
    case = case_of(ZERO2_BACKWARD, "3 ranks, buckets of 3, 1 and 4 parameters")
    given = inputs_of(ZERO2_BACKWARD, case)[0]
    model = shared.mlp(given["layers"])
    arrived = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda it: arrived.append(id(it)))
    shared.loss_of(model, given["batches"][0]).backward()
    buckets = shared.buckets_of(list(model.parameters()), case)
    for bucket in buckets:
        assert {id(parameter) for parameter in bucket} == set(arrived[: len(bucket)])
        del arrived[: len(bucket)]


BY_RULE = {"Zero1AdamW": hidden1.reference, "zero2_backward": hidden2.by_rank}
BY_RULE["Zero3Linear"] = hidden3.by_rank


@pytest.mark.parametrize(
    ("exercise", "case"),
    [
        pytest.param(exercise, case, id=f"{exercise.answer}: {case.name}")
        for exercise in ON_RANKS
        for case in exercise.cases
    ],
)
def test_rounding_stays_far_below_the_tolerance_and_wrong_rules_far_above(exercise, case):
    """Right answers differ only in the order of additions."""
    inputs = inputs_of(exercise, case)

    def by(rule):
        return flat_of(BY_RULE[exercise.answer](case, inputs, rule))

    right = by(rules.mean)
    halved = by(lambda gradients: gradients.half().float().mean(0))
    # In a smaller Zero1AdamW model, updates are few and small.
    if exercise is not ZERO1_ADAMW or case.params["widths"][0] > 100:
        assert difference(right, halved) > 2 * exercise.tolerance
    reordered = by(lambda gradients: gradients.flip(0).sum(0) / len(gradients))
    assert difference(right, reordered) < exercise.tolerance / 5
    wrong = rules.WRONG_RULES.values()
    for one, other in combinations([right, *map(by, wrong)], 2):
        assert difference(one, other) > 20 * exercise.tolerance


def flat_of(nested):
    if isinstance(nested, torch.Tensor):
        return nested.flatten()
    return torch.cat([flat_of(each) for each in getattr(nested, "values", lambda: nested)()])


def difference(one, other):
    """The largest difference, absolute for small numbers and relative for large ones."""
    return float(((one - other).abs() / one.abs().clamp(min=1)).max())


# ---- arithmetic ---------------------------------------------------------------------------------


def test_bytes_of_the_papers_first_example():
    """arXiv 1910.02054, figure 1: 7.5B on 64 ranks, 120 GB without, 31.4 GB at stage 1."""
    assert sum(zero_bytes.right(7_500_000_000, 64, 0, False).values()) == 120e9
    assert sum(zero_bytes.right(7_500_000_000, 64, 1, False).values()) == 31.40625e9


@pytest.mark.parametrize("case", ZERO_BYTES.cases, ids=lambda case: case.name)
def test_bytes_match_the_library(case):
    (asked,) = inputs_of(ZERO_BYTES, case)
    for parameters, n, stage, *offload in asked:
        states = memory.model_states(
            parameters, stage=stage, world_size=n, offload_optimizer=offload == [True]
        )
        wanted = {**states.device, "host": states.host_bytes}
        assert zero_bytes.right(parameters, n, stage, *offload) == pytest.approx(wanted)


def test_the_figures_of_the_last_question():
    """7B on 8 GPUs of 48 GB, a third kept free; ring halves with eight micro-batches."""
    states = [memory.model_states(7e9, stage=stage, world_size=8) for stage in range(4)]
    assert [each.device_bytes for each in states] == [112e9, 38.5e9, 26.25e9, 14e9]
    half = traffic.sent_bytes("ddp", 7e9, 8)[0] / 2
    stage2 = traffic.sent_bytes("zero2", 7e9, 8, micro_batches=8, sync="micro_batch")[0]
    stage3 = traffic.sent_bytes("zero3", 7e9, 8, micro_batches=8, sync="micro_batch")[0]
    assert (stage2 / half, stage3 / half) == (9, 24)


def diagnosis_of(exercise, case, answers):
    """The diagnosis of a formula's answers to a case's questions."""
    inputs = inputs_of(exercise, case)
    attempt = Attempt(case, inputs, exercise.expect(case, inputs), [answers(inputs[0])], None, None)
    return judge(exercise, attempt).result.diagnosis


STAGE_1 = {"optimizer": lambda n: 12 / n, "gradients": lambda n: 2, "parameters": lambda n: 2}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"optimizer": lambda n: 8 / n}, "counts the wrong optimizer states"),
        ({"optimizer": lambda n: 4 / n}, "counts the wrong optimizer states"),
        ({"optimizer": lambda n: 16 / n}, "counts the wrong optimizer states"),
        ({"optimizer": lambda n: 12}, "does not divide what a stage shards: the optimizer"),
        ({"gradients": lambda n: 2 / n}, "divides what a stage does not shard: the gradients"),
        (
            {"gradients": lambda n: 2 / n, "parameters": lambda n: 2 / n},
            "divides what a stage does not shard: the parameters and the gradients",
        ),
        ({"optimizer": lambda n: 12 / 8}, "divides by 8"),
        ({"optimizer": lambda n: 7 / n}, "in 'optimizer'"),
    ],
)
def test_each_mistake_in_the_bytes_is_named(changed, says):
    """Wrong at stage 1; right at the other stages."""

    def answers(asked):
        wrong = STAGE_1 | changed
        return [
            {**{name: size(n) * parameters for name, size in wrong.items()}, "host": 0}
            if stage == 1
            else zero_bytes.right(parameters, n, stage, offload)
            for parameters, n, stage, offload in asked
        ]

    assert says in diagnosis_of(ZERO_BYTES, case_of(ZERO_BYTES, "the paper's table, 7.5B"), answers)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            lambda sizes, n: {name: size * 2**30 / 1e9 for name, size in sizes.items()},
            "counts GB as GiB",
        ),
        (lambda sizes, n: sizes | {"host": sizes["host"] * n}, "does not divide"),
    ],
)
def test_answers_in_other_units_are_named(wrong, says):
    def answers(asked):
        return [wrong(zero_bytes.right(*question), question[1]) for question in asked]

    assert says in diagnosis_of(
        ZERO_BYTES, case_of(ZERO_BYTES, "10B with offload on 7 ranks"), answers
    )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda psi, n: [(r * psi // n, (r + 1) * psi // n) for r in range(n)], "unequal slices"),
        (lambda psi, n: rows(psi // n, n), "rounds wrongly"),
        (lambda psi, n: rows(psi // n + 1, n), "rounds wrongly"),
        (
            lambda psi, n: [(a, min(b, psi)) for a, b in rows(-(-psi // n), n)],
            "makes unequal slices",
        ),
        (lambda psi, n: [(a, b - 1) for a, b in rows(-(-psi // n), n)], "flat[start:stop]"),
        (lambda psi, n: [(a, b - a) for a, b in rows(-(-psi // n), n)], "flat[start:stop]"),
        (lambda psi, n: rows(-(-psi // n), n)[:-1], "one pair per rank"),
        (lambda psi, n: rows(-(-psi // n) + n, n), "gives the wrong number"),
    ],
)
def test_each_mistake_in_the_bounds_is_named(wrong, says):
    case = SHARD_BOUNDS.cases[0]

    def answers(asked):
        return [wrong(sum(sizes), n) for sizes, n in asked]

    assert says in diagnosis_of(SHARD_BOUNDS, case, answers)


def test_the_mistake_that_explains_every_answer_is_named():
    """On 5 ranks, one more element in each slice has the same effect, but not on one rank."""

    def answers(asked):
        return [rows(sum(-(-size // n) for size in sizes), n) for sizes, n in asked]

    says = diagnosis_of(SHARD_BOUNDS, SHARD_BOUNDS.cases[0], answers)
    assert "pads each parameter by itself" in says


def test_whole_gradients_on_the_host_are_named():
    """On 3 ranks they would take as many bytes as 1/3 of gradients in fp32, in addition."""

    def answers(asked):
        sizes = [zero_bytes.right(*question) for question in asked]
        hosts = [2 * psi + 12 * psi / n for psi, n, *_ in asked]
        return [each | {"host": host} for each, host in zip(sizes, hosts, strict=True)]

    says = diagnosis_of(ZERO_BYTES, case_of(ZERO_BYTES, "10B with offload on 7 ranks"), answers)
    assert "does not divide what a stage shards: the gradients" in says


def rows(length, n):
    return [(rank * length, (rank + 1) * length) for rank in range(n)]


# ---- on ranks: other right answers, other mistakes -----------------------------------------------

HAND_WRITTEN_ADAM = """
class Zero1AdamW:
    def __init__(self, parameters, lr, betas, eps, weight_decay):
        self.parameters, self.world_size = parameters, dist.get_world_size()
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.flat = flatten(parameters, self.world_size)
        view_into(self.flat, parameters)
        sizes = [parameter.numel() for parameter in parameters]
        self.start, self.stop = shard_bounds(sizes, self.world_size)[dist.get_rank()]
        self.first, self.second = (torch.zeros(STATES) for _ in range(2))
        self.steps = 0

    def step(self):
        own, (fast, slow) = self.flat[self.start : self.stop], self.betas
        flat = flatten([parameter.grad for parameter in self.parameters], self.world_size)
        gradient = reduce_scatter(flat) / self.world_size
        self.steps += 1
        first, second = (state[: len(own)] for state in (self.first, self.second))
        first.mul_(fast).add_(gradient, alpha=1 - fast)
        second.mul_(slow).addcmul_(gradient, gradient, value=1 - slow)
        size = (second / (1 - slow**self.steps)).sqrt() + self.eps
        own.mul_(1 - self.lr * self.weight_decay)
        own.sub_(self.lr * first / (1 - fast**self.steps) / size)
        dist.all_gather_single(self.flat, own)
"""


def result_of(exercise, case, answers):
    subject = planted.subjects(LAB, answers)[exercise.answer]
    with RankPool() as ranks:
        ranks.expect(exercise, [case])
        return Trials(exercise, cloudpickle.dumps(subject), SEED, ranks).run(case)[1].result


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("states", "passes"), [("self.stop - self.start", True), ("len(self.flat)", False)]
)
def test_states_of_a_hand_written_adam_count_like_those_of_torch(states, passes):
    exercise = ZERO1_ADAMW
    source = HAND_WRITTEN_ADAM.replace("STATES", states)
    answers = planted.solution(LAB) | {"Zero1AdamW": source}
    result = result_of(exercise, case_of(exercise, "4 ranks, 1 MiB of parameters"), answers)
    assert result.passed == passes, result.diagnosis
    if not passes:
        assert result.outputs_right
        assert "no states and no second copy of all parameters" in result.diagnosis


SIZES = {
    "only the first parameter": "[parameters[0].numel()]",
    "all but the last": "[p.numel() for p in parameters[:-1]]",
    "the padded length": "[len(self.flat)]",
}


@pytest.mark.ranks
def test_an_answer_may_call_shard_bounds_for_any_consecutive_parameters():
    calls = "\n        ".join(f"shard_bounds({sizes}, self.world_size)" for sizes in SIZES.values())
    source = planted.solution(LAB)["Zero1AdamW"]
    at = "self.own = self.flat[start:stop]"
    assert at in source
    for more, says in ((calls, ""), ("shard_bounds([4, 1], 3)", "only consecutive parameters")):
        changed = {"Zero1AdamW": source.replace(at, f"{at}\n        {more}")}
        result = result_of(ZERO1_ADAMW, ZERO1_ADAMW.cases[0], planted.solution(LAB) | changed)
        assert result.passed == (not says)
        assert says in result.diagnosis


@pytest.mark.ranks
@pytest.mark.parametrize("exercise", [ZERO1_ADAMW, ZERO3_LINEAR], ids=["Zero1", "Zero3"])
def test_a_mistake_in_shard_bounds_costs_nothing_later(exercise):
    wrong = {mistake.name: mistake for mistake in planted.of_lab(LAB)}["last_rank_takes_the_rest"]
    result = result_of(exercise, exercise.cases[0], planted.solution(LAB) | wrong.answers)
    assert result.passed, result.diagnosis


def test_layers_share_storage_with_the_tensors_they_are_made_of():
    """So that a drive can free them: what stays live is what the answer keeps."""
    weight, bias = inputs_of(ZERO3_LINEAR, ZERO3_LINEAR.cases[0])[0]["layers"]
    layer = linear_of(weight, bias)
    assert isinstance(layer, torch.nn.Linear)
    assert layer.weight.data_ptr() == weight.data_ptr()
    assert layer.bias.data_ptr() == bias.data_ptr()
