"""Stage 2: a backward pass that reduces and frees gradients as soon as they are complete."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from autograder.exercise import NAMED_MISTAKES, Case, OnRanks, Plain
from autograder.exercise.signs import (
    MistakeText,
    keeps_growing,
    on_each_rank,
    over_budget,
    raises,
)
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

BACKWARD = "at the last layer of backward"
LIVE_GRADIENTS, IN_EXCHANGE, KEPT = "live gradients", "in exchange", "kept at the end"
# How often the gradient of the loss was propagated, and what a call leaves.
AFTERWARDS = "backward passes", "buckets changed", "graph kept", "gradients left", "hooks left"


def hooks_of(parameters: Sequence[Tensor]) -> int:
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return sum(len(getattr(each, kind, None) or ()) for each in parameters for kind in kinds)


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
    found: dict[str, list[Plain]] = {name: [] for name in (*AFTERWARDS, "slices")}
    buckets = buckets_of(parameters, case)
    handed = [[*map(id, each)] for each in buckets]
    mark(START)
    for batch in given["batches"]:
        loss = loss_of(model, batch)
        passes: list[None] = []
        loss.register_hook(lambda _, passes=passes: passes.append(None))
        hooks = hooks_of(parameters)
        slices = subject(loss, buckets)
        mark_settled(AT_END)
        if not isinstance(slices, list | tuple):
            raise TypeError(f"zero2_backward returns {slices!r:.50}, not a list of slices")
        found["slices"].append(list(slices))
        found["gradients left"].append(any(each.grad is not None for each in parameters))
        found["hooks left"].append(hooks_of(parameters) - hooks)
        found["graph kept"].append(is_graph_kept(loss))
        found["buckets changed"].append([[*map(id, each)] for each in buckets] != handed)
        found["backward passes"].append(len(passes))
    left = any(any(found[name]) for name in AFTERWARDS[1:])
    steps, batch = 0 if left else case.params.get("more_steps", 0), given["batches"][0]
    roots = {"zero2_backward": subject, "model": model}
    grows = found_in_more_steps(roots, lambda: subject(loss_of(model, batch), buckets), steps)
    return found | {"grows": grows}


uses_none = raises(  # a method of tensors
    "'NoneType' object has no attribute '(clone|detach|div|flatten|numel|reshape|shape|view)'",
    "uses None where it needs a tensor: a .grad is None until a hook of "
    "register_post_accumulate_grad_hook (not of register_hook) runs for it. Wait for all of a "
    "bucket's; a lambda that is made in a loop sees the loop's last bucket",
    quoted=True,
)


@on_each_rank
def left_undone(output: Any) -> MistakeText:
    if any(output["buckets changed"]):
        return "changes the lists of buckets: the caller uses them again"
    if any(part is None for slices in output["slices"] for part in slices):
        return "has a bucket that was never reduced"
    if any(output["gradients left"]):
        return (
            "leaves gradients in .grad: set it to None once its bucket is reduced, in a hook of "
            "register_post_accumulate_grad_hook (hooks of register_hook run before .grad is set)"
        )
    return None


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
            shared.most_after(AT_END, "gradients", "activations", "buckets", "other"),
            partial(shared.held_bytes, units=0),
        ),
        # The bucket that backward fills, and the tensors of another bucket's exchange.
        shared.process_memory(BACKWARD, partial(shared.held_bytes, units=4)),
        shared.process_memory(AT_END, partial(shared.held_bytes, units=4)),
    ),
    rules=(*shared.RULES, keeps_growing),
    signs=(
        uses_none,
        left_undone,
        NAMED_MISTAKES,
        shared.expensive,
        over_budget(
            KEPT,
            "keeps more than its slices: free what was flattened, sent or received (a view of a "
            "bucket keeps the whole bucket alive)",
        ),
        over_budget(
            LIVE_GRADIENTS,
            "holds more gradients at a time than its slices and one bucket: reduce and free each "
            "bucket while backward still runs",
        ),
    ),
    memory=True,
)
