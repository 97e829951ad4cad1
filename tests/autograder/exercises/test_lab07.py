"""Lab 07: oracles against whole layers, slips that cannot be confused, other right answers."""

from __future__ import annotations

import importlib
from collections import Counter

import cloudpickle
import pytest
import torch

from autograder.evaluation.threads import one_thread
from autograder.evaluation.trial import KeptRanks, Trials, rng_for
from autograder.exercise import Attempt
from autograder.exercise.compare import equal
from autograder.exercises import tensor_parallel, tp_counts, tp_halves, tp_linears, tp_loss
from shardlab import launch, measure, models
from shardlab.estimate import traffic
from tests.submissions import planted

LAB = "07_tensor_parallel"
SEED = 11
lab = importlib.import_module(f"autograder.exercises.{LAB}")
SLIPS = [
    (lab.COLUMN_LINEAR, tp_linears.COLUMN_SLIPS),
    (lab.ROW_LINEAR, tp_linears.ROW_SLIPS),
    (lab.TP_MLP, tp_halves.MLP_SLIPS),
    (lab.TP_ATTENTION, tp_halves.ATTENTION_SLIPS),
    (lab.VOCAB_PARALLEL_CROSS_ENTROPY, tp_loss.LOSS_SLIPS),
]
CASES = [
    pytest.param(exercise, slips, case, id=f"{exercise.answer}: {case.name}")
    for exercise, slips in SLIPS
    for case in exercise.cases
]


@pytest.fixture(autouse=True)
def as_in_the_checker():
    with one_thread():
        yield


def attempt_of(exercise, case):
    """What a right answer leaves behind."""
    inputs = list(exercise.draw(case, rng_for(exercise, case, SEED)))
    expected = list(exercise.expect(case, inputs))
    return Attempt(case, inputs, expected, expected, None, None)


def case_of(exercise, name):
    return next(case for case in exercise.cases if case.name == name)


def result_of(exercise, case, changed):
    subject = planted.subjects(LAB, planted.solution(LAB) | changed)[exercise.answer]
    with KeptRanks() as ranks:
        ranks.expect(exercise, [case])
        return Trials(exercise, cloudpickle.dumps(subject), SEED, ranks).of(case)[1]


# ---- oracles ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", lab.COLUMN_LINEAR.cases, ids=lambda case: case.name)
def test_columns_side_by_side_are_the_whole_product(case):
    attempt = attempt_of(lab.COLUMN_LINEAR, case)
    whole, x = attempt.inputs[0]["whole"], attempt.inputs[0]["x"]
    y = torch.cat([right["y"] for right in attempt.expected], dim=-1)
    torch.testing.assert_close(y, x @ whole["weight"].T + whole["bias"], rtol=0, atol=2e-6)
    assert len({right["x.grad"].data_ptr() for right in attempt.expected}) == 1


@pytest.mark.parametrize("case", lab.ROW_LINEAR.cases, ids=lambda case: case.name)
def test_summands_and_one_bias_are_the_whole_product(case):
    attempt = attempt_of(lab.ROW_LINEAR, case)
    summands = [alone["y"] for alone in tp_linears.own_summand_only(attempt)]
    bias = attempt.inputs[0]["whole"]["bias"]
    y = torch.stack(summands).sum(dim=0) - (case.world_size - 1) * bias
    torch.testing.assert_close(y, attempt.expected[0]["y"], rtol=0, atol=5e-6)


@pytest.mark.parametrize("case", lab.TP_ATTENTION.cases, ids=lambda case: case.name)
def test_blocks_of_heads_add_up_to_attention(case):
    attempt = attempt_of(lab.TP_ATTENTION, case)
    made = tp_halves.attention_with(attempt, tp_halves.blocks(case), tp_halves.own_heads(case))
    torch.testing.assert_close(made[0]["y"], attempt.expected[0]["y"], rtol=0, atol=5e-6)
    held = [dict(right["parameters"]) for right in attempt.expected]
    width = case.params["width"]
    assert all(each["qkv.weight"] == [3 * width // case.world_size, width] for each in held)


@pytest.mark.parametrize("case", lab.VOCAB_PARALLEL_CROSS_ENTROPY.cases, ids=lambda case: case.name)
def test_every_rank_has_a_target_and_gradients_sum_to_nothing(case):
    """Softmax less one-hot: over all words of a token that is 0."""
    attempt = attempt_of(lab.VOCAB_PARALLEL_CROSS_ENTROPY, case)
    assert all(own.any() and not own.all() for own in tp_loss.owned(attempt))
    gradient = torch.cat([right["logits.grad"] for right in attempt.expected], dim=1)
    assert gradient.sum(dim=1).abs().max() < 1e-6


# ---- slips --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("exercise", "slips", "case"), CASES)
def test_no_slip_can_pass_for_right_or_for_another(exercise, slips, case):
    attempt = attempt_of(exercise, case)
    outcomes = []
    for slip, mistake in slips:
        wrong = slip(attempt)
        if wrong is None or not differs(attempt.expected, wrong, 0.5 * tensor_parallel.NEAR):
            continue
        assert differs(attempt.expected, wrong, 20 * tensor_parallel.NEAR), mistake
        outcomes.append((wrong, mistake))
    assert outcomes
    for i, (wrong, mistake) in enumerate(outcomes):
        for other, its_mistake in outcomes[:i]:
            if mistake != its_mistake and wrong[0].keys() == other[0].keys():
                assert differs(wrong, other, 20 * tensor_parallel.NEAR), (mistake, its_mistake)


def differs(one, other, tolerance):
    """On any rank, in what the second one has."""
    return any(
        not equal(part, {key: whole[key] for key in part}, tolerance)
        for whole, part in zip(one, other, strict=True)
    )


QUESTIONS = ([3, 2048, 1024, 8, 2], [5, 100, 64, 4, 4], [7, 90, 48, 6, 2])


def test_no_two_slips_in_bytes_give_the_same_for_all_questions():
    said = Counter()
    for question in QUESTIONS:
        batch, tokens, width, tp_size, element_bytes = question
        right = traffic.tensor_parallel_layer(
            batch * tokens, width, tp_size, element_bytes=element_bytes
        ).total_bytes
        slips = list(tp_counts.layer_slips(question, right))
        for slip, mistake in slips:
            assert not equal(right, slip, 1e-9), mistake
            for other, its_mistake in slips:
                said[mistake, its_mistake] += mistake < its_mistake and equal(slip, other, 1e-9)
    assert max(said.values()) < len(QUESTIONS)


def test_a_place_in_the_mesh_is_that_of_a_table_of_ranks():
    (place,) = tp_counts.expect_mesh(None, [[[5, 2, 4]]])[0]
    assert place == {"dp_rank": 1, "tp_rank": 1, "dp_group": [1, 5], "tp_group": [4, 5, 6, 7]}
    for mistake in ("wrong way round", "coordinates in its groups", "leaves a rank out"):
        assert any(mistake in said for _, said in tp_counts.mesh_slips([5, 2, 4], place))


def test_the_figures_of_the_last_question():
    """GPT-3's size: 8 ranks on 450 GB/s, 16 on 50 GB/s, beside 6 FLOPs at 400 TFLOP/s."""
    sent = {n: 96 * traffic.tensor_parallel_layer(2048, 12288, n).total_bytes for n in (8, 16)}
    assert (sent[8] / 1e9, sent[16] / 1e9) == pytest.approx((33.8, 36.2), abs=0.05)
    assert sent[8] / 450e9 == pytest.approx(0.075, abs=5e-4)
    assert sent[16] / 50e9 == pytest.approx(0.725, abs=5e-4)
    flops = 6 * 175e9 * 2048
    assert flops / (8 * 400e12) == pytest.approx(0.672, abs=5e-4)
    assert flops / (16 * 400e12) == pytest.approx(0.336, abs=5e-4)


# ---- on ranks -----------------------------------------------------------------------------------


def cut_gpt(size, attention, mlp):
    """To run on ranks: a GPT, each half of its layers cut; its loss and a gradient."""

    def step():  # within a function: it goes to ranks by itself, without this module
        torch.manual_seed(0)
        model = models.gpt(size)
        for block in model.blocks:
            block.attention, block.mlp = attention(block.attention), mlp(block.mlp)
        tokens = torch.arange(12).view(2, 6)
        with measure("forward"):
            loss = model(tokens, tokens)
        with measure("backward"):
            loss.backward()
        return loss.detach(), model.token.weight.grad

    return step


@pytest.mark.ranks
@pytest.mark.parametrize(("world_size", "size"), [(2, "0.1M"), (4, "0.3M")])
def test_a_layer_makes_two_all_reduces_forward_and_two_backward(world_size, size):
    answers = planted.subjects(LAB, planted.solution(LAB))
    step = cut_gpt(size, answers["tp_attention"], answers["tp_mlp"])
    run = launch(step, world_size=world_size, device="cpu")
    torch.manual_seed(0)
    model = models.gpt(size)
    tokens = torch.arange(12).view(2, 6)
    loss = model(tokens, tokens)
    loss.backward()
    for rank, (its_loss, gradient) in enumerate(run.outputs):
        torch.testing.assert_close(its_loss, loss.detach(), rtol=0, atol=1e-5)
        torch.testing.assert_close(gradient, model.token.weight.grad, rtol=0, atol=1e-5)
        for block in ("forward", "backward"):
            calls = tensor_parallel.exchanges(run, rank, block)
            assert [call.op for call in calls] == ["all_reduce"] * 2 * model.config.layers
            assert {call.bytes for call in calls} == {tokens.numel() * model.config.width * 4}


IN_PLACE = """
class RowLinear(nn.Module):
    def __init__(self, linear):
        super().__init__()
        share = linear.weight.tensor_split(dist.get_world_size(), dim=1)[dist.get_rank()]
        self.weight = nn.Parameter(share.detach().clone())
        self.bias = nn.Parameter(linear.bias.detach().clone())

    def forward(self, x):
        y = x @ self.weight.T
        total = y.detach().clone()
        dist.all_reduce(total)
        return y + (total - y).detach() + self.bias
"""
BY_HAND = """
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets):
        start, tokens = dist.get_rank() * logits.shape[1], torch.arange(len(targets))
        inside = (targets >= start) & (targets < start + logits.shape[1])
        here = (targets - start)[inside]
        top = logits.amax(dim=1)
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        two = torch.zeros(2, len(targets))
        two[0] = (logits - top[:, None]).exp().sum(dim=1)
        two[1, inside] = logits[tokens[inside], here]
        dist.all_reduce(two)
        gradient = (logits - (top + two[0].log())[:, None]).exp()
        gradient[tokens[inside], here] -= 1
        ctx.save_for_backward(gradient / len(targets))
        return (top + two[0].log() - two[1]).mean()

    @staticmethod
    def backward(ctx, outer):
        return outer * ctx.saved_tensors[0], None


def vocab_parallel_cross_entropy(logits, targets):
    return Loss.apply(logits, targets)
"""
ONE_HOT = """
def vocab_parallel_cross_entropy(logits, targets):
    words = dist.get_rank() * logits.shape[1] + torch.arange(logits.shape[1])
    top = logits.detach().max(dim=1).values
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    total = SumOverRanks.apply((logits - top[:, None]).exp().sum(dim=1))
    found = SumOverRanks.apply((logits * (targets[:, None] == words)).sum(dim=1))
    return (total.log() + top - found).mean()
"""


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("exercise", "case", "source"),
    [
        (lab.ROW_LINEAR, "4 ranks, 8 in, 7 out", IN_PLACE),
        (lab.VOCAB_PARALLEL_CROSS_ENTROPY, "4 ranks, 8 tokens, 512 words", BY_HAND),
        (lab.VOCAB_PARALLEL_CROSS_ENTROPY, "4 ranks, 8 tokens, 512 words", ONE_HOT),
    ],
    ids=["the value of all, the gradient of its own", "backward by hand", "a mask of words"],
)
def test_other_right_answers_pass(exercise, case, source):
    result = result_of(exercise, case_of(exercise, case), {exercise.answer: source})
    assert result.passed, (result.diagnosis, result.spent)


@pytest.mark.ranks
def test_slips_in_linear_layers_cost_nothing_later():
    by_name = {mistake.name: mistake.answers for mistake in planted.of_lab(LAB)}
    wrong = by_name["columns_keep_their_own_gradient"] | by_name["never_adds_the_summands"]
    for exercise in (lab.TP_MLP, lab.TP_ATTENTION, lab.VOCAB_PARALLEL_CROSS_ENTROPY):
        result = result_of(exercise, exercise.cases[0], wrong)
        assert result.passed, result.diagnosis
