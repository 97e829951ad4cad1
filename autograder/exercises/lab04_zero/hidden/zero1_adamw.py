import inspect
from functools import partial
from typing import Any

import torch
from torch.nn.utils import vector_to_parameters

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab04_zero.hidden import shared
from autograder.exercises.lab04_zero.hidden.shared import Rule, flatten, mean
from autograder.exercises.lab04_zero.shared import loss_of, mlp
from autograder.exercises.lab04_zero.zero1_adamw import ADAMW

facts = shared.bounds
CASES = (
    with_random_delays(Case("3 ranks, 206 parameters", 3, {"widths": [7, 10, 9, 3], "steps": 4})),
    Case("4 ranks, 99 parameters", 4, {"widths": [6, 8, 3, 4], "steps": 10}),
    Case("4 ranks, 8 MB of parameters", 4, {"widths": [820] * 4, "steps": 3}, weight=2),
)
BOUNDARIES = shared.NOT_ASKED | {
    "divides": "2 ranks, 58 parameters",
    "does not divide": "4 ranks, 1 MiB of parameters",
    "more ranks than elements": "5 ranks, fewer parameters than ranks",
}

DEFAULTS = {
    name: option.default for name, option in inspect.signature(torch.optim.AdamW).parameters.items()
}


def reference(
    case: Case,
    inputs: Any,
    rule: Rule = mean,
    gathers: bool = True,
    adds_up: bool = False,
    **changed: Any,
) -> list[Plain]:
    """All ranks in one process: their models, and one AdamW over all ranks' own slices."""
    layers, n = inputs[0]["layers"], case.world_size
    copies = 1 if gathers else n  # else the ranks' parameters differ
    models = [mlp([tensor.clone() for tensor in layers]) for _ in range(copies)]
    updated = flatten(layers, n)
    options: Any = ADAMW | changed
    optimizer = torch.optim.AdamW([updated], **options)
    for step in range(case.params["steps"]):
        gradients = []
        for rank, given in enumerate(inputs):
            model = models[rank % copies]
            loss = loss_of(model, given["batches"][step])
            gradients.append(flatten(torch.autograd.grad(loss, list(model.parameters())), n))
        used = rule(torch.stack(gradients))
        if adds_up and updated.grad is not None:
            used = used + updated.grad
        updated.grad = used
        optimizer.step()
        for rank, model in enumerate(models):
            flat = updated.clone() if gathers else flatten(layers, n)
            flat.chunk(n)[rank].copy_(updated.chunk(n)[rank])
            vector_to_parameters(flat, model.parameters())
    of_ranks = [models[rank % copies].parameters() for rank in range(n)]
    return [{"parameters": [each.detach() for each in own]} for own in of_ranks]


MISTAKES = shared.by_wrong_rules(reference) | {
    "updates its own slice, but the model never gets the others': all-gather them after the update "
    "into the flat buffer that its parameters are views of": partial(reference, gathers=False),
    "adds up the gradients of all steps: a step uses only its own": (
        partial(reference, adds_up=True)
    ),
    "does not pass all options on to AdamW": tuple(
        partial(reference, **{name: DEFAULTS[name] for name in names})
        for names in (ADAMW, ADAMW.keys() - {"lr"}, *([name] for name in ADAMW))
    ),
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer("self.own.grad = None", "pass", "a gradient is not a state"),
)
