from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab11_deepspeed_accelerate.port_a_loop import LR, case_of, make_model

CASES = (
    case_of("3 ranks, the last step has fewer micro-batches", 3, 60, 4, 2, 0.7),
    with_random_delays(case_of("2 ranks, one micro-batch a step", 2, 16, 4, 1, 1.0)),
)
BOUNDARIES = {
    "divides": "4 ranks, 2 steps of 4 micro-batches",
    "does not divide": "2 ranks, the last step has one micro-batch of 3",
    "one rank": "not tested: one rank averages nothing, and has the whole data set anyway",
    "more ranks than elements": "not tested: then samplers repeat samples, each in its own way",
    "one micro-batch a step": "2 ranks, one micro-batch a step",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "with accelerator.accumulate(model):",
        "with accelerator.accumulate(model) if accumulation > 1 else nullcontext():",
        "a step of one micro-batch has nothing to accumulate",
    ),
)


def in_parts(values: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [values[i : i + size] for i in range(0, len(values), size)]


def clip(gradients: list[Tensor], max_norm: float) -> list[Tensor]:
    norm = torch.stack([each.square().sum() for each in gradients]).sum().sqrt()
    return [each * min(1.0, max_norm / (norm.item() + 1e-6)) for each in gradients]


def reference(
    case: Case,
    inputs: Any,
    *,
    divisions: int = 1,
    logged_divisions: int = 1,
    steps_each: bool = False,
    clips_each: bool = False,
    clips: bool = True,
    clears_first: bool = False,
) -> list[Plain]:
    """One process that trains on all ranks' micro-batches.

    ``divisions``, ``logged_divisions``: of a micro-batch by the accumulation steps, in the gradient
    and in the returned loss.  ``steps_each``: a step for each micro-batch; ``clips_each``: clips
    each rank's own gradients before they are averaged; ``clears_first``: clears what was added up
    before the last micro-batch of a step.
    """
    p, model = case.params, make_model(inputs[0]["weights"])
    parameters, max_norm, losses = list(model.parameters()), p["max_norm"], []
    accumulation, ranks = p["accumulation"], case.world_size
    x, y = inputs[0]["data"]
    batches = list(zip(x.split(p["batch_size"]), y.split(p["batch_size"]), strict=True))
    micro_batches = in_parts(batches, ranks)  # a batch for each rank, in turn
    for step in in_parts(micro_batches, 1 if steps_each else accumulation):
        own = [[torch.zeros_like(each) for each in parameters] for _ in range(ranks)]
        total = 0.0
        for i, of_ranks in enumerate(step):
            if clears_first:
                own = [[torch.zeros_like(each) for each in parameters] for _ in range(ranks)]
            for rank, (inputs_, labels) in enumerate(of_ranks):
                loss = cross_entropy(model(inputs_), labels)
                total += loss.item() / accumulation**logged_divisions / ranks
                gradients = torch.autograd.grad(loss / accumulation**divisions, parameters)
                own[rank] = [a + b for a, b in zip(own[rank], gradients, strict=True)]
                if clips_each and i + 1 < len(step):
                    own[rank] = clip(own[rank], max_norm)
        mean = [torch.stack(each).mean(0) for each in zip(*own, strict=True)]
        mean = clip(mean, max_norm) if clips else mean
        with torch.no_grad():
            for parameter, gradient in zip(parameters, mean, strict=True):
                parameter.sub_(LR * gradient)
        losses.append(total)
    state = {name: each.detach() for name, each in model.state_dict().items()}
    trained = {"losses": losses, "parameters": [*state.values()]}
    return [{**trained, "saved": [] if rank else [state]} for rank in range(ranks)]


MISTAKES = {
    "divides the loss by the accumulation steps and calls accelerator.backward, which divides "
    "by them, too": (
        partial(reference, divisions=2),
        partial(reference, divisions=2, logged_divisions=2),
    ),
    "steps at every micro-batch: give Accelerator the gradient_accumulation_steps": partial(
        reference, divisions=0, steps_each=True
    ),
    "clips at every micro-batch, before the gradients are averaged over the ranks: clip if "
    "accelerator.sync_gradients": partial(reference, clips_each=True),
    "has only the gradient of the last micro-batch: zero_grad clears what the others have added "
    "up; clear only after a step: the prepared optimizer's zero_grad does that, the model's does "
    "not": partial(reference, clears_first=True),
    "never clips the averaged gradients, or only after the step": partial(reference, clips=False),
    "returns the sum of the micro-batches' losses: divide by their number": partial(
        reference, logged_divisions=0
    ),
}
