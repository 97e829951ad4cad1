"""Stage 2: a backward pass that reduces and frees gradients as soon as they are complete."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from autograder.exercise import NAMED_MISTAKES, Attempt, Case, Finding, OnRanks, Plain
from autograder.exercise.signs import MistakeText, is_over, keeps_growing, on_each_rank
from autograder.exercises.lab04_zero import shared
from autograder.exercises.lab04_zero.shared import (
    AT_END,
    buckets_of,
    loss_of,
    mlp,
    with_reference_bounds,
)
from autograder.guest.growth import STEPS, found_in_more_steps
from autograder.guest.moments import START, mark, mark_in_backward, mark_settled
from shardlab.errors import RankError
from shardlab.run import Run

BACKWARD = "at the last layer of backward"
LIVE_GRADIENTS, IN_EXCHANGE, KEPT = "live gradients", "in exchange", "kept at the end"
# What a call leaves, and how often the gradient of the loss was propagated.
AFTERWARDS = ("gradients left", "hooks left", "graph kept", "buckets changed", "backward passes")


def kept_at_end(run: Run) -> list[int]:
    kinds = ("gradients", "activations", "buckets", "other")
    return [max(after, default=0) for after in shared.live_after(run, AT_END, *kinds)]


def hooks_of(parameters: Sequence[Tensor]) -> int:
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return sum(len(getattr(each, kind, None) or ()) for each in parameters for kind in kinds)


def ids(bucket: Sequence[Tensor]) -> list[int]:
    return [*map(id, bucket)]


def is_graph_kept(loss: Tensor) -> bool:
    """Backward frees the tensors that autograd has saved, unless retain_graph is set."""
    of_mean: Any = loss.grad_fn
    of_squares = of_mean.next_functions[0][0]
    try:
        return of_squares._saved_self is not None
    except RuntimeError:
        return False


def drive(subject: Any, given: Any, case: Case) -> Plain:
    model = mlp(given["layers"])
    parameters = list(model.parameters())
    mark_in_backward(model[0], BACKWARD)
    subject = with_reference_bounds(subject, case)
    found: dict[str, list[Plain]] = {name: [] for name in (*AFTERWARDS, "slices", "storages")}
    buckets = buckets_of(parameters, case)
    mark(START)
    for batch in given["batches"]:
        loss = loss_of(model, batch)
        passes: list[None] = []
        loss.register_hook(lambda _, passes=passes: passes.append(None))
        hooks = hooks_of(parameters)
        returned = subject(loss, buckets)
        mark_settled(AT_END)
        is_list = isinstance(returned, list | tuple)
        slices = list(returned) if is_list else f"a {type(returned).__name__}"
        found["slices"].append(slices)
        found["gradients left"].append(any(each.grad is not None for each in parameters))
        found["hooks left"].append(hooks_of(parameters) - hooks)
        found["graph kept"].append(is_graph_kept(loss))
        was = buckets_of(parameters, case)
        found["buckets changed"].append([*map(ids, buckets)] != [*map(ids, was)])
        found["backward passes"].append(len(passes))
        tensors = [each for each in slices if isinstance(each, Tensor)]
        found["storages"].append(sum(each.untyped_storage().nbytes() for each in tensors))
    left = any(any(found[name]) for name in AFTERWARDS[:-1])  # by name: see `leaves_something`
    steps, batch = 0 if left else case.params.get("more_steps", 0), given["batches"][0]
    roots = {"zero2_backward": subject, "model": model}
    grows = found_in_more_steps(roots, lambda: subject(loss_of(model, batch), buckets), steps)
    return found | {"grows": grows}


@on_each_rank
def no_slices(output: Any, case: Case) -> MistakeText:
    if any(output["buckets changed"]):
        return "changes the lists of buckets: the caller uses them again"
    for slices in output["slices"]:
        if not isinstance(slices, list) or len(slices) != len(shared.unit_bytes(case)):
            return "should return a list with one slice per bucket, in the buckets' order"
        if any(not isinstance(part, Tensor) for part in slices):
            return "has a bucket that was never reduced"
        elements = [size // shared.FLOAT_BYTES for size in shared.unit_bytes(case)]
        if [part.numel() for part in slices] == elements:
            return "returns whole buckets: slice i is this rank's part of bucket i"
    return None


@on_each_rank
def leaves_something(output: Any) -> MistakeText:
    """What is not as before the call, or not done in one backward pass."""
    passes = max(output["backward passes"])
    if passes > 1:
        return (
            "runs backward more than once: one pass computes all gradients, and hooks see each of "
            "them",
            f"{passes} times",
        )
    if any(output["graph kept"]):
        return "keeps the graph and its activations: call backward without retain_graph"
    if any(output["gradients left"]):
        return (
            "leaves gradients in .grad: set it to None once its bucket is reduced, in a hook of "
            "register_post_accumulate_grad_hook (hooks of register_hook run before .grad is set)"
        )
    if hooks := max(output["hooks left"]):
        mistake = "leaves its hooks on the parameters: they would run in the next backward, too"
        return mistake, f"{hooks} hooks"
    return None


def uses_none(attempt: Attempt) -> Finding | None:
    """A rank called a method of tensors on None."""
    error = attempt.error
    if not isinstance(error, RankError):
        return None
    found = re.search(r"'NoneType' object has no attribute '(\w+)'", error.message)
    if found is None or not hasattr(Tensor, found[1]):
        return None
    mistake = (
        "uses None where it needs a tensor: a .grad is None until a hook of "
        "register_post_accumulate_grad_hook (not of register_hook) runs for it. Wait for all of a "
        "bucket's; a lambda that is made in a loop sees the loop's last bucket"
    )
    return Finding(f"rank {error.rank}", mistake, error.headline)


@on_each_rank
def holds_too_much(output: Any, rank: int, case: Case, attempt: Attempt) -> MistakeText:
    """Too many live gradients during backward, or buckets that outlive their exchange."""
    run, over = attempt.run, [rank in is_over(attempt, each) for each in (KEPT, LIVE_GRADIENTS)]
    if run is None or not (any(over) or rank in is_over(attempt, IN_EXCHANGE)):
        return None
    if over[0]:
        own_bytes = sum(shared.unit_bytes(case)) / case.world_size
        if max(output["storages"]) > 1.5 * own_bytes:
            return "returns views of whole buckets: a view keeps its whole tensor alive"
        return (
            "keeps more than its slices: free what was flattened, sent or received",
            f"{kept_at_end(run)[rank]:,} bytes at the end",
        )
    if over[1]:
        return (
            "holds more gradients at a time than its slices and one bucket: reduce and free each "
            "bucket while backward still runs"
        )
    return (
        "has more than one bucket in exchange at a time: finish an exchange, and free what it sent "
        "and received, before the next"
    )


EXERCISE = OnRanks(
    points=5,
    cases=(
        Case(
            "4 ranks, 3 small layers, 2 steps",
            4,
            {"widths": [6, 8, 3, 4], "batches": 2, "more_steps": STEPS},
        ),
        Case(  # the first two buckets share a layer
            "3 ranks, buckets of 3, 1 and 4 parameters",
            3,
            {"widths": [5, 6, 5, 4, 3], "buckets": [[6, 7, 5], [4], [2, 3, 0, 1]]},
        ),
        Case("4 ranks, 8 layers of 256 KiB", 4, {"widths": [256] * 9}, weight=2),
    ),
    inputs=shared.draw_inputs,
    drive=drive,
    tolerance=shared.TOLERANCE,
    budgets=(
        shared.traffic(shared.unit_bytes),
        shared.live(
            "holds ≤ 1.02 × (Ψ/N + one bucket) of gradients",
            LIVE_GRADIENTS,
            lambda run: run.memory.peak_of("gradients").tolist(),
            partial(shared.held_bytes, units=1),
        ),
        # What a bucket's reduce_scatter sends and receives, and those of earlier buckets.
        shared.live(
            "exchanges one bucket at a time",
            IN_EXCHANGE,
            lambda run: run.memory.peak_of("buckets").tolist(),
            lambda case: 2 * (1 + shared.GLOO_THREADS) * max(shared.unit_bytes(case)),
        ),
        shared.live(
            "keeps only its slices",
            KEPT,
            kept_at_end,
            partial(shared.held_bytes, units=0),
        ),
        # The bucket that backward fills, and the tensors of another bucket's exchange.
        shared.process_memory(BACKWARD, partial(shared.held_bytes, units=4)),
        shared.process_memory(AT_END, partial(shared.held_bytes, units=4)),
    ),
    rules=(*shared.RULES, keeps_growing),
    signs=(
        shared.unpadded,
        uses_none,
        no_slices,
        leaves_something,
        NAMED_MISTAKES,
        shared.expensive,
        holds_too_much,
    ),
    memory=True,
)
