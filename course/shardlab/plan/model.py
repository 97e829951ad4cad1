"""A transformer and a cluster, as far as a plan needs them."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardlab.estimate.activations import Kernels
from shardlab.estimate.devices import DEVICES


@dataclass(frozen=True)
class Model:
    """A decoder. Numbers of parameters are those of matrix products and embeddings.

    mlp_width      of the hidden layer; 0: 4 · width
    kv_heads       0: as many as heads
    gated          the MLP has a third matrix (SwiGLU)
    experts        of each MLP, of which a token uses ``experts_per_token``; 0: a dense model
    tied           the logits use the embedding's matrix
    kernels        what attention, dropout and the loss save for backward (estimate.activations)
    """

    layers: int
    width: int
    heads: int
    sequence: int
    vocabulary: int
    mlp_width: int = 0
    kv_heads: int = 0
    gated: bool = False
    experts: int = 0
    experts_per_token: int = 1
    tied: bool = True
    kernels: Kernels = field(default_factory=Kernels)

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "sequence"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected 1 or more")
        if self.width % self.heads:
            raise ValueError(f"a width of {self.width} is not divisible by {self.heads} heads")
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise ValueError(
                f"experts_per_token={self.experts_per_token}: there are {self.experts} experts"
            )

    @property
    def kv_width(self) -> int:
        """Of the keys of a token, and of its values."""
        return self.width // self.heads * (self.kv_heads or self.heads)

    @property
    def hidden(self) -> int:
        return self.mlp_width or 4 * self.width

    @property
    def attention_parameters(self) -> int:
        """Of a layer: queries, keys, values and the output."""
        return 2 * self.width * (self.width + self.kv_width)

    @property
    def mlp_parameters(self) -> int:
        """Of a layer's MLP, or of one of its experts."""
        return (3 if self.gated else 2) * self.width * self.hidden

    @property
    def active_parameters(self) -> int:
        """Of a layer, in the products of one token."""
        used = self.experts_per_token if self.experts else 1
        router = self.width * self.experts
        return self.attention_parameters + used * self.mlp_parameters + router

    @property
    def embedding_parameters(self) -> int:
        return self.vocabulary * self.width * (1 if self.tied else 2)

    @property
    def product_parameters(self) -> int:
        """In matrix products of one token: of all layers and of the logits."""
        return self.layers * self.active_parameters + self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        """All of them, with every expert."""
        mlps = max(self.experts, 1) * self.mlp_parameters + self.width * self.experts
        return self.layers * (self.attention_parameters + mlps) + self.embedding_parameters


@dataclass(frozen=True)
class Cluster:
    """Equal devices in nodes, with a fast link within a node and a slower one between nodes.

    flops_per_s, memory_bytes_per_s    of a device: peak of dense products, and of its memory
    capacity_bytes                     of a device's memory
    node_bytes_per_s, network_bytes_per_s    that a device can send within, and between nodes
    """

    devices: int
    per_node: int
    flops_per_s: float
    memory_bytes_per_s: float
    capacity_bytes: float
    node_bytes_per_s: float
    network_bytes_per_s: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"{name}={value}: expected a number above 0")

    @classmethod
    def of(
        cls, device: str, devices: int, *, per_node: int = 8, network_bytes_per_s: float = 0
    ) -> Cluster:
        """Of V100s, A100s or H100s with NVLink in a node and an adapter each, or another network.

        Raises ValueError if the device's links are not known (estimate.devices).
        """
        known = DEVICES.get(device)
        network = network_bytes_per_s or (known.sent_bytes_per_s.get("one adapter") if known else 0)
        if known is None or "NVLink" not in known.sent_bytes_per_s or not network:
            names = [
                name for name, each in DEVICES.items() if "one adapter" in each.sent_bytes_per_s
            ]
            raise ValueError(f"device={device!r}: expected {' or '.join(names)}, or a Cluster(...)")
        return cls(
            devices,
            per_node,
            known.flops_per_s,
            known.memory_bytes_per_s,
            known.capacity_bytes,
            known.sent_bytes_per_s["NVLink"],
            network,
        )
