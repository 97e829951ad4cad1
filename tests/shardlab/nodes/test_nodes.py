"""Ranks on several nodes, over real links between network namespaces."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from shardlab import DeadlockError, launch, measure
from shardlab.ranks.rank_set import RankSet
from tests.autograder.sandbox.without_root import is_possible, run_without_root

pytestmark = pytest.mark.ranks

SLOW_BITS_PER_S = 20e6
ELEMENTS = 1 << 16
REDUCED_BYTES = 4 * ELEMENTS


def environment() -> tuple[str, ...]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    return tuple(os.environ[name] for name in names)


def whereabouts() -> tuple[tuple[str, ...], str, list[str]]:
    dist.barrier()
    names = sorted({f"node{rank}" for rank in range(2)})
    return environment(), socket.gethostname(), [socket.gethostbyname(name) for name in names]


def all_reduce() -> float:
    tensor = torch.ones(ELEMENTS)
    with measure("reduce"):
        dist.all_reduce(tensor)
    return tensor[0].item()


def sent_by_interface() -> dict[str, int]:
    with open("/proc/net/dev") as file:
        lines = [line.split() for line in file if ":" in line]
    return {name.rstrip(":"): int(sent) for name, *counts in lines for sent in counts[8:9]}


def is_unplugged() -> bool:
    """Whether this node's eth0 has no carrier: its flag IFF_RUNNING (linux/if.h)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, 0x8913, struct.pack("16s24x", b"eth0"))
    (flags,) = struct.unpack_from("H", answer, 16)
    return not flags & 0x40


@pytest.mark.parametrize("nodes", [2, 4])
def test_ranks_are_numbered_and_named_as_by_torchrun(nodes: int) -> None:
    run = launch(whereabouts, world_size=4, nodes=nodes)
    per_node = 4 // nodes
    for rank, (names, host, addresses) in enumerate(run.outputs):
        node, local = divmod(rank, per_node)
        assert names == (str(rank), "4", str(local), str(per_node), str(node))
        assert host == f"node{node}"
        assert addresses == ["10.77.0.1", "10.77.0.2"]
    assert run.traffic.nodes == tuple(rank // per_node for rank in range(4))


def test_a_plain_launch_is_on_one_node() -> None:
    run = launch(environment, world_size=2)
    assert run.outputs == [("0", "2", "0", "2", "0"), ("1", "2", "1", "2", "0")]
    assert run.traffic.nodes == (0, 0)


def test_bytes_within_and_between_nodes() -> None:
    """The ring sends 2(N−1)/N of the tensor to the next rank, wherever that is."""
    run = launch(all_reduce, world_size=4, nodes=2)
    assert run.outputs == [4.0] * 4
    for traffic in (run.traffic, run.traffic["reduce"]):
        assert traffic.source.startswith("counted by the operating system")
        ring_bytes = 2 * 3 / 4 * REDUCED_BYTES
        assert traffic.sent_by_rank == pytest.approx([ring_bytes] * 4, rel=0.01)
        assert traffic.between_nodes == pytest.approx(np.full((2, 2), ring_bytes), rel=0.01)


def test_the_links_count_the_same_bytes() -> None:
    """Also headers, which are 0.7 % of a full frame, and acknowledgements: less than 3 %."""

    def counted() -> int:
        before = sent_by_interface()["eth0"]
        for _ in range(4):
            all_reduce()
        dist.barrier()
        return sent_by_interface()["eth0"] - before

    run = launch(counted, world_size=2, nodes=2)
    for node in range(2):
        sent_bytes = run.traffic.between_nodes[node, 1 - node]
        assert sent_bytes < run.outputs[node] < 1.03 * sent_bytes


@pytest.mark.parametrize("nodes", [2, 4])
def test_the_links_are_read_over_time(nodes: int) -> None:
    """Their bytes are those between nodes and headers, also as rate times time."""

    def several() -> None:
        for _ in range(4):
            all_reduce()

    run = launch(several, world_size=4, nodes=nodes, link_bits_per_s=SLOW_BITS_PER_S)
    links, between = run.traffic.links, run.traffic.between_nodes
    assert links is not None
    assert links.bits_per_s == SLOW_BITS_PER_S
    assert (np.diff(links.time_s) > 0).all()
    ways = (
        (links.sent_bits_per_s, links.sent_bytes),
        (links.received_bits_per_s, links.received_bytes),
    )
    for axis, (rates, counted) in zip((1, 0), ways, strict=True):
        across = between.sum(axis=axis) - between.diagonal()
        assert (np.diff(counted, axis=0) >= 0).all()
        integral = rates.T @ np.diff(links.time_s) / 8
        assert integral == pytest.approx(counted[-1])
        assert (integral > across).all()
        assert integral == pytest.approx(across, rel=0.03)


def test_a_long_send_fills_its_link_in_one_direction() -> None:
    def send() -> None:
        tensor = torch.ones(4 * ELEMENTS)
        (dist.send if dist.get_rank() == 0 else dist.recv)(tensor, 1 - dist.get_rank())

    links = launch(send, world_size=2, nodes=2, link_bits_per_s=SLOW_BITS_PER_S).traffic.links
    assert links is not None
    # While it has sent between a tenth and nine tenths: the link takes its time, whatever the load.
    sent = links.sent_bytes[:, 0] / links.sent_bytes[-1, 0]
    start_s, end_s = np.interp([0.1, 0.9], sent, links.time_s)
    sent_share, received_share = links.utilization(start_s, end_s)
    assert 0.9 <= sent_share[0] <= 1.05
    assert received_share[1] == pytest.approx(sent_share[0], abs=0.1)
    assert sent_share[1] < 0.05


def test_without_nodes_there_are_no_links() -> None:
    assert launch(environment, world_size=2).traffic.links is None
    links = launch(environment, world_size=2, nodes=2).traffic.links
    assert links is not None
    with pytest.raises(ValueError, match="no speed"):
        links.utilization(0, 1)


def test_sockets_of_ipv6_count_for_their_ranks_too() -> None:
    """They have mapped IPv4 addresses, as those of a TCPStore."""
    size = 100_000

    def send_by_hand() -> None:
        server = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        port = [server.getsockname()[1]]
        dist.broadcast_object_list(port, 0)
        if dist.get_rank() == 1:
            link = socket.create_connection(("node0", port[0]))
            link.sendall(bytes(size))
        else:
            link, _ = server.accept()
            while len(link.recv(size, socket.MSG_WAITALL)) < size:
                pass
        vars(sys)["kept"] = link  # open until it has been counted
        dist.barrier()

    run = launch(send_by_hand, world_size=2, nodes=2)
    assert size <= run.traffic.sent_bytes[1, 0] < 1.1 * size


def test_a_slow_link_takes_its_time() -> None:
    def seconds() -> float:
        dist.barrier()
        start_s = time.monotonic()
        all_reduce()
        return time.monotonic() - start_s

    run = launch(seconds, world_size=2, nodes=2, link_bits_per_s=SLOW_BITS_PER_S)
    # Each node sends and receives the tensor; a few frames may pass at once.
    assert min(run.outputs) > 0.8 * 8 * REDUCED_BYTES / SLOW_BITS_PER_S


def test_several_functions_also_on_fewer_ranks() -> None:
    with RankSet(4, smaller=[3], nodes=2) as ranks:
        assert ranks.run(all_reduce).outputs == [4.0] * 4
        run = ranks.run(all_reduce, world_size=3)
        assert run.outputs == [3.0] * 3
        assert run.traffic.nodes == (0, 0, 1)
        found = ranks.run(environment, world_size=3).outputs
    assert found[1:] == [("1", "3", "1", "2", "0"), ("2", "3", "0", "1", "1")]


class TestFailures:
    def test_a_hang_names_the_nodes(self) -> None:
        def wait_for_each_other() -> None:
            if dist.get_rank() in (0, 3):
                dist.recv(torch.ones(2), 3 - dist.get_rank())

        with pytest.raises(DeadlockError) as caught:
            launch(wait_for_each_other, world_size=4, nodes=2)
        assert "ranks 0 (node 0) → 3 (node 1) → 0 (node 0) all wait in recv" in str(caught.value)
        assert "waiting in recv from rank 0, for rank 0 on node 0" in str(caught.value)

    @pytest.mark.parametrize(("unplug", "node"), [(0.1, 1), ((0.1, 0), 0)])
    def test_an_unplugged_node(self, unplug: Any, node: int) -> None:
        def forever() -> None:
            while True:
                all_reduce()

        with pytest.raises(DeadlockError) as caught:
            launch(forever, world_size=2, nodes=2, unplug_after_s=unplug, timeout_s=250)
        waits = {  # either rank can be the first to wait
            f"node {node} is unplugged: rank {rank} on node {rank} waits for "
            f"rank {1 - rank} on node {1 - rank} in all_reduce"
            for rank in range(2)
        }
        assert caught.value.headline.startswith(tuple(waits))
        assert "dist.all_reduce(tensor)" in caught.value.headline

    def test_within_an_unplugged_node_ranks_still_communicate(self) -> None:
        def within() -> float:
            group, _ = dist.new_subgroups(2)
            unplugged = torch.zeros(1)
            while dist.get_rank() >= 2 and not unplugged:
                unplugged += is_unplugged()
                dist.all_reduce(unplugged, group=group)
            total = torch.ones(10)
            dist.all_reduce(total, group=group)
            return total[0].item()

        # The groups are made before: making one needs all ranks.
        run = launch(within, world_size=4, nodes=2, unplug_after_s=3, timeout_s=250)
        assert run.outputs == [2.0] * 4

    def test_too_few_namespaces_are_refused_in_one_sentence(self) -> None:
        program = "from shardlab import launch\nlaunch(divmod, 7, 2, world_size=2, nodes=2)"
        limit = "echo 2 > /proc/sys/user/max_net_namespaces"
        command = f'{limit}; exec "$0" -c "$1"'
        done = subprocess.run(
            ["unshare", "--user", "--map-root-user", "sh", "-c", command, sys.executable, program],
            capture_output=True,
            text=True,
        )
        last = done.stderr.strip().splitlines()[-1]
        assert "NodesUnavailable: nodes=2: this machine does not allow the namespaces" in last


@pytest.mark.skipif(not is_possible(), reason="needs setpriv and unshare")
def test_as_an_ordinary_user(tmp_path: Path) -> None:
    program = """
import os, socket
import torch, torch.distributed as dist
from shardlab import LaunchError, launch

def total():
    tensor = torch.ones(1 << 16)
    dist.all_reduce(tensor)
    return os.geteuid() > 0, socket.gethostname(), tensor[0].item()

def forever():
    while True:
        total()

run = launch(total, world_size=4, nodes=2, link_bits_per_s=1e8)
print(run.outputs)
print(run.traffic.source)
print(run.traffic.between_nodes[0, 1] // 10_000)
try:
    launch(forever, world_size=2, nodes=2, unplug_after_s=0.1)
except LaunchError as error:
    print(error.headline)
"""
    done = run_without_root([sys.executable, "-c", program], tmp_path)
    assert done.returncode == 0, done.stderr
    outputs, source, sent, headline = done.stdout.splitlines()
    expected = [(True, f"node{rank // 2}", 4.0) for rank in range(4)]
    assert outputs == str(expected)
    assert source.startswith("counted by the operating system")
    assert sent == str(int(1.5 * REDUCED_BYTES) // 10_000)
    assert headline.startswith("node 1 is unplugged: rank 0 on node 0 waits for rank 1 on node 1")


@pytest.mark.parametrize(
    ("options", "error", "part"),
    [
        ({"nodes": 3}, ValueError, "world_size=4 can't be divided equally among nodes=3"),
        ({"nodes": 0}, ValueError, "nodes=0"),
        ({"nodes": 2.0}, TypeError, "nodes must be an integer"),
        ({"link_bits_per_s": 1e8}, ValueError, "pass nodes=2"),
        ({"nodes": 2, "link_bits_per_s": 10}, ValueError, "it must be from"),
        ({"nodes": 2, "link_bits_per_s": "fast"}, TypeError, "must be a number"),
        ({"unplug_after_s": 1}, ValueError, "pass nodes=2"),
        ({"nodes": 2, "unplug_after_s": (1, 2)}, ValueError, "a node below 2"),
        ({"nodes": 2, "unplug_after_s": "soon"}, TypeError, "seconds or (seconds, node)"),
        ({"nodes": 2, "device": "cuda"}, ValueError, "GPU"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception], part: str) -> None:
    with pytest.raises(error) as caught:
        launch(environment, world_size=4, **options)
    assert part in str(caught.value)
