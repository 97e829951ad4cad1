"""Each failure between nodes is one sentence that says what to set."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardlab.preflight import facts, findings
from shardlab.preflight.exchange import Exchange, Head, Missing
from shardlab.preflight.facts import Node
from shardlab.preflight.probes import Echo, probe

A = Node(
    name="node-a",
    address="10.0.0.1",
    interface="eth0",
    mtu=1500,
    gloo_address="10.0.0.1",
    gloo_variable="",
    nccl_variable="",
    interfaces=("lo", "docker0", "eth0"),
    torch="2.13.0",
    nccl="2.27.3",
    python="3.11",
    gpus=8,
    time_s=1000.0,
    port=40001,
    folder="/shared/a",
)
B = replace(A, name="node-b", address="10.0.0.2", gloo_address="10.0.0.2", port=40002)
NAMES = {"node-a": ["10.0.0.1"], "node-b": ["10.0.0.2"]}


def seen_from_a(other: Node, names: dict[str, list[str]] = NAMES) -> list[str]:
    return list(findings.between([A, other], 0, lambda name: names.get(name, [])))


def before(head: str, addresses: list[str], nnodes: int = 2, **more: bool) -> list[str]:
    given = {"is_here": False, "would_host": False, **more}
    return list(findings.before_connecting(head, nnodes, addresses, **given))


def test_nodes_that_agree_have_no_findings() -> None:
    assert seen_from_a(B) == []
    assert list(findings.of_this_node(A, 2)) == []
    assert before("node-a", ["10.0.0.1"], is_here=True, would_host=True) == []


def test_the_endpoint() -> None:
    (unknown,) = before("head", [])
    assert "/etc/hosts" in unknown
    (itself,) = before("localhost", ["127.0.0.1"])
    assert "this machine itself (127.0.0.1)" in itself
    assert before("localhost", ["127.0.0.1"], nnodes=1) == []
    (nobody,) = before("10.0.0.1", ["10.0.0.1"], is_here=True)
    assert "--rdzv-conf is_host=1" in nobody


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gloo_address": "127.0.1.1"}, "the name node-a resolves to 127.0.1.1"),
        (
            {"gloo_address": "172.17.0.1", "gloo_variable": "docker0"},
            "gloo would use 172.17.0.1 (GLOO_SOCKET_IFNAME=docker0)",
        ),
        ({"gloo_variable": "eth9", "gloo_address": ""}, "node-a has no such interface"),
        ({"nccl_variable": "ib0"}, "NCCL_SOCKET_IFNAME=ib0, but node-a has no such"),
    ],
)
def test_a_wrong_interface(changes, said) -> None:
    (sentence,) = findings.of_this_node(replace(A, **changes), 2)
    assert said in sentence
    assert "eth0" in sentence


@pytest.mark.parametrize("value", ["eth", "=eth0", "^docker,lo", "eth0,ib0"])
def test_ncclls_ways_to_name_interfaces_are_understood(value) -> None:
    assert list(findings.of_this_node(replace(A, nccl_variable=value), 2)) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"torch": "2.11.0"}, "torch is 2.13.0 on node-a and 2.11.0 on node-b"),
        ({"nccl": ""}, "NCCL is 2.27.3 on node-a and missing on node-b"),
        ({"gpus": 4}, "node-a has 8 GPUs and node-b 4: --nproc-per-node"),
        ({"mtu": 9000}, "the MTU is 1500 on node-a (eth0) and 9000 on node-b"),
        ({"time_s": 1060.0}, "60 s apart"),
        ({"name": "node-a"}, "two nodes are called node-a"),
    ],
)
def test_nodes_that_differ(changes, said) -> None:
    (sentence,) = seen_from_a(replace(B, **changes))
    assert said in sentence


def test_names_of_the_other_nodes() -> None:
    (unknown,) = seen_from_a(B, {})
    assert "--local-addr=10.0.0.2" in unknown
    (other,) = seen_from_a(B, {"node-b": ["127.0.1.1"]})
    assert "node-b is 127.0.1.1 on node-a, but its address is 10.0.0.2" in other


def test_an_unreachable_port_names_the_firewall() -> None:
    (sentence,) = findings.unreachable(A, {"node-b": ("10.0.0.2", 40002, "timed out")})
    assert "node-a cannot reach node-b at 10.0.0.2, port 40002 (timed out)" in sentence
    assert "firewall" in sentence


def test_nodes_exchange_lines_and_a_missing_one_is_counted() -> None:
    head = Head(0, 1, timeout_s=30)
    head.start()
    port = head.server.getsockname()[1]
    alone = Exchange("127.0.0.1", port, 1, timeout_s=30)
    assert alone.all({"a": 1}) == [{"a": 1}]
    assert alone.all(None) == [None]
    assert alone.own_address == "127.0.0.1"
    head = Head(0, 2, timeout_s=0.2)
    head.start()
    with pytest.raises(Missing, match=r"only 1 of 2 nodes came within 30 s"):
        Exchange("127.0.0.1", head.server.getsockname()[1], 2, timeout_s=30).all({})


def test_a_probe_counts_what_arrives() -> None:
    echo = Echo()
    echo.start()
    speed = probe("127.0.0.1", echo.port)
    echo.close()
    assert speed.latency_s > 0
    assert speed.bytes_per_s > 0
    with pytest.raises(OSError, match="refused"):
        probe("127.0.0.1", echo.port)


def test_facts_of_this_machine() -> None:
    assert facts.interface_of("127.0.0.1")[0] == "lo"
    assert facts.interface_of("192.0.2.1") == ("", 0)
    assert facts.gloo_address("lo") == "127.0.0.1"
    assert facts.gloo_address("none") == ""
    own = facts.describe("127.0.0.1", 1, 0, "")
    assert Node.from_plain(own.to_plain()) == own
