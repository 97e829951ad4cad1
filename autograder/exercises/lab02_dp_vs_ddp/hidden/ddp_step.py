from collections.abc import Collection
from typing import Any

from autograder.exercise import Case, Limit, Plain
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab02_dp_vs_ddp import shared as public
from autograder.exercises.lab02_dp_vs_ddp.hidden import ring_bytes, shared
from autograder.exercises.lab02_dp_vs_ddp.hidden.shared import first_step, own, second_step, step_by

CASES, BOUNDARIES, reference = shared.STEP_CASES, shared.STEP_BOUNDARIES, shared.one_process
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "dist.all_reduce(parameter.grad)\n        parameter.grad /= dist.get_world_size()",
        "dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)",
        "the collective takes the mean",
    ),
    EquivalentAnswer(
        "model.zero_grad()", "model.zero_grad(set_to_none=False)", "backward adds to 0"
    ),
    EquivalentAnswer("if p.requires_grad", "if p.grad is not None", "a frozen one has none"),
)


def broadcast_peers(rank: int, world_size: int) -> int:
    """How many ranks this one sends to in gloo's broadcast from rank 0, a binomial tree.

    4 ranks: 0 -> 1, 0 -> 2, 1 -> 3
    """
    return sum(rank < reach and rank + reach < world_size for reach in (1, 2, 4, 8, 16, 32))


def sent(case: Case) -> Limit:
    trained_bytes = public.parameter_bytes(case, trained=True)
    ring = ring_bytes.right(public.steps_in(case) * trained_bytes, case.world_size)
    start_bytes = (1 + ("restart" in case.params)) * public.start_bytes(case)
    most = [
        1.05 * (each + broadcast_peers(rank, case.world_size) * start_bytes)
        for rank, (each, _) in enumerate(ring)
    ]
    return Limit(most, 0.95 * ring[0][0])


def without(names: Collection[str]) -> shared.Outputs:
    """Each rank begins with its own buffers of these names."""
    return step_by(lambda f, _: f.unsynchronized_mean(same_weights=True, names=names))


def without_frozen(case: Case, inputs: Any) -> list[Plain] | None:
    if not public.frozen_names(case):
        return None
    return first_step(parameters=lambda f, rank: f.with_own_frozen(rank))(case, inputs)


def restarted(case: Case, inputs: Any) -> list[Plain] | None:
    """It does not broadcast where the training starts again."""
    if "restart" not in case.params:
        return None
    unsynchronized = shared.second_step(lambda _, f: f.unsynchronized_mean(), synchronized=False)
    return unsynchronized(case, inputs)


LIMITS = {public.WITHIN_FIVE_PERCENT.label: sent}
MISTAKES = {
    "leaves out buffers at the start: broadcast all of model.buffers(), those of submodules, of "
    "integers and with persistent=False as well, which state_dict() lacks": tuple(
        map(without, (public.BUFFERS, *([name] for name in public.BUFFERS)))
    ),
    "begins with its own weights, not rank 0's: equal steps do not make different weights equal (a "
    "broadcast into a copy has no effect)": first_step(
        parameters=lambda f, rank: f.stepped(f.first_weights(rank), f.unsynchronized_mean())
    ),
    "leaves out frozen parameters at the start: broadcast all of model.parameters(), those without "
    "requires_grad as well": without_frozen,
    "takes the step with its own gradient alone: the reduced one never gets into .grad": step_by(
        own, gradients=own
    ),
    "takes the step with the sum of the gradients, not their mean: divide by world_size": step_by(
        lambda f, _: f.sum
    ),
    shared.ONE_NUMBER: shared.by_one_number(lambda gradient: step_by(lambda f, _: gradient(f))),
    shared.N_MINUS_1: step_by(lambda f, _: f.sum / (f.n - 1)),
    "averages twice: divide the sum by world_size once": step_by(
        lambda f, _: f.mean / f.n, gradients=lambda f, _: f.mean / f.n
    ),
    "takes 1 / world_size of the step, though .grad is the mean: subtract lr * .grad": step_by(
        lambda f, _: f.mean / f.n, gradients=lambda f, _: f.mean
    ),
    "takes no step: every rank updates its own parameters, not only rank 0": first_step(
        parameters=lambda f, rank: f.weights if rank else f.stepped(f.weights, f.mean)
    ),
    "takes the right step, but .grad is the sum, not the mean: divide .grad itself": step_by(
        lambda f, _: f.mean, gradients=lambda f, _: f.sum
    ),
    "broadcasts too late: the weights have to be equal before the forward pass": step_by(
        lambda f, _: f.late_broadcast()
    ),
    "broadcasts in the first call only: broadcast whenever step is 0": restarted,
    # All ranks keep the old mean, all but one, or one.
    shared.KEEPS_OLD_GRADIENTS: (
        second_step(lambda before, f: before.mean + f.mean),
        second_step(lambda before, f: before.mean * (f.n - 1) / f.n + f.mean),
        second_step(lambda before, f: before.mean / f.n + f.mean),
    ),
    "takes the right step, but .grad is still that of its own batch: all-reduce .grad itself, not "
    "a copy of it and not the parameters": step_by(lambda f, _: f.mean, gradients=own),
}
