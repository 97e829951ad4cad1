"""Lab 16's datasheets have the numbers of the devices, in the units that they print."""

from __future__ import annotations

import pytest

from shardlab.estimate.devices import DEVICES
from shardlab.recorded_runs.published import MACHINES

# The lab rounds as the datasheets do: 989 for 989.4 TFLOP/s, 2.04 for 2.039 TB/s.
ROUNDED = pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("name", MACHINES)
def test_datasheets_of_the_lab_are_of_the_devices(name: str) -> None:
    printed, device = MACHINES[name], DEVICES[name]
    assert printed["flops_per_s"] / device.flops_per_s == ROUNDED
    assert printed["memory_bytes_per_s"] / device.memory_bytes_per_s == ROUNDED
    # NVLink is printed for both directions together, an adapter in bits.
    assert printed["nvlink_bytes_per_s"] / 2 == device.sent_bytes_per_s["NVLink"]
    assert printed["link_bits_per_s"] / 8 == device.sent_bytes_per_s["one adapter"]


@pytest.mark.parametrize("name", ["A100", "H100"])
def test_a_node_has_eight_adapters(name: str) -> None:
    """The lab's A100 are in nodes of four, as it says."""
    sent_bytes_per_s = DEVICES[name].sent_bytes_per_s
    assert sent_bytes_per_s["node"] == 8 * sent_bytes_per_s["one adapter"]
