"""Lab 09: counts against real layers, cuts against all cuts, other right answers, other slips."""

from __future__ import annotations

import importlib
from itertools import combinations

import cloudpickle
import pytest
import torch
import torch.utils.checkpoint as of_torch

from autograder.evaluation.threads import one_thread
from autograder.evaluation.trial import KeptRanks, Trials, rng_for
from autograder.exercises import activation_sizes, checkpoint_function, checkpoint_segments
from autograder.exercises import checkpointing as shared
from tests.submissions import planted

LAB = "09_activation_checkpointing"
SEED = 13
lab = importlib.import_module(f"autograder.exercises.{LAB}")


@pytest.fixture(autouse=True)
def as_in_the_checker():
    with one_thread():
        yield


def inputs_of(exercise, case):
    return list(exercise.draw(case, rng_for(exercise, case, SEED)))


def case_of(exercise, name):
    return next(case for case in exercise.cases if case.name == name)


def result_of(exercise, case, answers):
    subject = planted.subjects(LAB, planted.solution(LAB) | answers)[exercise.answer]
    with KeptRanks() as ranks:
        ranks.expect(exercise, [case])
        return Trials(exercise, cloudpickle.dumps(subject), SEED, ranks).of(case)[1]


def changed(answer, *changes):
    source = planted.solution(LAB)[answer]
    for before, after in changes:
        assert before in source
        source = source.replace(before, after)
    return {answer: source}


# ---- checkpoint ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", lab.CHECKPOINT.cases, ids=lambda case: case.name)
def test_torchs_own_checkpoint_gives_the_oracles_numbers(case):
    """With reentrant autograd, as in the lab, and as often as the lab counts."""
    given = inputs_of(lab.CHECKPOINT, case)
    (wanted,) = lab.CHECKPOINT.expect(case, given)

    def reentrant(function, *args):
        return of_torch.checkpoint(function, *args, use_reentrant=True)

    ran = checkpoint_function.run_network(reentrant, given[0], case)
    got = checkpoint_function.told(ran)
    assert got["runs"] == wanted["runs"]
    for name in ("outputs", "gradients"):
        assert shared.same_bits(got[name], wanted[name])
    assert torch.equal(got["next draw"], wanted["next draw"])


@pytest.mark.parametrize("case", lab.CHECKPOINT.cases, ids=lambda case: case.name)
def test_other_random_numbers_are_far_outside_the_tolerance(case):
    given = inputs_of(lab.CHECKPOINT, case)
    first, second = (
        checkpoint_function.run_network(
            checkpoint_function.plainly, given[0] | {"seed": seed}, case
        )
        for seed in (1, 2)
    )
    gradients = [
        torch.cat([each.flatten() for each in ran["gradients"]]) for ran in (first, second)
    ]
    differs = float((gradients[0] - gradients[1]).abs().max())
    assert differs > 1000 * shared.NEAR if case.params["keep"] < 1 else differs == 0


def test_nothing_of_a_case_is_left_in_the_process():
    state, begin = torch.get_rng_state(), of_torch._checkpoint_without_reentrant_generator
    x = torch.ones(1, requires_grad=True)
    with shared.drawing_from(3), shared.without_torchs_own():
        torch.rand(3)
        for reentrant in (True, False):
            with pytest.raises(RuntimeError, match=r"without torch\.utils\.checkpoint"):
                of_torch.checkpoint(torch.sin, x, use_reentrant=reentrant)
    assert torch.equal(state, torch.get_rng_state())
    assert of_torch._checkpoint_without_reentrant_generator is begin
    of_torch.checkpoint(torch.sin, x, use_reentrant=True).backward()
    assert x.grad is not None


GRAPH = (
    "        return function(*args)\n",
    "        with torch.enable_grad():\n            ctx.y = function(*args)\n"
    "        return ctx.y.detach()\n",
)
TWICE = ("outputs = ctx.function(*args)\n", "outputs = ctx.function(*args), ctx.function(*args)\n")
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


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("a chain of 4, 64 KiB each", GRAPH, "makes a graph in forward and keeps it"),
        ("several of everything", ONE_GRADIENT, "another number of gradients"),
        ("several of everything", FIRST_OUTPUT, "there is one for each output"),
        ("several of everything", ALL_OUTPUTS, "from an output that has no gradient"),
    ],
)
def test_more_slips_in_checkpoint_are_named(name, change, says):
    exercise = lab.CHECKPOINT
    result = result_of(exercise, case_of(exercise, name), changed("checkpoint", change))
    assert says in result.diagnosis


# ---- checkpoint_sequential ----------------------------------------------------------------------


def all_cuts(layers):
    for count in range(layers):
        for edges in combinations(range(1, layers), count):
            yield [b - a for a, b in zip((0, *edges), (*edges, layers), strict=True)]


@pytest.mark.parametrize("keep", [1.0, 0.8])
@pytest.mark.parametrize("layers", [1, 2, 5, 9])
def test_the_right_cut_is_the_best_of_all(layers, keep):
    for of_kept in range(layers + 1):
        for of_passed in range(0, 12, 2):
            case = checkpoint_segments.layers_case("", layers, (of_kept, of_passed), 2, 3, keep)
            most = checkpoint_segments.budget_bytes(case)
            fits = [
                cut for cut in all_cuts(layers) if checkpoint_segments.held_bytes(case, cut) <= most
            ]
            right = checkpoint_segments.right_cut(case)
            assert (right is None) == (not fits)
            if right is not None:
                assert right in fits
                assert sum(right[:-1]) == min(sum(cut[:-1]) for cut in fits)


@pytest.mark.parametrize("case", lab.CHECKPOINT_SEQUENTIAL.cases, ids=lambda case: case.name)
def test_what_graphs_hold_is_what_the_formula_says_to_the_byte(case):
    cut = checkpoint_segments.right_cut(case)
    if cut is None:
        return
    (given,) = inputs_of(lab.CHECKPOINT_SEQUENTIAL, case)

    def by_the_cut(layers, x):
        start = 0
        for length in cut[:-1]:
            part = layers[start : start + length]
            x = checkpoint_segments.checkpoint(
                lambda x, part=part: checkpoint_segments.one_after_the_other(part, x), x
            )
            start += length
        return checkpoint_segments.one_after_the_other(layers[start:], x)

    ran = checkpoint_segments.step(given, case, by_the_cut)
    assert ran["kept"] == checkpoint_segments.held_bytes(case, cut)
    assert len(ran["again"]) == sum(cut[:-1])
    assert checkpoint_segments.cut_of(ran["log"], ran["again"]) == cut
    whole = checkpoint_segments.step(given, case, checkpoint_segments.one_after_the_other)
    assert whole["kept"] == case.params["blocks"] * checkpoint_segments.kept_bytes(case)
    assert shared.same_bits(ran["values"], whole["values"])


@pytest.mark.ranks
def test_a_slip_in_checkpoint_costs_nothing_later():
    exercise = lab.CHECKPOINT_SEQUENTIAL
    wrong = {mistake.name: mistake for mistake in planted.of_lab(LAB)}["random_state_not_restored"]
    result = result_of(exercise, case_of(exercise, "16 layers, dropout"), wrong.answers)
    assert result.passed, result.diagnosis


@pytest.mark.ranks
def test_a_layer_that_is_left_out_is_named():
    exercise = lab.CHECKPOINT_SEQUENTIAL
    change = ("return run_of(layers[start:])(x)", "return run_of(layers[start:][::-1])(x)")
    answers = changed("checkpoint_sequential", change)
    result = result_of(exercise, exercise.cases[0], answers)
    assert "every layer once, in their order" in result.diagnosis


# ---- activation_bytes ---------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", activation_sizes.RECOMPUTE)
@pytest.mark.parametrize("tp_size", [1, 4, 8])
@pytest.mark.parametrize("model", [{}, activation_sizes.GPT_3], ids=["small", "GPT-3"])
def test_a_counted_layer_is_the_papers_formula(model, tp_size, recompute):
    """But for a mean and a deviation of each token, for two layer norms."""
    given = activation_sizes.setting(**model, tp_size=tp_size, recompute=recompute)
    formula = activation_sizes.formula_bytes(**given)
    del given["sequence_parallel"]
    counted = activation_sizes.counted_bytes(**given)
    means = 0 if recompute == "full" else 16 * given["tokens"] * given["samples"]
    assert counted == formula + means
    assert means < activation_sizes.TOLERANCE / 4 * formula


def test_the_papers_175b_in_gib():
    """Table 2's formulas for 96 layers: 256.5 without, then as the lab prints them."""
    (case,) = (case for case in lab.ACTIVATION_BYTES.cases if case.name.startswith("175B"))
    (numbers,) = lab.ACTIVATION_BYTES.expect(case, [case.params["settings"]])
    gib = [96 * number / 2**30 for number in numbers]
    assert gib == pytest.approx([256.5, 51.75, 32.06, 9.56, 4.5], abs=0.005)


def test_the_figures_of_the_last_question():
    shape = {"tokens": 4096, "samples": 2, "width": 4096, "heads": 32}
    gigabytes = [
        32
        * activation_sizes.formula_bytes(**activation_sizes.setting(**shape, recompute=how))
        / 1e9
        for how in activation_sizes.RECOMPUTE
    ]
    assert gigabytes == pytest.approx([208, 36.5, 2.1], abs=0.5)


def test_no_slip_leads_to_the_right_number_or_to_two_names():
    exercise = lab.ACTIVATION_BYTES
    for case in exercise.cases:
        for given in inputs_of(exercise, case)[0]:
            right = activation_sizes.right_bytes(case, given)
            for number, mistake in activation_sizes.slips(given):
                away = abs(number - right) / right
                assert away > 2 * activation_sizes.TOLERANCE, (given, mistake)


# ---- partitioned_checkpoint ---------------------------------------------------------------------

A_LIST = (
    "        flat = piece.new_empty(dist.get_world_size() * len(piece))\n"
    "        dist.all_gather_single(flat, piece)\n",
    "        pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size())]\n"
    "        dist.all_gather(pieces, piece)\n"
    "        flat = torch.cat(pieces)\n",
)
REVERSED = (A_LIST[0], A_LIST[1].replace("cat(pieces)", "cat(pieces[::-1])"))


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("change", "says"), [(A_LIST, ""), (REVERSED, "in the order of the ranks")]
)
def test_pieces_may_come_as_a_list_and_in_order(change, says):
    exercise = lab.PARTITIONED_CHECKPOINT
    case = case_of(exercise, "4 ranks, 4 blocks of 128 KiB")
    result = result_of(exercise, case, changed("partitioned_checkpoint", change))
    assert result.passed == (not says), result.diagnosis
    assert says in result.diagnosis
