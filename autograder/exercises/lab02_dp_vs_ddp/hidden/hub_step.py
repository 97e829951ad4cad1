from collections.abc import Callable
from typing import Any

from torch import Tensor

from autograder.exercise import Case, Limit, Plain
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab02_dp_vs_ddp.hidden import hub_bytes, shared
from autograder.exercises.lab02_dp_vs_ddp.hidden.shared import second_step
from autograder.exercises.lab02_dp_vs_ddp.hub_bytes import Pairs
from autograder.exercises.lab02_dp_vs_ddp.hub_step import FROM_EACH, OTHERS_LR, WITHIN_ONE_PERCENT
from autograder.exercises.lab02_dp_vs_ddp.shared import frozen_names, parameter_bytes, steps_in

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
    EquivalentAnswer(
        "parameter.data -= lr * parameter.grad / world_size",
        "new = parameter.detach() - lr * parameter.grad / world_size\n            "
        "torch.nn.utils.vector_to_parameters(new.flatten(), [parameter])",
        "new tensors are as good as new values: chapter 02's hub does this",
    ),
)


def reference(case: Case, inputs: Any) -> list[Plain]:
    """Rank 0's output only: the others' replicas are discarded."""
    trained = shared.one_process(case, inputs)
    kept = ("parameters", "model.training")
    hub = {step: {key: after[key] for key in kept} for step, after in trained.items()}
    return only_from_hub(hub, case)


def only_from_hub(output: Plain, case: Case) -> list[Plain]:
    return [output] + [{}] * (case.world_size - 1)


def exchanged(case: Case) -> tuple[Pairs, Pairs]:
    """Bytes of the weights and of the gradients; a frozen parameter has none."""
    steps, n = steps_in(case), case.world_size
    weights, gradients = parameter_bytes(case), parameter_bytes(case, trained=True)
    return hub_bytes.right(steps * weights, n), hub_bytes.right(steps * gradients, n)


def sent(case: Case) -> Limit:
    """The hub sends weights, the others gradients."""
    weights, gradients = exchanged(case)
    return Limit.around([weights[0][0], *(sent for sent, _ in gradients[1:])], 0.01)


def received(case: Case) -> Limit:
    weights, gradients = exchanged(case)
    return Limit.around([gradients[0][1], *(received for _, received in weights[1:])], 0.01)


LIMITS = {WITHIN_ONE_PERCENT.label: sent, FROM_EACH.label: received}


def of_hub(outputs: shared.Outputs) -> shared.Outputs:
    return lambda case, inputs: only_from_hub(outputs(case, inputs)[0], case)


def step_by(gradient: Callable[[shared.FirstStep], Tensor]) -> shared.Outputs:
    return of_hub(shared.step_by(lambda f, _: gradient(f)))


def without_frozen(case: Case, inputs: Any) -> list[Plain] | None:
    """The hub's own frozen parameters are right, so only the others' gradients are wrong."""
    if not frozen_names(case):
        return None
    outputs = shared.first_step(parameters=lambda f, rank: f.with_own_frozen(rank))
    return of_hub(outputs)(case, inputs)


MISTAKES = {
    "takes the step with the sum of the gradients, not their mean: the hub divides by N": step_by(
        lambda f: f.sum
    ),
    shared.ONE_NUMBER: shared.by_one_number(step_by),
    shared.N_MINUS_1: step_by(lambda f: f.sum / (f.n - 1)),
    "leaves out its own gradient: the hub's mean is over all N ranks": (
        step_by(lambda f: (f.sum - f.own[0]) / f.n),
        step_by(lambda f: (f.sum - f.own[0]) / (f.n - 1)),
    ),
    "divides the other ranks' gradients by N, but not its own: the hub divides the sum of all N": (
        step_by(lambda f: f.own[0] + (f.sum - f.own[0]) / f.n)
    ),
    "keeps only the last gradient that it receives: receive into a tensor of its own, and add": (
        step_by(lambda f: f.own[-1] / f.n),
        step_by(lambda f: f.own[-1]),
    ),
    "leaves out frozen parameters: the hub sends all of model.parameters()": without_frozen,
    "adds up gradients of different weights: the hub has to send its weights to every other rank "
    "before they compute (a recv into a copy has no effect)": step_by(
        lambda f: f.unsynchronized_mean()
    ),
    "sends its weights too late: the others need them before the forward pass": step_by(
        lambda f: f.late_broadcast()
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
