"""Lab 01's references and named mistakes; test_planted.py runs its answers on real ranks."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector
from torch.nn.utils.rnn import pad_sequence

from autograder import exercises
from autograder.evaluation.judge import judge
from autograder.evaluation.trial import rng_for
from autograder.exercise import Attempt
from autograder.exercise.compare import equal
from autograder.exercise.reference_cache import with_cached_references
from autograder.exercises.lab01_one_device import accumulate as accumulation
from autograder.exercises.lab01_one_device import dynamic_loss_scaler as scaling
from autograder.exercises.lab01_one_device import sgd_with_master_weights as mastering
from autograder.exercises.lab01_one_device.hidden import dynamic_loss_scaler as hidden_scaling
from autograder.exercises.lab01_one_device.hidden import sgd_with_master_weights as masters
from autograder.exercises.lab01_one_device.hidden import step_bytes as counting
from autograder.exercises.lab01_one_device.step_bytes import setting
from shardlab import launch
from shardlab.estimate import memory
from shardlab.models import IGNORE, bigram
from tests.submissions import planted

LAB = "01_one_device"
STEP_BYTES, ACCUMULATE, SCALER, MASTERS = exercises.of_lab(LAB)
TOLERANCE = STEP_BYTES.tolerance


def drawn(exercise, name):
    case = next(case for case in exercise.cases if case.name == name)
    return case, exercise.draw(case, rng_for(exercise, case, 7))


def mistake_of(exercise, case, inputs, outputs):
    attempt = Attempt(case, inputs, exercise.expect(case, inputs), outputs, None, None)
    result = judge(exercise, attempt).result
    return "" if result.passed else result.mistake


def test_every_required_mistake_is_planted():
    names = {mistake.name for mistake in planted.of_lab(LAB)}
    assert names >= {
        "counts_tied_matrix_twice",
        "everything_grows_with_the_batch",
        "adam_has_one_state",
        "takes_the_mean_of_means",
        "steps_after_every_micro_batch",
        "forgets_zero_grad",
        "counts_ignored_targets",
        "checks_only_its_own_gradients",
        "misses_nan",
        "unscales_twice",
        "never_unscales",
        "updates_the_16_bit_weights",
        "copies_the_master_in_each_step",
        "momentum_in_16_bit",
    }


def test_points_add_up_to_the_labs_table():
    assert sum(exercise.points for exercise in exercises.of_lab(LAB)) == 20


# ---- step_bytes ---------------------------------------------------------------------------------


SETTINGS = [
    setting(),
    setting(tied=True, precision="bf16", activation="gelu", optimizer="momentum"),
    setting(layers=0, optimizer="sgd", batch_size=7),
]


@pytest.mark.ranks
@pytest.mark.parametrize("asked", SETTINGS)
def test_counts_match_a_recorded_run(asked):
    def one_step():
        bigram.train_one_step(**asked)

    recorded = launch(one_step, world_size=1, memory=True, device="cpu").memory[0]
    counted = counting.right(**asked)
    moments = {"parameters": "step", "gradients": "backward", "optimizer": "step"}
    moments["activations"] = "forward"
    for category, moment in moments.items():
        # scalars of the loss stay alive a little longer than what autograd saves
        assert recorded.at(moment)[category] == pytest.approx(counted[category], abs=16)


@pytest.mark.parametrize("asked", SETTINGS)
def test_the_formulas_are_right_before_a_mistake_changes_them(asked):
    assert equal(counting.right(**asked), counting.formulas(asked, {}), TOLERANCE)


def test_counts_agree_with_the_librarys_formula():
    counted = counting.right(**setting(precision="bf16", tied=True))
    parameters = counting.right(**setting(tied=True))["parameters"] // 4
    states = memory.model_states(parameters, precision="bf16", optimizer="adam").device
    for category, wanted in states.items():
        assert counted[category] == pytest.approx(wanted, rel=TOLERANCE)


def test_no_drawn_setting_puts_the_formula_near_the_tolerance():
    """Scalars matter most in the smallest model with the most tensors."""
    seeds = range(50)
    case = next(case for case in STEP_BYTES.cases if case.hidden)
    settings = [s for seed in seeds for s in counting.draw(case, np.random.default_rng(seed))]
    smallest = {name: min(s[name] for s in settings) for name in ("width", "vocabulary")}
    for layers in {s["layers"] for s in settings}:
        small = setting(layers=layers, tied=True, **smallest)
        formula = counting.formulas(small, {})["optimizer"]
        assert counting.right(**small)["optimizer"] == pytest.approx(formula, rel=0.7 * TOLERANCE)
    for s in settings:
        elements = counting.formulas(s, {"number": 1})["parameters"]
        assert s["layers"] * s["width"] > 1.4 * TOLERANCE * elements


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"master": 0}, "forgets the fp32 masters, or"),
        ({"states": 1}, "Adam keeps two"),
        ({"states": 3}, "Adam keeps two"),
    ],
)
def test_mistakes_that_agree_in_one_case_are_distinguished_by_another(changes, message):
    """Adam in bf16 without masters keeps 8 bytes, and so does a master with one state."""
    explain = []
    for name in ("fp32, Adam", "bf16: SGD, momentum, Adam"):
        case, inputs = drawn(STEP_BYTES, name)
        inputs = [inputs[0][-1:]]  # Adam
        got = [[counting.formulas(inputs[0][0], changes)]]
        attempt = Attempt(case, inputs, STEP_BYTES.expect(case, inputs), got, None, None)
        found = STEP_BYTES.named(attempt)
        explain += [] if found is None else [[each.finding.mistake for each in found]]
    first = next(each for each in explain[0] if all(each in others for others in explain))
    assert message in first


# ---- accumulate ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ACCUMULATE.cases, ids=lambda case: case.name)
def test_micro_batches_give_the_same_step_as_one_batch(case):
    """All sequences padded to the longest: the padding comes last and does not count."""
    (given,) = ACCUMULATE.draw(case, rng_for(ACCUMULATE, case, 7))
    model, optimizer = accumulation.model_and_optimizer(given)
    losses = []
    for batches in given["steps"]:
        tokens, targets = ([row for pair in batches for row in pair[i]] for i in (0, 1))
        padded = pad_sequence(targets, batch_first=True, padding_value=IGNORE)
        optimizer.zero_grad()
        loss = model(pad_sequence(tokens, batch_first=True), padded)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    (expected,) = ACCUMULATE.expect(case, [given])
    weights = parameters_to_vector(model.parameters()).detach()
    assert equal(expected["losses"], losses, accumulation.TOLERANCE)
    assert (weights - expected["weights"]).abs().max() < 0.5 * accumulation.TOLERANCE


def test_wrong_weightings_are_distinguished():
    exercise = with_cached_references(ACCUMULATE)  # each reference is a training run
    case, inputs = drawn(exercise, "sizes and shares differ")
    mistakes = [(message, out[0]) for message, out in exercise.required_half.mistakes(case, inputs)]
    right = exercise.expect(case, inputs)[0]
    ends = [("", right), *mistakes]
    ends = [(message, out) for message, out in ends if "weights" in out]
    assert len(ends) > 6
    for (one, a), (other, b) in itertools.combinations(ends, 2):
        if one != other:
            assert not equal(a["weights"], b["weights"], ACCUMULATE.named_within), (one, other)
    for message, out in mistakes:
        assert mistake_of(exercise, case, inputs, [right | {"weights": None} | out]) == message


@pytest.mark.parametrize("case", ACCUMULATE.cases, ids=lambda case: case.name)
def test_clipping_changes_every_step(case):
    """Gradient norms are far above the usual limits."""
    (given,) = ACCUMULATE.draw(case, rng_for(ACCUMULATE, case, 7))
    model, _ = accumulation.model_and_optimizer(given)
    model.zero_grad()
    model(*given["steps"][0][-1]).backward()
    assert (
        torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        > 5
    )


@pytest.mark.parametrize(
    ("key", "wrong", "words"),
    [
        ("training mode", False, "leaves training mode"),
        ("micro-batches unchanged", False, "changes the micro-batches"),
        ("loss is in the graph", True, "returns a loss with its graph"),
        ("losses", [None, None], "in 'losses'"),
        ("losses", [float("nan")] * 2, "in 'losses'"),
        ("shapes", [[4, 8], [3, 32]], "runs the model on part of a micro-batch"),
        ("shapes", [[4, 8], [4, 32]], ""),
    ],
)
def test_what_is_wrong_next_to_a_right_step_is_found(key, wrong, words):
    case, inputs = drawn(ACCUMULATE, "lengths differ")
    right = {"forward passes": 6, "16 bits": False, "shapes": []}
    right |= ACCUMULATE.expect(case, inputs)[0]
    found = mistake_of(ACCUMULATE, case, inputs, [right | {key: wrong}])
    assert words in found if words else not found


# ---- DynamicLossScaler --------------------------------------------------------------------------


def test_on_one_rank_the_reference_agrees_with_grad_scaler():
    case, inputs = drawn(SCALER, "1 rank, overflows twice")
    (expected,) = SCALER.expect(case, inputs)
    weights = torch.nn.Parameter(inputs[0]["weights"].clone())
    rate, decay = scaling.rate_and_decay(case)
    optimizer = torch.optim.SGD([weights], lr=rate, weight_decay=decay)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=case.params["scale"], growth_interval=case.params["growth_interval"]
    )
    scales = []
    for x in inputs[0]["x"]:
        optimizer.zero_grad()
        scaler.scale(scaling.loss_of(weights, x)).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [scale for scale, _ in expected[scaling.SCALE_AND_STEPS]]
    torch.testing.assert_close(weights.detach(), expected["weights"])


@pytest.mark.parametrize(
    ("mistake", "message"),
    [(each, message) for message, all_ in hidden_scaling.BY_MESSAGE.items() for each in all_],
)
def test_each_mistake_is_named(mistake, message):
    cases = {
        "all ranks": "5 ranks, overflows in a row",
        "first": "5 ranks, overflows in a row",
        "last": "3 ranks, overflows in a row",
        "half of the ranks": "3 ranks, overflows in a row",
        "first scale": "3 ranks, overflows in a row",
        "one rank": "3 ranks, overflows in a row",
        "by rank": "3 ranks, overflows in a row",
        "first nan": "1 rank, nans, scales below 1",
    }
    case, inputs = drawn(SCALER, cases.get(mistake, "2 ranks, another interval"))
    outputs = hidden_scaling.reference(case, inputs, mistake)
    assert mistake_of(SCALER, case, inputs, outputs) == message


# ---- sgd_with_master_weights --------------------------------------------------------------------


@pytest.mark.parametrize("case", MASTERS.cases, ids=lambda case: case.name)
def test_lost_updates_far_exceed_the_tolerance(case):
    inputs = MASTERS.draw(case, rng_for(MASTERS, case, 7))
    ends = [inputs[0]["weights"]]  # if no update takes effect
    for message, outputs in MASTERS.required_half.mistakes(case, inputs):
        is_update = re.search(
            "computes the update|Nesterov|the master before", message
        )  # shows without momentum: see below
        if case.params["momentum"] and not is_update and re.search("velocity|momentum", message):
            ends.append(outputs[0]["weights"])
    assert len(ends) == (6 if case.params["momentum"] else 1)
    right = MASTERS.expect(case, inputs)[0]["weights"]
    for end in ends:
        for a, b in zip(right, end, strict=True):
            assert ((a - b).abs() > 1.5 * torch.finfo(a.dtype).eps * a.abs()).all()


@pytest.mark.parametrize("case", MASTERS.cases, ids=lambda case: case.name)
def test_fp64_masters_end_at_the_same_weights(case):
    """The order and the precision of sums make no difference, so equality can be exact."""
    (given,) = MASTERS.draw(case, rng_for(MASTERS, case, 7))
    wanted = MASTERS.expect(case, [given])[0]["weights"]
    for weight, gradients, end in zip(given["weights"], given["gradients"], wanted, strict=True):
        parameter = torch.nn.Parameter(weight.double())
        optimizer = torch.optim.SGD([parameter], 1.0, case.params["momentum"])
        for step, gradient in enumerate(gradients):
            optimizer.param_groups[0]["lr"] = mastering.learning_rate(step, case)
            parameter.grad = gradient.double()
            optimizer.step()
        assert torch.equal(parameter.detach().to(weight.dtype), end)


def test_16_bit_products_are_detected_where_weights_end_near_0():
    case, inputs = drawn(MASTERS, "bf16, tiny updates down to 0")
    found = [
        outputs[0]
        for message, outputs in MASTERS.required_half.mistakes(case, inputs)
        if "computes the update in 16 bits" in message
    ]
    right = MASTERS.expect(case, inputs)[0]["weights"][0]
    assert len(found) == 3
    assert all((right != output["weights"][0]).sum() > 10 for output in found)


def test_masters_agree_with_torchs_sgd_in_fp32():
    case, inputs = drawn(MASTERS, "bf16, momentum, two of one shape")
    parameter = torch.nn.Parameter(inputs[0]["weights"][0].float())
    optimizer = torch.optim.SGD([parameter], 1.0, case.params["momentum"])
    for step, gradient in enumerate(inputs[0]["gradients"][0]):
        optimizer.param_groups[0]["lr"] = mastering.learning_rate(step, case)
        parameter.grad = gradient.float()
        optimizer.step()
    (expected,) = MASTERS.expect(case, inputs)
    assert torch.equal(parameter.detach().bfloat16(), expected["weights"][0])


def test_rounding_in_each_step_is_not_the_same_as_no_step_at_all():
    case, inputs = drawn(MASTERS, "bf16, tiny updates down to 0")
    (start,) = inputs[0]["weights"]
    rounded = masters.reference(case, inputs, rounds_each_step=True)["weights"][0]
    assert 0 < (start != rounded).sum() < len(start)
