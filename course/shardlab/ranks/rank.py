"""What runs in each rank, from its fork to its end: one function, or several, one after another.

What a rank is told with each function: ``world_size`` (the first so many ranks take part, in a
group of their own that is the default one meanwhile), ``seed``, ``results``, ``memory``, and
``trust``: the memory of untrusted code is measured from outside as well.
"""

from __future__ import annotations

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
from shardlab.ranks.trust import Trust
from shardlab.trace import measure
from shardlab.trace.log import LogWriter
from shardlab.trace.recorder import Recorder

# The rank server imports this module: registered there once, inherited by every rank.
RECORDER = Recorder()
LEAVE = os._exit
# A sandbox puts its own here: for ranks that are connected, and are to stay as they are.
refuse_connections: Callable[[], None] = lambda: None  # noqa: E731
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
        os.close(setup_fd)  # not for student code to find
        _settle(rank, setup, stdout, stderr, stack)
        groups = _join(rank, setup, store_fd)
        RECORDER.log = LogWriter(log)
        builds.ask = _builds_asked_of(kernel)
        measure.recorder = RECORDER
        may_connect = setup.pop("may_connect")
        del setup  # nor to find in a frame above its own
        messages.send(kernel, {"is": "ready"})
        if not may_connect:
            refuse_connections()
    except Exception as error:
        messages.send(kernel, {"is": "failed", "stage": "start", **_describe(error)})
        groups = {}
    while True:  # until the kernel has counted our sockets, and closes the connection
        order, sent = _wait(kernel)
        if order["memory"] and Trust(order["trust"]) is Trust.UNTRUSTED:
            _show_memory_to(kernel)
        told = _perform(order, sent, rank, groups)
        try:
            messages.send(kernel, *told)
        except ConnectionError:
            LEAVE(0)
        except OSError:  # student code closed it; if gloo's files as well, gloo aborts, too
            os.abort()


def _perform(
    order: dict[str, Any], sent: bytes, rank: int, groups: dict[int, dist.ProcessGroup]
) -> tuple[dict[str, Any], bytes]:
    """Runs a function; the message that tells what came of it."""
    stage = "start"
    try:
        _take_part(rank, order, groups)
        stage = "unpickle"
        fn, args = cloudpickle.loads(sent)
        if given := sent[order["program_bytes"] :]:
            args = (cloudpickle.loads(given), *args)
        del sent, given  # not for student code to find
        stage = "run"
        with RECORDER.run(with_memory=order["memory"], shaken=order["shaken"]):
            output = fn(*args)
        stage = "output"
        encode = codec.encode_plain if order["results"] == "plain" else codec.encode_any
        body = encode(output)
    except BaseException as error:
        # SystemExit and KeyboardInterrupt of a student's are failures too.
        _flush()
        return {"is": "failed", "stage": stage, **_describe(error)}, b""
    _flush()
    return {"is": "finished"}, body


def _wait(kernel: socket.socket) -> tuple[dict[str, Any], bytes]:
    """What the kernel says next; if it is gone or has called the run off, so are we."""
    try:
        return messages.receive(kernel)
    except (OSError, EOFError):
        LEAVE(0)


def _builds_asked_of(kernel: socket.socket) -> Callable[[str], None]:
    """How this rank has an op of DeepSpeed's compiled."""
    own_pid = os.getpid()

    def ask(op: str) -> None:
        if os.getpid() != own_pid:
            raise RuntimeError(f"{op} isn't compiled, and only a rank itself can ask for it")
        messages.send(kernel, {"is": "needs", "op": op})
        _wait(kernel)

    return ask


def _show_memory_to(kernel: socket.socket) -> None:
    """Have the kernel's process measure this one's memory at the end of each measured block."""
    # Larger blocks of memory get pages of their own, and go back when they are freed.
    for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        ctypes.CDLL(None).mallopt(parameter, _LARGE_BYTES)
    own_pid = os.getpid()

    def look(label: str) -> None:
        if os.getpid() == own_pid:  # and not a child that the student forked
            messages.send(kernel, {"is": "look", "label": label})
            _wait(kernel)

    RECORDER.look = look


def _settle(rank: int, setup: dict[str, Any], stdout: int, stderr: int, stack: int) -> None:
    """Make this fork the process that torchrun would have started, in the kernel's place."""
    os.environ.clear()
    os.environ.update(setup["environment"], RANK=str(rank), LOCAL_RANK=str(rank))
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
    # Both write where the kernel process looks: on a crash, or when it asks for the stack.
    faulthandler.enable(file=stack, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)

    own_pid = os.getpid()

    def _exit(status: int) -> NoReturn:
        if os.getpid() == own_pid:  # and not a child that the student forked
            faulthandler.dump_traceback(stack, all_threads=False)  # so that the line can be named
        LEAVE(status)

    os._exit = _exit
    torch.set_num_threads(1)  # sums in another order give other last digits: never by core count


def _take_part(rank: int, order: dict[str, Any], groups: dict[int, dist.ProcessGroup]) -> None:
    """Be a rank among so many, and draw from this seed."""
    world_size, seed = order["world_size"], order["seed"]
    os.environ.update({"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)})
    if len(groups) > 1:
        dist.distributed_c10d._update_default_pg(groups[world_size])
    seed = random.SystemRandom().getrandbits(32) if seed is None else seed * 1_000_003 + rank
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # torch.manual_seed notes down a stack for each kind of device that is not in use: 7 ms
    torch.default_generator.manual_seed(seed % 2**63)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed % 2**63)


def _join(rank: int, setup: dict[str, Any], store_fd: int) -> dict[int, dist.ProcessGroup]:
    """Initialise torch.distributed; the rendezvous is a file in memory that has no name.

    Returns, by their size, the groups of the first ranks that this one is in.
    """
    backend = "gloo"
    if setup["device"] == "cuda":
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend,
        store=dist.FileStore(f"/proc/self/fd/{store_fd}", setup["world_size"]),
        rank=rank,
        world_size=setup["world_size"],
        # the kernel ends the run before, and its clock stands still while something is compiled
        timeout=timedelta(seconds=setup["timeout_s"] + 60 + builds.LIMIT_S),
    )
    groups = {size: dist.new_group(list(range(size))) for size in setup["smaller_groups"]}
    groups[setup["world_size"]] = dist.group.WORLD
    return {size: group for size, group in groups.items() if rank < size}


def _describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain data; the kernel, which knows the cells, adds the source lines."""
    chain: list[dict[str, Any]] = []
    seen: BaseException | None = error
    while seen is not None and len(chain) < 5:
        frames, trace = [], seen.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if not code.co_filename.startswith(OUR_PACKAGE):
                frames.append([code.co_filename, trace.tb_lineno, code.co_name])
            trace = trace.tb_next
        chain.append({"kind": type(seen).__name__, "message": _text(seen), "frames": frames[-50:]})
        following = seen.__cause__
        if following is None and not seen.__suppress_context__:
            following = seen.__context__
        seen = following
    return {"chain": chain}


def _text(error: BaseException) -> str:
    try:
        return str(error)[:20_000]
    except Exception:  # a student's __str__
        return "(its message could not be made)"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # the student closed or replaced it
            continue
    ctypes.CDLL(None).fflush(None)  # what C and C++ code printed
