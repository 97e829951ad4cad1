"""python -m shardlab preflight --nnodes 2 --endpoint HEAD:29400: start it on every node

Unproven: NCCL's choice of an interface; only the variables are read.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

from shardlab.machine_report.nvidia import read_gpus
from shardlab.preflight import facts, findings
from shardlab.preflight.exchange import Exchange, Head, Missing
from shardlab.preflight.facts import Node
from shardlab.preflight.probes import Echo, Speed, probe


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "preflight", help="check several nodes before torchrun: run it on each of them"
    )
    command.add_argument("--nnodes", type=int, required=True, metavar="N")
    command.add_argument(
        "--endpoint", required=True, metavar="HEAD:PORT", help="as --rdzv-endpoint"
    )
    command.add_argument("--timeout", type=float, default=30, metavar="SECONDS", help="default: 30")
    command.add_argument(
        "--folder", type=Path, default=Path(), help="is it shared? default: the current directory"
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    head, _, port = arguments.endpoint.rpartition(":")
    if not head or not port.isdecimal():
        print(f"--endpoint {arguments.endpoint}: write HEAD:PORT, such as node-a:29400")
        return 2
    found = []
    try:
        for sentence in _check(head, int(port), arguments):
            print(f"✗ {sentence}", flush=True)
            found.append(sentence)
    except Missing as error:
        print(f"✗ {error}")
        return 1
    if not found:
        print("✓ nothing found that would stop torchrun")
    return 1 if found else 0


def _check(head: str, port: int, arguments: argparse.Namespace) -> Iterator[str]:
    nnodes, timeout_s = arguments.nnodes, arguments.timeout
    addresses, is_here = facts.addresses_of(head), facts.is_here(head)
    early = [
        *findings.before_connecting(
            head, nnodes, addresses, is_here=is_here, would_host=facts.would_host(head)
        )
    ]
    yield from early
    if not addresses or (nnodes > 1 and any(map(facts.is_loopback, addresses))):
        return
    with contextlib.ExitStack() as stack:
        if is_here:
            try:
                server = Head(port, nnodes, timeout_s)
            except OSError as error:
                raise Missing(
                    f"port {port} cannot be used on this node ({error.strerror}): choose another "
                    "one in --endpoint, on every node"
                ) from None
            server.start()
            stack.callback(server.join, 5)  # until it has answered all
        exchange = stack.enter_context(Exchange(head, port, nnodes, timeout_s))
        echo = Echo()
        echo.start()
        stack.callback(echo.close)
        written = _written(arguments.folder)
        stack.callback(lambda: written.unlink(missing_ok=True) if written else None)
        seen = read_gpus()
        gpus = len(seen.gpus) if seen else 0
        own = facts.describe(exchange.own_address, echo.port, gpus, str(written or ""))
        nodes = [Node.from_plain(each) for each in exchange.all(own.to_plain())]
        me = next(i for i, n in enumerate(nodes) if (n.name, n.port) == (own.name, own.port))
        _print_nodes(nodes, me)
        yield from findings.of_this_node(own, nnodes)
        yield from findings.between(nodes, me, facts.addresses_of)
        failures = {}
        for index, other in enumerate(nodes):  # in turn, so that links are not shared
            if index != me:
                exchange.all(None)
                try:
                    _print_speed(other, probe(other.address, other.port))
                except OSError as error:
                    failures[other.name] = other.address, other.port, str(error)
            else:
                exchange.all(None)
        yield from findings.unreachable(own, failures)
        exchange.all(None)  # nobody leaves before all have probed


def _written(folder: Path) -> Path | None:
    """A new file in the folder, by which other nodes see whether they share it."""
    path = folder.resolve() / f".shardlab-preflight-{uuid.uuid4().hex}"
    try:
        path.write_text(socket.gethostname())
    except OSError:
        return None
    return path


def _print_nodes(nodes: list[Node], me: int) -> None:
    for index, node in enumerate(nodes):
        if index == me:
            shared = "this node"
        else:
            shared = "shares the folder" if Path(node.folder).exists() else "has another folder"
        print(
            f"  {node.name}: {node.address} on {node.interface} (MTU {node.mtu}), torch "
            f"{node.torch}, {f'NCCL {node.nccl}' if node.nccl else 'without NCCL'}, "
            f"{node.gpus} GPUs; {shared}",
            flush=True,
        )


def _print_speed(other: Node, speed: Speed) -> None:
    megabits = speed.bytes_per_s * 8 / 1e6
    print(f"  to {other.name}: {speed.latency_s * 1e6:.0f} µs one way, {megabits:.0f} Mbit/s")
