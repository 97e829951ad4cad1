from typing import Any

import torch
from torch.nn import functional

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer, shaken
from autograder.exercises.lab05_fsdp.stalled import LR, loader

CASES = (
    shaken(Case("3 ranks, one block", 3, {"width": 20, "blocks": 1, "steps": 10})),
    Case("4 ranks, 4 blocks", 4, {"width": 64, "blocks": 4, "steps": 12, "samples": 20}),
)
BOUNDARIES = {
    "divides": "2 ranks, 2 blocks",
    "does not divide": "3 ranks, one block",
    "one rank": "not tested: nothing is sharded",
    "more ranks than elements": "not tested: a unit has thousands of elements",
    "one block": "3 ranks, one block",
}
EQUAL_ANSWERS: tuple[EqualAnswer, ...] = ()


def losses_by_rank(
    case: Case, inputs: Any, lr: float = LR, dtype: torch.dtype = torch.float32
) -> list[Plain]:
    """AdamW in one process, on all ranks' samples."""
    model = loader(inputs[0]["weights"], case)(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    losses: list[list[torch.Tensor]] = []
    for _ in range(case.params["steps"]):
        by_rank = []
        for given in inputs:
            tokens, targets = given["tokens"]
            by_rank.append(functional.cross_entropy(model(tokens).float(), targets))
        torch.stack(by_rank).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append([loss.detach() for loss in by_rank])
    return [{"losses": torch.stack(each)} for each in zip(*losses, strict=True)]


def reference(case: Case, inputs: Any) -> list[Plain]:
    return losses_by_rank(case, inputs)


MISTAKES: dict[str, Any] = {}
