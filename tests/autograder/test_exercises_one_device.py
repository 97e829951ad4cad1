"""Lab 01's oracles and diagnoses; test_labs.py puts its answers on real ranks."""

from __future__ import annotations

import importlib
import itertools

import numpy as np
import pytest
import torch

from autograder.evaluation.trial import rng_for
from autograder.exercise import Attempt
from autograder.exercise.compare import equal
from autograder.exercises import accumulation, loss_scaling, master_weights, step_bytes
from autograder.exercises.step_bytes import TOLERANCE
from shardlab import launch, reader
from shardlab.estimate import memory
from tests.submissions import planted

LAB = "01_one_device"
lab = importlib.import_module(f"autograder.exercises.{LAB}")
SETTINGS = [
    step_bytes.setting(),
    step_bytes.setting(tied=True, precision="bf16", activation="gelu", optimizer="momentum"),
    step_bytes.setting(layers=0, optimizer="sgd", batch_size=7),
]


def test_every_planted_mistake_of_the_issue_is_here():
    names = {mistake.name for mistake in planted.of_lab(LAB)}
    assert names >= {
        "counts_tied_matrix_twice",
        "everything_grows_with_the_batch",
        "adam_has_one_state",
        "takes_the_mean_of_means",
        "steps_every_micro_batch",
        "forgets_zero_grad",
        "counts_ignored_targets",
        "looks_at_its_own_gradients_only",
        "lets_nan_pass",
        "unscales_twice",
        "never_unscales",
        "updates_the_16_bit_weights",
        "remakes_the_master_each_step",
        "momentum_in_16_bit",
    }


# ---- step_bytes ---------------------------------------------------------------------------------


@pytest.mark.ranks
@pytest.mark.parametrize("setting", SETTINGS)
def test_counts_are_those_of_a_recorded_run(setting):
    def one_step():
        reader.train_one_step(**setting)

    recorded = launch(one_step, world_size=1, memory=True, device="cpu").memory[0]
    counted = step_bytes.counted_bytes(**setting)
    moments = {"parameters": "step", "gradients": "backward", "optimizer": "step"}
    moments["activations"] = "forward"
    for category, moment in moments.items():
        # single numbers of the loss stay alive a little longer than what autograd keeps
        assert recorded.at(moment)[category] == pytest.approx(counted[category], abs=16)


def test_counts_agree_with_the_formula_of_the_library():
    counted = step_bytes.counted_bytes(**step_bytes.setting(precision="bf16", tied=True))
    parameters = step_bytes.elements(step_bytes.setting(tied=True))
    states = memory.model_states(parameters, precision="bf16", optimizer="adam").device
    for category, wanted in states.items():
        assert counted[category] == pytest.approx(wanted, rel=TOLERANCE)


def test_no_drawn_setting_puts_the_formula_near_the_tolerance():
    """Single numbers weigh most in the smallest model with the most tensors."""
    drawn = [step_bytes.random_setting(np.random.default_rng(seed)) for seed in range(500)]
    smallest = {name: min(s[name] for s in drawn) for name in ("width", "vocabulary")}
    for layers in {s["layers"] for s in drawn}:
        small = step_bytes.setting(layers=layers, tied=True, **smallest)
        counted = step_bytes.counted_bytes(**small)["optimizer"]
        assert counted == pytest.approx(8 * step_bytes.elements(small), rel=0.7 * TOLERANCE)
    for s in drawn:
        biases = s["layers"] * s["width"]
        assert biases > 1.4 * TOLERANCE * step_bytes.elements(s)


def test_a_number_that_two_mistakes_lead_to_names_both():
    """Adam in bf16 without masters keeps 8 bytes, and so does a master with one state."""
    exercise = lab.STEP_BYTES
    case, inputs = drawn(exercise, "bf16 with fp32 masters, Adam")
    (expected,) = exercise.expect(case, inputs)
    got = [expected[0] | {"optimizer": 8 * step_bytes.elements(inputs[0][0])}]
    finding = step_bytes.wrong_bytes(attempt_of(exercise, case, [got], inputs))
    assert "another number of states" in finding.mistake
    assert "; or forgets the fp32 masters" in finding.mistake


# ---- accumulate ---------------------------------------------------------------------------------


def attempt_of(exercise, case, outputs, inputs):
    return Attempt(case, inputs, exercise.expect(case, inputs), outputs, None, None)


def drawn(exercise, name):
    case = next(case for case in exercise.cases if case.name == name)
    return case, exercise.draw(case, rng_for(exercise, case, 7))


def test_padding_to_one_batch_changes_nothing():
    """The oracle's one big batch is the sum over micro-batches, divided by their tokens."""
    case, inputs = drawn(lab.ACCUMULATE, "sizes and shares differ")
    (expected,) = lab.ACCUMULATE.expect(case, inputs)
    one_by_one = accumulation.trained(case, inputs[0], how="right")
    assert (one_by_one - expected["weights"]).abs().max() < 0.3 * accumulation.TOLERANCE


def test_ways_to_weigh_wrongly_are_told_apart():
    case, inputs = drawn(lab.ACCUMULATE, "sizes and shares differ")
    near = accumulation.NEAR_ENOUGH_TO_NAME
    ways = ("right", *accumulation.MISTAKES)
    ends = {how: accumulation.trained(case, inputs[0], how) for how in ways}
    for one, other in itertools.combinations(ends, 2):
        assert not equal(ends[one], ends[other], near), (one, other)
    output = {"optimizer steps": 2, "weights": ends["mean of means"], "losses": [0.0, 0.0]}
    finding = accumulation.wrongly_weighed(attempt_of(lab.ACCUMULATE, case, [output], inputs))
    assert finding.mistake == accumulation.MISTAKES["mean of means"]


# ---- DynamicLossScaler --------------------------------------------------------------------------


def test_the_rule_is_grad_scalers_own_where_one_rank_trains():
    exercise = lab.DYNAMIC_LOSS_SCALER
    case, inputs = drawn(exercise, "1 rank, overflows twice")
    (expected,) = exercise.expect(case, inputs)
    weights = torch.nn.Parameter(inputs[0]["weights"].clone())
    optimizer = torch.optim.SGD([weights], lr=loss_scaling.LEARNING_RATE)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=case.params["scale"], growth_interval=case.params["growth_interval"]
    )
    scales = []
    for x in inputs[0]["x"]:
        optimizer.zero_grad()
        scaler.scale(loss_scaling.loss_of(weights, x)).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == expected["scale"]
    torch.testing.assert_close(weights.detach(), expected["weights"])


@pytest.mark.parametrize("mistake", loss_scaling.MISTAKES)
def test_each_broken_rule_is_named(mistake):
    exercise = lab.DYNAMIC_LOSS_SCALER
    case, inputs = drawn(exercise, "2 ranks, another interval")  # inf on both, and a nan
    outputs = loss_scaling.follow(case, inputs, mistake)
    finding = loss_scaling.broken_rule(attempt_of(exercise, case, outputs, inputs))
    assert finding.mistake == loss_scaling.MISTAKES[mistake]


# ---- sgd_with_master_weights --------------------------------------------------------------------


@pytest.mark.parametrize("case", lab.SGD_WITH_MASTER_WEIGHTS.cases, ids=lambda case: case.name)
def test_what_is_lost_is_far_more_than_the_tolerance(case):
    exercise = lab.SGD_WITH_MASTER_WEIGHTS
    (given,) = exercise.draw(case, rng_for(exercise, case, 7))
    right = master_weights.follow(case, given)
    mistakes = ["16 bit throughout", "never writes back"]
    mistakes += ["16-bit momentum", "no momentum"] if case.params["momentum"] else []
    for mistake in mistakes:
        wrong = master_weights.follow(case, given, mistake)
        for a, b in zip(right, wrong, strict=True):
            assert ((a - b).abs() > 3 * master_weights.TOLERANCE).all(), mistake


def test_masters_agree_with_torchs_sgd_in_fp32():
    exercise = lab.SGD_WITH_MASTER_WEIGHTS
    case, inputs = drawn(exercise, "bf16, momentum")
    parameter = torch.nn.Parameter(inputs[0]["weights"][0].float())
    optimizer = torch.optim.SGD([parameter], case.params["lr"], case.params["momentum"])
    for gradient in inputs[0]["gradients"][0]:
        parameter.grad = gradient.float()
        optimizer.step()
    (expected,) = exercise.expect(case, inputs)
    assert torch.equal(parameter.detach().bfloat16(), expected["weights"][0])


def test_points_are_those_of_the_labs_table():

    assert sum(exercise.points for exercise in lab.EXERCISES) == 20
