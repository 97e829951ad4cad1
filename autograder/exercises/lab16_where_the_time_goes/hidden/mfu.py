from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercises.lab16_where_the_time_goes.hidden.shared import mistakes

Run = dict[str, Any]
Model = Mapping[str, int]
DENSE, EXPERTS = "drawn runs", "drawn runs of mixtures of experts"
CASES = (questions(DENSE, weight=2), questions(EXPERTS))
BOUNDARIES = {
    "divides": "not tested: nothing is sharded",
    "does not divide": "not tested, as above",
    "one rank": "not tested: one device is nothing special",
    "more ranks than elements": "not tested, as above",
}


def tokens_per_s(log: Mapping[str, float], model: Model, devices: int) -> float:
    if "step_s" in log:
        return log["sequences"] * model["sequence"] / log["step_s"]
    return log.get("tokens_per_s") or log["tokens_per_s_per_device"] * devices


def active_parameters(model: Model) -> float:
    if "experts" not in model:
        return model["parameters"]
    unused = 1 - model["experts_per_token"] / model["experts"]
    return model["parameters"] - unused * model["expert_parameters"]


def right(
    log: Mapping[str, float],
    model: Model,
    cluster: Mapping[str, Any],
    recomputed: bool = False,
    *,
    speed: Callable[..., float] = tokens_per_s,
    parameters: Callable[[Model], float] = active_parameters,
    looked_up: float = 0,
    attention: float = 2,
    attended: Callable[[Model], float] = lambda m: m["heads"] * m["head_width"],
    layers: Callable[[Model], float] = lambda m: m["layers"],
    sparsity: float = 2,
    devices: Callable[[int], float] = lambda devices: devices,
    forwards: float = 3,
    mfu_passes: tuple[float, float] = (3, 3),
    hfu_passes: tuple[float, float] = (3, 4),
    again_attention: float = 1,
    unit: float = 1,
    rounded: Callable[[float], float] = float,
) -> dict[str, float]:
    """Chowdhery et al., arXiv 2204.02311, appendix B; the keywords are what mistakes change.

    looked_up: of the parameters that are only looked up, how many count.  attention: products of a
    token with all s.  passes: in forwards, what counts without and with recomputation.
    """
    products = parameters(model) - (1 - looked_up) * model["lookup_parameters"]
    scores = attention * attended(model) * model["sequence"]
    forward = 2 * (products + layers(model) * scores) * forwards / 3
    peak = cluster["peak_flops_per_s"] / (sparsity if cluster["with_sparsity"] else 1)
    flops_per_s = forward * speed(log, model, cluster["devices"])
    share = unit * flops_per_s / devices(cluster["devices"]) / peak
    mfu, hfu = mfu_passes[recomputed] * share, hfu_passes[recomputed] * share
    if recomputed:
        hfu -= (1 - again_attention) * share * 2 * model["layers"] * scores / forward
    return {"mfu": rounded(mfu), "hfu": rounded(hfu)}


def of_all_devices(log: Mapping[str, float], model: Model, devices: int) -> float:
    """Takes every number of a log for the throughput of all devices."""
    return log.get("tokens_per_s_per_device") or tokens_per_s(log, model, devices)


def of_each_device(log: Mapping[str, float], model: Model, devices: int) -> float:
    return (
        devices * log["tokens_per_s"]
        if "tokens_per_s" in log
        else tokens_per_s(log, model, devices)
    )


def sequences_per_s(log: Mapping[str, float], model: Model, devices: int) -> float:
    in_log = "step_s" in log
    return log["sequences"] / log["step_s"] if in_log else tokens_per_s(log, model, devices)


def with_experts(count: Callable[[Model], float]) -> Callable[[Model], float]:
    """The parameters, if of the experts in each layer only ``count`` are used."""

    def parameters(model: Model) -> float:
        if "experts" not in model:
            return model["parameters"]
        unused = 1 - count(model) / model["experts"]
        return model["parameters"] - unused * model["expert_parameters"]

    return parameters


def unused_experts(model: Model) -> int:
    return model["experts"] - model["experts_per_token"]


def all_divided(model: Model) -> float:
    used = model.get("experts_per_token", 1) / model.get("experts", 1)
    return used * (model["parameters"] - model["lookup_parameters"]) + model["lookup_parameters"]


CHANGES: dict[str, tuple[dict[str, Any], ...]] = {
    "swaps MFU and HFU: MFU does not count recomputation": (
        {"mfu_passes": (3, 4), "hfu_passes": (3, 3)},
    ),
    "counts recomputation in MFU: it is work of the hardware, which the model does not need": (
        {"mfu_passes": (3, 4)},
        {"mfu_passes": (4, 4)},
        {"mfu_passes": (4, 4), "hfu_passes": (4, 4)},
    ),
    "leaves recomputation out of HFU: full recomputation runs forward once more": (
        {"hfu_passes": (3, 3)},
    ),
    "counts recomputation in HFU where nothing is recomputed": ({"hfu_passes": (4, 4)},),
    "counts more than forward as recomputed: full recomputation runs forward once more": (
        {"hfu_passes": (3, 6)},
        {"hfu_passes": (3, 5)},
    ),
    "leaves attention out: a token's queries meet the keys and the values of all tokens of its "
    "sequence": ({"attention": 0},),
    "counts half of attention: there are two products, and this convention does not halve them for "
    "the causal mask": ({"attention": 1},),
    "counts attention in forward only: its products have a backward, too": (
        {"attention": 2 / 3},
        {"attention": 1 / 3},
    ),
    "takes width for attention: the heads together are heads · head_width wide": (
        {"attended": lambda m: m["width"]},
    ),
    "counts the scores of a whole sequence for each token: a token meets s others, not s²": (
        {"attended": lambda m: m["heads"] * m["head_width"] * m["sequence"]},
    ),
    "leaves attention out of what is recomputed: all of forward runs again": (
        {"again_attention": 0},
    ),
    "takes one head, or one layer, for attention": (
        {"attended": lambda m: m["head_width"]},
        {"layers": lambda m: 1},
    ),
    "counts all experts: a token uses experts_per_token of them": (
        {"parameters": lambda m: m["parameters"]},
    ),
    "leaves the experts out: a token uses experts_per_token of them": (
        {"parameters": with_experts(lambda m: 0)},
    ),
    "counts one expert for a token: it uses experts_per_token of them": (
        {"parameters": with_experts(lambda m: 1)},
    ),
    "takes expert_parameters for those of one expert, or of one layer: they are those of all "
    "experts of all layers together": (
        {"parameters": with_experts(lambda m: m["experts"] * m["experts_per_token"])},
        {"parameters": with_experts(lambda m: m["experts"] * (1 - unused_experts(m)))},
        {"parameters": with_experts(lambda m: m["experts"] - m["layers"] * unused_experts(m))},
    ),
    "divides all parameters by the experts: attention and logits are used by every token": (
        {"parameters": all_divided},
    ),
    "counts the parameters that are only looked up: a look-up is no product": ({"looked_up": 1},),
    "subtracts the look-up's parameters twice": ({"looked_up": -1},),
    "takes the peak with sparsity: a training step multiplies dense matrices, at half of it": (
        {"sparsity": 1},
    ),
    "doubles the peak with sparsity: that of dense matrices is half of it": ({"sparsity": 0.5},),
    "compares the throughput of one device with the peak of all": ({"speed": of_all_devices},),
    "compares the throughput of all devices with the peak of one": (
        {"devices": lambda devices: 1},
        {"speed": of_each_device},
    ),
    "counts sequences for tokens: each has model['sequence'] of them": (
        {"speed": sequences_per_s},
    ),
    "counts forward only: backward takes twice as many operations": ({"forwards": 1},),
    "counts backward only, or as large as forward: it computes two products where forward "
    "computes one": ({"forwards": 2}, {"forwards": 2, "hfu_passes": (3, 4.5)}),
    "counts a multiplication and an addition as one operation: they are two": ({"forwards": 1.5},),
    "gives percent: return a fraction, such as 0.4": ({"unit": 100},),
    "rounds the result: return it as it is": tuple(
        {"rounded": partial(round, ndigits=digits)} for digits in (2, 3, 4)
    ),
}
MISTAKES = mistakes(right, CHANGES)


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
