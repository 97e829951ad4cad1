"""Shared by hidden halves: one process as the reference, and wrong first steps."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import with_random_delays
from autograder.exercises.lab02_dp_vs_ddp import shared as public
from autograder.exercises.lab02_dp_vs_ddp.bucketed_ddp import FACTORS
from autograder.exercises.lab02_dp_vs_ddp.shared import BUFFERS
from autograder.guest.moments import scaled

SMALL_GPT = {"layers": 1, "heads": 4, "width": 96, "context": 32, "vocabulary": 128}
STEP_CASES = (
    with_random_delays(Case("5 ranks, one layer", 5, {"widths": [512, 256]})),
    Case("3 ranks, a GPT", 3, {"gpt": SMALL_GPT}),
)
BOUNDARIES = {
    "divides": "not tested: nothing is cut into equal parts",
    "does not divide": "not tested, as above",
    "one rank": "not tested: nothing is sent",
    "more ranks than elements": "not tested, as above",
    "no buffers": "3 ranks, a GPT",
}
STEP_BOUNDARIES = BOUNDARIES | {
    "a tied parameter": "3 ranks, tied and frozen",
    "a frozen parameter": "3 ranks, tied and frozen",
}


def one_process(case: Case, inputs: Any) -> dict[str, Plain]:
    """SGD from rank 0's weights on all ranks' batches together."""

    def take_step(model: nn.Module, batch: list[Tensor], step: int) -> None:
        take_gradient(model, batch)
        public.sgd_step(model, public.lr_of(step))

    by_step = zip(*(given["batches"] for given in inputs), strict=True)
    batches = [[torch.cat(side) for side in zip(*each, strict=True)] for each in by_step]
    given = {"state": inputs[0]["state"], "batches": batches}
    return public.take_steps(case, given, take_step)


def take_gradient(model: nn.Module, batch: list[Tensor], factors: Tensor | None = None) -> None:
    """``factors``: of the gradient of the first layer's output, by sample."""

    def scale(_: nn.Module, given: Any, output: Tensor) -> None:
        if factors is not None:
            output.register_hook(lambda gradient: scaled(gradient, factors))

    handle = public.first_trainable(model).register_forward_hook(scale)
    model.zero_grad()
    model(*batch).backward()
    handle.remove()


class FirstStep:
    """The first step's vectors, right and wrong."""

    def __init__(self, case: Case, inputs: Any) -> None:
        self.case, self.inputs, self.n = case, inputs, case.world_size
        self.weights = self.first_weights(0)
        own = [self.backward(rank, 0, 0)["gradients"] for rank in range(self.n)]
        self.own, self.sum = own, torch.stack(own).sum(dim=0)
        self.mean = self.sum / self.n

    def first_weights(self, rank: int) -> Tensor:
        return self.backward(rank, rank, rank)["parameters"]

    def backward(
        self, rank: int, weights_of: int, buffers_of: int, names: Collection[str] = BUFFERS
    ) -> dict[str, Tensor]:
        """What ``rank`` has after backward on its batch with some rank's weights, and these buffers
        of some rank; other buffers are rank 0's."""
        weights, buffers = self.inputs[weights_of]["state"], self.inputs[buffers_of]["state"]
        state = weights | public.buffers_in(self.inputs[0]["state"])
        model = public.build_with(self.case, state | public.buffers_in(buffers, names))
        factors = self.inputs[rank].get(FACTORS, [None])
        take_gradient(model, self.inputs[rank]["batches"][0], factors[0])
        return public.after_step(model)

    def stepped(self, weights: Tensor, gradient: Tensor, lr: float = public.LR) -> Tensor:
        """Weights after a step; frozen ones have no gradient."""
        is_trained = [torch.full((p.numel(),), p.requires_grad) for p in self.parameters()]
        step = torch.zeros_like(weights)
        step[torch.cat(is_trained)] = gradient
        return weights - lr * step

    def parameters(self) -> list[nn.Parameter]:
        return list(public.build(self.case).parameters())

    def with_own_frozen(self, rank: int) -> Tensor:
        """After a step in which each rank had rank 0's weights, but its own frozen ones."""
        names = public.frozen_names(self.case)
        weights = self.backward(rank, 0, rank, names)["parameters"]
        return self.stepped(weights, self.unsynchronized_mean(same_weights=True, names=names))

    def late_broadcast(self) -> Tensor:
        """The mean of gradients whose forward pass had own weights, and backward rank 0's."""
        found = []
        for given in self.inputs:
            model = public.build_with(self.case, given["state"])
            loss = model(*given["batches"][0])
            right = public.build_with(self.case, self.inputs[0]["state"]).parameters()
            for parameter, weights in zip(model.parameters(), right, strict=True):
                parameter.data.copy_(weights.detach())
            loss.backward()
            found.append(public.after_step(model)["gradients"])
        return torch.stack(found).mean(dim=0)

    def unsynchronized_mean(
        self, *, same_weights: bool = False, names: Collection[str] = BUFFERS
    ) -> Tensor:
        """The mean of gradients at these of each rank's own buffers, and its own or rank 0's
        weights."""
        found = [self.backward(r, 0 if same_weights else r, r, names) for r in range(self.n)]
        return torch.stack([each["gradients"] for each in found]).mean(dim=0)

    def with_second_batches(self, *, synchronized: bool) -> "FirstStep":
        """The step after a right one; if not ``synchronized``, only rank 0 has its weights, and the
        others have those that they began with."""
        model = public.build_with(self.case, self.inputs[0]["state"])
        weights = self.stepped(self.weights, self.mean)
        nn.utils.vector_to_parameters(weights, model.parameters())
        trained = public.state_of(model)
        later = [
            {
                "state": trained if synchronized or rank == 0 else given["state"],
                "batches": given["batches"][1:],
            }
            for rank, given in enumerate(self.inputs)
        ]
        return FirstStep(self.case, later)


KEEPS_OLD_GRADIENTS = (
    "adds to the gradients that the last call left in .grad: each rank has to reset its own before "
    "backward"
)
ONE_NUMBER = "divides by a number that is not the number of ranks: divide by world_size"
N_MINUS_1 = "divides the sum of N gradients by N - 1: the mean is over all N ranks"
Vector = Callable[[FirstStep, int], Tensor]  # of a rank
Outputs = Callable[[Case, Any], list[Plain]]


def own(first: FirstStep, rank: int) -> Tensor:
    return first.own[rank]


def first_step(**vectors: Vector) -> Outputs:
    """What each rank has after a first step with a known mistake."""

    def outputs(case: Case, inputs: Any) -> list[Plain]:
        first = FirstStep(case, inputs)
        return [
            {"step 0": {key: vector(first, rank) for key, vector in vectors.items()}}
            for rank in range(case.world_size)
        ]

    return outputs


def second_step(
    gradient: Callable[[FirstStep, FirstStep], Tensor], *, synchronized: bool = True
) -> Outputs:
    """A right first step, and a second one with the gradient that follows from both."""

    def outputs(case: Case, inputs: Any) -> list[Plain]:
        first = FirstStep(case, inputs)
        second = first.with_second_batches(synchronized=synchronized)
        wrong, lr = gradient(first, second), public.lr_of(1)
        return [
            {
                "step 0": {"parameters": first.stepped(first.weights, first.mean)},
                "step 1": {"parameters": second.stepped(second.first_weights(rank), wrong, lr)},
            }
            for rank in range(case.world_size)
        ]

    return outputs


def step_by(gradient: Vector, **vectors: Vector) -> Outputs:
    def parameters(first: FirstStep, rank: int) -> Tensor:
        return first.stepped(first.weights, gradient(first, rank))

    return first_step(parameters=parameters, **vectors)


def by_one_number(step: Callable[[Callable[[FirstStep], Tensor]], Outputs]) -> tuple[Any, ...]:
    """Steps with the sum of the gradients divided by a literal world size, of the other cases."""

    def by(number: int) -> Callable[[Case, Any], list[Plain] | None]:
        wrong = step(lambda f: f.sum / number)
        return lambda case, inputs: None if number == case.world_size else wrong(case, inputs)

    return tuple(map(by, (2, 3, 4)))
