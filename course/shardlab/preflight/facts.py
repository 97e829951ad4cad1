"""What a node knows about itself, before it has spoken with the others."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from typing import Any

import psutil


@dataclass(frozen=True)
class Node:
    """One node's facts. ``address``: the one from which it reaches the head node; ``port``: where
    it accepts connections for the probe, chosen by the system as gloo's and NCCL's are."""

    name: str
    address: str
    interface: str  # of that address; "" if unknown
    mtu: int
    gloo_address: str  # which gloo would use; "" if none
    gloo_variable: str  # GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME: "" if unset
    nccl_variable: str
    interfaces: tuple[str, ...]
    torch: str
    nccl: str  # "" without
    python: str
    gpus: int
    time_s: float
    port: int
    folder: str  # a file that this node has written to the shared folder; "" if it could not

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Node:
        return cls(**{**plain, "interfaces": tuple(plain["interfaces"])})


def describe(address: str, port: int, gpus: int, folder: str) -> Node:
    """This node's facts."""
    interface, mtu = interface_of(address)
    variable = os.environ.get("GLOO_SOCKET_IFNAME", "")
    return Node(
        name=socket.gethostname(),
        address=address,
        interface=interface,
        mtu=mtu,
        gloo_address=gloo_address(variable),
        gloo_variable=variable,
        nccl_variable=os.environ.get("NCCL_SOCKET_IFNAME", ""),
        interfaces=tuple(psutil.net_if_addrs()),
        torch=torch_version(),
        nccl=nccl_version(),
        python=".".join(map(str, sys.version_info[:2])),
        gpus=gpus,
        time_s=time.time(),
        port=port,
        folder=folder,
    )


def interface_of(address: str) -> tuple[str, int]:
    """The interface that has this address, and its MTU; ("", 0) if there is none."""
    stats = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return name, stats[name].mtu
    return "", 0


def gloo_address(variable: str) -> str:
    """The named interface's first address, or what this node's own name resolves to."""
    if variable:
        addresses = psutil.net_if_addrs().get(variable, [])
        return next((each.address for each in addresses if each.family == socket.AF_INET), "")
    return next(iter(addresses_of(socket.gethostname())), "")


def addresses_of(host: str) -> list[str]:
    """Empty if the name is unknown here."""
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except OSError:
        return []
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def would_host(head: str) -> bool:
    """Whether torchrun on this node takes itself for the head node, as it decides that: by its own
    name and that name's addresses (torch/distributed/elastic/rendezvous/utils.py)."""
    own = addresses_of(socket.gethostname())
    named = addresses_of(head)
    return head == socket.gethostname() or any(map(is_loopback, named)) or bool({*own} & {*named})


def is_here(head: str) -> bool:
    """Whether one of this node's interfaces has the head node's address."""
    return any(interface_of(address)[0] for address in addresses_of(head))


def nccl_version() -> str:
    """Of the package that torch uses, without importing torch."""
    for each in distributions():
        if re.match(r"nvidia-nccl-cu\d+$", each.metadata["Name"] or ""):
            return each.version
    return ""


def torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""
