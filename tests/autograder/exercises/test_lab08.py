"""Lab 08: references against whole layers, distinguishable mistakes, other right answers."""

from __future__ import annotations

from itertools import combinations

import cloudpickle
import pytest
import torch

from autograder import exercises
from autograder.evaluation.trial import RankPool, Trials, rng_for
from autograder.exercise import equal
from autograder.exercises.lab08_tensor_parallel.hidden import (
    mesh_coords,
    tp_attention,
    tp_bytes_per_layer,
    vocab_parallel_cross_entropy,
)
from autograder.exercises.lab08_tensor_parallel.shared import TOLERANCE, collectives_in
from shardlab import launch, measure, models
from shardlab.estimate import ring_sent_bytes, traffic
from tests.submissions import planted

LAB = "08_tensor_parallel"
SEED = 11
QUESTIONS = ([3, 2048, 1024, 8, 2], [5, 100, 64, 4, 4], [7, 90, 48, 6, 2])  # bytes of a layer
LAYERS = {each.answer: each for each in exercises.of_lab(LAB) if each.tolerance == TOLERANCE}


def cases_of(*answers):
    return [
        pytest.param(LAYERS[answer], case, id=f"{answer}: {case.name}")
        for answer in answers
        for case in LAYERS[answer].cases
    ]


def drawn(exercise, case):
    inputs = list(exercise.draw(case, rng_for(exercise, case, SEED)))
    return inputs, list(exercise.expect(case, inputs))


def result_of(exercise, case, changed):
    subject = planted.subjects(LAB, planted.solution(LAB) | changed)[exercise.answer]
    with RankPool() as ranks:
        ranks.expect(exercise, [case])
        return Trials(exercise, cloudpickle.dumps(subject), SEED, ranks).run(case)[1].result


# ---- references ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("exercise", "case"), cases_of("ColumnLinear"))
def test_concatenated_columns_are_the_whole_product(exercise, case):
    inputs, expected = drawn(exercise, case)
    whole, x = inputs[0]["whole"], inputs[0]["x"]
    y = torch.cat([right["y"] for right in expected], dim=-1)
    torch.testing.assert_close(y, x @ whole["weight"].T + whole["bias"], rtol=0, atol=2e-6)
    assert len({right["x.grad"].data_ptr() for right in expected}) == 1


@pytest.mark.parametrize(("exercise", "case"), cases_of("RowLinear"))
def test_partial_sums_and_one_bias_are_the_whole_product(exercise, case):
    inputs, expected = drawn(exercise, case)
    weight, bias = inputs[0]["whole"].values()
    parts = zip(inputs, weight.chunk(case.world_size, dim=1), strict=True)
    y = sum(given["x"] @ own.T for given, own in parts) + bias
    for right in expected:
        torch.testing.assert_close(y, right["y"], rtol=0, atol=5e-6)


@pytest.mark.parametrize(("exercise", "case"), cases_of("tp_attention"))
def test_blocks_of_heads_add_up_to_attention(exercise, case):
    inputs, expected = drawn(exercise, case)
    made = tp_attention.attention(tp_attention.blocks, own_heads=True)(case, inputs)
    torch.testing.assert_close(made["y"], expected[0]["y"], rtol=0, atol=5e-6)
    width = case.params["width"]
    held = [right["parameters"]["qkv.weight"] for right in expected]
    assert held == [(3 * width // case.world_size, width)] * case.world_size


@pytest.mark.parametrize(("exercise", "case"), cases_of("vocab_parallel_cross_entropy"))
def test_every_rank_has_a_target_and_gradients_sum_to_zero(exercise, case):
    """Softmax minus one-hot sums to 0 over the vocabulary."""
    inputs, expected = drawn(exercise, case)
    owns = vocab_parallel_cross_entropy.Parts(inputs).owns
    without = case.world_size - case.params["owners"]
    assert not any(own.any() for own in owns[:without])
    assert all(own.any() for own in owns[without:])
    assert owns.sum(dim=0).tolist() == [1] * case.params["tokens"]
    part = case.params["vocabulary"] // case.world_size
    assert {0, part - 1} <= {int(target) % part for target in inputs[0]["targets"]}
    gradient = torch.cat([right["logits.grad"] for right in expected], dim=1)
    assert gradient.sum(dim=1).abs().max() < 1e-6


def test_bytes_of_a_layer_match_the_library():
    for batch, tokens, width, tp_size, size in QUESTIONS:
        counted = traffic.tensor_parallel_layer(batch * tokens, width, tp_size, element_bytes=size)
        assert tp_bytes_per_layer.right(batch, tokens, width, tp_size, size) == pytest.approx(
            counted.total_bytes
        )


def test_mesh_coordinates_match_a_table_of_ranks():
    coords = {"dp_rank": 1, "tp_rank": 1, "dp_group": [1, 5], "tp_group": [4, 5, 6, 7]}
    assert mesh_coords.right(5, 2, 4) == coords
    swapped = {"dp_rank": 1, "tp_rank": 2, "dp_group": [4, 5], "tp_group": [1, 3, 5, 7]}
    assert mesh_coords.swapped(5, 4, 2, "rank", "group") == swapped


# ---- mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("exercise", "case"), cases_of(*LAYERS))
def test_no_mistake_looks_right_or_like_another_mistake(exercise, case):
    inputs, expected = drawn(exercise, case)
    made = [
        (mistake, wrong)
        for mistake, wrong in exercise.required_half.mistakes(case, inputs)
        if differs(expected, wrong, 0.5 * TOLERANCE)
    ]
    assert made
    for mistake, wrong in made:
        assert differs(expected, wrong, 20 * TOLERANCE), mistake
    for (mistake, wrong), (other_mistake, other) in combinations(made, 2):
        if mistake == other_mistake or wrong[0].keys() != other[0].keys():
            continue
        if wrong[0].get("loss") != -torch.inf:  # if both underflow, other cases distinguish them
            assert differs(wrong, other, 20 * TOLERANCE), (mistake, other_mistake)


def differs(one, other, tolerance):
    """Whether any rank's outputs differ, in the keys that the second one has."""
    return any(
        not equal(part, {key: whole[key] for key in part}, tolerance)
        for whole, part in zip(one, other, strict=True)
    )


def test_no_two_mistakes_in_bytes_give_the_same_answers():
    asked = [*QUESTIONS, [3, 64, 8, 4], [3, 9, 8, 1]]
    answers = {
        mistake: [wrong(*question) for question in asked]
        for mistake, wrong in tp_bytes_per_layer.MISTAKES.items()
    }
    answers["right"] = [tp_bytes_per_layer.right(*question) for question in asked]
    for one, other in combinations(answers, 2):
        assert not equal(answers[one], answers[other], 1e-9), (one, other)


def test_the_figures_of_the_last_question():
    """GPT-3's size: 8 ranks on 450 GB/s, 16 on 8 NICs of 50 GB/s; 6 FLOPs at 400 TFLOP/s."""
    sent = {n: 96 * traffic.tensor_parallel_layer(2048, 12288, n).total_bytes for n in (8, 16)}
    assert (sent[8] / 1e9, sent[16] / 1e9) == pytest.approx((33.8, 36.2), abs=0.05)
    sends_s = {8: sent[8] / 450e9, 16: sent[16] / (8 * 50e9)}
    assert (sends_s[8], sends_s[16]) == pytest.approx((0.075, 0.091), abs=5e-4)
    computes_s = {n: 6 * 175e9 * 2048 / (n * 400e12) for n in (8, 16)}
    assert (computes_s[8], computes_s[16]) == pytest.approx((0.672, 0.336), abs=5e-4)
    added = [sends_s[n] / computes_s[n] for n in (8, 16)]
    assert added == pytest.approx([0.11, 0.27], abs=5e-3)
    steps_s = {n: computes_s[n] + sends_s[n] for n in (8, 16)}
    assert (steps_s[8], steps_s[16]) == pytest.approx((0.747, 0.427), abs=5e-4)
    assert [computes_s[n] / steps_s[n] for n in (8, 16)] == pytest.approx([0.9, 0.79], abs=5e-3)
    # per sequence on 64 GPUs, with either mesh, without gradients
    each_s = {n: steps_s[n] / (64 // n) for n in (8, 16)}
    assert (each_s[8], each_s[16]) == pytest.approx((0.093, 0.107), abs=5e-4)
    gradients_s = ring_sent_bytes(2 * 175e9 / 8, 8) / 50e9
    assert gradients_s == pytest.approx(1.53, abs=5e-3)
    boundary_s = 2 * 2048 * 12288 * 2 / 50e9  # of a pipeline, forward and backward
    assert boundary_s == pytest.approx(0.002, abs=5e-5)


# ---- on ranks -----------------------------------------------------------------------------------


def split_gpt(size, attention, mlp):
    """A step to run on ranks: the loss and a gradient of a GPT with split attention and MLP."""

    def step():  # nested, so that it is pickled by value: ranks need not import this module
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
    step = split_gpt(size, answers["tp_attention"], answers["tp_mlp"])
    run = launch(step, world_size=world_size, device="cpu")
    torch.manual_seed(0)
    model = models.gpt(size)
    tokens = torch.arange(12).view(2, 6)
    loss = model(tokens, tokens)
    loss.backward()
    for rank, (rank_loss, gradient) in enumerate(run.outputs):
        torch.testing.assert_close(rank_loss, loss.detach(), rtol=0, atol=1e-5)
        torch.testing.assert_close(gradient, model.token.weight.grad, rtol=0, atol=1e-5)
        for block in ("forward", "backward"):
            calls = collectives_in(run, rank, block)
            assert [call.op for call in calls] == ["all_reduce"] * 2 * model.config.layers
            assert {call.bytes for call in calls} == {tokens.numel() * model.config.width * 4}


HAND_WRITTEN_LOSS = """
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


@pytest.mark.ranks
def test_a_hand_written_backward_passes():
    exercise = LAYERS["vocab_parallel_cross_entropy"]
    result = result_of(exercise, exercise.cases[2], {exercise.answer: HAND_WRITTEN_LOSS})
    assert result.passed, (result.diagnosis, result.spent)


@pytest.mark.ranks
def test_mistakes_in_linear_layers_cost_nothing_later():
    by_name = {mistake.name: mistake.answers for mistake in planted.of_lab(LAB)}
    wrong = by_name["columns_keep_their_own_gradient"] | by_name["never_adds_the_partial_sums"]
    for answer in ("tp_mlp", "tp_attention", "vocab_parallel_cross_entropy"):
        result = result_of(LAYERS[answer], LAYERS[answer].cases[0], wrong)
        assert result.passed, result.diagnosis
