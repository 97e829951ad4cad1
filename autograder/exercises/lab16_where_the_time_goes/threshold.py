"""Tokens per device, or ranks, at which traffic takes as long as the computation that hides it."""

from autograder.exercise import Formula, questions

# Published: dense bf16; NVLink in both directions together, as datasheets print it; 8 adapters.
H100 = {
    "flops_per_s": 990e12,
    "devices_per_node": 8,
    "nodes": 128,
    "node_bits_per_s": 8 * 400e9,
    "nvlink_bytes_per_s": 900e9,
}
A100 = {
    "flops_per_s": 312e12,
    "devices_per_node": 8,
    "nodes": 4,
    "node_bits_per_s": 8 * 200e9,
    "nvlink_bytes_per_s": 600e9,
}

EXERCISE = Formula(
    points=3,
    cases=(
        questions(
            "data: tokens per device",
            {"parallelism": "data", "cluster": H100},
            {"parallelism": "data", "cluster": A100, "gradient_bytes": 4},
        ),
        questions(
            "zero3: tokens per device",
            {"parallelism": "zero3", "cluster": H100},
            {"parallelism": "zero3", "cluster": A100, "gradient_bytes": 4},
        ),
        questions(
            "tensor: ranks",
            {"parallelism": "tensor", "cluster": H100, "hidden_width": 28672},
            {"parallelism": "tensor", "cluster": A100, "hidden_width": 49152},
        ),
    ),
)
