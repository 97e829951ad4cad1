"""The least time of a matrix product that is split over ranks, and of its all-reduce."""

from autograder.exercise import Formula, questions

# Published: dense bf16, HBM and InfiniBand NDR of an H100; HDR of an A100.
H100 = {
    "flops_per_s": 989e12,
    "memory_bytes_per_s": 3.35e12,
    "link_bits_per_s": 400e9,
    "latency_s": 10e-6,
}
A100 = {
    "flops_per_s": 312e12,
    "memory_bytes_per_s": 2.04e12,
    "link_bits_per_s": 200e9,
    "latency_s": 10e-6,
}

EXERCISE = Formula(
    points=3,
    cases=(
        questions(
            "one device: many rows, few rows",
            (8192, 4096, 16384, 2, H100),
            (16, 4096, 16384, 2, H100),
            (16, 4096, 16384, 1, H100),
        ),
        questions(
            "8 ranks: a large all-reduce, a small one",
            (8192, 16384, 4096, 2, H100, 8),
            (16, 16384, 4096, 2, A100, 8),
        ),
    ),
)
