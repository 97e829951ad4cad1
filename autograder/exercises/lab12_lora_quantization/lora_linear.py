"""A linear layer with LoRA: trained under DDP, merged, unmerged, and trained further."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from autograder.exercise import (
    NAMED_MISTAKES,
    Attempt,
    Budget,
    Case,
    Finding,
    Limit,
    OnRanks,
    Plain,
)
from autograder.exercise.form import Sign
from autograder.exercise.signs import MistakeText, keeps_growing, on_each_rank, raises
from autograder.guest.growth import STEPS, found_in_more_steps
from shardlab import measure
from shardlab.errors import RankError
from shardlab.run import Run

TRAIN, MERGE, UNMERGE = "train", "merge", "unmerge"
ACTIONS = (UNMERGE, TRAIN, MERGE, MERGE, UNMERGE, UNMERGE, TRAIN, TRAIN, MERGE)
FLOAT_BYTES = 4
# Below this, gloo's own messages exceed the budget's few percent.
BUDGET_FROM_BYTES = 2**17
WITHIN = 1.05
TOLERANCE = 2e-5  # what the order of additions may change
ADAPTER = ["A", "B"]
WITH_NAN = "y when merged, with adapters of NaN"


def draw_inputs(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Equal layers and adapters on all ranks, and different batches.

    Layer: weight [out, in], bias [out] or None.  Adapter: A [r, in], B [out, r].
    """
    widths, samples, r = (case.params[key] for key in ("widths", "samples", "r"))

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.from_numpy(scale * rng.standard_normal(shape)).float()

    shapes = list(zip(widths[1:], widths[:-1], strict=True))
    layers = [
        (normal(rows, columns, scale=columns**-0.5), normal(rows) if case.params["bias"] else None)
        for rows, columns in shapes
    ]
    adapters = [
        (normal(r, columns, scale=columns**-0.5), normal(rows, r, scale=0.5 * r**-0.5))
        for rows, columns in shapes
    ]
    steps = ACTIONS.count(TRAIN)
    return [
        {
            "layers": layers,
            "adapters": adapters,
            "x": normal(samples, widths[0]),
            "batches": [
                (normal(samples, widths[0]), normal(samples, widths[-1])) for _ in range(steps)
            ],
        }
        for _ in range(case.world_size)
    ]


def empty_layer(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None)
    nn.init.zeros_(layer.weight)
    return layer


@torch.no_grad()
def load_base(layer: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    layer.weight.copy_(weight)
    if bias is not None:
        layer.bias.copy_(bias)


def base_layer(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = empty_layer(weight, bias)
    load_base(layer, weight, bias)
    return layer


def stacked(layers: Sequence[nn.Module]) -> nn.Sequential:
    """The layers with tanh between them."""
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.Tanh())][:-1])


def load_adapter(layer: Any, a: Tensor, b: Tensor) -> None:
    """Raises ValueError if A or B has a different shape, which `copy_` might broadcast."""
    for name, value in zip(ADAPTER, (a, b), strict=True):
        shape = tuple(getattr(layer, name).shape)
        if shape != tuple(value.shape):
            raise ValueError(f"{name} has another shape: {shape}, not {tuple(value.shape)}")
    with torch.no_grad():
        layer.A.copy_(a)
        layer.B.copy_(b)


def run_actions(
    layers: Sequence[Any], model: Callable[[Tensor], Tensor], train: Callable[[], None], x: Tensor
) -> dict[str, Any]:
    """The outputs for x, and the base weights, after each of ACTIONS."""
    found: dict[str, Any] = {"y": [], "weights": []}
    for action in ACTIONS:
        if action == TRAIN:
            train()
        else:
            for layer in layers:
                getattr(layer, action)()
        with torch.no_grad():
            found["y"].append(model(x))
        found["weights"].append([layer.linear.weight.detach().clone() for layer in layers])
    found["adapters"] = [[layer.A.detach().clone(), layer.B.detach().clone()] for layer in layers]
    with torch.no_grad():
        for layer in layers:
            layer.A.fill_(math.nan), layer.B.fill_(math.nan)
        found[WITH_NAN] = model(x)
    return found


def sgd_step(model: nn.Module, learning_rate: float) -> None:
    """Updates the parameters in place and clears their gradients."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(learning_rate * parameter.grad)
    model.zero_grad()


def loss_of(model: Callable[[Tensor], Tensor], batch: Sequence[Tensor]) -> Tensor:
    """The mean over samples, not outputs, so that gradients are about 1 at any width."""
    inputs, targets = batch
    return mse_loss(model(inputs), targets, reduction="sum") / len(inputs)


def names_trained(layers: Sequence[nn.Module]) -> list[list[str]]:
    return [sorted(n for n, p in layer.named_parameters() if p.requires_grad) for layer in layers]


def names_of_all(layers: Sequence[nn.Module]) -> list[list[str]]:
    """Of parameters and buffers."""
    return [
        sorted(name for name, _ in (*layer.named_parameters(), *layer.named_buffers()))
        for layer in layers
    ]


def drive(subject: Any, given: Any, case: Case) -> Plain:
    bases = [empty_layer(*each) for each in given["layers"]]
    layers = [subject(base, case.params["r"], case.params["alpha"]) for base in bases]
    for base, values in zip(bases, given["layers"], strict=True):
        load_base(base, *values)
    model = stacked(layers)
    trained, registered = names_trained(layers), names_of_all(layers)
    own_base = all(layer.linear is base for layer, base in zip(layers, bases, strict=True))
    with measure("wrap"):
        replica = DistributedDataParallel(model)
    with torch.no_grad():
        fresh = model(given["x"])
    started = [[layer.A.detach().clone(), layer.B.detach().clone()] for layer in layers]
    for layer, adapter in zip(layers, given["adapters"], strict=True):
        load_adapter(layer, *adapter)
    batches = iter(given["batches"])

    def train() -> None:
        with measure(TRAIN):
            loss_of(replica, next(batches)).backward()
        sgd_step(model, case.params["learning_rate"])

    found = run_actions(layers, model, train, given["x"])

    def one_step() -> None:
        """Without an update."""
        for layer in layers:
            layer.unmerge()
        loss_of(replica, given["batches"][0]).backward()
        model.zero_grad()
        for layer in layers:
            layer.merge()

    return found | {
        "grows": found_in_more_steps({"self": layers[0]}, one_step, case.params["more_steps"]),
        "fresh": fresh,
        "trained": trained,
        "trained in the end": names_trained(layers),
        "form": {
            "linear is the given one": own_base,
            "registered": registered,
            "registered when merged": names_of_all(layers),
        },
        "started": started,
    }


def adapter_parameters(case: Case) -> int:
    widths = case.params["widths"]
    return sum(case.params["r"] * (a + b) for a, b in pairwise(widths))


def sent_in_training(run: Run) -> list[int]:
    return run.traffic[TRAIN].sent_by_rank.tolist()


def sent_limit(case: Case) -> Limit | None:
    """A ring all-reduce of the adapters' gradients in each step."""
    n, size = case.world_size, FLOAT_BYTES * adapter_parameters(case)
    if n == 1 or size < BUDGET_FROM_BYTES:
        return None
    return Limit.around(ACTIONS.count(TRAIN) * 2 * (n - 1) / n * size, WITHIN - 1)


@on_each_rank
def leaves_rounding(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    """A rule: `unmerge` restores the weights bit for bit."""
    if any(names != ADAPTER for names in output["trained in the end"]):
        return None  # training has changed them
    given = [weight for weight, _ in attempt.inputs[rank]["layers"]]
    for action, weights in zip(ACTIONS, output["weights"], strict=True):
        if action == UNMERGE:
            for was, now in zip(given, weights, strict=True):
                if not torch.equal(was, now) and torch.allclose(was, now, TOLERANCE, TOLERANCE):
                    mistake = (
                        "leaves rounding errors in the weight after unmerge: (W + ΔW) − ΔW is not "
                        "W in fp32, so keep W itself while it is merged"
                    )
                    return mistake, f"up to {(was - now).abs().max():.2g}"
    return None


@on_each_rank
def restores_too_old(output: Any) -> MistakeText:
    """The base's weight was 0 when the answer was created."""
    if not output["form"]["linear is the given one"]:
        return None  # its weight is a copy of the zeros
    after = [weights for a, weights in zip(ACTIONS, output["weights"], strict=True) if a == UNMERGE]
    if any(not weight.any() for weights in after for weight in weights):
        return "restores the weight that linear had in __init__: keep it in merge()"
    return None


@on_each_rank
def not_random(output: Any) -> MistakeText:
    """A rule: a row of A that is zero or equal to another adds nothing that can be learned."""
    for a, _ in output["started"]:
        if not a.any():
            return "starts with an A of zeros: B then gets no gradient, nor does A if B is 0"
        if not a.isfinite().all():
            return "starts with an A that contains inf or nan"
        if torch.linalg.matrix_rank(a.double()) < min(a.shape):
            return "starts with an A whose rows depend on each other: draw all entries at random"
    return None


def in_merge(inner: Sign) -> Sign:
    """The sign, but only for errors from `merge`: `forward` multiplies matrices as well."""

    def sign(attempt: Attempt) -> Finding | None:
        error = attempt.error
        was_merging = isinstance(error, RankError) and ", in merge\n" in error.detail
        return inner(attempt) if was_merging else None

    return sign


@on_each_rank
def other_parameters(output: Any) -> MistakeText:
    for names in output["trained"]:
        base = [name for name in names if name.startswith("linear.")]
        if base:
            return "leaves the base trainable: freeze its weight and its bias", ", ".join(base)
        if names != ADAPTER:
            return "should train two parameters, A and B", ", ".join(names) or "none"
    if any(name != ADAPTER for name in output["trained in the end"]):
        return (
            "makes the base trainable while merging: change its weight in place, under "
            "torch.no_grad(), and create no other parameter"
        )
    return None


@on_each_rank
def jumps(output: Any, expected: Any) -> MistakeText:
    if torch.allclose(output["fresh"], expected["fresh"], TOLERANCE, TOLERANCE):
        return None
    if any(b.any() for _, b in output["started"]):
        return "changes the model's output before the first step: B starts at zero"
    return "does not compute W·x + b, with the bias, while B is zero"


@on_each_rank
def replaces_linear(output: Any) -> MistakeText:
    if not output["form"]["linear is the given one"]:
        return "has another module as linear: keep the given one, without a copy"
    return None


@on_each_rank
def computes_when_merged(output: Any) -> MistakeText:
    if output[WITH_NAN].isnan().any():
        return "uses A or B in forward although it is merged: then only linear(x) is computed"
    return None


@on_each_rank
def registers_more(output: Any, expected: Any) -> MistakeText:
    for key in ("registered", "registered when merged"):
        for got, right in zip(output["form"][key], expected["form"][key], strict=True):
            if others := sorted({*got} - {*right}):
                return (
                    "registers another parameter or buffer: keep the original weight and α/r as "
                    "plain attributes, since DDP also broadcasts all buffers in forward",
                    ", ".join(others),
                )
    return None


def case_of(
    name: str,
    world_size: int,
    widths: list[int],
    r: int,
    alpha: float,
    bias: bool = True,
    more_steps: int = 0,
) -> Case:
    """Wide layers learn slowly: with a wrong scale they would diverge."""
    params = {
        "widths": widths,
        "samples": 5,
        "r": r,
        "alpha": alpha,
        "bias": bias,
        "more_steps": more_steps,
        "learning_rate": 1e-6 if widths[0] > 100 else 5e-3,
    }
    return Case(name, world_size, params)


EXERCISE = OnRanks(
    answer="LoRALinear",
    points=4,
    cases=(
        case_of("1 rank, one layer", 1, [7, 5], 3, 5.0, more_steps=STEPS),
        case_of("2 ranks, two square layers", 2, [6, 6, 6], 2, 7.0, bias=False),
        case_of("3 ranks, 128 kB of adapters", 3, [311, 330, 305], 27, 5.5),
    ),
    inputs=draw_inputs,
    drive=drive,
    tolerance=TOLERANCE,
    named_within=2e-4,  # wrong scales amplify rounding errors
    budgets=(
        Budget("sends ≤ 1.05 × the adapters' gradients per step", sent_in_training, sent_limit),
    ),
    rules=(restores_too_old, leaves_rounding, not_random, keeps_growing),
    signs=(
        raises(
            "have any parameters? that requires? a gradient",
            "has no trainable parameters when DDP wraps it: create A and B in __init__",
        ),
        raises(
            "Expected to have finished reduction",
            "has parameters that require a gradient and get none, which DDP waits for: set "
            "requires_grad to False on the base, and let A and B both take part in forward's graph",
        ),
        raises(
            "has another shape", "has an adapter with the wrong shape: A is [r, in], B is [out, r]"
        ),
        raises(
            "has no attribute '(A|B|linear|merge|unmerge)'",
            "lacks an attribute: a layer has linear, A, B, merge and unmerge",
            quoted=True,
        ),
        raises(
            "does not require grad",
            "computes an output that depends on no trained parameter: unless it is merged, forward "
            "adds the adapter, even after unmerge(), and A and B stay trainable",
        ),
        in_merge(
            raises(
                "size of tensor a|shapes cannot be multiplied|shape .* doesn't match the broadcast",
                "merges a matrix of another shape: W [out, in] grows by B·A, not by its transpose",
            )
        ),
        other_parameters,
        replaces_linear,
        jumps,
        NAMED_MISTAKES,
        computes_when_merged,
        registers_more,
    ),
)
