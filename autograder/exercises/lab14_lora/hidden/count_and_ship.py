from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.common import FLOAT_BYTES
from autograder.exercises.lab14_lora.count_and_ship import decoder

CASES = (questions("drawn models"), questions("33 ranks and more"))
BOUNDARIES = {
    "divides": "one block, square weights",
    "does not divide": "one block, weights that are not square",
    "one rank": "one block, square weights",
    "more ranks than elements": "not tested: what a ring sends is not rounded",
    "weights that are not square": "one block, weights that are not square",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "4 * base + 6 * adapters", "4 * (base + adapters) + 2 * adapters", "4 + 2 = 6"
    ),
)
LOOKED_UP = ("token", "position")
Shape = Sequence[int]
Shapes = Mapping[str, Shape]
Answer = dict[str, float]


def module_of(name: str) -> str:
    """ "blocks.0.query.weight" -> "query" """
    return name.split(".")[-2]


def is_multiplied(name: str, shape: Shape) -> bool:
    return len(shape) == 2 and module_of(name) not in LOOKED_UP


def elements(
    shapes: Shapes, counts: Callable[[str, Shape], bool] = lambda name, shape: True
) -> int:
    return sum(prod(shape) for name, shape in shapes.items() if counts(name, shape))


def ring(trained: float, n: int) -> float:
    return 2 * (n - 1) / n * FLOAT_BYTES * trained


def right(
    shapes: Shapes,
    r: int,
    targets: Sequence[str],
    n: int,
    tokens: int,
    is_target: Callable[[str, str], bool] = lambda name, target: module_of(name) == target,
) -> Answer:
    """Kaplan et al., arXiv 2001.08361, section 2.1: 2 FLOPs for forward, 2 for the inputs'
    gradients and 2 for the weights', which frozen weights do not have."""
    adapters = sum(
        r * sum(shape)
        for name, shape in shapes.items()
        if len(shape) == 2 and any(is_target(name, target) for target in targets)
    )
    return {
        "adapters": adapters,
        "state_bytes": 3 * FLOAT_BYTES * adapters,
        "sent_bytes": ring(adapters, n),
        "flops": (4 * elements(shapes, is_multiplied) + 6 * adapters) * tokens,
    }


def with_(key: str, part: Callable[[Shapes, int, int], float]) -> Callable[..., Answer]:
    """``part``: of shapes, adapters and ranks; of FLOPs, for a token."""

    def wrong(shapes: Shapes, r: int, targets: Sequence[str], n: int, tokens: int) -> Answer:
        found = right(shapes, r, targets, n, tokens)
        wrong_part = part(shapes, int(found["adapters"]), n)
        return found | {key: wrong_part * (tokens if key == "flops" else 1)}

    return wrong


def with_state(of_all: int, of_adapters: int) -> Callable[..., Answer]:
    """``of_all``, ``of_adapters``: numbers for each of the base's elements and of the adapters'."""
    return with_(
        "state_bytes", lambda s, a, n: FLOAT_BYTES * (of_all * elements(s) + of_adapters * a)
    )


def in_elements(*keys: str) -> Callable[..., Answer]:
    return lambda *question: {
        key: value / FLOAT_BYTES if key in keys else value
        for key, value in right(*question).items()
    }


def with_matrices(counts: Callable[[str, Shape], bool]) -> Callable[..., Answer]:
    return with_("flops", lambda s, a, n: 4 * elements(s, counts) + 6 * a)


def third_or_first(name: str) -> str:
    words = name.split(".")
    return words[2] if len(words) > 3 else words[0]


MISTAKES: Mapping[str, Any] = {
    "adapts other modules than the targets, or not all: the second-to-last word equals a target": (
        partial(right, is_target=lambda name, target: True),
        partial(right, is_target=lambda name, target: target in module_of(name)),
        partial(right, is_target=lambda name, target: target in name),
        partial(right, is_target=lambda name, target: module_of(name).startswith(target)),
        partial(right, is_target=lambda name, target: module_of(name).endswith(target)),
        partial(right, is_target=lambda name, target: f".{target}." in name),
        partial(
            right, is_target=lambda name, target: name.removesuffix(".weight").endswith(target)
        ),
        partial(right, is_target=lambda name, target: target in name.split(".")),
        partial(right, is_target=lambda name, target: target in name.split(".")[:-1]),
        partial(right, is_target=lambda name, target: module_of(name) in target),
        partial(right, is_target=lambda name, target: third_or_first(name) == target),
    ),
    "keeps gradients or states of the base: frozen weights have none": tuple(
        with_state(*each) for each in ((1, 2), (1, 3), (2, 1), (2, 3), (3, 0), (3, 3))
    ),
    "counts elements, not bytes: an element in fp32 takes 4 bytes": (
        in_elements("state_bytes"),
        in_elements("sent_bytes"),
        in_elements("state_bytes", "sent_bytes"),
    ),
    "sends gradients of the base: DDP all-reduces those of trained parameters only": (
        with_("sent_bytes", lambda s, a, n: ring(elements(s), n)),
        with_("sent_bytes", lambda s, a, n: ring(elements(s) + a, n)),
    ),
    "counts other than 4 FLOPs for an element of the base: a frozen weight has no gradient, but "
    "its input has one, for the layers below": (
        with_("flops", lambda s, a, n: 6 * (elements(s, is_multiplied) + a)),
        with_("flops", lambda s, a, n: 6 * elements(s, is_multiplied)),
        with_("flops", lambda s, a, n: 6 * (elements(s) + a)),
        with_("flops", lambda s, a, n: 6 * elements(s)),
        with_("flops", lambda s, a, n: 2 * elements(s, is_multiplied) + 6 * a),
    ),
    "counts other matrices in the FLOPs than those that are multiplied: all with two dimensions, "
    "unless their module is `token` or `position`": (
        with_matrices(lambda name, shape: True),
        with_matrices(lambda name, shape: len(shape) == 2),
        with_matrices(lambda name, shape: len(shape) == 2 and module_of(name) != "token"),
        with_matrices(lambda name, shape: len(shape) == 2 and module_of(name) != "position"),
        with_matrices(lambda name, shape: module_of(name) not in LOOKED_UP),
        with_matrices(lambda name, shape: is_multiplied(name, shape) and "token" not in name),
        with_matrices(
            lambda name, shape: len(shape) == 2 and not {*LOOKED_UP} & {*name.split(".")}
        ),
        with_matrices(lambda name, shape: len(shape) == 2 and name.split(".")[0] not in LOOKED_UP),
        with_matrices(lambda name, shape: is_multiplied(name, shape) and module_of(name) != "head"),
    ),
}


def draw(case: Case, rng: np.random.Generator) -> list[tuple[Any, ...]]:
    """Draw models in which some module names contain others: "up" is in "upper"."""
    names = ("query", "key", "value", "out", "gate", "up", "gate_up", "down", "head")
    drawn = []
    for _ in range(6):
        layers, width, kv, inner, vocabulary = (
            int(rng.integers(low, high))
            for low, high in ((1, 4), (40, 200), (8, 39), (201, 600), (700, 3000))
        )
        shapes = decoder(layers, width, kv, inner, vocabulary)
        shapes |= {"upper.weight": (width, 33), "blocks.0.mlp.gate_up.weight": (44, width)}
        shapes |= {"token_mixer.weight": (width, width), "ln.weight": (width,)}
        shapes |= {"query_norm.weight": (width,), "blocks.0.attention.query.bias": (width,)}
        shapes |= {"blocks.0.mlp.up.bias": (inner,), "key.up.mix.weight": (33, width)}
        shapes |= {"token.project.weight": (33, width), "encoder.position.weight": (34, width)}
        shapes |= {"blocks.0.out_query.value": (35, width)}
        targets = tuple(rng.permutation(names)[: int(rng.integers(1, 5))].tolist())
        n = int(rng.integers(2, 9) if case.name == "drawn models" else rng.integers(33, 300))
        drawn.append((shapes, int(rng.integers(1, 40)), targets, n, int(rng.integers(50, 5000))))
    return drawn
