"""Rooflines: the least time that arithmetic, memory and links leave a computation.

    seconds ≥ max(operations / flops_per_s, moved bytes / memory_bytes_per_s)

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009.  Thresholds: Austin et al., "How to Scale Your Model",
2025 (jax-ml.github.io/scaling-book), parts 5 and 12; Liu et al., "Ring Attention", arXiv
2310.01889, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Roofline:
    """A device: its peak and what feeds it."""

    flops_per_s: float
    memory_bytes_per_s: float

    def __post_init__(self) -> None:
        if min(self.flops_per_s, self.memory_bytes_per_s) <= 0:
            raise ValueError("flops_per_s and memory_bytes_per_s must be above 0")

    @property
    def ridge(self) -> float:
        """Operations per byte above which arithmetic, not memory, sets the time."""
        return self.flops_per_s / self.memory_bytes_per_s

    def seconds(self, flops: float, moved_bytes: float) -> float:
        """At least this long; both at the same time, neither below its own time."""
        return max(flops / self.flops_per_s, moved_bytes / self.memory_bytes_per_s)

    def attainable_flops_per_s(self, intensity: float) -> float:
        """The roof at this many operations per byte."""
        return min(self.flops_per_s, intensity * self.memory_bytes_per_s)


def product_flops(rows: int, inner: int, columns: int) -> int:
    """[rows, inner] @ [inner, columns]: a multiplication and an addition count as two."""
    return 2 * rows * inner * columns


def product_bytes(rows: int, inner: int, columns: int, element_bytes: float = 2) -> float:
    """Both factors read once and the result written once: what no cache can save."""
    return element_bytes * (rows * inner + inner * columns + rows * columns)


def product_intensity(rows: int, inner: int, columns: int, element_bytes: float = 2) -> float:
    """Operations per byte; with few rows about 2·rows / element_bytes."""
    return product_flops(rows, inner, columns) / product_bytes(rows, inner, columns, element_bytes)


def data_parallel_tokens(flops_per_s: float, sent_bytes_per_s: float, ranks: int = 0) -> float:
    """Tokens per device above which the gradients' all-reduce hides behind backward: C/W.

    A layer of N parameters: backward computes 4N operations for each token; an all-reduce sends
    2(n−1)/n · 2N bytes of 16-bit gradients, 4N for many ranks (``ranks=0``).  ZeRO-3's all-gathers
    and reduce-scatters have the same threshold: 2N bytes against 2N operations per token forward.

    sent_bytes_per_s: what each device sends while it receives as much.
    """
    _above_0(flops_per_s, sent_bytes_per_s)
    return flops_per_s / sent_bytes_per_s * ((ranks - 1) / ranks if ranks else 1)


def tensor_parallel_ranks(hidden_width: int, flops_per_s: float, sent_bytes_per_s: float) -> float:
    """The number of ranks at which a split MLP stops hiding its traffic: F·W/C.

    Per token, two products of [D, F] on t ranks: 4DF/t operations, against one all-reduce or an
    all-gather and a reduce-scatter of D 16-bit elements: 2 · 2D bytes.  So t < F·W/C, whatever D.
    """
    _above_0(hidden_width, flops_per_s, sent_bytes_per_s)
    return hidden_width * sent_bytes_per_s / flops_per_s


def ring_attention_tokens(flops_per_s: float, sent_bytes_per_s: float) -> float:
    """Tokens per device above which ring attention's exchange hides: C/W.

    Per step of the ring, a device computes 4c²h operations with its c queries while it sends the
    2·2ch bytes of c 16-bit keys and values.
    """
    _above_0(flops_per_s, sent_bytes_per_s)
    return flops_per_s / sent_bytes_per_s


def _above_0(*numbers: float) -> None:
    if min(numbers) <= 0:
        raise ValueError("widths and rates must be above 0")
