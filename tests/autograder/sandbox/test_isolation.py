"""What student code can and cannot do in a sandbox, on real ranks and processes."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import importlib.util
import os
import platform
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest
import torch
import torch.distributed as dist

from autograder.guest.closed_modules import places_of
from autograder.sandbox import Limits, bubblewrap, open_sandbox
from autograder.sandbox.bubblewrap import Unavailable
from autograder.sandbox.host import ForkServerProcess, Sandbox, SharedForkServer
from shardlab import launch
from shardlab.errors import LaunchError, RankError, RunTimeout
from shardlab.ranks.rank_set import RankSet
from shardlab.ranks.trust import Trust
from shardlab.run import Run
from shardlab.trace import measure, wire
from tests.autograder.sandbox.without_root import is_possible, run_again_without_root

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(300)]
cloudpickle.register_pickle_by_value(sys.modules[__name__])
LIMITS = Limits(memory_bytes=400_000_000, processes=60, scratch_bytes=8_000_000)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    if shutil.which("bwrap") is None and not os.environ.get("SHARDLAB_NEEDS_BROWSER"):
        pytest.skip("no bubblewrap here")
    with open_sandbox(LIMITS) as opened:
        assert isinstance(opened, Sandbox)
        yield opened


def contained(sandbox: Sandbox, fn: Callable[..., Any], world_size: int = 1, **kw: Any) -> Run:
    with RankSet(world_size, host=sandbox.host, device="cpu", quiet=True, **kw) as ranks:
        return ranks.run(fn, results="plain")


def all_reduce_some() -> list[float]:
    assert os.sched_getscheduler(0) == os.SCHED_BATCH
    values = torch.arange(1000.0)
    dist.all_reduce(values)
    return values[:3].tolist()


def test_results_and_traffic_are_the_same_as_outside_a_sandbox(sandbox: Sandbox) -> None:
    inside = contained(sandbox, all_reduce_some, world_size=4)
    outside = launch(all_reduce_some, world_size=4, device="cpu", quiet=True)
    assert inside.outputs == outside.outputs
    assert inside.traffic.sent_bytes.tolist() == outside.traffic.sent_bytes.tolist()
    assert "operating system" in inside.traffic.source
    assert [call.op for call in inside.calls] == [call.op for call in outside.calls]


def test_sandboxes_share_a_fork_server_and_replace_it_after_it_exits(sandbox: Sandbox) -> None:
    expected = contained(sandbox, all_reduce_some, world_size=2).outputs
    before = {process.pid for process in psutil.Process().children()}
    fork_server = ForkServerProcess("torch")
    with (
        open_sandbox(LIMITS, fork_servers={"torch": fork_server.request_socket}) as one,
        open_sandbox(LIMITS, fork_servers={"torch": fork_server.request_socket}) as other,
    ):
        assert isinstance(one, Sandbox)
        assert isinstance(other, Sandbox)
        for each in (one, other, one):
            assert contained(each, all_reduce_some, world_size=2).outputs == expected
        new = {process.pid for process in psutil.Process().children()} - before
        assert new == {fork_server.process.pid}  # no sandbox started another
        shared = SharedForkServer(fork_server.request_socket.dup())
        fork_server.close()
        while shared.is_usable:
            time.sleep(0.01)
        shared.close()
        assert contained(one, all_reduce_some, world_size=2).outputs == expected


def inspect_sandbox() -> dict[str, Any]:
    def can(action: Callable[[], Any]) -> bool:
        try:
            action()
        except OSError:
            return False
        return True

    repo = Path(os.environ["PYTHONPATH"].split(os.pathsep)[1])
    return {
        "environment": " ".join(sorted(os.environ)),
        "home": os.environ["HOME"],
        "repo": sorted(os.listdir(repo)),
        "autograder": sorted(os.listdir(repo / "autograder")),
        "root": sorted(os.listdir("/root")) if can(lambda: os.listdir("/root")) else [],
        "processes": sum(name.isdigit() for name in os.listdir("/proc")),
        "user": os.getuid(),
        "capabilities": next(
            line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")
        ),
        "writes outside of scratch": [
            path
            for path in ("/", "/usr", "/dev", str(repo / "course/shardlab"), "/etc")
            if can(functools.partial(open, f"{path}/x", "w"))
        ],
        "writes to scratch": can(lambda: open("/tmp/x", "w").close()),
        "changes the machine": can(lambda: open("/proc/sys/kernel/core_pattern", "r+").close()),
        "reads PID 1": can(lambda: open("/proc/1/environ").read()),
        "sends datagrams": can(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
        "leaves the machine": can(lambda: socket.create_connection(("1.1.1.1", 80), timeout=1)),
    }


def test_a_rank_sees_only_its_own_files_and_processes(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")

    seen = contained(sandbox, inspect_sandbox).outputs[0]
    assert "MY_TOKEN" not in seen["environment"]
    assert seen["home"] == "/tmp"
    assert set(seen["repo"]) <= {"autograder", "course", ".venv"}
    assert not {"exercises", "references", "grade.py"} & set(seen["autograder"])
    assert set(seen["root"]) <= {".pyenv", ".cache"}
    assert seen["processes"] == 2
    assert seen["user"] != 0
    assert int(seen["capabilities"], 16) == 0
    assert seen["writes outside of scratch"] == []
    assert seen["writes to scratch"]
    for name in ("changes the machine", "reads PID 1", "sends datagrams", "leaves the machine"):
        assert not seen[name], name


def try_uncounted_channels() -> list[str]:
    """Each rank tries to exchange data without the counted sockets."""
    rank, found = dist.get_rank(), []
    libc = ctypes.CDLL(None, use_errno=True)
    Path(f"/tmp/from{rank}").write_text("data")
    Path(f"/dev/shm/from{rank}").write_text("data")
    libc.shmget(4711, 4096, 0o1666)
    dist.barrier()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            for file in ("environ", "maps", "mem"):
                with contextlib.suppress(OSError), open(f"/proc/{name}/{file}", "rb"):
                    found.append(file)
            if libc.ptrace(16, int(name), 0, 0) == 0:  # PTRACE_ATTACH
                found.append("ptrace")
    for folder in ("/tmp", "/dev/shm"):
        found += [name for name in os.listdir(folder) if name == f"from{1 - rank}"]
    if libc.shmget(4711, 4096, 0) >= 0:
        found.append("System V memory")
    for kind in (socket.AF_UNIX, socket.AF_VSOCK, socket.AF_PACKET):
        with contextlib.suppress(OSError):
            socket.socket(kind, socket.SOCK_STREAM)
            found.append(str(kind))
    dist.barrier()
    return found


def test_ranks_share_nothing_but_counted_sockets(sandbox: Sandbox) -> None:
    assert contained(sandbox, try_uncounted_channels, world_size=2).outputs == [[], []]


def pass_data_on() -> list[str]:
    """Leaves data in places that need no new socket; returns where it finds the other rank's."""
    rank, found, mine = dist.get_rank(), [], f"data of {dist.get_rank()}".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(15, mine, 0, 0, 0)  # PR_SET_NAME
    for fd in inherited_files():
        with contextlib.suppress(OSError):
            os.set_blocking(fd, False)
            os.write(fd, mine)
    with contextlib.suppress(OSError):
        os.fchmod(os.openpty()[1], 0o666)
    with contextlib.suppress(OSError):
        resource.setrlimit(resource.RLIMIT_STACK, (4711 << 20, resource.RLIM_INFINITY))
    shared = os.open("/usr/bin/env", os.O_RDONLY)
    lock = [struct.pack("hhqqi4x", kind, 0, 4711, 1 + rank, 0) for kind in (0, 1)]
    with contextlib.suppress(OSError):
        fcntl.fcntl(shared, fcntl.F_SETLK, lock[0])
    with contextlib.suppress(OSError):
        fcntl.flock(shared, fcntl.LOCK_EX | fcntl.LOCK_NB)
    other = pid_of_the_other_rank()
    found += ["terminal" for path in Path("/dev/pts").iterdir() if path.is_char_device()]
    with contextlib.suppress(OSError):
        found += ["name"] * ("data of" in Path(f"/proc/{other}/comm").read_text())
    with contextlib.suppress(OSError):
        found += ["limit"] * (resource.prlimit(other, resource.RLIMIT_STACK)[0] >= 0)
    with contextlib.suppress(OSError):
        found += ["processors"] * bool(os.sched_getaffinity(other))
    with contextlib.suppress(OSError):
        found += ["priority"] * (os.getpriority(os.PRIO_PROCESS, other) >= 0)
    with contextlib.suppress(OSError):
        reply = fcntl.fcntl(shared, fcntl.F_GETLK, lock[1])
        found += ["lock"] * (4711 in struct.unpack("hhqqi4x", reply))
    with contextlib.suppress(OSError):
        fcntl.flock(shared, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found += ["file is not locked"] * (rank == 0)
    found += ["notifications"] * (libc.inotify_init1(0) >= 0)
    for fd in inherited_files():
        with contextlib.suppress(OSError):
            found += ["inherited"] * (b"data of" in os.read(fd, 100))
    assert os.sched_getaffinity(0)  # a process may query itself
    assert resource.getrlimit(resource.RLIMIT_NOFILE)
    dist.barrier()
    return found


def inherited_files() -> list[int]:
    """Without the rank's own output, logs and sockets."""
    names = {int(fd): f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")}
    links = {fd: os.readlink(name) for fd, name in names.items() if os.path.lexists(name)}
    return [fd for fd, link in links.items() if fd > 2 and "socket" not in link]


def test_ranks_that_may_not_connect_share_no_state(sandbox: Sandbox) -> None:
    run = contained(sandbox, pass_data_on, world_size=2, may_connect=False)
    assert run.outputs == [[], []]


def test_no_ranks_share_terminals_notifications_or_inherited_files(sandbox: Sandbox) -> None:
    for found in contained(sandbox, pass_data_on, world_size=2).outputs:
        known = {"name", "limit", "processors", "priority", "lock", "file is not locked"}
        assert set(found) <= known, found


_NEW_NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
_CLONE_SIGHAND, _CLONE_FILES, _CLONE_THREAD = 0x800, 0x400, 0x10000
_CALLS = {  # clone, clone3, close_range, unshare, memfd_secret
    "x86_64": (56, 435, 436, 272, 447), "aarch64": (220, 435, 436, 97, 447),
}  # fmt: skip


def try_clones() -> dict[str, Any]:
    """Errors by flags.  A signal table without shared memory is invalid, so that calls which the
    filter lets through start nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    clone, clone3, close_range, unshare, memfd_secret = _CALLS[platform.machine()]

    def error_of(number: int, *arguments: int) -> str:
        result = libc.syscall(number, *map(ctypes.c_long, arguments))
        return "" if result >= 0 else errno.errorcode[ctypes.get_errno()]

    def error_of_clone(flags: int) -> str:
        return error_of(clone, flags | _CLONE_SIGHAND, 0, 0, 0, 0)

    child = os.fork()
    if child == 0:
        os._exit(7)
    done: list[int] = []
    thread = threading.Thread(target=done.append, args=(1,))
    thread.start()
    thread.join()
    return {
        "namespaces": [error_of_clone(flag) for flag in _NEW_NAMESPACES],
        "thread with own files": error_of_clone(_CLONE_THREAD),
        "thread": error_of_clone(_CLONE_THREAD | _CLONE_FILES),
        "process": error_of_clone(signal.SIGCHLD),
        "clone3": error_of(clone3, 0, 0),
        "unshare files": error_of(unshare, _CLONE_FILES),
        "close": [error_of(close_range, 900, 901, flags) for flags in (0, 4)],
        "close own table": [error_of(close_range, 900, 901, flags) for flags in (2, 6)],
        "secret memory": error_of(memfd_secret, 0),
        "fork": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]),
        "threads": len(done),
    }


def test_no_namespaces_and_no_threads_with_separate_file_tables(sandbox: Sandbox) -> None:
    assert contained(sandbox, try_clones).outputs[0] == {
        "namespaces": ["EPERM"] * len(_NEW_NAMESPACES),
        "thread with own files": "EPERM",
        "thread": "EINVAL",  # from the operating system
        "process": "EINVAL",
        "clone3": "ENOSYS",  # so that the C library uses clone
        "unshare files": "EPERM",
        "close": ["", ""],
        "close own table": ["EPERM", "EPERM"],
        "secret memory": "EPERM",
        "fork": 7,
        "threads": 1,
    }


def open_socket_pair() -> str:
    try:
        for sock in socket.socketpair():
            sock.close()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def test_ranks_whose_memory_is_measured_get_no_socket_pairs(sandbox: Sandbox) -> None:
    found = []
    for measured in (False, True):
        with RankSet(1, host=sandbox.host, device="cpu", quiet=True, trust=Trust.UNTRUSTED) as r:
            run = r.run(open_socket_pair, memory=True, process_memory=measured, results="plain")
        found += run.outputs
    assert found == ["", "EPERM"]


def leave_an_orphan() -> int:
    """A daemon: forked twice, in a new session, ignoring signals."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(1, 32):
                with contextlib.suppress(OSError):
                    signal.signal(number, signal.SIG_IGN)
            os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(4711)"])
        os._exit(0)
    return os.getpid()


def test_no_process_survives(sandbox: Sandbox) -> None:
    before = {process.pid for process in psutil.process_iter()}
    contained(sandbox, leave_an_orphan, world_size=2)
    new = [p for p in psutil.process_iter(["cmdline"]) if p.pid not in before]
    assert not [p for p in new if "4711" in " ".join(p.info["cmdline"] or [])]


def allocate_endlessly() -> None:
    kept = []
    while True:
        kept.append(torch.ones(1_000_000))


def fork_endlessly() -> None:
    while True:
        with contextlib.suppress(OSError):
            if os.fork() == 0:
                while True:
                    time.sleep(1)


def fill_scratch() -> str:
    try:
        with open("/tmp/big", "wb") as file:
            while True:
                file.write(bytes(1_000_000))
    except OSError as error:
        return str(error.strerror)


def test_a_memory_bomb_ends_only_its_own_run(sandbox: Sandbox) -> None:
    with pytest.raises(RankError):
        contained(sandbox, allocate_endlessly)
    assert contained(sandbox, all_reduce_some, world_size=2).outputs[0] == [0, 2, 4]


def test_a_fork_bomb_ends_only_its_own_run(sandbox: Sandbox) -> None:
    with pytest.raises((RunTimeout, LaunchError)):
        contained(sandbox, fork_endlessly, timeout_s=2)
    assert contained(sandbox, all_reduce_some, world_size=2).outputs[0] == [0, 2, 4]


def test_scratch_space_is_limited(sandbox: Sandbox) -> None:
    assert contained(sandbox, fill_scratch).outputs == ["No space left on device"]


def kill_all() -> None:
    for pid in (-1, 1, os.getppid()):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def test_killing_all_processes_does_not_affect_other_runs(sandbox: Sandbox) -> None:
    run = contained(sandbox, kill_all)  # neither the rank itself nor PID 1 gets the signal
    assert run.outputs == [None]
    assert contained(sandbox, all_reduce_some, world_size=2).outputs[0] == [0, 2, 4]


def make_groups_and_look_for_the_network() -> list[str]:
    own = dist.new_group([0, 1])
    values = torch.ones(3)
    dist.all_reduce(values, group=own)
    found = [] if values.tolist() == [2.0] * 3 else ["a wrong sum"]
    dist.destroy_process_group(own)
    with contextlib.suppress(PermissionError):
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
        found.append("netlink")
    return found


def test_started_ranks_make_groups_without_netlink(sandbox: Sandbox) -> None:
    run = contained(sandbox, make_groups_and_look_for_the_network, world_size=2)
    assert run.outputs == [[], []]


def exchange_beside_a_smaller_group(claim: bool) -> None:
    """100 kB through an own connection, next to a call in a group of another size."""
    own = dist.new_group([0])
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1), group=own)
        dist.destroy_process_group(own)
        with socket.create_server(("127.0.0.1", 45001)) as server:
            dist.barrier()
            with server.accept()[0] as connection:
                connection.sendall(bytes(100_000))
        if claim:
            assert measure.recorder is not None
            measure.recorder.log.write("closing", {"1:2": 100_000})
    else:
        dist.barrier()
        with socket.create_connection(("127.0.0.1", 45001)) as connection:
            while connection.recv(1 << 16):
                pass
    dist.barrier()


def make_and_destroy_groups() -> None:
    for _ in range(2):
        own = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(100_000), group=own)
        dist.destroy_process_group(own)
    dist.barrier()


def test_bytes_are_counted_by_connection_whatever_groups_were_made(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of connections that were closed, and whatever a rank says that it has closed."""
    monkeypatch.setattr(sandbox.host, "limits", replace(LIMITS, memory_bytes=4_000_000_000))
    with RankSet(2, host=sandbox.host, device="cpu", quiet=True) as ranks:
        for _ in range(2):  # the second run closes what the first one held open
            traffic = ranks.run(make_and_destroy_groups).traffic
            assert traffic.unseen_bytes is not None
            assert traffic.unseen_bytes < 1000
            assert traffic.sent_bytes.sum() == pytest.approx(1_600_000, rel=0.01)
        for claim in (False, True):
            traffic = ranks.run(exchange_beside_a_smaller_group, claim).traffic
            assert (traffic.unseen_bytes or 0) > 100_000


def send_with_the_same_ports() -> None:
    """100 kB through one of three connections that differ only in an address of loopback."""
    addresses, kept = ("127.0.0.1", "127.0.0.2", "127.0.0.3"), []
    if dist.get_rank() == 0:
        servers = [socket.create_server((each, 45001)) for each in addresses]
        dist.barrier()
        kept = [server.accept()[0] for server in servers]
        assert len(kept[1].recv(100_000, socket.MSG_WAITALL)) == 100_000
    else:
        dist.barrier()
        for each in addresses:
            kept.append(socket.socket())
            kept[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            kept[-1].bind(("127.0.0.1", 45002))
            kept[-1].connect((each, 45001))
        kept[1].sendall(bytes(100_000))
    vars(sys)["kept"] = kept
    dist.barrier()


def test_connections_with_the_same_ports_are_all_counted(sandbox: Sandbox) -> None:
    traffic = contained(sandbox, send_with_the_same_ports, world_size=2).traffic
    assert traffic.sent_bytes[1, 0] >= 100_000


def import_hidden(name: str) -> list[str]:
    """In a new Python, which knows nothing of the modules that are closed in this one."""
    program = f"import {name} as module; print([x for x in dir(module) if x[0] != '_'])"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    return [done.stdout.strip() or done.stderr.strip().splitlines()[-1]]


def test_a_program_cannot_import_what_is_hidden(sandbox: Sandbox) -> None:
    names = ("colorsys", "shardlab.trace.wire", "shardlab.estimate")
    hide = [*places_of(names[1:]), importlib.util.find_spec("colorsys").origin]  # type: ignore[union-attr]
    assert len(hide) == 3
    shown = RankSet(1, host=sandbox.host, device="cpu", quiet=True)
    hidden = RankSet(1, host=sandbox.host, device="cpu", quiet=True, hide=hide)
    with shown, hidden:
        assert "rgb_to_hsv" in shown.run(import_hidden, "colorsys").outputs[0][0]
        for name in names:
            (seen,) = hidden.run(import_hidden, name).outputs[0]
            assert seen == "[]" or seen.startswith(("ImportError", "ModuleNotFoundError"))


def wake_the_other_rank() -> int:
    """Through the word of a file that both have mapped; returns how many were woken."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    fd = os.open("/usr/bin/env", os.O_RDONLY)
    word = libc.mmap(None, 4096, 1, 1, fd, 0)  # PROT_READ, MAP_SHARED
    value = ctypes.c_uint32.from_address(word).value
    futex = {"x86_64": 202, "aarch64": 98}[platform.machine()]
    both = torch.ones(1)
    for request in (0, 1) if dist.get_rank() == 0 else (1,):
        pause = (ctypes.c_long * 2)(0, 300_000_000)
        dist.isend(both, 1 - dist.get_rank())
        dist.recv(both, 1 - dist.get_rank())
        if request == 0:
            woken = libc.syscall(futex, ctypes.c_void_p(word), 0, value, pause, None, 0)
            return int(woken == 0)
        time.sleep(0.1)
        libc.syscall(futex, ctypes.c_void_p(word), 1, 1000, None, None, 0)
    return 0


def test_ranks_that_may_not_connect_cannot_wake_each_other(sandbox: Sandbox) -> None:
    """Where they may, this shows that the test would see it."""
    assert contained(sandbox, wake_the_other_rank, world_size=2).outputs[0] == 1
    run = contained(sandbox, wake_the_other_rank, world_size=2, may_connect=False)
    assert run.outputs[0] == 0


@pytest.mark.skipif(not is_possible(), reason="needs setpriv and unshare")
def test_isolation_is_the_same_without_root() -> None:
    run_again_without_root(__file__)


def test_without_bubblewrap_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    bubblewrap.program.cache_clear()
    try:
        with pytest.raises(Unavailable, match=r"apt install bubblewrap.*--unsandboxed"):
            open_sandbox(LIMITS)
    finally:
        bubblewrap.program.cache_clear()


def open_new_sockets() -> list[str]:
    dist.barrier()
    refused = []
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.socket(family, socket.SOCK_STREAM)
        except PermissionError:
            refused.append(family.name)
    return refused


def test_ranks_that_may_not_connect_cannot_open_new_connections(sandbox: Sandbox) -> None:
    run = contained(sandbox, open_new_sockets, world_size=2, may_connect=False)
    assert run.outputs == [["AF_INET", "AF_INET6"]] * 2
    assert contained(sandbox, open_new_sockets, world_size=2).outputs == [[], []]


def pid_of_the_other_rank() -> int:
    both = torch.tensor(os.getpid())
    dist.all_reduce(both)
    return int(both) - os.getpid()


def signal_other_ranks() -> list[str]:
    """The system calls that succeed; signal 0 only checks whether sending is allowed."""
    libc, information = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(128)
    information[8:12] = (-1).to_bytes(4, "little", signed=True)  # si_code of sigqueue
    numbers = {"x86_64": (62, 200, 234, 129, 297), "aarch64": (129, 130, 131, 138, 240)}
    kill, tkill, tgkill, queue, queue_to_thread = numbers[platform.machine()]
    possible = []
    other = pid_of_the_other_rank()
    for call, arguments in (
        (kill, (other, 0)),
        (tkill, (other, 0)),
        (tgkill, (other, other, 0)),
        (queue, (other, 0, information)),
        (queue_to_thread, (other, other, 0, information)),
    ):
        if libc.syscall(call, *arguments) == 0:
            possible.append(call)
    with contextlib.suppress(PermissionError):
        signal.pidfd_send_signal(os.pidfd_open(other), 0)
        possible.append("pidfd")
    dist.barrier()
    os.kill(os.getpid(), 0)  # signaling itself is allowed
    return [str(call) for call in possible]


def test_ranks_that_may_not_connect_cannot_signal_each_other(sandbox: Sandbox) -> None:
    run = contained(sandbox, signal_other_ranks, world_size=2, may_connect=False)
    assert run.outputs == [[], []]
    assert {
        len(found) for found in contained(sandbox, signal_other_ranks, world_size=2).outputs
    } == {6}


def first_connected() -> socket.socket:
    for fd in wire.duplicate_sockets(exclude=[]):
        sock = socket.socket(fileno=fd)
        with contextlib.suppress(OSError):
            sock.getpeername()
            return sock
        sock.close()
    raise AssertionError("no connected socket")


def delay_messages() -> list[str]:
    """The socket options and flags ("more to come") that are allowed."""
    with first_connected() as sock, open("/tmp/empty", "w+b") as file:
        fd = sock.fileno()
        pipe, end = os.pipe()
        os.close(end)
        ways: dict[str, Callable[[], object]] = {
            "immediately": lambda: sock.send(b""),
            "cork": lambda: sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1),
            "send": lambda: sock.send(b"", socket.MSG_MORE),
            "sendmsg": lambda: sock.sendmsg([b""], [], socket.MSG_MORE),
            "sendfile": lambda: os.sendfile(fd, file.fileno(), 0, 1),
            "splice": lambda: os.splice(pipe, fd, 0),
        }
        allowed = []
        for name, way in ways.items():
            with contextlib.suppress(PermissionError):
                way()
                allowed.append(name)
    return allowed


def test_ranks_that_may_not_connect_cannot_delay_messages(sandbox: Sandbox) -> None:
    run = contained(sandbox, delay_messages, world_size=2, may_connect=False)
    assert run.outputs == [["immediately"]] * 2
    ways = contained(sandbox, delay_messages, world_size=2).outputs[0]
    assert ways == ["immediately", "cork", "send", "sendmsg", "sendfile", "splice"]


def send_to_next_rank(tag: int = 0) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sending = dist.isend(torch.full((50_000,), 3.5), (rank + 1) % world_size, tag=tag)
    dist.recv(torch.empty(50_000), (rank - 1) % world_size, tag=tag)
    sending.wait()


def gather_unrecorded() -> None:
    gloo = dist.group.WORLD._get_backend(torch.device("cpu"))
    parts = [torch.empty(5) for _ in range(dist.get_world_size())]
    gloo.allgather([parts], [torch.ones(5)]).wait()


def test_collectives_are_seen_on_the_wire(sandbox: Sandbox) -> None:
    """Recorded or not, on all ranks or only the first ones; sends and receives do not count."""
    with RankSet(
        4, smaller=[2], device="cpu", quiet=True, host=sandbox.host, may_connect=False
    ) as ranks:
        for world_size in (4, 2):
            for tag in (0, 2**31 - 1):
                run = ranks.run(send_to_next_rank, tag, world_size=world_size)
                assert run.traffic.collectives == 0
            for collective in (gather_unrecorded, all_reduce_some, dist.barrier):
                run = ranks.run(collective, world_size=world_size)
                assert (run.traffic.collectives or 0) >= 2 * world_size
                assert bool(run.calls) == (collective is not gather_unrecorded)
    assert contained(sandbox, all_reduce_some, world_size=2).traffic.collectives is None
