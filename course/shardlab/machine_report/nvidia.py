"""GPUs and the links between them, read from nvidia-smi's tables.

Unproven: the parsers were tested on outputs that others have published, not on a machine with
several GPUs.
"""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

Pair = tuple[int, int]  # the lower index first

# Also printed under the table of `nvidia-smi topo -m`.
PATHS = {
    "PIX": "one PCIe bridge",
    "PXB": "several PCIe bridges",
    "PHB": "PCIe and the CPU",
    "NODE": "PCIe between the host bridges of a NUMA node",
    "SYS": "PCIe and the link between NUMA nodes",
}
NO_P2P = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "NS": "not supported",
    "DR": "disabled in the driver's settings",
}


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    memory_mib: int | None  # None where the driver does not report it


@dataclass(frozen=True)
class Gpus:
    """``paths``: "NV4", "PHB", …; ``p2p``: "OK", "GNS", …; for each pair that was reported."""

    gpus: tuple[Gpu, ...] = ()
    paths: Mapping[Pair, str] = field(default_factory=dict)
    p2p: Mapping[Pair, str] = field(default_factory=dict)

    def without_p2p(self) -> dict[Pair, str]:
        """The pairs that cannot read each other's memory, and why."""
        return {pair: NO_P2P[state] for pair, state in self.p2p.items() if state in NO_P2P}


def read_gpus() -> Gpus | None:
    """None without a working nvidia-smi."""
    listed = _nvidia_smi("--query-gpu=index,name,memory.total", "--format=csv")
    if listed is None:
        return None
    return Gpus(
        parse_gpus(listed),
        parse_pairs(_nvidia_smi("topo", "-m") or ""),
        parse_pairs(_nvidia_smi("topo", "-p2p", "r") or ""),
    )


def parse_gpus(table: str) -> tuple[Gpu, ...]:
    """From ``nvidia-smi --query-gpu=index,name,memory.total --format=csv``."""
    rows = csv.DictReader(table.strip().splitlines(), skipinitialspace=True)
    found = []
    for row in rows:
        mebibytes = re.match(r"(\d+)", row["memory.total [MiB]"])
        memory_mib = int(mebibytes[1]) if mebibytes else None
        found.append(Gpu(int(row["index"]), row["name"], memory_mib))
    return tuple(found)


def parse_pairs(table: str) -> dict[Pair, str]:
    """From ``nvidia-smi topo -m`` or ``topo -p2p r``: the entry of each pair of GPUs.

    Columns of network cards and affinities come after those of the GPUs, so they are ignored.
    """
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line).split() for line in table.splitlines()]
    header = next((line for line in lines if line and line[0] == "GPU0" and "X" not in line), [])
    columns = [name for name in header if re.fullmatch(r"GPU\d+", name)]
    found = {}
    for line in lines:
        if line and line[0] in columns and line is not header:
            row = int(line[0][3:])
            for name, entry in zip(columns, line[1:], strict=False):
                if (column := int(name[3:])) > row:
                    found[row, column] = entry
    return found


def _nvidia_smi(*arguments: str) -> str | None:
    try:
        ran = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout
