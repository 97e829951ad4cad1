from functools import partial
from typing import Any

import torch
from torch.nn import functional

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab06_fsdp_in_practice.stalled import LR, case_of, loader

CASES = (
    with_random_delays(case_of("3 ranks, one block", 3, width=40, blocks=1, steps=5, lr=LR)),
    case_of("2 ranks, 4 blocks, another rate", 2, width=60, blocks=4, steps=7, lr=2e-4, samples=40),
)
BOUNDARIES = {
    "divides": "2 ranks, 3 blocks, 8 steps",
    "does not divide": "not tested: fully_shard cuts and pads",
    "one rank": "not tested: nothing is sharded",
    "more ranks than elements": "not tested: a unit has thousands of elements",
    "one block": "3 ranks, one block",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "fully_shard(block, mp_policy=policy)",
        "fully_shard(block, mp_policy=policy, reshard_after_forward=False)",
        "fewer bytes, more memory, the same losses",
    ),
)


def reference(case: Case, inputs: Any, loads: torch.dtype = torch.float32) -> list[Plain]:
    """Mixed precision in one process: fp32 parameters, from a model loaded in ``loads``.

    Each rank's gradient is computed with a bf16 copy, and their mean in fp32.
    """
    load = loader(inputs[0]["weights"], case)
    model, copy = load(loads).float(), load(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=case.params["lr"])
    losses: list[list[torch.Tensor]] = [[] for _ in inputs]
    for _ in range(case.params["steps"]):
        copy.load_state_dict(model.state_dict())
        gradients = []
        for own, given in zip(losses, inputs, strict=True):
            tokens, targets = given["tokens"]
            loss = functional.cross_entropy(copy(tokens).float(), targets)
            gradients.append(torch.autograd.grad(loss, list(copy.parameters())))
            own.append(loss.detach())
        for parameter, *each in zip(model.parameters(), *gradients, strict=True):
            parameter.grad = torch.stack([gradient.float() for gradient in each]).mean(dim=0)
        optimizer.step()
    return [{"losses": torch.stack(own)} for own in losses]


MISTAKES = {
    "loads the checkpoint in bfloat16 before it converts to float32: that rounds every weight, and "
    "the bfloat16 copy that computes changes only after several small updates have added up": (
        partial(reference, loads=torch.bfloat16)
    ),
}
