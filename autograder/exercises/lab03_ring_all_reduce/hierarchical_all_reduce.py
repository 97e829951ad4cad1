"""An all-reduce in two levels, of ranks on several nodes: what crosses between nodes counts.

Nodes are logical: node k has the ranks k·L … k·L + L − 1, for L ranks per node.  An answer that
makes groups needs new ranks in each case, so there are few cases, on few ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from autograder.exercise import Attempt, Budget, Case, Finding, Limit, OnRanks, Plain
from autograder.exercise.signs import never_waited
from autograder.exercises.lab03_ring_all_reduce import shared
from autograder.exercises.lab03_ring_all_reduce.shared import tensor_or_none
from shardlab import measure
from shardlab.errors import DeadlockError, RankError
from shardlab.ranks.trust import Trust
from shardlab.run import Call, Run

DO_NOT_FIT = r"outputShape\[0\]|invalid tensor size|sizes\(\)\.vec"  # in gloo's messages
TWO_LEVELS = "two levels"  # the block with the calls that rules and signs are about


def node_case(
    nodes: int,
    ranks_per_node: int,
    length: int,
    dtype: str = "float32",
    weight: float = 1,
    **more: Any,
) -> Case:
    """``also``: (ranks per node, elements) of further calls, with the start of each tensor."""
    case = shared.ring_case(nodes * ranks_per_node, length, dtype, **more)
    name = f"{nodes} × {ranks_per_node} ranks, {case.name.partition(', ')[2]}"
    params = {**case.params, "ranks_per_node": ranks_per_node}
    return Case(name, case.world_size, params, weight=weight)


def further_calls(case: Case, tensor: torch.Tensor) -> dict[str, tuple[int, torch.Tensor]]:
    """{key of the output: (ranks per node, tensor)}"""
    also = case.params.get("also", ())
    return {
        f"tensor, {of_node} ranks per node": (of_node, tensor[:n].clone()) for of_node, n in also
    }


def drive(subject: Callable[..., Any], tensor: torch.Tensor, case: Case) -> Plain:
    further = further_calls(case, tensor)
    with measure(TWO_LEVELS):
        returned = subject(tensor[:], case.params["ranks_per_node"])
    for ranks_per_node, other in further.values():
        subject(other, ranks_per_node)
    others = {key: other for key, (_, other) in further.items()}
    return {"tensor": tensor, "returned": tensor_or_none(returned), **others}


# ---- budgets ------------------------------------------------------------------------------------


def sent(ranks_per_node: int, to_own_node: bool) -> Callable[[Run], list[int]]:
    """By rank, to ranks of its own node or to all others."""

    def used(run: Run) -> list[int]:
        node = torch.arange(run.world_size) // ranks_per_node
        is_counted = (node[:, None] == node) == to_own_node
        return (torch.from_numpy(run.traffic.sent_bytes) * is_counted).sum(1).tolist()

    return used


def ideal_bytes(case: Case, ranks_per_node: int) -> tuple[float, float] | None:
    """What a rank sends within its node and across; None if the tensor is too small to measure.

    gloo's reduce-scatter sends what an all-reduce does, with the all-gather 3(L − 1)/L of a tensor.
    """
    nodes = case.world_size // ranks_per_node
    n_bytes = case.params["length"] * getattr(torch, case.params["dtype"]).itemsize
    if case.params["ranks_per_node"] != ranks_per_node or n_bytes < shared.BUDGET_FROM_BYTES:
        return None
    within = 3 * (ranks_per_node - 1) / ranks_per_node
    return within * n_bytes, 2 * (nodes - 1) / nodes / ranks_per_node * n_bytes


def budgets(ranks_per_node: int) -> tuple[Budget, Budget]:
    """For the measured cases with this number of ranks per node."""

    def across(case: Case) -> Limit | None:
        ideal = ideal_bytes(case, ranks_per_node)
        return Limit.around(ideal[1], 0.01) if ideal else None

    def within(case: Case) -> Limit | None:
        ideal = ideal_bytes(case, ranks_per_node)
        return Limit(1.01 * ideal[0]) if ideal else None

    return (
        Budget(
            "sends ≤ 1.01 × ideal bytes to other nodes",
            sent(ranks_per_node, to_own_node=False),
            across,
            heading="sent to other nodes",
        ),
        Budget(
            "sends ≤ 1.01 × 3(L - 1)/L of the tensor within its node",
            sent(ranks_per_node, to_own_node=True),
            within,
            heading="sent within its node",
        ),
    )


# ---- signs --------------------------------------------------------------------------------------


def collectives(attempt: Attempt) -> list[Call]:
    """Of the first call of the answer; only of a run in which no rank failed."""
    if attempt.error is not None or attempt.run is None or TWO_LEVELS not in attempt.run.traffic:
        return []
    by_rank = (attempt.run.calls_in(TWO_LEVELS, rank) for rank in range(attempt.case.world_size))
    return [call for calls in by_rank for call in calls if call.bytes and not call.is_p2p]


def wrong_level(attempt: Attempt) -> Finding | None:
    """A rule: a collective is of one node's ranks, or sums a shard across nodes."""
    for call in collectives(attempt):
        if found := wrong_call(call, attempt.case, attempt.inputs[0]):
            return Finding(f"rank {call.rank}", *found)
    return None


def wrong_call(call: Call, case: Case, tensor: torch.Tensor) -> tuple[str, str] | None:
    """(mistake, evidence)"""
    ranks_per_node, n = case.params["ranks_per_node"], case.world_size
    n_nodes = len({rank // ranks_per_node for rank in call.group})
    shard_bytes = -(-len(tensor) // n) * n // ranks_per_node * tensor.element_size()  # padded for n
    evidence = call.source
    if len(call.group) == n:
        mistake = f"calls {call.op} over all ranks: use groups of one node, and of one rank of each"
    elif n_nodes == 1:
        if call.op != "all_reduce":
            return None
        mistake = "all-reduces within its node: a rank needs only its shard there, reduce-scatter"
    elif n_nodes < len(call.group):
        mistake = "mixes nodes in a group: node k has ranks k·L … k·L + L - 1"
        members = ", ".join(map(str, call.group))
        evidence = f"{call.op} of ranks {members}, L is {ranks_per_node}; {call.source}"
    elif call.bytes > shard_bytes:
        mistake = f"calls {call.op} across nodes: swap the groups, and only all-reduce across"
        if call.op in ("all_reduce", "reduce"):
            mistake = "sums more than its shard across nodes: reduce-scatter within the node first"
        evidence = f"{call.bytes:,} bytes, its shard has {shard_bytes:,}; {call.source}"
    else:
        return None
    return mistake, evidence


def makes_other_groups(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if not isinstance(error, DeadlockError) or "of new_group: " not in error.headline:
        return None
    mistake = "make different groups: every rank makes every group, in the same order"
    return Finding("ranks", mistake, in_own_check(attempt, error.headline), who_if_hidden="ranks")


def passes_unequal_shards(attempt: Attempt) -> Finding | None:
    """gloo stops with an error, or a rank waits for shards of another length."""
    error, mistake = attempt.error, "passes shards that do not fit: pad tensor to L equal ones"
    if isinstance(error, RankError) and re.search(DO_NOT_FIT, error.message):
        return Finding(f"rank {error.rank}", mistake, error.source)
    if isinstance(error, DeadlockError) and " to all_gather, but " in error.headline:
        return Finding("a rank", mistake, in_own_check(attempt, error.headline))
    return None


def in_own_check(attempt: Attempt, headline: str) -> str:
    """It names the ranks that have arrived so far, which vary from run to run."""
    return headline if attempt.trust is Trust.OWN else ""


def is_in_no_group(attempt: Attempt) -> Finding | None:
    """Some ranks call collectives, and some are not in the groups that they pass."""
    callers = {call.rank for call in collectives(attempt)}
    outside = sorted({*range(attempt.case.world_size)} - callers)
    if not callers or not outside:
        return None
    mistake = "calls no collective of a group that it is in: keep the groups of this rank"
    return Finding(f"rank {outside[0]}", mistake)


EXERCISE = OnRanks(
    points=4,
    cases=(node_case(2, 2, 12), node_case(2, 3, shared.HALF_MIB_OF_FLOAT32, weight=2)),
    inputs=shared.draw_tensors,
    drive=drive,
    budgets=(*budgets(2), *budgets(3)),
    rules=(never_waited, wrong_level),
    signs=(
        shared.works_on_a_copy,
        makes_other_groups,
        passes_unequal_shards,
        is_in_no_group,
    ),
)
