"""What would fail under torchrun, each as one sentence that says what to set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from shardlab.preflight.facts import Node, is_loopback

MOST_SKEW_S = 5.0


def before_connecting(
    head: str, nnodes: int, addresses: Sequence[str], *, is_here: bool, would_host: bool
) -> Iterator[str]:
    """``addresses``: of the head node, as this node resolves its name."""
    if not addresses:
        yield (
            f"the name {head!r} is not known here: use the head node's address as the endpoint, or "
            "add the name to /etc/hosts on every node"
        )
    elif nnodes > 1 and any(map(is_loopback, addresses)):
        yield (
            f"{head} is this machine itself ({addresses[0]}): on every node it would wait for "
            "itself. Use the name or address by which the other nodes reach the head node"
        )
    elif is_here and not would_host:
        yield (
            f"{head} is an address of this node, but not one of its own name, so torchrun would "
            "not host the store here and all would time out after 60 s: add "
            "--rdzv-conf is_host=1 on this node, and is_host=0 on the others"
        )


def of_this_node(own: Node, nnodes: int) -> Iterator[str]:
    """Which interface gloo and NCCL would use here."""
    for name, value in (
        ("GLOO_SOCKET_IFNAME", own.gloo_variable),
        ("NCCL_SOCKET_IFNAME", own.nccl_variable),
    ):
        given = value.lstrip("=").partition(",")[0]
        is_list = value.startswith("^")  # NCCL's "all but these"
        exists = any(each.startswith(given) for each in own.interfaces)
        if value and not is_list and not exists:
            yield (
                f"{name}={value}, but {own.name} has no such interface: it has "
                f"{', '.join(own.interfaces)}; the others reach it on {own.interface}"
            )
    wrong = own.gloo_address != own.address
    if nnodes > 1 and wrong and (own.gloo_variable in ("", *own.interfaces)):
        cause = (
            f"GLOO_SOCKET_IFNAME={own.gloo_variable}"
            if own.gloo_variable
            else f"the name {own.name} resolves to {own.gloo_address or 'nothing'} here"
        )
        yield (
            f"gloo would use {own.gloo_address or 'no address'} ({cause}), but the others reach "
            f"this node at {own.address}: set GLOO_SOCKET_IFNAME={own.interface} and "
            f"NCCL_SOCKET_IFNAME={own.interface}"
        )


def between(
    nodes: Sequence[Node], me: int, resolve: Callable[[str], Sequence[str]]
) -> Iterator[str]:
    """This node compared with the others. ``resolve``: a name's addresses on this node."""
    own = nodes[me]
    for other in (node for index, node in enumerate(nodes) if index != me):
        if other.name == own.name:
            yield (
                f"two nodes are called {own.name}: torchrun orders nodes by name; rename one, or "
                "pass another --local-addr to each"
            )
        elif not (found := resolve(other.name)):
            yield (
                f"{other.name} is not known on {own.name}: after the rendezvous, init would hang "
                f"if rank 0 is there. Add it to /etc/hosts, or start torchrun on {other.name} with "
                f"--local-addr={other.address}"
            )
        elif other.address not in found:
            yield (
                f"{other.name} is {found[0]} on {own.name}, but its address is {other.address}: "
                f"correct /etc/hosts, or start torchrun on {other.name} with "
                f"--local-addr={other.address}"
            )
        for what, mine, theirs in (
            ("torch", own.torch, other.torch),
            ("NCCL", own.nccl, other.nccl),
            ("Python", own.python, other.python),
        ):
            if mine != theirs:
                yield (
                    f"{what} is {mine or 'missing'} on {own.name} and {theirs or 'missing'} on "
                    f"{other.name}: install the same version on every node"
                )
        if own.gpus != other.gpus:
            yield (
                f"{own.name} has {own.gpus} GPUs and {other.name} {other.gpus}: --nproc-per-node "
                "has to be the same number on every node"
            )
        if own.mtu != other.mtu and own.mtu and other.mtu:
            yield (
                f"the MTU is {own.mtu} on {own.name} ({own.interface}) and {other.mtu} on "
                f"{other.name}: large messages may hang; `ip link set {own.interface} mtu …`"
            )
        if abs(own.time_s - other.time_s) > MOST_SKEW_S:
            yield (
                f"the clocks of {own.name} and {other.name} are "
                f"{abs(own.time_s - other.time_s):.0f} s apart, which mixes up logs: use NTP"
            )


def unreachable(own: Node, failures: Mapping[str, tuple[str, int, str]]) -> Iterator[str]:
    """``failures``: by the other node's name, its address, the random port, and the error."""
    for name, (address, port, error) in failures.items():
        yield (
            f"{own.name} cannot reach {name} at {address}, port {port} ({error}): gloo and NCCL "
            "use random ports, so the firewall has to let all TCP ports through between the nodes"
        )
