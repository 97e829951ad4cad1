from functools import partial
from typing import Any

import torch

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer, shaken
from autograder.exercises.lab04_zero.hidden import shared
from autograder.exercises.lab04_zero.hidden.shared import Rule, flatten, mean
from autograder.exercises.lab04_zero.shared import loss_of, mlp
from autograder.exercises.lab04_zero.zero1_adamw import ADAMW, STEPS

facts = shared.bounds
CASES = (
    shaken(Case("3 ranks, 206 parameters", 3, {"widths": [7, 10, 9, 3]})),
    Case("5 ranks, fewer parameters than ranks", 5, {"widths": [1, 1]}),
    Case("4 ranks, 8 MB of parameters", 4, {"widths": [820] * 4}, weight=2),
)
BOUNDARIES = shared.NOT_ASKED | {
    "divides": "2 ranks, 58 parameters",
    "does not divide": "4 ranks, 99 parameters",
    "more ranks than elements": "5 ranks, fewer parameters than ranks",
}


def reference(case: Case, inputs: Any, rule: Rule = mean, adam: type = torch.optim.AdamW) -> Plain:
    """One process: the ranks' gradients at the same parameters, combined by ``rule``."""
    model = mlp([tensor.clone() for tensor in inputs[0]["layers"]])
    parameters = list(model.parameters())
    optimizer = adam(parameters, **ADAMW)
    for step in range(STEPS):
        losses = [loss_of(model, given["batches"][step]) for given in inputs]
        gradients = [flatten(torch.autograd.grad(loss, parameters)) for loss in losses]
        pieces = rule(torch.stack(gradients)).split([each.numel() for each in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter).clone()
        optimizer.step()
    return {"parameters": [parameter.detach() for parameter in parameters]}


MISTAKES = shared.by_wrong_rules(reference) | {
    "adds the decay to the gradient, as Adam does: AdamW does not": (
        partial(reference, adam=torch.optim.Adam)
    ),
}
EQUAL_ANSWERS = (EqualAnswer("self.own.grad = None", "pass", "a gradient is not a state"),)
