"""Published peaks of accelerators: dense 16-bit products, memory, and what a device can send.

Sources: NVIDIA's data sheets of V100 (SXM2), A100 80GB (SXM) and H100 (SXM), without sparsity,
NVLink in one direction, one InfiniBand adapter (HDR, NDR) per GPU, eight per node.  TPUs: Austin
et al., "How to Scale Your Model", 2025, part 2; a device sends in both directions of an axis.
Between nodes, GPUs share their adapters: with a collective in two levels each sends an eighth of
what leaves the node, so that the node's sum counts (part 12).
"""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.estimate.roofline import Roofline


@dataclass(frozen=True)
class Device(Roofline):
    """A roofline over memory, and the links over which the device sends."""

    capacity_bytes: float  # of its memory
    sent_bytes_per_s: dict[str, float]  # by link, while it receives as much

    def over(self, link: str) -> Roofline:
        """The roofline of traffic over this link: its ridge is C/W, in operations for each byte.

        Raises KeyError if the device has no such link.
        """
        return Roofline(self.flops_per_s, self.sent_bytes_per_s[link])


DEVICES = {
    "V100": Device(125e12, 0.9e12, 32e9, {"NVLink": 150e9}),
    "A100": Device(312e12, 2.039e12, 80e9, {"NVLink": 300e9, "one adapter": 25e9, "node": 200e9}),
    "H100": Device(989.4e12, 3.35e12, 80e9, {"NVLink": 450e9, "one adapter": 50e9, "node": 400e9}),
    "TPU v4": Device(275e12, 1.2e12, 32e9, {"one axis": 90e9, "3 axes": 270e9}),
    "TPU v5e": Device(197e12, 0.81e12, 16e9, {"one axis": 90e9, "2 axes": 180e9}),
    "TPU v5p": Device(459e12, 2.8e12, 95e9, {"one axis": 180e9, "3 axes": 540e9}),
}
