from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from autograder.exercise import Case, questions
from autograder.exercises.lab16_where_the_time_goes.hidden.shared import mistakes
from autograder.exercises.lab16_where_the_time_goes.threshold import asked

Machine = dict[str, float]
DATA, ZERO3, TENSOR = (f"drawn machines, {each}" for each in ("data", "zero3", "tensor"))
CASES = (questions(DATA), questions(ZERO3), questions(TENSOR))
BOUNDARIES = {
    "divides": "not tested: the formula rounds nothing",
    "does not divide": "not tested, as above",
    "one rank": "data: tokens per device",  # one node
    "more ranks than elements": "not tested, as above",
}


def of_a_node(machine: Machine) -> float:
    """Each of a node's devices has an adapter, and all send at the same time."""
    return machine["devices_per_node"] * machine["link_bits_per_s"]


def right(
    parallelism: str,
    machine: Machine,
    nodes: int = 1,
    gradient_bytes: int = 2,
    hidden_width: int = 0,
    *,
    backward: float = 4,
    all_reduce: float = 2,
    forward: float = 2,
    gathered: Callable[[int], float] = lambda gradient_bytes: 2,
    again: float = 1,
    reduce_scatter: float = 1,
    both: Callable[[float, float], float] = max,
    leaves: Callable[[int, Machine], float] = lambda nodes, machine: (nodes - 1) / nodes,
    size: Callable[[int], float] = lambda gradient_bytes: gradient_bytes,
    link_bits_per_s: Callable[[Machine], float] = of_a_node,
    bits: float = 8,
    nvlink_bytes_per_s: Callable[[Machine], float] = lambda m: m["nvlink_bytes_per_s"] / 2,
    balance: float = 1,
    one: float = 1,
    returned: Callable[[int, Machine], float] = lambda nodes, machine: 1,
    rounded: Callable[[float], float] = float,
) -> float:
    """Austin et al., "How to Scale Your Model", 2025, parts 5 and 12, with the rings' (n - 1)/n.

    The keywords are what mistakes change: operations for each parameter and token, bytes for each
    parameter, and what leaves a node.  balance: operations per byte of tensor parallelism, as a
    multiple of the right one.
    """
    if parallelism == "tensor":
        ranks = one + balance * hidden_width * nvlink_bytes_per_s(machine) / machine["flops_per_s"]
        return rounded(ranks)
    flops_per_byte = machine["flops_per_s"] * bits / link_bits_per_s(machine)
    flops_per_byte *= leaves(nodes, machine) * returned(nodes, machine)
    if parallelism == "data":
        return rounded(all_reduce * size(gradient_bytes) * flops_per_byte / backward)
    parameter_bytes = gathered(gradient_bytes)
    in_forward = parameter_bytes / forward
    in_backward = (again * parameter_bytes + reduce_scatter * size(gradient_bytes)) / backward
    return rounded(both(in_forward, in_backward) * flops_per_byte)


CHANGES: dict[str, tuple[dict[str, Any], ...]] = {
    # First: where backward is left with less than forward, the answers are the same.
    "gives the threshold of forward: backward has its own traffic, in which gradients have "
    "gradient_bytes": ({"both": lambda f, b: f},),
    "is devices_per_node times too large: all devices of a node send at the same time, each "
    "through its own adapter, and the tokens are those of one device": (
        {"link_bits_per_s": lambda m: m["link_bits_per_s"]},
    ),
    "counts bits as bytes: divide bits per second by 8": ({"bits": 1},),
    "takes NVLink for traffic between nodes, which crosses the network": (
        {"link_bits_per_s": lambda m: m["nvlink_bytes_per_s"] / 2, "bits": 1},
        {"link_bits_per_s": lambda m: m["nvlink_bytes_per_s"], "bits": 1},
    ),
    "forgets (n - 1)/n: a ring of n nodes sends n - 1 of n chunks": ({"leaves": lambda n, m: 1},),
    "counts all devices in (n - 1)/n: what leaves a node depends on the number of nodes": (
        {"leaves": lambda n, m: 1 - 1 / (n * m["devices_per_node"])},
    ),
    "counts gradients of another size: use gradient_bytes": (
        {"size": lambda gradient_bytes: 2},
        {"size": lambda gradient_bytes: 4},
        {"size": lambda gradient_bytes: 1},
    ),
    "gives the tokens of all devices: return those of one": (
        {"returned": lambda nodes, machine: nodes * machine["devices_per_node"]},
    ),
    "counts an all-reduce as one pass around the ring: there is a reduce-scatter and an "
    "all-gather": ({"all_reduce": 1},),
    "takes the operations of forward and backward: gradients exist only in backward, so only "
    "backward can hide their traffic": ({"backward": 6},),
    "takes half of backward's operations: for each parameter and token there are two products, and "
    "in each a multiplication and an addition": ({"backward": 2},),
    "looks only at backward: forward has its own traffic to hide": ({"both": lambda f, b: b},),
    "hides forward's all-gather behind backward: forward has to hide its own": (
        {"both": lambda f, b: f / 2 + b},
    ),
    "hides all traffic behind all computation: each pass has to hide its own": (
        {"both": lambda f, b: (2 * f + 4 * b) / 6},
    ),
    "adds the thresholds of forward and backward: the larger one hides both": (
        {"both": lambda f, b: f + b},
    ),
    "takes the smaller of the two thresholds: the other pass is still too short": ({"both": min},),
    "forgets that ZeRO-3 gathers the parameters again in backward": ({"again": 0},),
    "gathers parameters of gradient_bytes: parameters have 2 bytes": ({"gathered": lambda g: g},),
    "all-reduces the gradients: ZeRO-3 reduce-scatters them, half as much": (
        {"reduce_scatter": 2},
    ),
    "leaves the gradients out of ZeRO-3's traffic: backward reduce-scatters them": (
        {"reduce_scatter": 0},
    ),
    "takes the network for traffic within a node, which NVLink carries": (
        {"nvlink_bytes_per_s": lambda m: of_a_node(m) / 8},
        {"nvlink_bytes_per_s": lambda m: m["link_bits_per_s"] / 8},
    ),
    "divides NVLink's bytes per second by 8: they are no bits": (
        {"nvlink_bytes_per_s": lambda m: m["nvlink_bytes_per_s"] / 16},
    ),
    "forgets (t - 1)/t: a ring of t ranks sends 2(t - 1)/t of the tensor": ({"one": 0},),
    "is twice as far above 1 as it should be. One of these factors of 2 is missing: the datasheet "
    "adds NVLink's two directions; an all-reduce is a reduce-scatter and an all-gather; an element "
    "has 2 bytes": ({"balance": 2},),
    "is four times as far above 1 as it should be. Two of these factors of 2 are missing: the "
    "datasheet adds NVLink's two directions; an all-reduce is a reduce-scatter and an all-gather; "
    "an element has 2 bytes": ({"balance": 4},),
    "is half as far above 1 as it should be: forward has two products, a multiplication and an "
    "addition for each of their parameters and each token, and one all-reduce": ({"balance": 0.5},),
    "compares the operations of forward and backward with the traffic of forward": (
        {"balance": 3},
    ),
    "rounds the result: return it as it is": tuple(
        {"rounded": way} for way in (math.floor, math.ceil, round)
    ),
}
MISTAKES = mistakes(right, CHANGES)


def draw(case: Case, rng: np.random.Generator) -> list[dict[str, Any]]:
    parallelism = case.name.rpartition(" ")[2]
    drawn = []
    for _ in range(20):
        machine = {
            "flops_per_s": 1e12 * int(rng.integers(100, 2000)),
            "memory_bytes_per_s": 1e10 * int(rng.integers(100, 800)),
            "nvlink_bytes_per_s": 1e9 * int(rng.integers(300, 1800)),
            "link_bits_per_s": 1e9 * int(rng.integers(25, 800)),
            "latency_s": 1e-6 * int(rng.integers(2, 50)),
            "devices_per_node": int(rng.integers(3, 17)),
        }
        sizes: dict[str, int] = {"hidden_width": 128 * int(rng.integers(20, 600))}
        if parallelism != "tensor":
            size = int(rng.choice([1, 2, 4]))
            sizes = {"nodes": int(rng.integers(3, 200)), "gradient_bytes": size}
        drawn.append(asked(parallelism, machine, **sizes))
    return drawn
