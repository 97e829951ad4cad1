"""nvidia-smi's tables, as others have published them: no machine with several GPUs ran these."""

from __future__ import annotations

import pytest

from shardlab.machine_report import nvidia, report
from shardlab.machine_report.nvidia import Gpu, Gpus, parse_gpus, parse_pairs
from shardlab.machine_report.traps import traps

# A public note about a machine with eight of them, 2026 (two of its rows).
TWO_4090 = """\
index, name, memory.total [MiB]
0, NVIDIA GeForce RTX 4090, 24564 MiB
1, NVIDIA GeForce RTX 4090, 24564 MiB
"""
# github.com/NVIDIA/nccl/issues/933: eight GPUs and nine network cards (its first three rows).
NVLINKS = """\
        GPU0    GPU1    GPU2    GPU3    GPU4    GPU5    GPU6    GPU7    NIC0    NIC1    NIC2    NIC3    NIC4    NIC5    NIC6    NIC7    NIC8    CPU Affinity    NUMA Affinity
GPU0     X      NV8     NV8     NV8     NV8     NV8     NV8     NV8     NODE    SYS     PIX     SYS     NODE    SYS     NODE    SYS     NODE    0-47,96-143     0
GPU1    NV8      X      NV8     NV8     NV8     NV8     NV8     NV8     NODE    SYS     NODE    SYS     PIX     SYS     NODE    SYS     NODE    0-47,96-143     0
GPU2    NV8     NV8      X      NV8     NV8     NV8     NV8     NV8     NODE    SYS     NODE    SYS     NODE    SYS     PIX     SYS     NODE    0-47,96-143     0
"""  # noqa: E501
# github.com/aikitoria/open-gpu-kernel-modules/issues/13, with a patched driver.
FIVE_ON_PCIE = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNODE\tNODE\tNODE\tNODE\t0-63\t0\t\tN/A
GPU1\tNODE\t X \tNODE\tNODE\tNODE\t0-63\t0\t\tN/A
GPU2\tNODE\tNODE\t X \tNODE\tNODE\t0-63\t0\t\tN/A
GPU3\tNODE\tNODE\tNODE\t X \tPHB\t0-63\t0\t\tN/A
GPU4\tNODE\tNODE\tNODE\tPHB\t X \t0-63\t0\t\tN/A

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
"""  # noqa: E501
# github.com/noonghunna/club-3090/issues/1229: two RTX 5090.
TWO_5090 = """\
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPHB\t0-63\t0\t\tN/A
GPU1\tPHB\t X \t0-63\t0\t\tN/A
"""
TWO_5090_P2P = """\
 \tGPU0\tGPU1\t
 GPU0\tX\tGNS\t
 GPU1\tGNS\tX\t

Legend:

  X    = Self
  OK   = Status Ok
  GNS  = GPU not supported
"""


def test_gpus_are_read_with_their_memory() -> None:
    name = "NVIDIA GeForce RTX 4090"
    assert parse_gpus(TWO_4090) == (Gpu(0, name, 24564), Gpu(1, name, 24564))
    assert parse_gpus(TWO_4090.replace("24564 MiB", "[N/A]"))[0].memory_mib is None
    assert parse_gpus("index, name, memory.total [MiB]\n") == ()


def test_network_cards_are_not_taken_for_gpus() -> None:
    pairs = parse_pairs(NVLINKS)
    assert set(pairs.values()) == {"NV8"}
    assert len(pairs) == 7 + 6 + 5


def test_each_pair_of_gpus_has_its_path() -> None:
    pairs = parse_pairs(FIVE_ON_PCIE)
    assert len(pairs) == 10
    assert pairs[3, 4] == "PHB"
    assert {path for pair, path in pairs.items() if pair != (3, 4)} == {"NODE"}


@pytest.mark.parametrize("table", ["", "No devices were found\n", "Legend:\n\n  X = Self\n"])
def test_a_table_without_gpus_has_no_pairs(table: str) -> None:
    assert parse_pairs(table) == {}


def two_5090() -> Gpus:
    gpus = tuple(Gpu(index, "NVIDIA GeForce RTX 5090", 32607) for index in (0, 1))
    return Gpus(gpus, parse_pairs(TWO_5090), parse_pairs(TWO_5090_P2P))


def found(gpus: Gpus | None, **other: object) -> list[str]:
    given = {"torch_gpus": len(gpus.gpus) if gpus else 0, "nccl": "2.27.3"}
    return list(traps(gpus, **{**given, "shared_memory_bytes": 8 << 30, **other}))  # type: ignore[arg-type]


def test_a_pair_without_p2p_is_reported_with_what_to_set() -> None:
    assert two_5090().without_p2p() == {(0, 1): "the GPU does not support it"}
    (trap,) = found(two_5090())
    assert "GPUs 0 and 1 without P2P (the GPU does not support it)" in trap
    assert "NCCL_P2P_DISABLE=1" in trap


def test_cards_that_report_p2p_and_hang_are_known_by_name() -> None:
    (trap,) = found(Gpus(parse_gpus(TWO_4090)))
    assert "RTX 4090 has no P2P" in trap
    assert "issue 117" in trap
    assert found(Gpus(parse_gpus(TWO_4090)[:1])) == []  # one GPU has no peer


def test_gpus_that_torch_does_not_see_and_small_shared_memory_are_traps() -> None:
    hidden, without_nccl = found(Gpus(parse_gpus(TWO_4090)[:1]), torch_gpus=0, nccl=None)
    assert "nvidia-smi sees 1 GPUs and torch 0" in hidden
    assert "no NCCL" in without_nccl
    (small,) = found(None, shared_memory_bytes=64 << 20)
    assert "/dev/shm has only 64 MiB" in small
    assert found(None) == []


def test_pairs_with_the_same_link_share_a_line() -> None:
    gpus = tuple(Gpu(index, "A800", None) for index in range(8))
    lines = dict(report.gpu_lines(Gpus(gpus, parse_pairs(NVLINKS))))
    assert lines["GPU pairs"] == "8 NVLinks: 0–1, 0–2, 0–3, 0–4, 0–5, 0–6, …"
    lines = dict(report.gpu_lines(two_5090()))
    assert lines["GPU pairs"] == "PHB (PCIe and the CPU), no P2P (GNS): 0–1"
    assert lines["GPU 1"] == "NVIDIA GeForce RTX 5090, 32,607 MiB"


def test_without_nvidia_smi_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert nvidia.read_gpus() is None
    assert dict(report.gpu_lines(None))["GPUs"].startswith("none")
