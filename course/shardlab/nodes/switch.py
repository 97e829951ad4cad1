"""Makes the namespaces and links of a cluster, in a process forked for this.

Each node has a network namespace and a host name of its own.  Its eth0 is one end of a cable (a
veth pair); the other end is a port of the switch, a bridge in one more network namespace.  All
nodes share a mount namespace, whose /etc/hosts has their names.  An ordinary user first makes a
user namespace that owns all of these.

Nothing has a name outside, and no process keeps it: it lasts as long as the descriptors that are
sent to the client (cluster.py), and processes that have entered a node.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator

import pyroute2
from pyroute2.netlink.exceptions import NetlinkError

from shardlab.nodes import missing, namespaces
from shardlab.trace import wire
from shardlab.trace.network import Network

MTU = 9000  # as in data centers; headers are 0.7 % of a frame of this size
FRAME_BYTES = MTU + 14
# The token bucket of a link: how much it may send at once after a pause.  A smaller one would make
# fast links slower than asked, as the kernel wakes up too late to refill it.
BUCKET_S, MIN_BUCKET_BYTES = 0.001, FRAME_BYTES + 100  # the kernel rounds it down
# What a link keeps before it drops packets.  With a 16th of this, an all-to-all of 8 ranks on 2
# nodes at 100 Mbit/s sent 10 % of its packets again; with this, 0.3 %.
QUEUE_BYTES = 1024 * FRAME_BYTES


def main(nodes: int, link_bits_per_s: float | None, reply: int) -> None:
    """Make a cluster and send its descriptors; on failure, why."""
    with socket.socket(fileno=reply) as sock:
        try:
            _make(nodes, link_bits_per_s, sock)
        except missing.Missing as error:
            sock.send(json.dumps({"missing": str(error)}).encode())
        except Exception as error:
            why = f"the nodes could not be made ({type(error).__name__}: {error})"
            sock.send(json.dumps({"missing": why}).encode())


def _make(nodes: int, link_bits_per_s: float | None, sock: socket.socket) -> None:
    names = {f"node{node}": f"{wire.NODE_NETWORK}{node + 1}" for node in range(nodes)}
    shared = _enter_shared_namespaces(names)
    switch = namespaces.current("net")
    with _allowed():
        own = [_enter_new_node(name) for name in names]
    networks = [network for network, _ in own]
    counters = []
    for network in networks:
        namespaces.enter(network)
        counters.append(Network.here())
    namespaces.enter(switch)
    with pyroute2.IPRoute() as route:
        ports = _connect(route, networks, link_bits_per_s)
    control = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    for network, address in zip(networks, names.values(), strict=True):
        namespaces.enter(network)
        with pyroute2.IPRoute() as route:
            _bring_up(route, address, link_bits_per_s)
    socket.send_fds(sock, [json.dumps({"ports": ports}).encode()], [control.fileno()])
    for fds, counter in zip(own, counters, strict=True):
        packet = json.dumps({"counters": len(counter.fds)}).encode()
        socket.send_fds(sock, [packet], [*counter.fds, *shared, *fds])


def _enter_shared_namespaces(addresses: dict[str, str]) -> list[int]:
    """The switch's namespaces; returns those that all nodes share, to be entered in this order."""
    kinds = namespaces.NEWNET | namespaces.NEWUTS | namespaces.NEWNS
    shared = []
    with _allowed():
        try:
            namespaces.unshare(kinds)
        except PermissionError:
            namespaces.unshare_user()
            shared.append(namespaces.current("user"))
            namespaces.unshare(kinds)
        lines = ["127.0.0.1 localhost", *(f"{at} {name}" for name, at in addresses.items())]
        namespaces.replace_file("/etc/hosts", "\n".join(lines) + "\n")
    return [*shared, namespaces.current("mnt")]


def _enter_new_node(name: str) -> tuple[int, int]:
    namespaces.unshare(namespaces.NEWNET | namespaces.NEWUTS)
    socket.sethostname(name)
    return namespaces.current("net"), namespaces.current("uts")


def _connect(
    route: pyroute2.IPRoute, networks: list[int], link_bits_per_s: float | None
) -> list[int]:
    """Make the switch and a cable to each node; returns the numbers of the switch's ports."""
    with _needs("bridge"):
        route.link("add", ifname="switch", kind="bridge")
    (bridge,) = route.link_lookup(ifname="switch")
    route.link("set", index=bridge, state="up")
    ports = []
    for node, network in enumerate(networks):
        name, end = f"port{node}", {"ifname": "eth0", "net_ns_fd": network, "mtu": MTU}
        with _needs("veth"):
            route.link("add", ifname=name, kind="veth", mtu=MTU, peer=end)
        (port,) = route.link_lookup(ifname=name)
        route.link("set", index=port, master=bridge, state="up")
        _limit(route, port, link_bits_per_s)
        ports.append(port)
    return ports


def _bring_up(route: pyroute2.IPRoute, address: str, link_bits_per_s: float | None) -> None:
    """In a node: loopback, and its end of the cable."""
    for name in ("lo", "eth0"):
        (index,) = route.link_lookup(ifname=name)
        if name == "eth0":
            route.addr("add", index=index, address=address, prefixlen=24)
            _limit(route, index, link_bits_per_s)
        route.link("set", index=index, state="up")


def _limit(route: pyroute2.IPRoute, interface: int, link_bits_per_s: float | None) -> None:
    """What it sends; the other end of its cable limits the other direction."""
    if link_bits_per_s is not None:
        bytes_per_s = link_bits_per_s / 8
        bucket = max(MIN_BUCKET_BYTES, int(BUCKET_S * bytes_per_s))
        with _needs("sch_tbf"):
            rate = f"{int(link_bits_per_s)}bit"
            route.tc("add", "tbf", interface, rate=rate, burst=bucket, limit=QUEUE_BYTES)


@contextlib.contextmanager
def _allowed() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise missing.namespaces(error) from error


@contextlib.contextmanager
def _needs(module: str) -> Iterator[None]:
    try:
        yield
    except NetlinkError as error:
        raise missing.kernel_module(module, error.code) from error
