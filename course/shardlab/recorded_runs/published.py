"""Training runs as their authors published them: a log line, the model and the cluster.

``question`` holds the arguments of lab 16's ``mfu``; ``published`` is the authors' own number.
Sources: Chowdhery et al., "PaLM", arXiv 2204.02311, appendix B; torchtitan's benchmarks of
Llama 3.1 8B on 8 and 128 H100, December 2024 (FSDP; 33 to 39% MFU, the first not compiled);
BigScience's log of BLOOM-176B, 2022: 149.77 TFLOP/s of an A100's 312.  Mixtral's sizes: arXiv
2401.04088; no throughput is published, so its log line is made up.

``MACHINES`` has the numbers of NVIDIA's datasheets in the units they print.  Only the latency is an
assumption: what a message between nodes typically takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

A100_FLOPS_PER_S = 312e12  # 16 bit, dense
H100_SPARSE_FLOPS_PER_S = 1979e12  # as the datasheet prints it: "with sparsity"


@dataclass(frozen=True)
class PublishedRun:
    log: dict[str, float]
    model: dict[str, int]
    cluster: dict[str, Any]
    recomputed: bool = False  # all activations, in backward
    published: str = ""  # the authors' own number

    @property
    def question(self) -> dict[str, Any]:
        arguments = {"log": self.log, "model": self.model, "cluster": self.cluster}
        return arguments | ({"recomputed": True} if self.recomputed else {})


def _gpt(layers: int, width: int, heads: int, sequence: int, **sizes: int) -> dict[str, int]:
    shape = {"layers": layers, "width": width, "heads": heads, "head_width": width // heads}
    return shape | {"sequence": sequence, "lookup_parameters": 0} | sizes


def _cluster(
    devices: int, peak_flops_per_s: float, *, with_sparsity: bool = False
) -> dict[str, Any]:
    return {
        "devices": devices,
        "peak_flops_per_s": peak_flops_per_s,
        "with_sparsity": with_sparsity,
    }


LLAMA_8B = _gpt(
    32, 4096, 32, 8192, parameters=8_030_261_248, lookup_parameters=128_256 * 4096
)  # fmt: skip
PUBLISHED = {
    "PaLM 540B": PublishedRun(
        {"tokens_per_s": 238_300},
        _gpt(118, 18432, 48, 2048, head_width=256, parameters=540_350_000_000),
        _cluster(6144, 275e12),  # TPU v4
        published="MFU 46.2%",
    ),
    "Llama 3.1 8B": PublishedRun(
        {"tokens_per_s_per_device": 5762},
        LLAMA_8B,
        _cluster(8, H100_SPARSE_FLOPS_PER_S, with_sparsity=True),
        published="MFU 33%",
    ),
    "Llama 3.1 8B, 128 GPUs": PublishedRun(
        {"tokens_per_s_per_device": 5605},
        LLAMA_8B,
        _cluster(128, H100_SPARSE_FLOPS_PER_S / 2),
    ),
    "BLOOM 176B": PublishedRun(
        {"sequences": 2048, "step_s": 104.70},
        _gpt(70, 14336, 112, 2048, parameters=12 * 70 * 14336**2 + 250_880 * 14336),
        _cluster(384, A100_FLOPS_PER_S),
        recomputed=True,
        published="HFU 48.0%",
    ),
    "Mixtral 8x7B": PublishedRun(
        {"tokens_per_s_per_device": 1400},
        _gpt(
            32, 4096, 32, 8192,
            parameters=46_702_792_704,
            lookup_parameters=32_000 * 4096,
            expert_parameters=32 * 8 * 3 * 4096 * 14336,
            experts=8,
            experts_per_token=2,
        ),
        _cluster(64, A100_FLOPS_PER_S),
    ),
}  # fmt: skip

MACHINES: dict[str, dict[str, float]] = {
    "A100": {
        "flops_per_s": A100_FLOPS_PER_S,
        "memory_bytes_per_s": 2.04e12,
        "nvlink_bytes_per_s": 600e9,  # of one device, both directions together
        "link_bits_per_s": 200e9,  # of one device's network adapter, in each direction
        "latency_s": 10e-6,
        "devices_per_node": 4,  # as in Perlmutter and JUWELS Booster
    },
    "H100": {
        "flops_per_s": 989e12,
        "memory_bytes_per_s": 3.35e12,
        "nvlink_bytes_per_s": 900e9,
        "link_bits_per_s": 400e9,
        "latency_s": 10e-6,
        "devices_per_node": 8,
    },
}


def machine_name(machine: object) -> str:
    """The machine as it is written in the lab: its name, or its numbers."""
    named = (f"MACHINES[{name!r}]" for name, each in MACHINES.items() if each == machine)
    return next(named, repr(machine))
