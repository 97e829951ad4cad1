from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import with_random_delays
from autograder.exercises.lab03_ring_all_reduce.hierarchical_all_reduce import (
    further_calls,
    node_case,
)

CASES = (with_random_delays(node_case(3, 2, 600_001, "bfloat16", also=((6, 1), (1, 5)))),)
BOUNDARIES = {
    "divides": "2 × 2 ranks, 12 elements",
    "does not divide": "2 × 3 ranks, 512 KiB",
    "one rank": "not tested: there is nothing to sum",
    "one rank in each node": "3 × 2 ranks, 600,001 elements",
    "one node": "3 × 2 ranks, 600,001 elements",
    "more ranks than elements": "3 × 2 ranks, 600,001 elements",
}
Tensors = dict[str, torch.Tensor]


def reference(case: Case, inputs: Any) -> Tensors:
    total = torch.stack(inputs).sum(dim=0)
    further = {key: other for key, (_, other) in further_calls(case, total).items()}
    return {"tensor": total, **further}


def sum_of(tensors: Sequence[torch.Tensor]) -> Tensors:
    return {"tensor": torch.stack(list(tensors)).sum(dim=0)}


def node_sums(case: Case, inputs: Any) -> list[Plain]:
    n = case.params["ranks_per_node"]
    firsts = [rank // n * n for rank in range(case.world_size)]
    return [sum_of(inputs[first : first + n]) for first in firsts]


def times(factor: Callable[[Case], int]) -> Callable[[Case, Any], Tensors]:
    return lambda case, inputs: {"tensor": sum_of(inputs)["tensor"] * factor(case)}


def shards(case: Case, tensor: torch.Tensor) -> list[torch.Tensor]:
    """One for each local rank, of one length."""
    n = case.params["ranks_per_node"]
    return list(pad(tensor, (0, -len(tensor) % n)).chunk(n))


def joined(case: Case, parts: list[torch.Tensor]) -> Tensors:
    return {"tensor": torch.cat(parts)[: case.params["length"]]}


def moved(change: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Callable[..., Tensors]:
    return lambda case, inputs: joined(case, change(shards(case, sum_of(inputs)["tensor"])))


def only_its_shard(case: Case, inputs: Any) -> list[Plain]:
    whole, found = shards(case, sum_of(inputs)["tensor"]), []
    for rank, tensor in enumerate(inputs):
        parts, own = shards(case, tensor), rank % case.params["ranks_per_node"]
        found.append(joined(case, [*parts[:own], whole[own], *parts[own + 1 :]]))
    return found


def not_within(case: Case, inputs: Any) -> Tensors:
    """Shard k is the sum over the ranks with local rank k only."""
    n = case.params["ranks_per_node"]
    of_local_rank = [sum_of(inputs[k::n])["tensor"] for k in range(n)]
    return joined(case, [shards(case, total)[k] for k, total in enumerate(of_local_rank)])


def skips_the_remainder(case: Case, inputs: Any) -> list[Plain]:
    length = case.params["length"]
    kept = length - length % case.params["ranks_per_node"]
    total = sum_of(inputs)["tensor"]
    return [{"tensor": torch.cat([total[:kept], tensor[kept:]])} for tensor in inputs]


MISTAKES = {
    "leaves tensor as it was: gather into it, or copy the sum back with tensor.copy_": (
        lambda case, inputs: [{"tensor": tensor} for tensor in inputs]
    ),
    "has only its node's sum: all-reduce the shard across nodes": node_sums,
    "sums only across nodes: reduce-scatter within the node first": not_within,
    "has only its shard of the sum: all-gather within the node": only_its_shard,
    "leaves out the elements that ranks_per_node does not divide: pad tensor": skips_the_remainder,
    "joins the shards in the wrong order: local rank k has shard k": (
        moved(lambda parts: parts[::-1]),
        moved(lambda parts: [*parts[1:], parts[0]]),
        moved(lambda parts: [parts[-1], *parts[:-1]]),
    ),
    "counts values several times: add a rank's once within its node, a node's sum once across": (
        times(lambda case: case.params["ranks_per_node"]),
        times(lambda case: case.world_size // case.params["ranks_per_node"]),
    ),
}
