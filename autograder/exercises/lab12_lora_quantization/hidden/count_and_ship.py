from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab12_lora_quantization.count_and_ship import decoder

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
FP32_BYTES = 4
LOOKED_UP = ("token", "position")
Shapes = Mapping[str, Sequence[int]]
Answer = dict[str, float]


def module_of(name: str) -> str:
    """ "blocks.0.query.weight" -> "query" """
    return name.split(".")[-2]


def adapted(shapes: Shapes, targets: Sequence[str]) -> list[Sequence[int]]:
    """Shapes of the weights that get an adapter."""
    return [
        shape for name, shape in shapes.items() if len(shape) == 2 and module_of(name) in targets
    ]


def adapters_of(shapes: Shapes, r: int, targets: Sequence[str]) -> int:
    return sum(r * (rows + columns) for rows, columns in adapted(shapes, targets))


def all_of(shapes: Shapes) -> int:
    return sum(map(prod, shapes.values()))


def multiplied(shapes: Shapes) -> int:
    """The number of elements of the base that take part in matrix products."""
    return sum(
        prod(shape)
        for name, shape in shapes.items()
        if len(shape) == 2 and module_of(name) not in LOOKED_UP
    )


def of_module(shapes: Shapes, module: str) -> int:
    return sum(prod(shape) for name, shape in shapes.items() if module_of(name) == module)


def ring(elements: float, n: int) -> float:
    return 2 * (n - 1) / n * FP32_BYTES * elements


def answer(adapters: int, base: int, n: int, tokens: int) -> Answer:
    """Kaplan et al., arXiv 2001.08361, section 2.1: 2 FLOPs for forward, 2 for the inputs'
    gradients and 2 for the weights', which frozen weights do not have."""
    return {
        "adapters": adapters,
        "state_bytes": 3 * FP32_BYTES * adapters,
        "sent_bytes": ring(adapters, n),
        "flops": (4 * base + 6 * adapters) * tokens,
    }


def right(shapes: Shapes, r: int, targets: Sequence[str], n: int, tokens: int) -> Answer:
    return answer(adapters_of(shapes, r, targets), multiplied(shapes), n, tokens)


def with_adapters(count: Callable[[Shapes, int, Sequence[str]], int]) -> Callable[..., Answer]:
    """The answer with another number of adapter parameters, and all that follows from it."""
    return lambda shapes, r, targets, n, tokens: answer(
        count(shapes, r, targets), multiplied(shapes), n, tokens
    )


Part = Callable[[int, Shapes, int, int], float]  # of adapters, shapes, ranks, tokens


def with_(key: str, part: Part) -> Callable[..., Answer]:
    def wrong(shapes: Shapes, r: int, targets: Sequence[str], n: int, tokens: int) -> Answer:
        adapters = adapters_of(shapes, r, targets)
        return right(shapes, r, targets, n, tokens) | {key: part(adapters, shapes, n, tokens)}

    return wrong


def with_flops(per_token: Callable[[int, Shapes], float]) -> Callable[..., Answer]:
    return with_("flops", lambda a, shapes, n, tokens: per_token(a, shapes) * tokens)


def base_with(module: str) -> Callable[[int, Shapes], float]:
    """FLOPs per token if this module's matrix is multiplied as well."""
    return lambda a, shapes: 4 * (multiplied(shapes) + of_module(shapes, module)) + 6 * a


def with_biases(shapes: Shapes, r: int, targets: Sequence[str]) -> int:
    """The number of parameters if each target's bias counts as a column."""
    extra = sum(
        r * (shape[0] + 1)
        for name, shape in shapes.items()
        if len(shape) == 1 and module_of(name) in targets
    )
    return adapters_of(shapes, r, targets) + extra


def adapters_by(is_target: Callable[[str, str], bool]) -> Callable[..., Answer]:
    """The answer if the matrices for which ``is_target(name, target)`` get adapters."""
    return with_adapters(
        lambda shapes, r, targets: sum(
            r * sum(shape)
            for name, shape in shapes.items()
            if len(shape) == 2 and any(is_target(name, each) for each in targets)
        )
    )


def third_or_first(name: str) -> str:
    words = name.split(".")
    return words[2] if len(words) > 3 else words[0]


def squares(shapes: Shapes) -> int:
    return sum(prod(shape) for shape in shapes.values() if len(shape) == 2)


MISTAKES: Mapping[str, Any] = {
    "takes the weight's own size for the adapter's: A has r × in elements, B has out × r": (
        with_adapters(lambda s, r, t: sum(prod(each) for each in adapted(s, t))),
        with_adapters(lambda s, r, t: sum(r * prod(each) for each in adapted(s, t))),
    ),
    "counts one of the two matrices: an adapter has A, r × in, and B, out × r": (
        with_adapters(lambda s, r, t: sum(r * each[0] for each in adapted(s, t))),
        with_adapters(lambda s, r, t: sum(r * each[1] for each in adapted(s, t))),
    ),
    "assumes that every weight is square: an adapter has r × in and out × r elements": (
        with_adapters(lambda s, r, t: sum(2 * r * each[0] for each in adapted(s, t))),
        with_adapters(lambda s, r, t: sum(2 * r * each[1] for each in adapted(s, t))),
    ),
    "counts α/r as a parameter: it is a constant, which is not trained": (
        with_adapters(lambda s, r, t: adapters_of(s, r, t) + len(adapted(s, t)))
    ),
    "gives adapters to all matrices: only the targets get one": (
        with_adapters(lambda s, r, t: sum(r * sum(each) for each in s.values() if len(each) == 2)),
        with_adapters(
            lambda s, r, t: sum(
                r * sum(each)
                for name, each in s.items()
                if len(each) == 2 and module_of(name) not in LOOKED_UP
            )
        ),
    ),
    "gives adapters to modules whose word only contains a target: it has to equal one": (
        adapters_by(lambda name, target: target in module_of(name)),
        adapters_by(lambda name, target: target in name),
        adapters_by(lambda name, target: module_of(name).startswith(target)),
        adapters_by(lambda name, target: module_of(name).endswith(target)),
    ),
    "misses targets in short or long names: the module is the second-to-last word": (
        adapters_by(lambda name, target: f".{target}." in name),
        adapters_by(lambda name, target: third_or_first(name) == target),
    ),
    "counts the biases of the targets as well: they are frozen and get no adapter": (
        with_adapters(with_biases),
        with_adapters(
            lambda s, r, t: (
                adapters_of(s, r, t)
                + sum(
                    prod(shape)
                    for name, shape in s.items()
                    if len(shape) == 1 and module_of(name) in t
                )
            )
        ),
    ),
    "keeps gradients of the base: frozen weights have none": (
        with_("state_bytes", lambda a, s, n, t: FP32_BYTES * (all_of(s) + 2 * a)),
        with_("state_bytes", lambda a, s, n, t: FP32_BYTES * (all_of(s) + 3 * a)),
    ),
    "gives the optimizer all parameters: it needs states for the adapters only": (
        with_("state_bytes", lambda a, s, n, t: 3 * FP32_BYTES * all_of(s)),
        with_("state_bytes", lambda a, s, n, t: 3 * FP32_BYTES * (all_of(s) + a)),
        with_("state_bytes", lambda a, s, n, t: FP32_BYTES * (2 * all_of(s) + a)),
        with_("state_bytes", lambda a, s, n, t: FP32_BYTES * (2 * all_of(s) + 3 * a)),
    ),
    "leaves the gradients out of state_bytes: Adam's two states and one gradient": (
        with_("state_bytes", lambda a, s, n, t: 2 * FP32_BYTES * a)
    ),
    "counts the adapters themselves in state_bytes, or one state too many": (
        with_("state_bytes", lambda a, s, n, t: 4 * FP32_BYTES * a)
    ),
    "counts 2 bytes for an element: gradients and states are fp32": (
        with_("state_bytes", lambda a, s, n, t: 6 * a),
        with_("state_bytes", lambda a, s, n, t: 10 * a),
        lambda *q: right(*q) | {key: right(*q)[key] / 2 for key in ("state_bytes", "sent_bytes")},
    ),
    "divides the states among the ranks: with DDP each rank keeps all of them": with_(
        "state_bytes", lambda a, s, n, t: 12 * a / n
    ),
    "puts frozen parameters in DDP's buckets: only gradients are all-reduced, and they have none": (
        with_("sent_bytes", lambda a, s, n, t: ring(all_of(s), n)),
        with_("sent_bytes", lambda a, s, n, t: ring(all_of(s) + a, n)),
    ),
    "forgets (N − 1)/N: a ring sends 2(N − 1)/N of a tensor": (
        with_("sent_bytes", lambda a, s, n, t: 2 * FP32_BYTES * a)
    ),
    "rounds 2(N − 1)/N to a whole number: divide with /": (
        with_("sent_bytes", lambda a, s, n, t: 2 * (n - 1) // n * FP32_BYTES * a)
    ),
    "computes half of what a rank sends: a ring has two passes, and an fp32 number has 4 bytes": (
        with_("sent_bytes", lambda a, s, n, t: ring(a, n) / 2)
    ),
    "counts what all ranks send: return what one rank sends": (
        with_("sent_bytes", lambda a, s, n, t: n * ring(a, n))
    ),
    "counts 6 FLOPs for an element of the base: a frozen weight has no gradient, which leaves 4": (
        with_flops(lambda a, s: 6 * (multiplied(s) + a)),
        with_flops(lambda a, s: 6 * multiplied(s)),
        with_flops(lambda a, s: 6 * all_of(s)),
        with_flops(lambda a, s: 6 * (all_of(s) + a)),
    ),
    "counts 2 FLOPs for an element of the base: backward goes through it to the layers below": (
        with_flops(lambda a, s: 2 * multiplied(s) + 6 * a)
    ),
    "counts 4 FLOPs for an element of the adapters: they are trained, which takes 6": (
        with_flops(lambda a, s: 4 * (multiplied(s) + a))
    ),
    "leaves the adapters' products out of the FLOPs": with_flops(lambda a, s: 4 * multiplied(s)),
    "counts embeddings, norms or biases in the FLOPs: only matrices that are multiplied count": (
        with_flops(lambda a, s: 4 * all_of(s) + 6 * a),
        with_flops(lambda a, s: 4 * squares(s) + 6 * a),
        *(with_flops(base_with(module)) for module in LOOKED_UP),
        with_flops(
            lambda a, s: 4 * (multiplied(s) + all_of(s) - squares(s)) + 6 * a,
        ),
    ),
    "leaves out matrices whose name only contains or begins with that of an embedding": (
        with_flops(
            lambda a, s: (
                4
                * sum(
                    prod(shape)
                    for name, shape in s.items()
                    if len(shape) == 2 and not any(each in name for each in LOOKED_UP)
                )
                + 6 * a
            )
        )
    ),
    "counts the head as an embedding: it is a matrix product": (
        with_flops(lambda a, s: 4 * (multiplied(s) - of_module(s, "head")) + 6 * a)
    ),
    "forgets the tokens: return the FLOPs of all of them": (
        with_("flops", lambda a, s, n, t: 4 * multiplied(s) + 6 * a)
    ),
    "counts the tokens of all ranks: `tokens` are those of one rank": (
        with_("flops", lambda a, s, n, t: (4 * multiplied(s) + 6 * a) * t * n)
    ),
    "forgets the base in the FLOPs: it is frozen, but still computed with": (
        with_flops(lambda a, s: 6 * a)
    ),
}


def draw(case: Case, rng: np.random.Generator) -> list[tuple[Any, ...]]:
    """Draw models in which some module names contain others: "up" is in "upper"."""
    names = ("query", "key", "value", "out", "gate", "up", "down", "head")
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
        shapes |= {"blocks.0.mlp.up.bias": (inner,)}
        targets = tuple(rng.permutation(names)[: int(rng.integers(1, 5))].tolist())
        n = int(rng.integers(2, 9) if case.name == "drawn models" else rng.integers(33, 300))
        drawn.append((shapes, int(rng.integers(1, 40)), targets, n, int(rng.integers(50, 5000))))
    return drawn
