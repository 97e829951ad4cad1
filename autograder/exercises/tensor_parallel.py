"""What exercises on tensor parallelism share: whole layers and their shares, counts, mistakes.

One process computes with whole weights; rank r's right gradients are the r-th shares of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from autograder.exercise import Attempt, Budget, Case, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercises.outputs import finished
from shardlab import measure
from shardlab.errors import RankError
from shardlab.estimate import ring_sent_bytes
from shardlab.run import Call, Run

FLOAT_BYTES = 4
NEAR = 1e-5  # what the order of additions may change
BUDGET_FROM_BYTES = 2**20  # below, gloo's own messages would blur a budget of a few percent
WITHIN = 1.02
FORWARD, BACKWARD = "forward", "backward"  # the blocks that a drive measures


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    return torch.from_numpy(scale * rng.standard_normal(shape)).float()


def draw_linear(rng: np.random.Generator, fan_in: int, fan_out: int) -> dict[str, Tensor]:
    """A bias as large as what it is added to: forgotten or added twice, it shows."""
    weight = normal(rng, fan_out, fan_in, scale=fan_in**-0.5)
    return {"weight": weight, "bias": normal(rng, fan_out)}


def share(tensor: Tensor, rank: int, case: Case, dim: int = 0) -> Tensor:
    """The r-th of N equal parts along a dimension."""
    length = tensor.shape[dim] // case.world_size
    return tensor.narrow(dim, rank * length, length)


# ---- on a rank ----------------------------------------------------------------------------------


def there_and_back(layer: Any, given: Any) -> dict[str, Plain]:
    """Through the student's module and back; what its parameters are and got.

    Backward only where the output has the shape of the gradient that is there for it.
    """
    parameters = dict(layer.named_parameters())
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage() for p in parameters.values()}
    x = given["x"].requires_grad_()
    with measure(FORWARD):
        y = layer(x)
    if isinstance(y, Tensor) and y.shape == given["y.grad"].shape and y.requires_grad:
        with measure(BACKWARD):
            y.backward(given["y.grad"])
    return {
        "parameters": [[name, list(each.shape)] for name, each in sorted(parameters.items())],
        "y": y.detach() if isinstance(y, Tensor) else y,
        **{f"{name}.grad": parameter.grad for name, parameter in parameters.items()},
        "x.grad": x.grad,
        "bytes of parameters": sum(storage.nbytes() for storage in storages.values()),
    }


def what_is_right(y: Tensor, x_grad: Tensor, gradients: dict[str, Tensor]) -> dict[str, Plain]:
    """A rank's right output in the form of `there_and_back`."""
    return {
        "parameters": [[name, list(each.shape)] for name, each in sorted(gradients.items())],
        "y": y,
        **{f"{name}.grad": gradient for name, gradient in gradients.items()},
        "x.grad": x_grad,
        "bytes of parameters": sum(FLOAT_BYTES * each.numel() for each in gradients.values()),
    }


# ---- budgets ------------------------------------------------------------------------------------


def exchanges(run: Run, rank: int, block: str) -> list[Call]:
    """The collectives that a rank began within a measured block."""
    spans = [(b.start_s, b.end_s) for b in run.traffic.blocks if (b.label, b.rank) == (block, rank)]
    return [
        call
        for call in run.calls
        if call.rank == rank
        and call.op != "barrier"
        and any(start <= call.start_s <= end for start, end in spans)
    ]


def counted(block: str, calls: int) -> Budget:
    """Just so many collectives in a block, of whatever kind."""
    label = f"{calls} all-reduce{'' if calls == 1 else 's'} in {block}"
    return Budget(
        label,
        limit=lambda case: [calls] * case.world_size,
        used=lambda run: [len(exchanges(run, rank, block)) for rank in range(run.world_size)],
        least=lambda case: [calls] * case.world_size,
        heading=f"in {block}",
        unit="calls",
    )


def handed_over(label: str, most_bytes: Callable[[Case], int]) -> Budget:
    """Bytes of all tensors that a rank hands to collectives."""

    def used(run: Run) -> list[int]:
        by_rank = [0] * run.world_size
        for call in run.calls:
            by_rank[call.rank] += call.bytes
        return by_rank

    return Budget(
        label,
        limit=lambda case: [most_bytes(case)] * case.world_size,
        used=used,
        heading="handed over",
    )


def on_the_wire(label: str, tensor_bytes: Callable[[Case], int]) -> Budget:
    """One all-reduce of a tensor of so many bytes, as the kernel counts it."""

    def ideal(case: Case) -> float:
        size = tensor_bytes(case)
        return ring_sent_bytes(size, case.world_size) if size >= BUDGET_FROM_BYTES else 0

    return Budget(
        label,
        limit=lambda case: [WITHIN * ideal(case)] * case.world_size if ideal(case) else None,
        used=lambda run: run.traffic.sent_by_rank.tolist(),
        least=lambda case: [ideal(case)] * case.world_size,
    )


# ---- mistakes by their names --------------------------------------------------------------------


Wrong = Callable[[Attempt], Sequence[dict[str, Plain]] | None]  # by rank: some keys of an output
Slips = tuple[tuple[Wrong, str], ...]


def as_if(*slips: tuple[Wrong, str]) -> Callable[[Attempt], Finding | None]:
    """Names the slip whose outcome is what all ranks gave."""

    def diagnose(attempt: Attempt) -> Finding | None:
        if attempt.error:
            return None
        for outcome, mistake in slips:
            wrong = outcome(attempt)
            if wrong is None or all(
                equal(part, right, NEAR)
                for part, right in zip(wrong, attempt.expected, strict=True)
            ):
                continue
            if all(equal(wrong[rank], output, NEAR) for rank, output in finished(attempt)):
                return Finding("every rank", mistake, anyone="every rank")
        return None

    return diagnose


def scaled(*keys: str, by: Callable[[Case], float]) -> Wrong:
    """Some of the right outputs, all times one number."""
    return lambda attempt: [
        {key: by(attempt.case) * right[key] for key in keys} for right in attempt.expected
    ]


def number_of_ranks(case: Case) -> float:
    return case.world_size


def one_over_ranks(case: Case) -> float:
    return 1 / case.world_size


def other_parameters(attempt: Attempt) -> Finding | None:
    """Not the share that a rank should hold: whole, of other names, or a view of the whole."""
    for rank, output in finished(attempt):
        wanted = {name: tuple(shape) for name, shape in attempt.expected[rank]["parameters"]}
        got = {name: tuple(shape) for name, shape in output["parameters"]}
        elements, of_share = (
            sum(int(np.prod(shape)) for shape in shapes.values()) for shapes in (got, wanted)
        )
        who = f"rank {rank}"
        if elements >= whole_elements(attempt):
            mistake = "holds the whole weights: a rank keeps its share alone"
            return Finding(who, mistake, f"{elements:,} elements, its share has {of_share:,}")
        if got.keys() != wanted.keys():
            mistake = f"should have parameters of the names {', '.join(wanted)}"
            return Finding(who, mistake, f"it has {', '.join(got) or 'none'}")
        if got == wanted and output["bytes of parameters"] > FLOAT_BYTES * of_share:
            mistake = (
                "keeps the whole weights alive: its share is a view of them, and a view keeps all "
                "of its tensor: clone it"
            )
            return Finding(who, mistake)
    return None


def whole_elements(attempt: Attempt) -> int:
    """Of all weights that rank 0 was given."""
    return sum(tensor.numel() for tensor in attempt.inputs[0]["whole"].values())


def no_gradient(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        if output["y"].shape == attempt.expected[rank]["y"].shape:
            for key in output:
                if key.endswith(".grad") and output[key] is None:
                    mistake = f"leaves no gradient in {key.removesuffix('.grad')}"
                    return Finding(f"rank {rank}", mistake)
    return None


def does_not_fit(attempt: Attempt) -> Finding | None:
    """A product of matrices that do not fit: which way was the weight cut?"""
    error = attempt.error
    if isinstance(error, RankError) and "shapes cannot be multiplied" in error.message:
        return Finding(
            f"rank {error.rank}",
            "multiplies matrices that do not fit: nn.Linear's weight is [out, in] and y = x @ "
            "weight.T, so columns of the product are rows of the weight",
        )
    return None


def exchanges_too_much(block: str, mistake: str) -> Callable[[Attempt], Finding | None]:
    """More collectives in a block than there should be."""

    def diagnose(attempt: Attempt) -> Finding | None:
        for spent in attempt.spent:
            if spent.heading == f"in {block}" and spent.ranks_over and not attempt.error:
                rank = spent.ranks_over[0]
                assert attempt.run is not None
                made = exchanges(attempt.run, rank, block)
                # Of the student's own: what stands in for earlier answers is in no cell.
                own = [f"{call.op}, {call.source}" for call in made if "cell" in call.source]
                return Finding(f"rank {rank}", mistake, own[-1] if own else made[-1].op)
        return None

    return diagnose


# ---- in the place of the student's earlier answers ----------------------------------------------
# As right, by another way: all ranks' tensors are gathered and added, for more bytes on the wire.


def total(tensor: Tensor) -> Tensor:
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous())
    return torch.stack(parts).sum(dim=0)


def value_of_all(tensor: Tensor) -> Tensor:
    """The sum over ranks by its value; the tensor itself to autograd."""
    return tensor + (total(tensor.detach()) - tensor).detach()


def require_width(name: str, x: Tensor, weight: Tensor) -> None:
    if x.shape[-1] != weight.shape[1]:
        got, wanted = x.shape[-1], weight.shape[1]
        raise ValueError(f"{name} takes x with {wanted} elements in its last dimension, got {got}")


class StandInForColumns(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        n, rank = dist.get_world_size(), dist.get_rank()
        rows = linear.out_features // n
        self.weight = nn.Parameter(linear.weight.data.narrow(0, rank * rows, rows).clone())
        self.bias = nn.Parameter(linear.bias.data.narrow(0, rank * rows, rows).clone())

    def forward(self, x: Tensor) -> Tensor:
        require_width("ColumnLinear", x, self.weight)
        here = x.view_as(x)
        if here.requires_grad:
            here.register_hook(total)
        return nn.functional.linear(here, self.weight, self.bias)


class StandInForRows(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        n, rank = dist.get_world_size(), dist.get_rank()
        columns = linear.in_features // n
        self.weight = nn.Parameter(linear.weight.data.narrow(1, rank * columns, columns).clone())
        self.bias = nn.Parameter(linear.bias.data.clone())

    def forward(self, x: Tensor) -> Tensor:
        require_width("RowLinear", x, self.weight)
        return value_of_all(x @ self.weight.T) + self.bias
