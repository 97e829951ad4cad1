"""Ranks on several nodes in a sandbox: no data gets around the links uncounted."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import socket
import stat
import struct
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist

from autograder.evaluation.trial import RankPool, Trials
from autograder.exercise import Case
from autograder.exercise.budget import Budget, Limit
from autograder.sandbox import Limits, open_sandbox
from autograder.sandbox.host import Sandbox
from shardlab import launch
from shardlab.errors import DeadlockError
from shardlab.ranks.rank_set import RankSet
from shardlab.ranks.trust import Trust
from shardlab.run import Run
from tests.autograder.exercise_halves import on_ranks
from tests.autograder.sandbox import test_isolation
from tests.autograder.sandbox.without_root import is_possible, run_again_without_root

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(300)]
cloudpickle.register_pickle_by_value(sys.modules[__name__])
SLOW_BITS_PER_S = 20e6
SIZE, PORTS = 300_000, (45001, 45002)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    if shutil.which("bwrap") is None and not os.environ.get("SHARDLAB_NEEDS_BROWSER"):
        pytest.skip("no bubblewrap here")
    with open_sandbox(Limits()) as opened:
        assert isinstance(opened, Sandbox)
        yield opened


def contained(sandbox: Sandbox, fn: Callable[..., Any], *args: Any, **kw: Any) -> Run:
    settings = {"world_size": 2, "nodes": 2, "device": "cpu", "quiet": True} | kw
    with RankSet(host=sandbox.host, **settings) as ranks:
        return ranks.run(fn, *args, results="plain")


def all_reduce() -> tuple[str, str, float, float]:
    tensor, start_s = torch.ones(1 << 16), time.monotonic()
    dist.all_reduce(tensor)
    name = socket.gethostname()
    return name, socket.gethostbyname("node1"), tensor[0].item(), time.monotonic() - start_s


@pytest.mark.parametrize("may_connect", [True, False])
def test_the_links_are_real_and_agree_with_the_bytes_between_nodes(
    sandbox: Sandbox, may_connect: bool
) -> None:
    slow = {"link_bits_per_s": SLOW_BITS_PER_S, "may_connect": may_connect}
    run = contained(sandbox, all_reduce, world_size=4, **slow)
    ring_bytes = int(2 * 3 / 4 * 4 * (1 << 16))
    for rank, (node, address, total, spent_s) in enumerate(run.outputs):
        assert (node, address, total) == (f"node{rank // 2}", "10.77.0.2", 4.0)
        assert spent_s > 0.8 * 8 * ring_bytes / SLOW_BITS_PER_S
    assert run.traffic.source.startswith("counted by the operating system")
    assert run.traffic.between_nodes.ravel() == pytest.approx([ring_bytes] * 4, rel=0.01)
    assert run.traffic.unseen_bytes is not None
    assert run.traffic.unseen_bytes < 1000  # by the counters of the links and loopbacks
    assert bool(run.traffic.collectives) == (not may_connect)


def test_an_unplugged_node(sandbox: Sandbox) -> None:
    def forever() -> None:
        while True:
            all_reduce()

    with pytest.raises(DeadlockError, match="node 1 is unplugged"):
        contained(sandbox, forever, unplug_after_s=0.1, timeout_s=250)


def pid_of_the_other_rank() -> int:
    both = torch.tensor(os.getpid())
    dist.all_reduce(both)
    return int(both) - os.getpid()


def shared_memory(mark: str) -> list[str]:
    rank, found, libc = dist.get_rank(), [], ctypes.CDLL(None)
    key = int(mark[:7], 16)
    kept = os.memfd_create(mark)
    other = pid_of_the_other_rank()
    if rank == 0:
        with contextlib.suppress(OSError):
            Path(f"/dev/shm/{mark}").write_text("data")
        libc.shmget(key, 4096, 0o1666)
    dist.barrier()
    with contextlib.suppress(OSError):
        if rank == 1 and Path(f"/dev/shm/{mark}").exists():
            found.append("POSIX")
            os.unlink(f"/dev/shm/{mark}")
    if rank == 1 and (shared := libc.shmget(key, 4096, 0)) >= 0:
        found.append("System V")
        libc.shmctl(shared, 0, None)
    with contextlib.suppress(OSError):
        os.close(os.open(f"/proc/{other}/fd/{kept}", os.O_RDWR))
        found.append("memory file")
    dist.barrier()
    return found


def files(mark: str) -> list[str]:
    folders = ["/tmp", "/var/tmp", "/dev/mqueue", "/run", os.environ.get("HOME", ""), "."]
    mine, found = f"{mark}{dist.get_rank()}", []
    for folder in folders:
        with contextlib.suppress(OSError):
            Path(folder, mine).write_text("data")
    dist.barrier()
    for folder in folders:
        with contextlib.suppress(OSError):
            found += [folder] * Path(folder, f"{mark}{1 - dist.get_rank()}").exists()
    dist.barrier()
    for folder in folders:
        with contextlib.suppress(OSError):
            os.unlink(Path(folder, mine))
    return found


def unix_sockets(mark: str) -> list[str]:
    found = []
    with contextlib.ExitStack() as stack:
        for name in (f"/tmp/{mark}", f"\0{mark}"):
            kind = "path" if name[0] == "/" else "abstract"
            if dist.get_rank() == 0:
                with contextlib.suppress(OSError):
                    server = stack.enter_context(socket.socket(socket.AF_UNIX))
                    server.bind(name)
                    server.listen()
            dist.barrier()
            if dist.get_rank() == 1:
                with contextlib.suppress(OSError):
                    stack.enter_context(socket.socket(socket.AF_UNIX)).connect(name)
                    found.append(kind)
            dist.barrier()
    with contextlib.suppress(OSError):
        os.unlink(f"/tmp/{mark}")
    return found


def network_changes(mark: str) -> list[str]:
    """Removes the limit of the link, and changes its address, routes, flags and settings."""
    found = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as route:
        index = socket.if_nametoindex("eth0")
        # RTM_DELQDISC; struct tcmsg: family, interface, handle, parent (the root), information
        request = struct.pack("=BxxxiIII", 0, index, 0, 0xFFFFFFFF, 0)
        route.send(struct.pack("=IHHII", 16 + len(request), 37, 5, 1, 0) + request)
        found += ["qdisc"] * (struct.unpack_from("=i", route.recv(4096), 16)[0] == 0)
    address = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton("10.77.0.9"))
    empty = struct.pack("=H14x", socket.AF_INET)
    any_host = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton("10.99.0.0"))
    mask = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton("255.255.255.0"))
    flags = 1  # up, and by a gateway: 2
    name = ctypes.create_string_buffer(b"eth0")
    # struct rtentry
    entry = struct.pack(
        "=8x16s16s16sHxxxxxx8x8xhxxxxxxQ", any_host, empty, mask, flags, 0, ctypes.addressof(name)
    )
    with contextlib.suppress(OSError), socket.socket() as sock:
        for what, call, given in (
            ("route", 0x890B, entry),
            ("MTU", 0x8922, struct.pack("=16si20x", b"eth0", 1400)),
            ("alias", 0x8916, struct.pack("=16s16s8x", b"eth0:1", address)),
            ("flags", 0x8914, struct.pack("=16sH22x", b"eth0", 0x1043)),
            ("queue", 0x8943, struct.pack("=16si20x", b"eth0", 7)),
        ):
            with contextlib.suppress(OSError):
                fcntl.ioctl(sock, call, given)
                found.append(what)
    with contextlib.suppress(OSError):
        open("/proc/sys/net/ipv4/ip_forward", "r+").close()
        found.append("settings")
    dist.barrier()
    return found


def other_sockets(mark: str) -> list[str]:
    kinds = {
        "packet": (socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)),
        "raw": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        "raw IPv6": (socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6),
        "datagram": (socket.AF_INET, socket.SOCK_DGRAM, 0),
        "ping": (socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP),
        "SCTP": (socket.AF_INET, socket.SOCK_STREAM, 132),
        "multipath": (socket.AF_INET, socket.SOCK_STREAM, 262),
        "vsock": (socket.AF_VSOCK, socket.SOCK_STREAM, 0),
        "local RPC": (30, socket.SOCK_STREAM, 0),  # TIPC
        "netlink": (socket.AF_NETLINK, socket.SOCK_RAW, 0),
    }
    found = []
    for name, arguments in kinds.items():
        with contextlib.suppress(OSError):
            socket.socket(*arguments).close()
            found.append(name)
    dist.barrier()
    return found


def other_process(mark: str) -> list[str]:
    other, found, libc = pid_of_the_other_rank(), [], ctypes.CDLL(None, use_errno=True)
    own = ctypes.create_string_buffer(8)
    place = torch.tensor(ctypes.addressof(own) if dist.get_rank() == 1 else 0)
    dist.all_reduce(place)
    if dist.get_rank() == 0:
        here = (ctypes.c_void_p * 2)(ctypes.addressof(own), 8)
        there = (ctypes.c_void_p * 2)(int(place), 8)
        for what in ("process_vm_readv", "process_vm_writev"):
            if libc[what](other, here, ctypes.c_ulong(1), there, ctypes.c_ulong(1), 0) == 8:
                found.append(what)
        for file in ("mem", "environ", "maps", "fd/0", "cwd/.", "root/."):
            with contextlib.suppress(OSError):
                os.close(os.open(f"/proc/{other}/{file}", os.O_RDONLY))
                found.append(file)
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(other)
            found += ["pidfd_getfd"] * (libc.syscall(438, pidfd, 0, 0) >= 0)
            os.close(pidfd)
        found += ["ptrace"] * (libc.ptrace(0x4206, other, None, None) == 0)  # PTRACE_SEIZE
    dist.barrier()
    return found


def other_namespaces(mark: str) -> list[str]:
    other, found, libc = pid_of_the_other_rank(), [], ctypes.CDLL(None, use_errno=True)
    if dist.get_rank() == 0:
        for kind in ("net", "mnt", "ipc", "user", "uts", "pid"):
            for pid in (other, 1, os.getppid()):
                with contextlib.suppress(OSError):
                    fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
                    found += [kind] * (kind != "user" and libc.setns(fd, 0) == 0)
                    os.close(fd)
        for flag in (0x40000000, 0x10000000):
            found += [f"unshare {flag:x}"] * (libc.unshare(flag) == 0)
    dist.barrier()
    return sorted(set(found))


ATTACKS = {  # what each finds on nodes that are not in a sandbox, where it may
    shared_memory: {"POSIX", "System V", "memory file"},
    files: {"/tmp"},
    unix_sockets: {"path"},
    network_changes: {"qdisc", "route", "MTU", "alias", "flags"},
    other_sockets: {"packet", "raw", "datagram", "netlink"},
    other_process: {"process_vm_readv", "process_vm_writev", "mem", "ptrace"},
    other_namespaces: {"net"},
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_finds_nothing(sandbox: Sandbox, attack: Callable[[str], list[str]]) -> None:
    mark = uuid.uuid4().hex
    slow = {"link_bits_per_s": 1e8}
    outside = launch(attack, mark, world_size=2, nodes=2, quiet=True, device="cpu", **slow)
    found = {each for output in outside.outputs for each in output}
    assert found >= ATTACKS[attack]  # it would see it
    for may_connect in (True, False):
        run = contained(sandbox, attack, mark, may_connect=may_connect, **slow)
        assert run.outputs == [[], []]


@pytest.mark.parametrize("attack", [test_isolation.pass_data_on, test_isolation.signal_other_ranks])
def test_ranks_that_may_not_connect_reach_nothing_that_both_see(
    sandbox: Sandbox, attack: Callable[[], list[str]]
) -> None:
    """Names, limits and signals of processes, and locks of files of the system."""
    assert contained(sandbox, attack, may_connect=False).outputs == [[], []]


def inherited() -> list[list[Any]]:
    """What this rank has open, except what has no inode of its own."""
    dist.barrier()
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            about, at = os.fstat(int(name)), os.readlink(f"/proc/self/fd/{name}")
            if not (stat.S_ISCHR(about.st_mode) or at.startswith("anon_inode")):
                found[about.st_dev, about.st_ino] = at
    return [[*key, at] for key, at in sorted(found.items())]


def test_ranks_inherit_no_common_file_but_the_store_while_they_may_connect(
    sandbox: Sandbox,
) -> None:
    shared = []
    for may_connect in (True, False):
        one, other = contained(sandbox, inherited, may_connect=may_connect).outputs
        assert one
        assert other
        shared.append([each[2].split()[0] for each in one if each in other])
    assert shared == [["/memfd:shardlab-store"], []]


def link_local_address() -> tuple[str, int, int, int]:
    """Of this node's eth0, with a port."""
    while True:  # Linux assigns it some time after the link is up
        with open("/proc/net/if_inet6") as file:
            for address, index, _, _, flags, name in map(str.split, file):
                if name == "eth0" and not int(flags, 16) & 0x40:  # tentative
                    host = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(address))
                    return host, PORTS[0], 0, int(index, 16)


def send_by_hand(to: str, closes: bool) -> None:
    """Past torch.distributed; within nodes through sockets with the same ports on each."""
    address: list[Any] = [socket.getaddrinfo(to, PORTS[0])[0][4] if to else link_local_address()]
    own_scope = address[0][3:]
    dist.broadcast_object_list(address, 0)
    at = (*address[0][:3], *own_scope)
    family = socket.AF_INET if len(at) == 2 else socket.AF_INET6
    server_of = {2: 0} if to in ("", "node0") else {1: 0, 3: 2}
    rank, kept = dist.get_rank(), []
    if rank in server_of.values():
        kept.append(socket.create_server(at, family=family))
    dist.barrier()
    if rank in server_of:
        kept.append(socket.socket(family))
        kept[0].bind(("", PORTS[1]))
        kept[0].connect(at)
        kept[0].sendall(bytes(SIZE))
    elif kept:
        kept.append(kept[0].accept()[0])
        while len(kept[1].recv(SIZE, socket.MSG_WAITALL)) < SIZE:
            pass
    dist.barrier()
    if closes:
        for sock in kept:
            sock.close()
    vars(sys)["kept"] = kept
    dist.barrier()


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("to", ["node0", "", "127.0.0.1", "::1"])
def test_bytes_of_own_sockets_are_counted(sandbox: Sandbox, to: str, closes: bool) -> None:
    traffic = contained(sandbox, send_by_hand, to, closes, world_size=4).traffic
    is_within = to in ("127.0.0.1", "::1")
    assert traffic.unseen_bytes is not None
    if closes or to == "":  # ranks did not open it by torch.distributed, or at no known address
        assert traffic.unseen_bytes >= (1 + is_within) * SIZE
    elif is_within:
        assert min(traffic.between_nodes.diagonal()) >= SIZE
    else:
        assert traffic.between_nodes[1, 0] >= SIZE


def bytes_that_leave(run: Run) -> list[int]:
    within = [run.traffic.nodes[rank] == np.array(run.traffic.nodes) for rank in range(4)]
    return [int(run.traffic.sent_bytes[rank][~within[rank]].sum()) for rank in range(4)]


def exchange_flat(tensor: torch.Tensor) -> torch.Tensor:
    """Every rank sends to every other."""
    total = tensor.clone()
    others = [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]
    sends = [dist.isend(tensor, rank) for rank in others]
    for rank in others:
        received = torch.empty_like(tensor)
        dist.recv(received, rank)
        total += received
    for send in sends:
        send.wait()
    return total


def exchange_by_leaders(tensor: torch.Tensor) -> torch.Tensor:
    """Only the first ranks of two nodes send across."""
    rank = dist.get_rank()
    total, received = tensor.clone(), torch.empty_like(tensor)
    steps = [(1, 0), (3, 2), (2, 0), (0, 2), (0, 1), (2, 3)]
    for step, (source, target) in enumerate(steps):
        before = total - received if step == 3 and rank == 0 else total
        if rank == source:
            dist.send(before, target)
        elif rank == target:
            dist.recv(received, source)
            total = total + received if step < 4 else received
    return total


def test_a_case_on_two_nodes_is_graded_by_the_bytes_that_cross(sandbox: Sandbox) -> None:
    cases = Case("nodes", 4, nodes=2, link_bits_per_s=1e8), Case("one node", 4)
    numel = 10_000
    across = Budget(
        "bytes to another node",
        used=bytes_that_leave,
        limit=lambda case: Limit([5 * numel, 0, 5 * numel, 0]) if case.nodes == 2 else None,
    )
    exercise = on_ranks(
        name="nodes.answer",
        points=1,
        cases=cases,
        inputs=lambda case, rng: [torch.full((numel,), rank + 1.0) for rank in range(4)],
        drive=lambda subject, given, case: subject(given),
        reference=lambda case, inputs: [sum(inputs)] * 4,
        budgets=(across,),
        allows=frozenset({"send", "recv"}),
    )
    results = []
    for answer in (exchange_by_leaders, exchange_flat):
        with RankPool(host=sandbox.host, trust=Trust.UNTRUSTED) as pool:
            pool.expect(exercise, cases)
            trials = Trials(exercise, cloudpickle.dumps(answer), 1, pool)
            results.append([trials.run(case)[1].result for case in cases])
    by_leaders, flat = results
    assert [each.passed for each in by_leaders] == [True, True]
    assert [each.passed for each in flat] == [False, True]
    assert "bytes to another node" in str(flat[0])


@pytest.mark.exhaustive
@pytest.mark.skipif(not is_possible(), reason="needs setpriv and unshare")
def test_isolation_is_the_same_without_root() -> None:
    run_again_without_root(__file__)
