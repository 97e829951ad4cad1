"""What exercises on pipelines share: schedules as plain data, a model in stages, right gradients.

A schedule is a list by device of [kind, stage, micro-batch].  A stage is a linear layer and tanh,
of one width throughout, so that all that travels between stages has one shape.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autograder.exercise import Attempt, Budget, Case, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercises.outputs import finished
from shardlab.errors import DeadlockError, RankError
from shardlab.run import Run

P2P_ONLY = frozenset({"send", "recv"})
FLOAT_BYTES = 4
NEAR = 1e-5  # what the order of additions may change
# Of one schedule: what is larger is no answer, and is not looked into.
MOST_DEVICES, MOST_ACTIONS = 64, 20_000
Plan = list[list[list[Any]]]


# ---- schedules as data --------------------------------------------------------------------------


def as_schedule(returned: Any) -> Plain:
    """Tuples will do for lists, and numpy's whole numbers for Python's; else why it is none."""
    if not isinstance(returned, list | tuple):
        return f"it is a {type(returned).__name__}"
    if not all(isinstance(actions, list | tuple) for actions in returned):
        return "not every device has a list"
    if len(returned) > MOST_DEVICES or sum(map(len, returned)) > MOST_ACTIONS:
        return f"it has more than {MOST_DEVICES} devices or {MOST_ACTIONS:,} actions"
    plan: Plan = []
    for actions in returned:
        plan.append([])
        for action in actions:
            try:
                kind, stage, micro_batch = action
                plan[-1].append([str(kind), operator.index(stage), operator.index(micro_batch)])
            except (TypeError, ValueError):
                return f"{action!r:.40} is not (kind, stage, micro_batch)"
    return plan


def is_schedule(plain: Any) -> bool:
    """Of what came back from a rank, which may be anything."""
    return (
        isinstance(plain, list)
        and len(plain) <= MOST_DEVICES
        and all(isinstance(actions, list) for actions in plain)
        and sum(map(len, plain)) <= MOST_ACTIONS
        and all(
            isinstance(action, list)
            and list(map(type, action)) == [str, int, int]
            and max(map(abs, action[1:])) < MOST_ACTIONS
            for actions in plain
            for action in actions
        )
    )


def all_actions(sizes: Sequence[int], backward: str = "B") -> Plan:
    """By device, sorted, what has to be done: stage s is on device s % devices.

    sizes  [devices, micro_batches] or [devices, micro_batches, chunks]
    """
    devices, micro_batches, chunks = [*sizes, 1][:3]
    return [
        sorted(
            [kind, stage, micro_batch]
            for kind in f"F{backward}"
            for stage in range(device, devices * chunks, devices)
            for micro_batch in range(micro_batches)
        )
        for device in range(devices)
    ]


def actions_of(plan: Plain, *, halves: bool = False) -> Plain:
    """By device, sorted; with ``halves`` a whole backward counts as its two halves."""
    if not is_schedule(plan):
        return []
    parts = {"B": "IW"} if halves else {}
    return [
        sorted([part, stage, k] for kind, stage, k in actions for part in parts.get(kind, [kind]))
        for actions in plan
    ]


# ---- a model in stages --------------------------------------------------------------------------


def draw_model(case: Case, rng: np.random.Generator) -> list[Plain]:
    """For each rank its own stages' weights; the inputs where the first is, the targets where the
    last is."""
    ranks, width, samples = case.world_size, case.params["width"], case.params["samples"]
    stages = ranks * case.params.get("chunks", 1)
    weights = [
        [
            torch.from_numpy(rng.standard_normal(shape) / width**0.5).float()
            for shape in ((width, width), (width,))
        ]
        for _ in range(stages)
    ]
    shape = (case.params["micro_batches"], samples, width)
    inputs, targets = (torch.from_numpy(rng.standard_normal(shape)).float() for _ in range(2))
    return [
        {
            "weights": weights[rank::ranks],
            "inputs": inputs if rank == 0 else None,
            "targets": targets if rank == (stages - 1) % ranks else None,
        }
        for rank in range(ranks)
    ]


class Stage(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(F.linear(x, self.weight, self.bias))


def gradients_of(stage: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in stage.parameters()]


# ---- the right gradients, in one process ---------------------------------------------------------

Passes = Callable[
    [int, Tensor, Tensor], Tensor
]  # stage, dL/dy, dL/dx -> what goes to the one before


def gradients_by_rank(case: Case, inputs: Any, passes: Passes | None = None) -> list[Plain]:
    """By rank, of each of its stages: [weight's, bias's], of the mean over all micro-batches."""
    ranks, stages = case.world_size, stages_in(inputs)
    found = [[torch.zeros_like(tensor) for tensor in (s.weight, s.bias)] for s in stages]
    x_of_all, targets = inputs[0]["inputs"], inputs[-1]["targets"]
    for inputs_of_one, target in zip(x_of_all, targets, strict=True):
        ends = [inputs_of_one]
        outs = []
        for stage in stages:
            ends[-1] = ends[-1].detach().requires_grad_()
            outs.append(stage(ends[-1]))
            ends.append(outs[-1])
        loss = F.mse_loss(outs[-1], target) / len(targets)
        (upstream,) = torch.autograd.grad(loss, outs[-1], retain_graph=True)
        for number in reversed(range(len(stages))):
            wanted = [ends[number], stages[number].weight, stages[number].bias]
            x_grad, *own = torch.autograd.grad(outs[number], wanted, upstream)
            for total, part in zip(found[number], own, strict=True):
                total += part
            upstream = passes(number, upstream, x_grad) if passes else x_grad
    return [found[rank::ranks] for rank in range(ranks)]


def loss_of_all(inputs: Any) -> Tensor:
    y = inputs[0]["inputs"]
    for stage in stages_in(inputs):
        y = stage(y).detach()
    return F.mse_loss(y, inputs[-1]["targets"])


def stages_in(inputs: Any) -> list[Stage]:
    """The whole model, in order."""
    chunks = len(inputs[0]["weights"])
    return [Stage(*given["weights"][chunk]) for chunk in range(chunks) for given in inputs]


# ---- mistakes and budgets -----------------------------------------------------------------------


def all_wait_in_recv(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if not isinstance(error, DeadlockError):
        return None
    waiting = [row for row in error.table if row.state == "waiting"]
    if {row.call.split(" ")[0] for row in waiting} != {"recv"} or len(waiting) < 2:
        return None
    return Finding(
        "the ranks",
        "receive before they send, on both sides: what one waits for, the other sends only after "
        "its own wait. Send each result as soon as it is there",
        waiting[0].source,
        anyone="the ranks",
    )


def no_input_gradient(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if isinstance(error, RankError) and "NoneType" in error.message:
        return Finding(
            f"rank {error.rank}",
            "has no gradient to send: call requires_grad_() on what arrives, before the stage "
            "computes with it, and send its .grad",
            error.message.splitlines()[0],
        )
    return None


def no_gradients(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        missing = [grad is None for stage in output["gradients"] for grad in stage]
        if missing and all(missing):
            return Finding(
                f"rank {rank}",
                "ends without gradients: every stage sends the gradient of its input back to the "
                "one before",
            )
    return None


def own_gradient_passed_on(number: int, upstream: Tensor, x_grad: Tensor) -> Tensor:
    return upstream


def a_sum_behind_each_stage(number: int, upstream: Tensor, x_grad: Tensor) -> Tensor:
    return torch.ones_like(x_grad)


WRONG_PASSES: tuple[tuple[Passes, str], ...] = (
    (
        own_gradient_passed_on,
        "passes on the gradient it received: the stage before needs that of its output, x.grad",
    ),
    (
        a_sum_behind_each_stage,
        "calls backward without the gradient it received: y.backward(y_grad)",
    ),
)


def differs(attempt: Attempt) -> bool:
    return any(
        not equal(attempt.expected[rank]["gradients"], output["gradients"], NEAR)
        for rank, output in finished(attempt)
    )


def wrong_pass(attempt: Attempt) -> Finding | None:
    if attempt.error or attempt.case.world_size < 2 or not differs(attempt):
        return None
    for passes, mistake in WRONG_PASSES:
        wrong = gradients_by_rank(attempt.case, attempt.inputs, passes)
        if all(equal(wrong[rank], out["gradients"], NEAR) for rank, out in finished(attempt)):
            return Finding("every rank", mistake, anyone="every rank")
    return None


def scaled(factor_of: Callable[[Case], float], mistake: str) -> Callable[[Attempt], Finding | None]:
    """All gradients so many times too large."""

    def diagnose(attempt: Attempt) -> Finding | None:
        factor = factor_of(attempt.case)
        if attempt.error or factor == 1 or not differs(attempt):
            return None
        for rank, output in finished(attempt):
            right = attempt.expected[rank]["gradients"]
            wrong = [[factor * grad for grad in stage] for stage in right]
            if not equal(wrong, output["gradients"], factor * NEAR):
                return None
        return Finding("every rank", mistake, anyone="every rank")

    return diagnose


def sends(label: str, messages: Callable[[Case], Sequence[int]]) -> Budget:
    """``messages``: by rank, how many tensors of one micro-batch cross to another rank."""

    def limit(case: Case) -> list[float]:
        of_one = FLOAT_BYTES * case.params["samples"] * case.params["width"]
        return [float(of_one * number) for number in messages(case)]

    return Budget(label, limit=limit, used=bytes_in_sends)


def bytes_in_sends(run: Run) -> list[int]:
    """By rank; held against the wire by the judge."""
    return [
        sum(call.bytes for call in run.calls if call.rank == rank and call.op == "send")
        for rank in range(run.world_size)
    ]
