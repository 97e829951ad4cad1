"""The code of each rank, from fork to exit: runs one function, or several one after another.

Options sent with each function: ``world_size`` (ranks 0 to n − 1 take part, and their group is the
default group while it runs), ``ranks_per_node``, ``seed``, ``results``, ``memory``,
``process_memory``: whether it is also measured from outside, and ``measured_blocks``: labels of the
blocks at whose end it waits for the kernel process; None: of all blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import random
import signal
import socket
import sys
import types
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist

from shardlab.ranks import builds, codec, messages
from shardlab.trace import measure
from shardlab.trace.log import LogWriter
from shardlab.trace.recorder import Recorder

# Created once in the rank server, which imports this module, and inherited by every rank.
RECORDER = Recorder()
REAL_EXIT = os._exit
# A sandbox replaces this, to keep connected ranks from opening further connections.
refuse_connections: Callable[[], None] = lambda: None  # noqa: E731
# Nor may ranks whose memory is measured keep data where it cannot be measured.
refuse_hiding_places: Callable[[], None] = lambda: None  # noqa: E731
# Only gloo's devices need netlink sockets, to look up an interface: a rank has one when it starts.
refuse_netlink: Callable[[], None] | None = None
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _LARGE_BYTES = -1, -3, 1 << 16  # see mallopt(3)
OUR_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def main(
    rank: int,
    *,
    setup_fd: int,
    store_fd: int,
    control: int,
    stdout: int,
    stderr: int,
    log: int,
    stack: int,
) -> NoReturn:
    kernel = socket.socket(fileno=control)
    try:
        setup, _ = messages.read_file(setup_fd)
        os.close(setup_fd)  # hide it from student code
        _set_up_process(rank, setup, stdout, stderr, stack)
        groups = _init_process_group(rank, setup, store_fd)
        RECORDER.log = LogWriter(log)
        builds.request_build = _build_requester(kernel)
        measure.recorder = RECORDER
        may_connect = setup.pop("may_connect")
        del setup  # student code could find it in our frame
        messages.send(kernel, {"is": "ready"})
        if refuse_netlink is not None:
            refuse_netlink()
        if not may_connect:
            refuse_connections()
    except Exception as error:
        messages.send(kernel, {"is": "failed", "stage": "start", **describe(error)})
        groups = {}
    while True:  # until the kernel has read our socket counters and closes the connection
        options, sent = _receive(kernel)
        if options["process_memory"]:
            _return_freed_memory()
            refuse_hiding_places()
        RECORDER.await_measurement = _measurement_request(kernel, options["measured_blocks"])
        reply = _run_function(options, sent, rank, groups)
        try:
            messages.send(kernel, *reply)
        except ConnectionError:
            REAL_EXIT(0)
        except OSError:  # student code closed it; if gloo's sockets too, gloo also aborts
            os.abort()


def _run_function(
    options: dict[str, Any], sent: bytes, rank: int, groups: dict[int, dist.ProcessGroup]
) -> tuple[dict[str, Any], bytes]:
    """Run a function; returns the message with its result."""
    stage = "start"
    try:
        _prepare(rank, options, groups)
        stage = "unpickle"
        fn, args = cloudpickle.loads(sent)
        if given := sent[options["program_bytes"] :]:
            args = (cloudpickle.loads(given), *args)
        del sent, given  # hide them from student code
        stage = "run"
        with RECORDER.run(options["memory"], options["delay_s"][rank]):
            output = fn(*args)
        stage = "output"
        encode = codec.encode_plain if options["results"] == "plain" else codec.encode_any
        body = encode(output)
    except BaseException as error:
        # A student's SystemExit or KeyboardInterrupt is a failure too.
        _flush()
        return {"is": "failed", "stage": stage, **describe(error)}, b""
    _flush()
    return {"is": "finished"}, body


def _receive(kernel: socket.socket) -> tuple[dict[str, Any], bytes]:
    """The kernel's next message; exit if it is gone or has cancelled the run."""
    try:
        return messages.receive(kernel)
    except (OSError, EOFError):
        REAL_EXIT(0)


def _build_requester(kernel: socket.socket) -> Callable[[str], None]:
    """A function that requests a DeepSpeed op from the kernel process and waits for it."""
    own_pid = os.getpid()

    def request_build(op: str) -> None:
        if os.getpid() != own_pid:
            raise RuntimeError(
                f"{op} isn't compiled, and only a rank can request it, not a child that it forked"
            )
        messages.send(kernel, {"is": "needs", "op": op})
        _receive(kernel)

    return request_build


def _return_freed_memory() -> None:
    """Allocations above this size get their own pages, which free() returns.

    What was free before stays so and counts as used: after malloc_trim, small allocations would
    touch new pages instead, up to 3 MiB in correct answers.
    """
    for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        ctypes.CDLL(None).mallopt(parameter, _LARGE_BYTES)


def _measurement_request(kernel: socket.socket, labels: list[str] | None) -> Callable[[str], Any]:
    """A function that waits until the kernel's process has measured this one from outside, and
    returns the next value that it withheld for this label."""
    own_pid = os.getpid()

    def await_measurement(label: str) -> Any:
        if labels is not None and label not in labels:
            return None
        if os.getpid() != own_pid:  # a child forked by the student
            return None
        messages.send(kernel, {"is": "measure", "label": label})
        _, value = _receive(kernel)
        return cloudpickle.loads(value) if value else None

    return await_measurement


def _set_up_process(rank: int, setup: dict[str, Any], stdout: int, stderr: int, stack: int) -> None:
    """Make this fork look like a process that torchrun started with the kernel's settings."""
    os.environ.clear()
    node, local_rank = divmod(rank, setup["world_size"] // setup["nodes"])
    os.environ.update(setup["environment"], RANK=str(rank), LOCAL_RANK=str(local_rank))
    os.environ["GROUP_RANK"] = str(node)  # torchrun's name for it
    if setup["device"] == "cpu":
        # FSDP2's default mesh, Accelerate and others take a GPU if they see one, and there may be
        # fewer GPUs than ranks.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.chdir(setup["cwd"])
    if setup["sys_path"] is not None:
        sys.path[:] = setup["sys_path"]
    sys.argv[:] = setup["argv"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, number in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="replace", closefd=False)
    # Both write to a file that the kernel process reads: on a crash, or on request.
    faulthandler.enable(file=stack, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)

    _do_not_preempt()
    own_pid = os.getpid()

    def _exit(status: int) -> NoReturn:
        if os.getpid() == own_pid:  # not a child forked by the student
            faulthandler.dump_traceback(stack, all_threads=False)  # to name the line
        REAL_EXIT(status)

    os._exit = _exit
    torch.set_num_threads(1)  # or the last digits of sums would depend on the number of cores


def _do_not_preempt() -> None:
    """This process's threads, when they wake up, do not preempt a thread that runs.

    gloo's thread tries to lock a connection; if the main thread has the lock, it tries again at
    once (Pair::handleEvents).  So if it has just preempted the main thread, it spins until its time
    slice ends.  On two busy cores that made small sends and receives four times slower.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _prepare(rank: int, options: dict[str, Any], groups: dict[int, dist.ProcessGroup]) -> None:
    """Set the world size, the default group and the seed for the next function."""
    world_size, seed = options["world_size"], options["seed"]
    per_node = options["ranks_per_node"]
    here = min(per_node, world_size - rank // per_node * per_node)
    os.environ.update({"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(here)})
    if len(groups) > 1:
        dist.distributed_c10d._update_default_pg(groups[world_size])
    seed_rank(rank, seed)


def seed_rank(rank: int, seed: int | None) -> None:
    """Each rank draws other numbers than the others, and the same in every run."""
    seed = random.SystemRandom().getrandbits(32) if seed is None else seed * 1_000_003 + rank
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # torch.manual_seed records a stack for each unused device type: 7 ms
    torch.default_generator.manual_seed(seed % 2**63)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed % 2**63)


def _init_process_group(
    rank: int, setup: dict[str, Any], store_fd: int
) -> dict[int, dist.ProcessGroup]:
    """Initialise torch.distributed; the rendezvous is an unnamed file in memory.

    Returns this rank's groups by world size.
    """
    backend = "gloo"
    if refuse_netlink is not None:
        _share_gloos_device()
    if setup["device"] == "cuda":
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend,
        store=dist.FileStore(f"/proc/self/fd/{store_fd}", setup["world_size"]),
        rank=rank,
        world_size=setup["world_size"],
        # the kernel ends the run earlier, but its clock is paused while an op is compiled
        timeout=timedelta(seconds=setup["timeout_s"] + 60 + builds.LIMIT_S),
    )
    groups = {size: dist.new_group(list(range(size))) for size in setup["smaller_groups"]}
    groups[setup["world_size"]] = dist.group.WORLD
    return {size: group for size, group in groups.items() if rank < size}


def _share_gloos_device() -> None:
    """All of this process's groups, also later ones, use the device that is created now."""
    gloo: Any = dist.ProcessGroupGloo
    device = gloo.create_device(interface=os.environ["GLOO_SOCKET_IFNAME"])
    make = gloo.__init__
    default = timedelta(minutes=30)

    def __init__(self: Any, store: Any, rank: int, size: int, timeout: Any = default) -> None:
        options = timeout
        if isinstance(timeout, timedelta):
            options = gloo._Options()
            options._timeout = timeout
        options._devices = [device]
        make(self, store, rank, size, options)

    gloo.__init__ = __init__


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain data; the kernel, which has the cells, adds the source lines."""
    chain: list[dict[str, Any]] = []
    current: BaseException | None = error
    while current is not None and len(chain) < 5:
        frames, trace = [], current.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if not code.co_filename.startswith(OUR_PACKAGE):
                frames.append([code.co_filename, trace.tb_lineno, code.co_name])
            trace = trace.tb_next
        chain.append(
            {"kind": type(current).__name__, "message": _text(current), "frames": frames[-50:]}
        )
        following = current.__cause__
        if following is None and not current.__suppress_context__:
            following = current.__context__
        current = following
    return {"chain": chain}


def _text(error: BaseException) -> str:
    try:
        return str(error)[:20_000]
    except Exception:  # a student's __str__
        return "(its message could not be formatted)"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # the student closed or replaced it
            continue
    ctypes.CDLL(None).fflush(None)  # output of C and C++ code
