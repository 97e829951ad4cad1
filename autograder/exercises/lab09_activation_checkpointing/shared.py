"""What exercises on activation checkpointing share: blocks that log their runs, and what is kept.

A block is a function of x [B, D] with weights of its own: D to 4·D, tanh, dropout, back to D.  Its
dropout is made of torch.rand, whose numbers are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint as of_torch
from torch import Tensor

from autograder.exercise import Attempt, Case, Finding, Plain
from shardlab.errors import RankError
from shardlab.run import Run

NEAR = 1e-5  # what another machine's matmul may change; on one machine not a bit may differ
WIDER = 4
FLOAT_BYTES = 4
SAMPLES = 64  # numbers of a large tensor that are compared outside of the rank as well
TORCHS_OWN = "this lab's answers do without torch.utils.checkpoint"

Log = list[dict[str, Any]]  # each run of a block: "block", "grad" (were graphs made?), "mask"
Block = Callable[[Tensor], Tensor]


# ---- blocks -------------------------------------------------------------------------------------


def draw_weights(case: Case, rng: np.random.Generator) -> list[list[Tensor]]:
    """[[up [D, 4·D], down [4·D, D]], …], one pair for each block."""
    width = case.params["width"]
    return [
        [
            torch.from_numpy(rng.standard_normal(shape) / shape[0] ** 0.5).float()
            for shape in ((width, WIDER * width), (WIDER * width, width))
        ]
        for _ in range(case.params["blocks"])
    ]


def draw_x(case: Case, rng: np.random.Generator) -> Tensor:
    shape = (case.params["rows"], case.params["width"])
    return torch.from_numpy(rng.standard_normal(shape)).float()


def draw_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(1, 2**31))


def block_of(weights: Sequence[Tensor], number: int, keep: float, log: Log) -> Block:
    """Keeps of each element with probability ``keep``; 1: no dropout."""
    up, down = weights

    def block(x: Tensor) -> Tensor:
        hidden = torch.tanh(x @ up)
        run: dict[str, Any] = {"block": number, "grad": torch.is_grad_enabled(), "mask": 0.0}
        if keep < 1:
            mask = torch.rand(hidden.shape) < keep
            run["mask"] = fingerprint(mask)
            hidden = hidden * mask / keep
        log.append(run)
        return hidden @ down

    return block


def blocks_of(pairs: Sequence[Sequence[Tensor]], keep: float, log: Log) -> list[Block]:
    return [block_of(pair, number, keep, log) for number, pair in enumerate(pairs)]


def leaves(pairs: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """Copies that gather gradients."""
    return [[tensor.clone().requires_grad_() for tensor in pair] for pair in pairs]


def fingerprint(mask: Tensor) -> float:
    """A number that another mask would hardly have."""
    places = np.sqrt(np.arange(1.0, mask.numel() + 1))  # numpy's: no tensor that would be counted
    return float(places[mask.numpy().ravel()].sum())


def runs_of(log: Log) -> list[int]:
    """How often each block ran, by its number."""
    ran = [run["block"] for run in log]
    return [ran.count(number) for number in range(max(ran, default=-1) + 1)]


# ---- results ------------------------------------------------------------------------------------


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """Random numbers from here; afterwards the generator is as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def samples(values: Sequence[Tensor | None]) -> list[Plain]:
    """Of each tensor at most SAMPLES numbers, from all over it."""
    return [None if value is None else sample(value.detach()) for value in values]


def sample(tensor: Tensor) -> Tensor:
    return tensor.flatten()[:: max(1, tensor.numel() // SAMPLES)].clone()


def same_bits(ours: Sequence[Tensor | None], plain: Sequence[Tensor | None]) -> bool:
    return len(ours) == len(plain) and all(
        one is other is None
        or (isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other))
        for one, other in zip(ours, plain, strict=True)
    )


@contextmanager
def without_torchs_own() -> Iterator[None]:
    """Answers are written, not called."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(TORCHS_OWN)

    module: Any = of_torch
    begin, apply = "_checkpoint_without_reentrant_generator", module.CheckpointFunction.apply
    generator = getattr(module, begin)
    setattr(module, begin, refuse)
    module.CheckpointFunction.apply = refuse
    try:
        yield
    finally:
        setattr(module, begin, generator)
        module.CheckpointFunction.apply = apply


# ---- what is kept -------------------------------------------------------------------------------


def rise(run: Run, before: str, after: str) -> list[int]:
    """By rank: live bytes at the end of one block of code over those at the end of another."""
    found = []
    for rank in run.memory:
        known = {phase.name for phase in rank.phases} >= {before, after}
        ends = [sum(rank.at(label).values()) for label in (before, after)] if known else [0, 0]
        found.append(max(0, ends[1] - ends[0]))
    return found


# ---- mistakes by their names --------------------------------------------------------------------


def stopped_with(attempt: Attempt) -> str:
    """What a rank's exception says; "" where none stopped one."""
    return attempt.error.message if isinstance(attempt.error, RankError) else ""


def calls_torchs_own(attempt: Attempt) -> Finding | None:
    if TORCHS_OWN in stopped_with(attempt):
        return everyone("calls torch.utils.checkpoint: here you write what it does")
    return None


def everyone(mistake: str, evidence: str = "") -> Finding:
    return Finding("your answer", mistake, evidence, anyone="your answer")


def finished(attempt: Attempt) -> list[dict[str, Any]]:
    """Outputs by rank; none where a rank failed."""
    return [] if attempt.error else list(attempt.outputs)


def draws_anew(attempt: Attempt) -> Finding | None:
    """Whether some block ran again with another mask than at first."""
    for output in finished(attempt):
        masks: dict[int, float] = {}
        for run in output["log"]:
            if masks.setdefault(run["block"], run["mask"]) != run["mask"]:
                return everyone(
                    "runs the function again with other random numbers: what dropout dropped in "
                    "forward is not what it drops then, so keep torch.get_rng_state() and set it "
                    "before the second run"
                )
    return None
