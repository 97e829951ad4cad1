"""What a computation does and what it moves: a point under a roofline.

The bytes are those of memory, or those that a device sends while it computes.  Traffic of training
is of 16-bit elements and hides behind arithmetic where the intensity is at least C/W, the ridge of
`Device.over(link)`: see `shardlab.estimate.roofline` for the derivations and their sources.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardlab.estimate.roofline import product_bytes, product_flops

ELEMENT_BYTES = 2


@dataclass(frozen=True)
class Work:
    """Operations, the bytes that are moved for them and, if it was measured, how long it took."""

    name: str
    flops: float
    moved_bytes: float
    seconds: float | None = None
    machines: tuple[str, ...] = ()  # the names of those that it belongs to; none: to any

    def __post_init__(self) -> None:
        if min(self.flops, self.moved_bytes, 1 if self.seconds is None else self.seconds) <= 0:
            raise ValueError(f"{self.name}: flops, moved_bytes and seconds must be above 0")

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.flops / self.moved_bytes

    @property
    def flops_per_s(self) -> float | None:
        """What was attained, if it was measured."""
        return None if self.seconds is None else self.flops / self.seconds

    def measured(self, seconds: float) -> Work:
        """The same work with its measured time."""
        return replace(self, seconds=seconds)

    def on(self, *machines: str) -> Work:
        """The same work, which only these machines do, or which uses only these links."""
        return replace(self, machines=machines)


def product(rows: int, inner: int, columns: int, element_bytes: float = ELEMENT_BYTES) -> Work:
    """[rows, inner] @ [inner, columns], and the bytes of its three matrices."""
    return Work(
        f"[{rows}, {inner}] @ [{inner}, {columns}]",
        product_flops(rows, inner, columns),
        product_bytes(rows, inner, columns, element_bytes),
    )


def data_parallel(parameters: float, tokens: float, ranks: int = 0) -> Work:
    """Backward on a device's tokens, and the ring all-reduce of its gradients.

    ranks: 0 for many, where a rank sends 2 bytes for each byte of gradients.
    """
    share = (ranks - 1) / ranks if ranks else 1
    sent_bytes = 2 * share * ELEMENT_BYTES * parameters
    return Work(f"data parallel, {tokens:,} tokens per device", 4 * parameters * tokens, sent_bytes)


def fully_sharded(parameters: float, tokens: float) -> Work:
    """Forward on a device's tokens, and the all-gather of the parameters on many ranks."""
    name = f"FSDP, {tokens:,} tokens per device"
    return Work(name, 2 * parameters * tokens, ELEMENT_BYTES * parameters)


def tensor_parallel(width: int, hidden_width: int, ranks: int, tokens: int = 1024) -> Work:
    """A split MLP forward, and its all-reduce of the output on many ranks."""
    return Work(
        f"tensor parallel, {ranks} ranks",
        4 * width * hidden_width * tokens / ranks,
        2 * ELEMENT_BYTES * width * tokens,
    )


def pipeline_parallel(layers: int, width: int, tokens: int = 1024) -> Work:
    """Forward of a stage with ``layers`` of 12·width² parameters, and the output that it sends."""
    return Work(
        f"pipeline, {layers} layer{'s' * (layers != 1)} per stage",
        24 * layers * width**2 * tokens,
        ELEMENT_BYTES * width * tokens,
    )


def ring_attention(tokens: int, width: int) -> Work:
    """A step of the ring: scores and values of a device's tokens; keys and values are sent on."""
    name = f"ring attention, {tokens:,} tokens per device"
    return Work(name, 4 * tokens**2 * width, 2 * ELEMENT_BYTES * tokens * width)
