"""preflight on two nodes made of network namespaces that a cable joins (needs root)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.two_nodes import HOSTS, Start, ends, two_nodes

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: needs root"),
    pytest.mark.long,
]
# Also as if another version were installed: the facts come from the packages' metadata.
PROGRAM = """
import sys
from shardlab.preflight import facts
if len(sys.argv) > 2 and sys.argv[1] == "--torch":
    version = sys.argv.pop(2)
    del sys.argv[1]
    facts.torch_version = lambda: version
from shardlab.__main__ import main
sys.exit(main(["preflight", *sys.argv[1:]]))
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts preflight on node "a" or "b"."""
    with two_nodes(tmp_path) as nodes:
        yield lambda node, *arguments, **more: nodes(
            node, [sys.executable, "-c", PROGRAM, *arguments], **more
        )


BOTH = ("--nnodes", "2", "--endpoint", "node-a:29400", "--timeout", "60")


def test_two_good_nodes(start: Start) -> None:
    a, b = start("a", *BOTH), start("b", *BOTH)
    printed = ends(a, b)
    assert (a.returncode, b.returncode) == (0, 0), printed
    assert "node-b: 10.77.0.2 on eth0 (MTU 1500)" in printed[0]
    assert "to node-a:" in printed[1]
    assert "shares the folder" in printed[0]
    assert printed[0].endswith("✓ nothing found that would stop torchrun\n")


def test_a_wrong_interface(start: Start) -> None:
    a, b = start("a", *BOTH), start("b", *BOTH, GLOO_SOCKET_IFNAME="lo")
    printed = ends(a, b)
    assert (a.returncode, b.returncode) == (0, 1), printed
    assert "gloo would use 127.0.0.1 (GLOO_SOCKET_IFNAME=lo)" in printed[1]
    assert "set GLOO_SOCKET_IFNAME=eth0" in printed[1]


def test_an_unresolvable_name(start: Start) -> None:
    without_a = HOSTS.replace("10.77.0.1 node-a\n", "")
    (printed,) = ends(start("b", *BOTH, hosts=without_a))
    assert "✗ the name 'node-a' is not known here" in printed
    address = [each.replace("node-a:", "10.77.0.1:") for each in BOTH]
    a, b = start("a", *address), start("b", *address, hosts=without_a)
    printed = ends(a, b)
    assert "node-a is not known on node-b" in printed[1]
    assert "--local-addr=10.77.0.1" in printed[1]


def test_one_node_is_missing(start: Start) -> None:
    began = time.monotonic()
    (printed,) = ends(start("a", *BOTH[:-1], "3"))
    assert "✗ only 1 of 2 nodes came within 3 s" in printed
    assert time.monotonic() - began < 190  # torchrun waits 600 s


def test_another_version(start: Start) -> None:
    a, b = start("a", *BOTH), start("b", "--torch", "2.11.0", *BOTH)
    printed = ends(a, b)
    assert (a.returncode, b.returncode) == (1, 1), printed
    assert "and 2.11.0 on node-b: install the same version" in printed[0]


def test_a_firewall_on_the_random_ports(start: Start) -> None:
    """Node b drops what it would send to node a's random ports; 29400 is open."""
    drop = "ip rule add ipproto tcp dport 30000-65534 blackhole"
    a, b = start("a", *BOTH), start("b", *BOTH, before=drop)
    printed = ends(a, b)
    assert b.returncode == 1, printed
    assert "node-b cannot reach node-a at 10.77.0.1, port" in printed[1]
    assert "random ports" in printed[1]
