"""Lab 04: oracles against plain training, slips that cannot be confused, other right answers."""

from __future__ import annotations

import importlib
from itertools import combinations

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from autograder.evaluation.threads import one_thread
from autograder.evaluation.trial import KeptRanks, Trials, rng_for
from autograder.exercises import zero, zero_sizes, zero_stage1, zero_stage2, zero_stage3
from shardlab.estimate import memory, traffic
from tests.submissions import planted

LAB = "04_zero"
SEED = 11
lab = importlib.import_module(f"autograder.exercises.{LAB}")
ON_RANKS = [lab.ZERO1_ADAMW, lab.ZERO2_BACKWARD, lab.ZERO3_LINEAR]
CASES = [
    pytest.param(exercise, case, id=f"{exercise.answer}: {case.name}")
    for exercise in ON_RANKS
    for case in exercise.cases
]


@pytest.fixture(autouse=True)
def as_in_the_checker():
    with one_thread():
        yield


def inputs_of(exercise, case):
    return list(exercise.draw(case, rng_for(exercise, case, SEED)))


def case_of(exercise, name):
    return next(case for case in exercise.cases if case.name == name)


def whole_batch(batches):
    return [torch.cat(side) for side in zip(*batches, strict=True)]


# ---- oracles ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", lab.ZERO1_ADAMW.cases, ids=lambda case: case.name)
def test_the_oracle_of_stage_1_is_adamw_on_all_batches_together(case):
    inputs = inputs_of(lab.ZERO1_ADAMW, case)
    model = zero.mlp([tensor.clone() for tensor in inputs[0]["layers"]])
    adamw = torch.optim.AdamW(model.parameters(), **zero_stage1.ADAMW)
    for step in range(zero_stage1.STEPS):
        adamw.zero_grad()
        zero.loss_of(model, whole_batch([given["batches"][step] for given in inputs])).backward()
        adamw.step()
    expected = lab.ZERO1_ADAMW.expect(case, inputs)
    for tensors in expected:
        for parameter, wanted in zip(model.parameters(), tensors["parameters"], strict=True):
            torch.testing.assert_close(parameter.detach(), wanted, rtol=0, atol=zero.NEAR / 5)


@pytest.mark.parametrize("case", lab.ZERO2_BACKWARD.cases, ids=lambda case: case.name)
def test_the_slices_of_stage_2_are_the_gradient_of_all_batches_together(case):
    inputs = inputs_of(lab.ZERO2_BACKWARD, case)
    model = zero.mlp([tensor.clone() for tensor in inputs[0]["layers"]])
    zero.loss_of(model, whole_batch([given["batch"] for given in inputs])).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    expected = lab.ZERO2_BACKWARD.expect(case, inputs)
    for i, bucket in enumerate(zero_stage2.buckets_of(gradients, case)):
        together = torch.cat([of_rank["slices"][i] for of_rank in expected])
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        torch.testing.assert_close(together[: len(flat)], flat, rtol=0, atol=zero.NEAR / 5)
        assert not together[len(flat) :].any()
        assert len({len(of_rank["slices"][i]) for of_rank in expected}) == 1


def test_buckets_come_as_backward_reaches_them():
    case = case_of(lab.ZERO2_BACKWARD, "3 ranks, 2 layers in a bucket")
    given = inputs_of(lab.ZERO2_BACKWARD, case)[0]
    model = zero.mlp(given["layers"])
    arrived = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda it: arrived.append(id(it)))
    zero.loss_of(model, given["batch"]).backward()
    buckets = zero_stage2.buckets_of(list(model.parameters()), case)
    assert len(buckets) == 2
    first = {id(parameter) for parameter in buckets[0]}
    assert set(arrived[: len(first)]) == first


@pytest.mark.parametrize(("exercise", "case"), CASES)
def test_a_right_answer_is_far_within_the_tolerance_and_wrong_rules_far_outside(exercise, case):
    """Right answers differ in the order of additions only."""
    inputs = inputs_of(exercise, case)
    by_rule = {
        "Zero1AdamW": lambda rule: zero_stage1.trained(inputs, rule),
        "zero2_backward": lambda rule: zero_stage2.backward_slices(case, inputs, rule),
        "Zero3Linear": lambda rule: zero_stage3.unit_slices(case, inputs, rule),
    }[exercise.answer]
    right = flat_of(by_rule(zero.mean))
    reordered = flat_of(by_rule(lambda gradients: gradients.flip(0).sum(0) / len(gradients)))
    assert difference(right, reordered) < exercise.tolerance / 5
    rules = [rule for rule, _ in zero.WRONG_RULES]
    if case.world_size == 2:
        del rules[-1]  # N − 1 is 1 there: the sum
    different = [right, *(flat_of(by_rule(rule)) for rule in rules)]
    for one, other in combinations(different, 2):
        assert difference(one, other) > 20 * exercise.tolerance


def flat_of(nested):
    if isinstance(nested, torch.Tensor):
        return nested.flatten()
    return torch.cat([flat_of(each) for each in nested])


def difference(one, other):
    """The largest, absolute for small numbers and relative for large ones."""
    return float(((one - other).abs() / one.abs().clamp(min=1)).max())


# ---- arithmetic ---------------------------------------------------------------------------------


def test_bytes_of_the_papers_first_example():
    """arXiv 1910.02054, figure 1: 7.5B on 64 ranks, 120 GB without, 31.4 GB at stage 1."""
    assert sum(zero_sizes.right_bytes(7_500_000_000, 64, 0, False).values()) == 120e9
    assert sum(zero_sizes.right_bytes(7_500_000_000, 64, 1, False).values()) == 31.40625e9


def test_the_figures_of_the_last_question():
    """7B on 8 GPUs of 48 GB, a third kept free; halves of a ring with eight micro-batches."""
    states = [memory.model_states(7e9, stage=stage, world_size=8) for stage in range(4)]
    assert [each.device_bytes for each in states] == [112e9, 38.5e9, 26.25e9, 14e9]
    half = traffic.sent_bytes("ddp", 7e9, 8)[0] / 2
    stage2 = traffic.sent_bytes("zero2", 7e9, 8, micro_batches=8, sync="micro_batch")[0]
    stage3 = traffic.sent_bytes("zero3", 7e9, 8, micro_batches=8, sync="micro_batch")[0]
    assert (stage2 / half, stage3 / half) == (9, 24)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"optimizer": 8 * 10**9 / 64}, "forgets the fp32 master"),
        ({"optimizer": 16 * 10**9 / 64}, "counts a gradient in fp32 as well"),
        ({"optimizer": 12 * 10**9}, "does not divide the optimizer"),
        ({"gradients": 2 * 10**9 / 64}, "divides the gradients"),
        ({"optimizer": 12 * 10**9 / 63}, "divides by N - 1"),
        ({"optimizer": 12 * 10**9 / 64**2}, "divides by N twice"),
        ({"optimizer": 12 * 10**9 / 8}, "divides by 8"),
    ],
)
def test_each_slip_in_the_bytes_has_its_name(changed, says):
    question = [10**9, 64, 1, False]
    wanted = zero_sizes.right_bytes(*question)
    assert says in zero_sizes.name_wrong_bytes(question, wanted, wanted | changed)


def test_answers_in_other_units_are_named():
    question = [10**9, 64, 2, True]
    wanted = zero_sizes.right_bytes(*question)
    for factor, says in ((1e-9, "in GB"), (2.0**-30, "in GB"), (2**30 / 1e9, "GB as GiB")):
        got = {name: size * factor for name, size in wanted.items()}
        assert says in zero_sizes.name_wrong_bytes(question, wanted, got)


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ([(0, 3), (3, 6), (6, 8), (8, 10)], "forgets the padding"),
        ([(0, 3), (3, 6), (6, 9), (9, 10)], "forgets the padding"),
        ([(0, 2), (2, 4), (4, 6), (6, 10)], "gives the last rank the rest"),
        ([(0, 3), (3, 7), (7, 10), (10, 10)], "splits by layer"),
        ([(0, 2), (2, 4), (4, 6), (6, 8)], "drops the last elements"),
        ([(0, 4), (4, 8), (8, 12), (12, 16)], "pads too much"),
        ([(0, 3), (3, 6), (6, 9)], "one pair for each rank"),
    ],
)
def test_each_slip_in_the_bounds_has_its_name(bounds, says):
    assert zero.shard_bounds([3, 4, 3], 4) == [(0, 3), (3, 6), (6, 9), (9, 12)]
    assert says in zero_sizes.name_wrong_bounds([3, 4, 3], 4, bounds)


# ---- on ranks: other ways to be right, other ways to be wrong ------------------------------------

BY_HAND = """
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
    with KeptRanks() as ranks:
        ranks.expect(exercise, [case])
        return Trials(exercise, cloudpickle.dumps(subject), SEED, ranks).of(case)[1]


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("states", "passes"), [("self.stop - self.start", True), ("len(self.flat)", False)]
)
def test_states_by_hand_count_like_those_of_torch(states, passes):
    exercise = lab.ZERO1_ADAMW
    answers = planted.solution(LAB) | {"Zero1AdamW": BY_HAND.replace("STATES", states)}
    result = result_of(exercise, case_of(exercise, "4 ranks, 1 MiB of parameters"), answers)
    assert result.passed == passes, result.diagnosis
    if not passes:
        assert result.outputs_right
        assert "holds Adam's states for all parameters" in result.diagnosis


@pytest.mark.ranks
@pytest.mark.parametrize("exercise", [lab.ZERO1_ADAMW, lab.ZERO3_LINEAR], ids=["Zero1", "Zero3"])
def test_a_slip_in_shard_bounds_costs_nothing_later(exercise):
    wrong = {mistake.name: mistake for mistake in planted.of_lab(LAB)}["last_rank_takes_the_rest"]
    result = result_of(exercise, exercise.cases[0], planted.solution(LAB) | wrong.answers)
    assert result.passed, result.diagnosis


EMPTIED = """
class Zero3Linear(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.shape = linear.weight.shape
        flat = flatten([linear.weight, linear.bias], dist.get_world_size())
        self.own = nn.Parameter(flat.chunk(dist.get_world_size())[dist.get_rank()].clone())

    def forward(self, x):
        flat, size = gather(self.own), self.shape.numel()
        y = F.linear(x, flat[:size].view(self.shape), flat[size : size + self.shape[0]])
        flat.untyped_storage().resize_(0)
        return y
"""


@pytest.mark.ranks
def test_a_storage_emptied_under_autograd_is_named():
    exercise = lab.ZERO3_LINEAR
    answers = planted.solution(LAB) | {"Zero3Linear": EMPTIED}
    result = result_of(exercise, exercise.cases[0], answers)
    assert "frees its units before backward" in result.diagnosis


def test_layers_take_over_the_tensors_they_are_made_of():
    """So that a drive can let go of them: what is live is what the answer keeps."""
    case = lab.ZERO3_LINEAR.cases[0]
    weight, bias = zero.draw_layers(case, np.random.default_rng(0))
    layer = zero.linear_of(weight, bias)
    assert isinstance(layer, nn.Linear)
    assert layer.weight.data_ptr() == weight.data_ptr()
    assert layer.bias.data_ptr() == bias.data_ptr()
