from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EquivalentAnswer

Run = dict[str, Any]
Shares = dict[str, float]
DENSE, EXPERTS = "other runs", "other runs of mixtures of experts"
CASES = (questions(DENSE, weight=2), questions(EXPERTS))
BOUNDARIES = {
    "divides": "not tested: nothing is sharded",
    "does not divide": "not tested, as above",
    "one rank": DENSE,
    "more ranks than elements": "not tested, as above",
}
EQUIVALENT_ANSWERS: tuple[EquivalentAnswer, ...] = ()


def tokens_per_s(log: Mapping[str, float], model: Mapping[str, int], devices: int) -> float:
    if "step_s" in log:
        return log["sequences"] * model["sequence"] / log["step_s"]
    return log.get("tokens_per_s") or log["tokens_per_s_per_device"] * devices


def active_parameters(model: Mapping[str, int]) -> float:
    if "experts" not in model:
        return model["parameters"]
    unused = 1 - model["experts_per_token"] / model["experts"]
    return model["parameters"] - unused * model["expert_parameters"]


def right(
    log: Mapping[str, float],
    model: Mapping[str, int],
    cluster: Mapping[str, Any],
    recomputed: bool = False,
    *,
    speed: Callable[..., float] = tokens_per_s,
    parameters: Callable[[Mapping[str, int]], float] = active_parameters,
    lookup: bool = False,
    attention: float = 2,
    attended: Callable[[Mapping[str, int]], float] = lambda m: m["heads"] * m["head_width"],
    sparsity: float = 2,
    passes: tuple[float, float] = (3, 4),
) -> Shares:
    """Chowdhery et al., arXiv 2204.02311, appendix B; the keywords are what mistakes change.

    attention: products of a token's vectors with those of all s; passes: forwards that MFU and,
    with full recomputation, HFU count.
    """
    products = parameters(model) - (0 if lookup else model["lookup_parameters"])
    per_layer = attention * attended(model) * model["sequence"]
    forward = 2 * (products + model["layers"] * per_layer)
    peak = cluster["peak_flops_per_s"] / (sparsity if cluster["with_sparsity"] else 1)
    share = forward * speed(log, model, cluster["devices"]) / cluster["devices"] / peak
    mfu, hfu = passes if recomputed else (3, 3)
    return {"mfu": mfu * share, "hfu": hfu * share}


MISTAKES: dict[str, Any] = {}


def draw(case: Case, rng: np.random.Generator) -> list[Run]:
    return [drawn_run(rng, is_mixture=case.name == EXPERTS) for _ in range(20)]


def drawn_run(rng: np.random.Generator, *, is_mixture: bool) -> Run:
    layers, heads = int(rng.integers(12, 120)), int(rng.integers(9, 130))
    head_width, width = int(rng.choice([64, 80, 96, 128, 256])), 128 * int(rng.integers(8, 150))
    sequence = 512 * int(rng.integers(2, 65))
    lookup = int(rng.integers(2)) * width * 128 * int(rng.integers(200, 2000))
    model = {
        "layers": layers,
        "width": width,
        "heads": heads,
        "head_width": head_width,
        "sequence": sequence,
        "parameters": 12 * layers * width**2 + 2 * lookup,
        "lookup_parameters": lookup,
    }
    if is_mixture:
        experts = 2 ** int(rng.integers(3, 9))
        own = layers * experts * 3 * width * 128 * int(rng.integers(4, 100))
        model |= {
            "parameters": model["parameters"] + own,
            "expert_parameters": own,
            "experts": experts,
            "experts_per_token": int(rng.integers(2, experts)),
        }
    devices = int(rng.integers(1, 5000))
    per_device = float(rng.integers(100, 9000))
    log = (
        {"tokens_per_s": per_device * devices},
        {"tokens_per_s_per_device": per_device},
        {"sequences": 32 * int(rng.integers(1, 200)), "step_s": float(rng.uniform(1, 100))},
    )[int(rng.integers(3))]
    cluster = {
        "devices": devices,
        "peak_flops_per_s": 1e12 * int(rng.integers(100, 2500)),
        "with_sparsity": bool(rng.integers(2)),
    }
    return {"log": log, "model": model, "cluster": cluster, "recomputed": bool(rng.integers(2))}
