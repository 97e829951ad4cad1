"""Refuses tensors whose elements would be moved wrongly without an error.

gloo reads and writes a tensor's memory from its first element on, as if it were contiguous.  NCCL
refuses such tensors.  Where torch copies them into a contiguous one first, as `all_gather` does,
any layout is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shardlab.trace.tensors import tensors_in

# By c10d's operator: arguments that must be contiguous, and those that may be transposed (the same
# layout on all ranks: recorder.py logs the strides).  Measured with torch 2.13.
_CONTIGUOUS = {"scatter_": (0, 1), "reduce_scatter_": (0,), "alltoall_base_": (0,)}
_RESULTS = {"allgather_", "gather_", "alltoall_"}  # by operator: args[0] receives a list
WITHOUT_GAPS = {"allreduce_": (0,), "broadcast_": (0,), "reduce_": (0,)}


def refuse_layouts(operator: str, op: str, args: Sequence[Any]) -> None:
    """Raises ValueError for a tensor on the CPU that gloo would read or write in the wrong order,
    and for one that would receive several results.

    ``op``: torch.distributed's name of the operator.
    """
    if operator in _RESULTS:
        _refuse_repeated(op, tensors_in(args[0]))
    contiguous = _CONTIGUOUS.get(operator, ())
    for at in (*contiguous, *WITHOUT_GAPS.get(operator, ())):
        for tensor in tensors_in(args[at]):
            if tensor.is_contiguous() or not tensor.is_cpu or tensor.layout != torch.strided:
                continue
            is_dense = torch.ops.aten.is_non_overlapping_and_dense(tensor)
            if at in contiguous or not is_dense:
                raise ValueError(_message(op, tensor, is_dense))


def _refuse_repeated(op: str, results: Sequence[torch.Tensor]) -> None:
    places = [each.data_ptr() for each in results if each.numel()]
    if len({*places}) < len(places):
        raise ValueError(
            f"{op} got a list that holds the same tensor more than once, so the last result would "
            "overwrite the others: [tensor] * n repeats one tensor. Make n of them, "
            "[torch.empty_like(tensor) for _ in range(n)]"
        )


def _message(op: str, tensor: torch.Tensor, is_dense: bool) -> str:
    what = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    kind = "a transposed view" if is_dense else "a view with gaps"
    return (
        f"{op} got {kind}, {what} with strides {list(tensor.stride())}: gloo would move the wrong "
        "elements, and NCCL refuses it. Pass view.contiguous(), and copy the result back"
    )
