"""A linear layer with LoRA: trained under DDP, merged, unmerged, and trained further."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain, combinations, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from autograder.exercise import NAMED_MISTAKES, Budget, Case, Limit, OnRanks, Plain
from autograder.exercise.budget import recorded_calls_explain, sent_since
from autograder.exercise.form import Sign
from autograder.exercise.signs import MistakeText, keeps_growing, on_each_rank, raises
from autograder.exercises.common import FLOAT_BYTES, normal
from autograder.guest.growth import STEPS, found_in_more_steps
from autograder.guest.moments import mark
from shardlab import measure

TRAIN, MERGE, UNMERGE, LOAD = "train", "merge", "unmerge", "load another base"
BATCHES = "batches"  # of the steps: withheld until the bytes sent before the step are counted
ACTIONS = (
    UNMERGE,
    TRAIN,
    MERGE,
    MERGE,
    UNMERGE,
    LOAD,
    UNMERGE,
    TRAIN,
    MERGE,
    UNMERGE,
    TRAIN,
    MERGE,
)
SAMPLES = 5
WITHIN = 0.05
TOLERANCE = 2e-5  # what the order of additions may change
ADAPTER = ["A", "B"]
FROZEN, MISSING = "A and B require no gradient", "there are no A and B"
WITH_NAN = "y when merged, with adapters of NaN"


def draw_inputs(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Equal layers and adapters on all ranks, and different batches.

    Layer: weight [out, in], bias [out] or None.  Adapter: A [r, in], B [out, r].
    """
    widths, r = case.params["widths"], case.params["r"]
    layers = [
        (
            normal(rng, rows, columns, scale=columns**-0.5),
            normal(rng, rows) if case.params["bias"] else None,
        )
        for columns, rows in pairwise(widths)
    ]
    adapters = [
        (normal(rng, r, columns, scale=columns**-0.5), normal(rng, rows, r, scale=0.5 * r**-0.5))
        for columns, rows in pairwise(widths)
    ]

    def of_rank() -> Plain:
        x = normal(rng, SAMPLES, widths[0])
        batches = [
            (normal(rng, SAMPLES, widths[0]), normal(rng, SAMPLES, widths[-1]))
            for _ in range(ACTIONS.count(TRAIN))
        ]
        return {"layers": layers, "adapters": adapters, "x": x, BATCHES: batches}

    return [of_rank() for _ in range(case.world_size)]


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


@torch.no_grad()
def load_adapter(layer: Any, a: Tensor, b: Tensor) -> None:
    """Raises ValueError if A or B has a different shape, which `copy_` might broadcast."""
    for own, value in ((layer.A, a), (layer.B, b)):
        if own.shape != value.shape:
            shapes = f"{tuple(own.shape)}, not {tuple(value.shape)}"
            raise ValueError(f"A is [r, in], B is [out, r]: one has the shape {shapes}")
        own.copy_(value)


def after(i: int) -> str:
    return f"after action {i + 1}, {ACTIONS[i]}"


def run_actions(
    layers: Sequence[Any], model: Callable[[Tensor], Tensor], train: Callable[[], None], x: Tensor
) -> dict[str, Any]:
    """The outputs for x, and the base weights, after each of ACTIONS."""
    found: dict[str, Any] = {"y": {}, "weights": {}}
    for i, action in enumerate(ACTIONS):
        if action == TRAIN:
            train()
        elif action == LOAD:
            for layer in layers:
                base = layer.linear.state_dict()
                layer.linear.load_state_dict({name: value / 2 for name, value in base.items()})
        else:
            for layer in layers:
                getattr(layer, action)()
        with torch.no_grad():
            found["y"][after(i)] = model(x)
        for number, layer in enumerate(layers, 1):
            weight = layer.linear.weight.detach().clone()
            found["weights"][f"layer {number}, {after(i)}"] = weight
    found["adapters"] = adapters_of(layers)
    with torch.no_grad():
        for layer in layers:
            layer.A.fill_(math.nan), layer.B.fill_(math.nan)
        found[WITH_NAN] = model(x)
    return found


def adapters_of(layers: Sequence[Any]) -> list[list[Tensor]]:
    return [[layer.A.detach().clone(), layer.B.detach().clone()] for layer in layers]


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
    torch.use_deterministic_algorithms(True)  # torch.empty gives NaN, not what memory contains
    try:
        layers = [subject(base, case.params["r"], case.params["alpha"]) for base in bases]
    finally:
        torch.use_deterministic_algorithms(False)
    for base, values in zip(bases, given["layers"], strict=True):
        load_base(base, *values)
    model = stacked(layers)
    trained, registered = names_trained(layers), names_of_all(layers)
    if not any(trained):  # DDP would only say that nothing requires a gradient
        raise ValueError(FROZEN if set(ADAPTER) <= set(registered[0]) else MISSING)
    own_base = all(layer.linear is base for layer, base in zip(layers, bases, strict=True))
    with measure("wrap"):
        replica = DistributedDataParallel(model)
    with torch.no_grad():
        fresh = model(given["x"])
    started = adapters_of(layers)
    for layer, adapter in zip(layers, given["adapters"], strict=True):
        load_adapter(layer, *adapter)
    batches: list[Any] = []

    def train() -> None:
        batches.append(mark(BATCHES))
        with measure(TRAIN):
            loss_of(replica, batches[-1]).backward()
        sgd_step(model, case.params["learning_rate"])

    found = run_actions(layers, model, train, given["x"])

    def one_step() -> None:
        """Without an update."""
        for layer in layers:
            layer.unmerge()
        loss_of(replica, batches[0]).backward()
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


def sent_limit(case: Case) -> Limit | None:
    """A ring all-reduce of the adapters' gradients in each step."""
    n = case.world_size
    adapter_bytes = FLOAT_BYTES * case.params["r"] * sum(map(sum, pairwise(case.params["widths"])))
    if n == 1 or adapter_bytes < 2**17:  # gloo's own messages would exceed the few percent
        return None
    return Limit.around(ACTIONS.count(TRAIN) * 2 * (n - 1) / n * adapter_bytes, WITHIN)


@on_each_rank
def restores_another_weight(output: Any, given: Any) -> MistakeText:
    """A rule: `unmerge` restores the weights bit for bit."""
    if any(names != ADAPTER for names in output["trained in the end"]):
        return None  # training has changed them
    factor = 1.0  # of the loaded base
    for i, action in enumerate(ACTIONS):
        factor /= 2 if action == LOAD else 1
        for number, (first, _) in enumerate(given["layers"] if action == UNMERGE else (), 1):
            now = output["weights"][f"layer {number}, {after(i)}"]
            was = factor * first
            if output["form"]["linear is the given one"] and not now.any():  # as it was created
                return "restores the weight that linear had in __init__: keep it in merge()"
            if factor < 1 and torch.equal(now, first):
                return (
                    "restores an older base: save the weight in each merge(), and restore it once"
                )
            if not torch.equal(was, now) and torch.allclose(was, now, TOLERANCE, TOLERANCE):
                mistake = (
                    "leaves rounding errors in the weight after unmerge: (W + ΔW) − ΔW is not W in "
                    "fp32, so keep W itself while it is merged"
                )
                return mistake, f"up to {(was - now).abs().max():.2g}"
    return None


@on_each_rank
def not_random(output: Any) -> MistakeText:
    """A rule: a row of A that is zero or equal to another adds nothing that can be learned."""
    for a, b in output["started"]:
        if not a.any():
            return "starts with an A of zeros: B then gets no gradient, nor does A if B is 0"
        if not a.isfinite().all():
            return (
                "leaves A as torch.empty returns it, whatever that is: draw all entries at random"
            )
        if torch.linalg.matrix_rank(a.double()) < min(a.shape):
            return "starts with an A of dependent rows: draw all entries at random"
        if b.any():
            return "changes the model's output before the first step: B starts at zero"
    pairs = combinations((a for a, _ in output["started"]), 2)
    if any(torch.equal(a, other) for a, other in pairs if a.shape == other.shape):
        return "gives two layers the same A: draw each one at random"
    return None


def in_merge(sign: Sign) -> Sign:
    """The sign, but only for errors from `merge`: `forward` multiplies matrices as well."""
    return lambda attempt: (
        sign(attempt) if ", in merge\n" in getattr(attempt.error, "detail", "") else None
    )


@on_each_rank
def other_parameters(output: Any) -> MistakeText:
    for names in output["trained"]:
        if missing := {*ADAPTER} - {*names}:
            return f"has an adapter of which {missing.pop()} requires no gradient: train A and B"
        if names != ADAPTER:
            mistake = "should train A and B, and nothing else: freeze linear's weight and bias"
            return mistake, f"trained: {', '.join(names)}"
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
    return "does not compute W·x + b, with the bias, while B is zero"


@on_each_rank
def replaces_linear(output: Any) -> MistakeText:
    if not output["form"]["linear is the given one"]:
        return "has another module as linear: keep the given one, without a copy"
    return None


@on_each_rank
def registers_more(output: Any) -> MistakeText:
    of_layers = *output["form"]["registered"], *output["form"]["registered when merged"]
    if others := {*chain(*of_layers)} - {*ADAPTER, "linear.weight", "linear.bias"}:
        mistake = (
            "registers another parameter or buffer: keep the original weight and α/r as plain "
            "attributes, since DDP also broadcasts all buffers in forward"
        )
        return mistake, ", ".join(sorted(others))
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
    learning_rate = 1e-6 if widths[0] > 100 else 5e-3
    params = {"widths": widths, "r": r, "alpha": alpha, "bias": bias, "more_steps": more_steps}
    return Case(name, world_size, params | {"learning_rate": learning_rate})


EXERCISE = OnRanks(
    answer="LoRALinear",
    points=4,
    cases=(
        case_of("1 rank, one layer", 1, [7, 5], 3, 5.0, more_steps=STEPS),
        case_of("2 ranks, two square layers", 2, [6, 6, 6], 2, 7.0, bias=False),
        case_of("3 ranks, 128 kB of adapters", 3, [311, 330, 305], 27, 5.5),
    ),
    inputs=draw_inputs,
    withheld=BATCHES,
    drive=drive,
    tolerance=TOLERANCE,
    named_within=2e-4,  # wrong scales amplify rounding errors
    budgets=(
        Budget(
            "sends ≤ 1.05 × the adapters' gradients per step",
            sent_since(BATCHES, TRAIN),
            sent_limit,
        ),
        recorded_calls_explain(
            sent_since(BATCHES, TRAIN), lambda case: sent_limit(case) is not None
        ),
    ),
    rules=(restores_another_weight, not_random, keeps_growing),
    signs=(
        raises(
            "Expected to have finished reduction",
            "has parameters that require a gradient and get none, which DDP waits for: set "
            "requires_grad to False on the base, and let A and B both take part in forward's graph",
        ),
        raises(
            f"ValueError: {FROZEN}",
            "has A and B that require no gradient: make them nn.Parameters, and freeze only linear",
        ),
        raises(
            f"ValueError: {MISSING}",
            "has no parameters A and B when DDP wraps it: create both in __init__, as nn.Parameter",
        ),
        raises(
            "ValueError: A is ",
            "has A or B of another shape: A is [r, in], and B is [out, r]",
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
        registers_more,
    ),
)
