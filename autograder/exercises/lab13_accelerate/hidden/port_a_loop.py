from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab13_accelerate.port_a_loop import LR, case_of, make_model
from autograder.exercises.lab13_accelerate.shared import numbered

CASES = (
    case_of("3 ranks, the last step has fewer micro-batches", 3, 60, 4, 2, 0.7),
    with_random_delays(case_of("2 ranks, one micro-batch a step", 2, 16, 4, 1, 1.0)),
    case_of("2 ranks, 164 kB of gradients", 2, 24, 3, 2, 0.7, width=3150),
)
BOUNDARIES = {
    "divides": "4 ranks on 2 machines, 2 steps of 4 micro-batches",
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


Logged = Callable[[list[float], int, int], float]  # micro-batches' losses, their number, ranks


def mean_of_step(losses: list[float], accumulation: int, ranks: int) -> float:
    return sum(losses) / accumulation


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
    logged: Logged = mean_of_step,
    steps_each: bool = False,
    clips_each: bool = False,
    clips: bool = True,
    clears_first: bool = False,
    clears: bool = True,
) -> list[Plain]:
    """One process that trains on all ranks' micro-batches.

    ``divisions``: of a micro-batch's gradient by the accumulation steps; ``logged``: the returned
    loss of a step; ``steps_each``: a step for each micro-batch; ``clips_each``: clips each rank's
    own gradients before they are averaged; ``clears_first``: clears what was added up before the
    last micro-batch of a step; ``clears``: after a step.
    """
    p, model = case.params, make_model(inputs[0]["weights"])
    parameters, max_norm, losses = list(model.parameters()), p["max_norm"], []
    accumulation, ranks = p["accumulation"], case.world_size
    x, y = inputs[0]["data"]
    batches = list(zip(x.split(p["batch_size"]), y.split(p["batch_size"]), strict=True))
    micro_batches = in_parts(batches, ranks)  # a batch for each rank, in turn
    zeros = [torch.zeros_like(each) for each in parameters]
    mean = zeros
    for step in in_parts(micro_batches, 1 if steps_each else accumulation):
        own = [zeros if clears else mean for _ in range(ranks)]
        of_step = [0.0] * len(step)
        for i, of_ranks in enumerate(step):
            if clears_first:
                own = [zeros] * ranks
            for rank, (inputs_, labels) in enumerate(of_ranks):
                loss = cross_entropy(model(inputs_), labels)
                of_step[i] += loss.item() / ranks
                gradients = torch.autograd.grad(loss / accumulation**divisions, parameters)
                own[rank] = [a + b for a, b in zip(own[rank], gradients, strict=True)]
                if clips_each and i + 1 < len(step):
                    own[rank] = clip(own[rank], max_norm)
        mean = [torch.stack(each).mean(0) for each in zip(*own, strict=True)]
        mean = clip(mean, max_norm) if clips else mean
        with torch.no_grad():
            for parameter, gradient in zip(parameters, mean, strict=True):
                parameter.sub_(LR * gradient)
        losses.append(logged(of_step, accumulation, ranks))
    state = {name: each.detach() for name, each in model.state_dict().items()}
    trained = {"number of losses": len(losses), **numbered("losses", losses), "parameters": state}
    return [{**trained, "saved": [] if rank else [state]} for rank in range(ranks)]


def never_reset(case: Case, inputs: Any) -> list[Plain]:
    """The losses of all steps so far."""
    outputs: list[Any] = reference(case, inputs)
    losses = [value for key, value in outputs[0].items() if key.startswith("losses[")]
    return [each | numbered("losses", accumulate(losses)) for each in outputs]


MISTAKES = {
    "divides the loss by the accumulation steps and calls accelerator.backward, which divides "
    "by them, too": (
        partial(reference, divisions=2),
        partial(reference, divisions=2, logged=lambda losses, n, ranks: sum(losses) / n**2),
    ),
    "steps at every micro-batch: give Accelerator the gradient_accumulation_steps": (
        partial(reference, divisions=0, steps_each=True),
        partial(reference, steps_each=True),
    ),
    "clips at every micro-batch, before the gradients are averaged over the ranks: clip if "
    "accelerator.sync_gradients": partial(reference, clips_each=True),
    "has only the gradient of the last micro-batch of a step: call backward in each, and zero_grad "
    "only after the step; the prepared optimizer's waits for it, the model's does not": partial(
        reference, clears_first=True
    ),
    "never clears the gradients of earlier steps: call optimizer.zero_grad after the step": partial(
        reference, clears=False
    ),
    "never clips the averaged gradients, or only after the step": partial(reference, clips=False),
    "returns the sum of the micro-batches' losses: divide by their number": partial(
        reference, logged=lambda losses, n, ranks: sum(losses)
    ),
    "returns the sum of the ranks' losses: take their mean": partial(
        reference, logged=lambda losses, n, ranks: sum(losses) / n * ranks
    ),
    "returns the loss of the last micro-batch of a step: average all of them": (
        partial(reference, logged=lambda losses, n, ranks: losses[-1]),
        partial(reference, logged=lambda losses, n, ranks: losses[-1] / n),
    ),
    "adds the losses of earlier steps: start each step from zero": never_reset,
}
