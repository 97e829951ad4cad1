from collections.abc import Callable
from typing import Any

from torch import Tensor

from autograder.exercise import Case, Limit, Plain
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab02_dp_vs_ddp.hidden import hub_bytes, shared
from autograder.exercises.lab02_dp_vs_ddp.hidden.shared import second_step
from autograder.exercises.lab02_dp_vs_ddp.hub_bytes import Pairs
from autograder.exercises.lab02_dp_vs_ddp.hub_step import FROM_EACH, OTHERS_LR, WITHIN_ONE_PERCENT
from autograder.exercises.lab02_dp_vs_ddp.shared import parameter_bytes, steps_in

CASES, BOUNDARIES = shared.STEP_CASES, shared.STEP_BOUNDARIES
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "dist.send(parameter.data, peer)",
        "dist.isend(parameter.data, peer).wait()",
        "isend and wait together are send",
    ),
    EquivalentAnswer(
        "lr * parameter.grad / world_size", "lr / world_size * parameter.grad", "rounding"
    ),
)


def reference(case: Case, inputs: Any) -> list[Plain]:
    """Rank 0's output only: the others' replicas are discarded."""
    trained = shared.one_process(case, inputs)
    hub = {step: {"parameters": after["parameters"]} for step, after in trained.items()}
    return only_from_hub(hub, case)


def only_from_hub(output: Plain, case: Case) -> list[Plain]:
    return [output] + [{}] * (case.world_size - 1)


def exchanged(case: Case) -> Pairs:
    return hub_bytes.right(steps_in(case) * parameter_bytes(case), case.world_size)


def sent(case: Case) -> Limit:
    return Limit.around([sent for sent, _ in exchanged(case)], 0.01)


def received(case: Case) -> Limit:
    return Limit.around([received for _, received in exchanged(case)], 0.01)


LIMITS = {WITHIN_ONE_PERCENT.label: sent, FROM_EACH.label: received}


def of_hub(outputs: shared.Outputs) -> shared.Outputs:
    return lambda case, inputs: only_from_hub(outputs(case, inputs)[0], case)


def step_by(gradient: Callable[[shared.FirstStep], Tensor]) -> shared.Outputs:
    return of_hub(shared.step_by(lambda f, _: gradient(f)))


MISTAKES = {
    "takes the step with the sum of the gradients, not their mean: the hub divides by N": step_by(
        lambda f: f.sum
    ),
    "leaves out its own gradient: the hub's mean is over all N ranks": (
        step_by(lambda f: (f.sum - f.own[0]) / f.n),
        step_by(lambda f: (f.sum - f.own[0]) / (f.n - 1)),
    ),
    "adds up gradients of different weights: the hub has to send its weights to every other rank "
    "before they compute (a recv into a copy has no effect)": step_by(
        lambda f: f.unsynchronized_mean()
    ),
    "uses the other ranks' lr (it multiplies there, or averages their new weights): the others "
    "send plain gradients, and the hub multiplies by its lr": step_by(
        lambda f: (f.own[0] + OTHERS_LR * (f.sum - f.own[0])) / f.n
    ),
    "sends its weights in the first call only: the hub has to send them in every call": of_hub(
        second_step(lambda _, f: f.unsynchronized_mean(), synchronized=False)
    ),
    # All ranks keep the old ones, the hub as a sum or divided; only the hub; only the others.
    shared.KEEPS_OLD_GRADIENTS: (
        of_hub(second_step(lambda old, f: (2 * old.sum - old.own[0] + f.sum) / f.n)),
        of_hub(second_step(lambda old, f: (old.mean + old.sum - old.own[0] + f.sum) / f.n)),
        of_hub(second_step(lambda old, f: (old.sum + f.sum) / f.n)),
        of_hub(second_step(lambda old, f: (old.sum - old.own[0] + f.sum) / f.n)),
    ),
}
