"""Stage 3: a linear layer that is whole only while it computes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from autograder.exercise import NAMED_MISTAKES, Budget, Case, OnRanks, Plain
from autograder.exercise.compare import equal
from autograder.exercise.form import Sign
from autograder.exercise.signs import MistakeText, keeps_growing, on_each_rank, over_budget
from autograder.exercises.common import FLOAT_BYTES, linear_of
from autograder.exercises.lab04_zero import shared
from autograder.exercises.lab04_zero.shared import AT_END, held_bytes, with_reference_bounds
from autograder.guest import growth
from autograder.guest.moments import START, mark, mark_settled
from shardlab.run.live_memory import CATEGORIES

IN_FORWARD, IN_BACKWARD = "between units in forward", "between units in backward"


def returns_a_tensor(unit: nn.Module, given: Any, output: Any) -> None:
    if not isinstance(output, Tensor):
        raise TypeError(f"forward returned {output!r:.50}, not a tensor: is a return missing?")


def needs_grad(case: Case) -> list[bool]:
    """Whether each batch's x requires a gradient: all but the last of several."""
    batches = case.params.get("batches", 1)
    return [batch == 0 or batch < batches - 1 for batch in range(batches)]


def mark_between_units(unit: nn.Module, given: Any, output: Tensor) -> None:
    mark_settled(IN_FORWARD)
    if output.grad_fn is not None:  # its hook runs once, a tensor's also in torch.autograd.grad
        output.grad_fn.register_prehook(lambda _: mark_settled(IN_BACKWARD))


def drive(subject: Any, given: Any, case: Case) -> Plain:
    """The first batch's backward pass comes last: a queue or a stack of tensors does not help."""
    subject = with_reference_bounds(subject, case)
    tensors, batches = given.pop("layers"), given["batches"]
    mark(START)
    units: list[nn.Module] = []
    while tensors:
        units += [subject(linear_of(tensors.pop(0), tensors.pop(0))), nn.Tanh()]
    model = nn.Sequential(*units[:-1])
    layers = {f"layer {k}": unit for k, unit in enumerate(units[::2])}
    for unit in units[::2]:
        unit.register_forward_hook(returns_a_tensor)
    for unit in units[1:-1:2]:
        unit.register_forward_hook(mark_between_units)
    known = {address for _, address, _ in growth.storages(layers)}
    inputs = [
        x.requires_grad_(needs) for (x, _), needs in zip(batches, needs_grad(case), strict=True)
    ]
    outputs = [model(x) for x in inputs]
    for batch in (*range(1, len(batches)), 0):
        if outputs[batch].requires_grad:
            outputs[batch].backward(batches[batch][1])
    mark_settled(AT_END)
    gradients = [[each.grad for each in unit.parameters()] for unit in layers.values()]
    known |= {
        each.untyped_storage().data_ptr() for own in gradients for each in own if each is not None
    }
    found = {
        "y": [y.detach() for y in outputs],
        "x.grad": [x.grad for x in inputs if x.requires_grad],
        "y_grad": [upstream for _, upstream in batches],
        "slices": [own[0] if len(own) == 1 else own for own in gradients],
        "kept": [each for each in growth.storages(layers) if each[1] not in known],
    }
    model.zero_grad()  # the gradients that are returned stay as they are
    x, upstream = batches[0]

    def one_pass() -> None:
        model(x.detach().requires_grad_()).backward(upstream)

    steps = case.params.get("more_steps", 0)
    return found | {"grows": growth.found_in_more_steps(layers, one_pass, steps)}


def live(label: str, moment: str, slices: int) -> Budget:
    """No whole units, but ``slices`` times all slices, and the activations."""

    def most(case: Case) -> float:
        # At most each layer's output, its tanh and their gradients.
        values = 4 * sum(case.params["widths"]) * shared.samples(case)
        return held_bytes(case, 0, slices) + FLOAT_BYTES * values

    heading = moment if moment == AT_END else f"live {moment}"
    return shared.live(label, heading, shared.most_after(moment, *CATEGORIES), most)


@on_each_rank
def no_gradient(output: Any) -> MistakeText:
    """A rule, because an answer without backward does not reach the moments of the budgets."""
    slices = output["slices"]
    if slices[-1] is not None and any(each is None for each in output["x.grad"]):
        return (
            "gives x no gradient: pass x itself to apply, not a detached one, and return its "
            "gradient in backward"
        )
    if any(each is None for each in slices):
        return (
            "ends without a gradient in its slice: leave its requires_grad True, and return its "
            "gradient in your backward, because autograd does not differentiate collectives"
        )
    return None


@on_each_rank
def weight_of_zeros(output: Any) -> MistakeText:
    if not any(each.any() for each in output["x.grad"]):
        return "has an x.grad of zeros: the unit is freed, so gather it again in backward"
    return None


@on_each_rank
def changes_y_grad(output: Any, expected: Any) -> MistakeText:
    if not equal(expected["y_grad"], output["y_grad"]):
        return (
            "changes y_grad in place: other layers get the same tensor, for example behind a "
            "residual connection"
        )
    return None


@on_each_rank
def keeps_a_call(output: Any) -> MistakeText:
    """A rule."""
    for where, _, n_bytes in output["kept"]:
        return (
            "keeps a tensor of a call after its backward: keep it on ctx, which autograd frees",
            f"{where}, {n_bytes:,} bytes",
        )
    return None


def keeps_units(moment: str) -> Sign:
    return over_budget(
        f"live {moment}",
        f"keeps more than its slices and x {moment}: free each whole unit right after use (a view "
        "keeps its whole tensor alive)",
    )


EXERCISE = OnRanks(
    answer="Zero3Linear",
    points=5,
    cases=(
        Case("4 ranks, one layer", 4, {"widths": [6, 5], "samples": 3}),
        Case(
            "3 ranks, 3 layers, 3 batches",
            3,
            {"widths": [4, 7, 5, 2], "batches": 3, "more_steps": growth.STEPS},
        ),
        Case("4 ranks, 8 layers of 256 KiB", 4, {"widths": [256] * 9}, weight=2),
    ),
    inputs=shared.draw_inputs,
    drive=drive,
    tolerance=shared.TOLERANCE,
    budgets=(
        # Each unit is gathered in forward and in backward, and its gradients reduce-scattered.
        shared.traffic(lambda case: shared.unit_bytes(case) * 3),
        live("no unit live between units in forward", IN_FORWARD, slices=1),
        live("no unit live between units in backward", IN_BACKWARD, slices=2),
        live("no unit live afterwards", AT_END, slices=2),
        # Minus all parameters (N slices), which the process has at the start.
        shared.process_memory(IN_FORWARD, lambda case: held_bytes(case, 1, 1 - case.world_size)),
        shared.process_memory(IN_BACKWARD, lambda case: held_bytes(case, 2, 2 - case.world_size)),
    ),
    rules=(*shared.RULES, keeps_a_call, keeps_growing, no_gradient),
    signs=(
        changes_y_grad,
        weight_of_zeros,
        NAMED_MISTAKES,
        shared.expensive,
        keeps_units(IN_FORWARD),
        keeps_units(IN_BACKWARD),
    ),
    memory=True,
)
