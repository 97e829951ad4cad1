"""Lab 10: byte counts match real layers, the best cut beats all others, further mistakes."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from operator import call

import cloudpickle
import pytest
import torch
import torch.utils.checkpoint as torch_checkpoint

from autograder import exercises
from autograder.evaluation.decide import decide
from autograder.evaluation.trial import RankPool, Trials
from autograder.exercises.lab10_activation_checkpointing import (
    activation_bytes,
    checkpoint_sequential,
    networks,
    shared,
)
from autograder.exercises.lab10_activation_checkpointing.hidden import activation_bytes as sizes
from autograder.exercises.lab10_activation_checkpointing.hidden.checkpoint_sequential import (
    right_cut,
)
from shardlab import RankError, launch
from tests.submissions import planted
from tests.submissions.deciding import inputs_of

LAB = "10_activation_checkpointing"
SEED = 13
CHECKPOINT, SEQUENTIAL, BYTES, PARTITIONED = exercises.of_lab(LAB)


def case_of(exercise, name):
    return next(case for case in exercise.cases if case.name == name)


def result_of(exercise, case, answers):
    subject = planted.subjects(LAB, planted.solution(LAB) | answers)[exercise.answer]
    with RankPool() as ranks:
        ranks.expect(exercise, [case])
        return Trials(exercise, cloudpickle.dumps(subject), SEED, ranks).run(case)[1].result


def changed(answer, *changes):
    source = planted.solution(LAB)[answer]
    for before, after in changes:
        assert before in source
        source = source.replace(before, after)
    return {answer: source}


# ---- checkpoint ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CHECKPOINT.cases, ids=lambda case: case.name)
def test_torchs_own_checkpoint_matches_the_reference(case):
    """Reentrant, as in the lab: it also runs each block as often as the lab expects."""
    given = inputs_of(CHECKPOINT, case)
    (wanted,) = CHECKPOINT.expect(case, given)

    def reentrant(function, *args):
        return torch_checkpoint.checkpoint(function, *args, use_reentrant=True)

    ran = shared.step(partial(networks.network, reentrant), given[0], case)
    got = shared.results(ran, case)
    assert got[shared.RUNS] == wanted[shared.RUNS]
    assert shared.same_bits(ran, networks.plain_step(given[0], case))
    assert torch.equal(got[shared.NEXT], wanted[shared.NEXT])


@pytest.mark.parametrize("case", CHECKPOINT.cases, ids=lambda case: case.name)
def test_other_random_numbers_are_far_outside_the_tolerance(case):
    given = inputs_of(CHECKPOINT, case)
    runs = [networks.plain_step(given[0] | {"seed": seed}, case) for seed in (1, 2)]
    gradients = [
        torch.cat([each.flatten() for name in shared.VALUES[1:] for each in ran[name]])
        for ran in runs
    ]
    difference = float((gradients[0] - gradients[1]).abs().max())
    assert difference > 1000 * shared.TOLERANCE if case.params["keep"] < 1 else difference == 0


def test_a_case_leaves_no_state_in_the_process():
    state = torch.get_rng_state()
    case = case_of(CHECKPOINT, "dropout, two losses")
    CHECKPOINT.expect(case, inputs_of(CHECKPOINT, case))
    assert torch.equal(state, torch.get_rng_state())


def calls_torch_checkpoint(reentrant):
    shared.close_torchs_own()
    x = torch.ones(1, requires_grad=True)
    return torch_checkpoint.checkpoint(torch.sin, x, use_reentrant=reentrant)


@pytest.mark.ranks
@pytest.mark.parametrize("reentrant", [True, False])
def test_torchs_own_checkpoint_is_closed(reentrant):
    with pytest.raises(RankError, match=r"torch\.utils\.checkpoint is a ready-made"):
        launch(calls_torch_checkpoint, reentrant, world_size=1, quiet=True)


GRAPH = (
    "        return function(*args)\n",
    "        with torch.enable_grad():\n            ctx.y = function(*args)\n"
    "        return ctx.y.detach()\n",
)
BACKWARD = "        torch.autograd.backward(*zip(*pairs))\n"
TWICE = (BACKWARD, 2 * BACKWARD)
NO_GRAPH = ("return Checkpoint.apply(function, *args)", "return function(*args).detach()")
ONE_GRADIENT = (
    "*[each.grad if isinstance(each, torch.Tensor) else None for each in args]",
    "*[each.grad for each in args if isinstance(each, torch.Tensor)]",
)
FIRST_OUTPUT = (
    "def backward(ctx, *grads):\n",
    "def backward(ctx, grad):\n        grads = (grad,)\n",
)
ALL_OUTPUTS = (
    "if isinstance(output, torch.Tensor) and output.requires_grad",
    "if isinstance(output, torch.Tensor)",
)
ON_THE_CLASS = ("ctx.is_tensor", "Checkpoint.is_tensor"), ("ctx.others", "Checkpoint.others")
LEAF = "each.detach().requires_grad_(each.requires_grad)"
LEAF_OF_STORAGE = (
    f"leaves = [{LEAF} for",
    f"of = {{}}\n        leaves = [of.setdefault(each.untyped_storage().data_ptr(), {LEAF}) for",
)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("a chain of 4, 64 KiB each", GRAPH, "is over its budget: keeps"),
        ("a chain of 4, 64 KiB each", TWICE, "goes backward through the same graph twice"),
        ("a chain of 4, 64 KiB each", NO_GRAPH, "returns an output that does not require"),
        ("several arguments and outputs", ONE_GRADIENT, "incorrect number of gradients"),
        ("several arguments and outputs", FIRST_OUTPUT, "takes 2 positional arguments"),
        ("several arguments and outputs", ALL_OUTPUTS, "that does not require a gradient"),
        ("several arguments and outputs", LEAF_OF_STORAGE, "in 'gradients of arguments'"),
        ("dropout, two losses", ON_THE_CLASS, "missing 1 required positional argument"),
    ],
)
def test_more_mistakes_in_checkpoint_are_named(name, change, says):
    exercise, changes = CHECKPOINT, change if isinstance(change[0], tuple) else (change,)
    result = result_of(exercise, case_of(exercise, name), changed("checkpoint", *changes))
    assert says in result.diagnosis


WITH_HOOKS = """
def checkpoint(function, *args):
    random_state, count, found = torch.get_rng_state(), [0], {}

    def forget(_):
        count[0] += 1
        return count[0] - 1

    def keep(tensor):
        found[len(found)] = tensor.detach()

    def compute(number):
        if not found:
            inputs = [
                each.detach().requires_grad_(each.requires_grad)
                if isinstance(each, torch.Tensor) else each
                for each in args
            ]
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.set_rng_state(random_state)
                with torch.autograd.graph.saved_tensors_hooks(keep, found.get):
                    function(*inputs)
        return found.pop(number)

    with torch.autograd.graph.saved_tensors_hooks(forget, compute):
        return function(*args)
"""


@pytest.mark.ranks
def test_a_checkpoint_of_hooks_on_saved_tensors_passes():
    answers = planted.solution(LAB) | {"checkpoint": WITH_HOOKS}
    subject = planted.subjects(LAB, answers)["checkpoint"]
    verdict = decide(CHECKPOINT, cloudpickle.dumps(subject), SEED)
    assert verdict.passed, [case.diagnosis for case in verdict.cases if not case.passed]


# ---- checkpoint_sequential ----------------------------------------------------------------------


def all_cuts(layers):
    for count in range(layers):
        for edges in combinations(range(1, layers), count):
            yield [b - a for a, b in zip((0, *edges), (*edges, layers), strict=True)]


def held_bytes(case, cut):
    """The most bytes held while any segment of the cut runs."""
    kept = checkpoint_sequential.kept_bytes(case)
    return max(j * shared.x_bytes(case) + layers * kept for j, layers in enumerate(cut))


@pytest.mark.parametrize("keep", [1.0, 0.8])
@pytest.mark.parametrize("layers", [1, 2, 5, 9])
def test_no_cut_recomputes_fewer_layers_than_the_reference(layers, keep):
    for of_kept in range(layers + 1):
        for of_passed in range(0, 12, 2):
            case = shared.blocks_case("", 1, layers, 2, 3, keep=keep, budget=(of_kept, of_passed))
            most = checkpoint_sequential.budget_bytes(case)
            fits = [cut for cut in all_cuts(layers) if held_bytes(case, cut) <= most]
            right = right_cut(case)
            assert (right is None) == (not fits)
            if right is not None:
                assert right in fits
                assert sum(right[:-1]) == min(sum(cut[:-1]) for cut in fits)


@pytest.mark.parametrize("case", SEQUENTIAL.cases, ids=lambda case: case.name)
def test_graphs_hold_exactly_the_bytes_of_the_formula(case):
    cut = right_cut(case)
    if cut is None:
        return
    (given,) = inputs_of(SEQUENTIAL, case)

    def run_segments(layers, arguments, *_):
        x, start = arguments[0], 0
        for length in cut[:-1]:
            part = layers[start : start + length]
            x = torch_checkpoint.checkpoint(in_order, part, x, use_reentrant=True)
            start += length
        return [in_order(layers[start:], x)]

    in_order = partial(networks.chain, call)
    ran = shared.step(run_segments, given, case, **checkpoint_sequential.STEP_OPTIONS)
    assert max(ran["saved"]) == held_bytes(case, cut)
    assert len(ran["again"]) == sum(cut[:-1])
    assert checkpoint_sequential.cut_of(ran["log"], ran["again"]) == cut
    whole = networks.plain_step(given, case, **checkpoint_sequential.STEP_OPTIONS)
    assert max(whole["saved"]) == case.params["blocks"] * checkpoint_sequential.kept_bytes(case)
    assert shared.same_bits(ran, whole)


@pytest.mark.ranks
def test_a_mistake_in_checkpoint_costs_nothing_in_the_next_exercise():
    exercise = SEQUENTIAL
    wrong = {mistake.name: mistake for mistake in planted.of_lab(LAB)}["random_state_not_restored"]
    result = result_of(exercise, case_of(exercise, "16 layers, dropout"), wrong.answers)
    assert result.passed, result.diagnosis


@pytest.mark.ranks
def test_layers_run_in_the_wrong_order_are_named():
    exercise = SEQUENTIAL
    change = ("return in_order(layers[start:])(x)", "return in_order(layers[start:][::-1])(x)")
    answers = changed("checkpoint_sequential", change)
    result = result_of(exercise, exercise.cases[0], answers)
    assert "wrong values in 'outputs'" in result.diagnosis


# ---- activation_bytes ---------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", activation_bytes.RECOMPUTE)
@pytest.mark.parametrize("tp_size", [1, 4, 8])
@pytest.mark.parametrize("model", [{}, activation_bytes.GPT_3], ids=["small", "GPT-3"])
def test_a_counted_layer_matches_the_papers_formula(model, tp_size, recompute):
    """Except for a mean and a standard deviation of each token, for two layer norms."""
    asked = activation_bytes.setting(**model, tp_size=tp_size, recompute=recompute)
    formula = sizes.formula_bytes(asked)
    means = 0 if recompute == "full" else 16 * asked["tokens"] * asked["samples"]
    assert sizes.counted_bytes(asked) == formula + means
    assert means < activation_bytes.TOLERANCE / 4 * formula


def test_the_papers_175b_model_in_gib():
    """Table 2's formulas for 96 layers: 256.5 without parallelism, then as the lab prints them."""
    case = case_of(BYTES, "175B on 8 ranks, the paper's table")
    (numbers,) = BYTES.expect(case, inputs_of(BYTES, case))
    gib = [96 * number / 2**30 for number in numbers]
    assert gib == pytest.approx([256.5, 51.75, 32.06, 9.56, 4.5, 4.5 / 8], abs=0.005)


def test_the_numbers_in_the_answer_to_the_last_question():
    shape = {"tokens": 4096, "samples": 2, "width": 4096, "heads": 32}
    gigabytes = [
        32 * sizes.formula_bytes(activation_bytes.setting(**shape, recompute=how)) / 1e9
        for how in activation_bytes.RECOMPUTE
    ]
    assert gigabytes == pytest.approx([208, 36.5, 2.1], abs=0.5)
    # Attention's core as a fraction of a layer's forward FLOPs, for one token.
    again = 4 * 4096 * 4096 / (24 * 4096**2 + 4 * 4096 * 4096)
    assert (again, again / 3) == pytest.approx((0.14, 0.05), abs=5e-3)


@pytest.mark.parametrize("case", BYTES.cases, ids=lambda case: case.name)
def test_a_wrong_formula_differs_clearly_from_the_right_one_or_equals_it(case):
    inputs = inputs_of(BYTES, case, SEED)  # some draws hide rounding
    (right,) = BYTES.expect(case, inputs)
    for mistake, (wrong,) in BYTES.required_half.mistakes(case, inputs):
        for number, other in zip(right, wrong, strict=True):
            difference = 0 if other is None else abs(other - number) / number
            is_equal = difference < activation_bytes.TOLERANCE / 4
            assert is_equal or difference > 2 * activation_bytes.TOLERANCE, mistake


def test_the_distance_to_a_counted_layer_is_shown_in_units_of_sbh():
    asked = activation_bytes.setting(tp_size=4)
    sbh = asked["tokens"] * asked["samples"] * asked["width"]
    assert activation_bytes.in_sbh(asked, 10.01 * sbh, 8 * sbh) == ", 8/4 sbh too little"
    asked = activation_bytes.setting()
    assert activation_bytes.in_sbh(asked, 10 * sbh, 12.5 * sbh) == ", 2.5 sbh too much"
    assert activation_bytes.in_sbh(asked, 10 * sbh, None) == ""


# ---- partitioned_checkpoint ---------------------------------------------------------------------

GATHER = "dist.all_gather_single(flat, piece)\n"
REVERSED = GATHER + "        flat = flat.view(-1, len(piece)).flip(0).flatten()\n"
SUMMED = "        dist.all_reduce(x.grad)\n        return None, x.grad"
ROUNDED = ".view(ctx.shape).bfloat16().to(piece.dtype)"
OF_32_BITS = "torch.cat([x.flatten(), torch.zeros(-x.numel() % tp_size)])"


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("change", "name", "says"),
    [
        (
            (GATHER, REVERSED),
            "4 ranks, 4 blocks of 132 KiB",
            "runs the function again on a different x (element 0 is",
        ),
        (
            ("        return None, x.grad", SUMMED),
            "4 ranks, dropout, 5 elements",
            "return each rank's own gradient of x",
        ),
        (
            ("(flat, piece)", "(flat, piece, async_op=True)"),
            "2 ranks, different weights, float64",
            "and never waits for it",
        ),
        (
            (".view(ctx.shape)", ROUNDED),
            "2 ranks, different weights, float64",
            "runs the function again on a different x",
        ),
        (
            ("F.pad(x.flatten(), (0, -x.numel() % tp_size))", OF_32_BITS),
            "3 ranks, nested",
            "RuntimeError",
        ),
        (("ctx.shape", "PartitionedCheckpoint.shape"), "3 ranks, nested", "RuntimeError"),
    ],
)
def test_more_mistakes_in_partitioned_checkpoint_are_named(change, name, says):
    answers = changed("partitioned_checkpoint", change)
    result = result_of(PARTITIONED, case_of(PARTITIONED, name), answers)
    assert says in result.diagnosis
