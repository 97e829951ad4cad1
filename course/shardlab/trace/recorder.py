"""Records every torch.distributed call of a rank, including those made by libraries.

Mechanism.  All of torch's communication, from Python, from DDP's C++ reducer, from FSDP2 and from
DTensor's functional collectives, passes through the dispatcher as an operator of the library
``c10d``.  We register a kernel for each operator under the dispatch key ``BackendSelect``, which
is set for every call (also below autograd and in inference mode) and runs before the device's own
kernel; ours records the call and redispatches it.  Other operators are untouched, so compute does
not slow down.  Alternatives: Flight Recorder has no send/recv and no end times under gloo; a
TorchDispatchMode sees the same calls but slows every operator; a Python process group that wraps
gloo changes the result of ``dist.get_backend()``, which libraries check.

A call ends when its ``Work.wait`` returns or, for collectives that C++ waits for (DDP), when its
future completes.  On CUDA both are host times, not device times.

Events in the log (log.py), with times from time.monotonic(), a clock that all processes share:
  ["group", group, [global ranks]]
  ["call", id, op, bytes, peer, group, time, file, line, dtype, shape, offset, storage_numel, tag,
           options, true: the call itself waits; null: its caller has to wait, after async_op=True]
           `new_group` is a call, too, with the members as its options
  ["handling", exception, file, line]   raised there: the next call is in its `except` or `finally`
  ["changed", id]                   the tensor of a send with isend, before it was waited for
  ["wait", id, time]                the main thread now waits for it, after other work
  ["waited", id]                    its completion was waited for in another way
  ["end", id, time, rank or null]   for a receive from any rank: the sender
  ["block", label, start, end, {"local port:remote port": bytes}]
  ["opened", {"local port:remote port": bytes}]     sockets of a new group
  ["closing", {"local port:remote port": bytes}]    all sockets before a group is destroyed
  ["span", name, kind, start, end]  an operator or communication that torch.profiler saw
  ["memory", {...}]                 at the end, if requested: MemoryRecorder.summary()
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeGuard

import torch
import torch.distributed as dist

from shardlab.display.source import is_user_code
from shardlab.run import Span
from shardlab.trace import memory_recorder, wire
from shardlab.trace.calls import NEW_GROUP
from shardlab.trace.layouts import WITHOUT_GAPS, refuse_layouts
from shardlab.trace.log import LogWriter
from shardlab.trace.tensors import tensors_in

# c10d's operator -> torch.distributed's function, and which argument is this rank's payload
OPERATORS: dict[str, tuple[str, int | None]] = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce_coalesced", 0),
    "broadcast_": ("broadcast", 0),
    "reduce_": ("reduce", 0),
    "allgather_": ("all_gather", 1),
    "_allgather_base_": ("all_gather_single", 1),
    "allgather_coalesced_": ("all_gather_coalesced", 1),
    "allgather_into_tensor_coalesced_": ("all_gather_single", 1),
    "reduce_scatter_": ("reduce_scatter", 1),
    "_reduce_scatter_base_": ("reduce_scatter_single", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter_single", 1),
    "alltoall_": ("all_to_all", 1),
    "alltoall_base_": ("all_to_all_single", 1),
    "gather_": ("gather", 1),
    "scatter_": ("scatter", 0),
    "barrier": ("barrier", None),
    "monitored_barrier_": ("monitored_barrier", None),
    "send": ("send", 0),
    "recv_": ("recv", 0),
    "recv_any_source_": ("recv", 0),
}
ROOT_IS = {"broadcast": "src", "scatter": "src", "reduce": "dst", "gather": "dst"}


CALLBACK_TIMEOUT_S = 5.0  # for a thread to write one line on a busy machine
MAX_EXCEPTION = 200  # characters of an exception's text in the log
MAX_PAUSES = 16  # of a delayed rank
AT_START = 3  # times its delay: ranks of a busy machine do not start together
WAITED_TWICE = "wait() was already called on this send or receive, so gloo would wait forever"
MAX_HELD_SOCKETS = 256  # a limit for scripts that keep creating and destroying groups
DISPATCH_FILES = (torch._ops.__file__, torch.utils._stats.__file__, memory_recorder.__file__)


@dataclass
class OpenWork:
    call: int
    work: dist.Work
    from_any: bool  # a receive from any rank: its sender is known only when it completes
    waits: bool | None  # True: the call itself waits, which is already in the log; None: see above
    future: torch.futures.Future[Any] | None  # its callback reports the end from another thread
    once: bool  # gloo's send or receive: a second wait never returns
    sent: tuple[torch.Tensor, int] | None = None  # what isend sends, and its version
    has_ended: bool = False


class Recorder:
    """Created once, in the rank server, and inherited by each rank, which sets ``log``.

    Records calls while ``enabled``.
    """

    log: LogWriter
    in_job = False  # whether torchrun, say, started this process, not `launch`

    def __init__(self) -> None:
        self.enabled = False
        self.main_thread = threading.get_ident()
        self.next_id = 0
        # Kept until each call ends and, with async_op=True, has been waited for: while Python
        # references a Work, C++ returns the same object, so its id() identifies its call.
        self.open_works: dict[int, OpenWork] = {}  # by id(work)
        self.open_works_lock = threading.Lock()
        self.waited_once: weakref.WeakSet[dist.Work] = weakref.WeakSet()
        self.held_open: list[int] = []  # descriptors of sockets whose groups were destroyed
        self.ranks_of: dict[str, list[int]] = {}  # by the group's name
        self.is_user: dict[str, bool] = {}
        self.memory: memory_recorder.MemoryRecorder | None = None  # if the launch requested it
        # Waits until this process has been measured from outside (rank.py).
        self.await_measurement: Callable[[str], Any] = lambda label: None
        self.delay_s, self.pauses = 0.0, 0
        self.library = torch.library.Library("c10d", "IMPL")
        for name in OPERATORS:
            self._intercept(name)
        self._watch_waits()
        self._watch_groups()

    def _intercept(self, name: str) -> None:
        operator, (op, _) = getattr(torch.ops.c10d, name).default, OPERATORS[name]

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            below = keys.remove(torch._C.DispatchKey.BackendSelect)
            if not self.enabled:
                return operator.redispatch(below, *args, **kwargs)
            caller = _caller(sys._getframe().f_back)
            is_main = threading.get_ident() == self.main_thread
            if not (is_blocking := _is_blocking(caller)):
                self.pause()
            waits = None if _has_to_wait(caller) else is_main and is_blocking
            refuse_layouts(name, op, args)
            call = self._begin(name, args, caller, waits)
            result = operator.redispatch(below, *args, **kwargs)
            once = op in ("send", "recv") and all(tensor.is_cpu for tensor in tensors_in(args[0]))
            sent = args[0][0] if waits is None and op == "send" else None
            self._track_work(call, name, result, waits, once, sent)
            return result

        self.library.impl(name, kernel, "BackendSelect", with_keyset=True)

    def _begin(
        self,
        name: str,
        args: tuple[Any, ...],
        caller: FrameType | None,
        waits: bool | None,
    ) -> int:
        op, payload = OPERATORS[name]
        tensors = [] if payload is None else tensors_in(args[payload])
        group_at = next(i for i, arg in enumerate(args) if isinstance(arg, torch.ScriptObject))
        group, ranks = self._group(args[group_at])
        after = args[group_at + 1 :]
        peer, tag = None, 0
        if op in ("send", "recv"):
            if len(after) == 2:
                peer = _member(ranks, after[0]) if ranks else after[0]
            tag = after[-1]
        filename, line = self._user_line(caller)
        first = tensors[0] if tensors else None
        options = _reduction(op, caller)
        if op in ROOT_IS and ranks:
            root = next(value for value in after if isinstance(value, int))
            options.append(f"{ROOT_IS[op]}={_member(ranks, root)}")
        if name in WITHOUT_GAPS and not tensors[0].is_contiguous():  # right if equal on all ranks
            options.append(f"strides {list(tensors[0].stride())}")
        self._log_handled()
        self.next_id += 1
        self.log.write(
            "call",
            self.next_id,
            op,
            sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            peer,
            group,
            time.monotonic(),
            filename,
            line,
            str(first.dtype).removeprefix("torch.") if first is not None else "",
            list(first.shape) if first is not None else [],
            first.storage_offset() if first is not None else 0,
            first.untyped_storage().nbytes() // first.element_size() if first is not None else 0,
            tag,
            ", ".join(options),
            waits,
        )
        return self.next_id

    def _log_handled(self) -> None:
        """The exception that this thread handles: other ranks may wait for what it skipped."""
        error = sys.exc_info()[1]
        if error is None:
            return
        places = [
            (frame.f_code.co_filename, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
        ]
        own = [place for place in places if is_user_code(place[0])]
        text = traceback.format_exception_only(error)[-1].strip()
        self.log.write("handling", text[:MAX_EXCEPTION], *(own[-1] if own else ("", 0)))

    def _begin_new_group(self, members: Sequence[int] | None) -> int:
        all_ranks = list(range(dist.get_world_size()))
        self.log.write("group", NEW_GROUP, all_ranks)
        filename, line = self._user_line(sys._getframe())
        named = str(sorted(all_ranks if members is None else members))
        self.next_id += 1
        call = (self.next_id, NEW_GROUP, 0, None, NEW_GROUP, time.monotonic(), filename, line)
        self.log.write("call", *call, "", [], 0, 0, 0, named, True)
        return self.next_id

    def _group(self, boxed: Any) -> tuple[str, list[int]]:
        group = dist.ProcessGroup.unbox(boxed)
        name = group.group_name
        if name not in self.ranks_of:
            try:
                self.ranks_of[name] = dist.get_process_group_ranks(group)
            except (KeyError, RuntimeError, ValueError):  # the group is still being created
                return name, []
            self.log.write("group", name, self.ranks_of[name])
        return name, self.ranks_of[name]

    def _user_line(self, frame: FrameType | None) -> tuple[str, int]:
        """The innermost line of user code; the main thread's if this thread runs none.

        Backward passes on a GPU run in autograd's threads.
        """
        if found := self._innermost(frame):
            return found
        return self._innermost(sys._current_frames().get(self.main_thread)) or ("", 0)

    def _innermost(self, frame: FrameType | None) -> tuple[str, int] | None:
        while frame is not None:
            filename = frame.f_code.co_filename
            is_user = self.is_user.get(filename)
            if is_user is None:
                is_user = is_user_code(filename)
                self.is_user[filename] = is_user
            if is_user:
                return filename, frame.f_lineno
            frame = frame.f_back
        return None

    def _track_work(
        self,
        call: int,
        name: str,
        result: Any,
        waits: bool | None,
        once: bool,
        sent: torch.Tensor | None,
    ) -> None:
        boxed = result[-1] if isinstance(result, tuple) else result
        work = dist.Work.unbox(boxed) if isinstance(boxed, torch.ScriptObject) else None
        if work is None:  # completed, or on NCCL's stream, where later operators wait for it
            self.log.write("end", call, time.monotonic())
            self.log.write("waited", call)
            return
        key = id(work)
        future = None
        # gloo's sends and receives have no future, but their wait is always in Python
        if not waits and OPERATORS[name][0] not in ("send", "recv"):
            with contextlib.suppress(RuntimeError):
                future = work.get_future()
        from_any = name == "recv_any_source_"
        self.open_works[key] = known = OpenWork(call, work, from_any, waits, future, once)
        if sent is not None and not sent.is_inference():  # those count no changes
            known.sent = sent, sent._version
        if future is not None:
            future.add_done_callback(lambda done: self._done(key, call, done))

    def _done(self, key: int, call: int, future: torch.futures.Future[Any]) -> None:
        try:
            future.value()
        except RuntimeError:  # a call that failed never completed
            self._forget(key, call)
        else:
            self._end(key, call)

    def _end(self, key: int, call: int) -> None:
        """Log a completed call.  Only the first report counts."""
        with self.open_works_lock:
            known = self.open_works.get(key)
            if known is None or known.call != call or known.has_ended:
                return
            known.has_ended = True
        source = known.work._source_rank() if known.from_any else None
        self.log.write("end", call, time.monotonic(), source)
        if known.waits is not None:
            self._forget(key, call)

    def _log_waited(self, work: dist.Work) -> None:
        """Log that a call was waited for, but not by `Work.wait` in the main thread."""
        if known := self.open_works.get(id(work)):
            self.log.write("waited", known.call)
            known.waits = False
            if known.has_ended:
                self._forget(id(work), known.call)

    def _forget(self, key: int, call: int) -> OpenWork | None:
        """Remove an open Work; only the first caller gets it, as its id may soon be reused."""
        with self.open_works_lock:
            known = self.open_works.get(key)
            return self.open_works.pop(key) if known is not None and known.call == call else None

    def _watch_waits(self) -> None:
        original_wait, original_is_completed, original_get_future = (
            dist.Work.wait,
            dist.Work.is_completed,
            dist.Work.get_future,
        )

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            known = self.open_works.get(id(work))
            if known is None and work in self.waited_once:
                raise RuntimeError(WAITED_TWICE)
            if known is not None and not known.waits:
                if threading.get_ident() == self.main_thread and not known.has_ended:
                    self.log.write("wait", known.call, time.monotonic())
                else:
                    self.log.write("waited", known.call)
            if known is not None and known.sent and known.sent[0]._version != known.sent[1]:
                self.log.write("changed", known.call)
            result = original_wait(work, *args, **kwargs)
            if known is not None:
                self._end(id(work), known.call)
                self._forget(id(work), known.call)
                if known.once:
                    self.waited_once.add(work)
            if self.memory and threading.get_ident() == self.main_thread:
                self.memory.wait_for_releases()
            self.pause()
            return result

        def is_completed(work: Any) -> bool:
            if completed := original_is_completed(work):
                self._log_waited(work)
            return completed

        def get_future(work: Any) -> Any:
            self._log_waited(work)
            return original_get_future(work)

        dist.Work.wait = wait  # type: ignore[method-assign, assignment]
        dist.Work.is_completed = is_completed  # type: ignore[method-assign, assignment]
        dist.Work.get_future = get_future  # type: ignore[method-assign, assignment]

    def _watch_groups(self) -> None:
        """Log calls of new_group, handshakes of new sockets, which aren't traffic, and last counts
        of closing ones."""
        c10d = dist.distributed_c10d
        make, destroy = c10d._new_process_group_helper, c10d.destroy_process_group
        new_group, arguments = c10d._new_group_with_tag, inspect.signature(c10d._new_group_with_tag)

        def _new_group_with_tag(*args: Any, **kwargs: Any) -> Any:
            given = arguments.bind(*args, **kwargs).arguments
            # Only the members have to make a group with use_local_synchronization.
            if not self.enabled or given.get("use_local_synchronization"):
                return new_group(*args, **kwargs)
            call = self._begin_new_group(given.get("ranks"))
            try:
                return new_group(*args, **kwargs)
            finally:
                self.log.write("end", call, time.monotonic())

        def _new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
            if not self.enabled:
                return make(*args, **kwargs)
            before = wire.own_connections()
            made = make(*args, **kwargs)
            after = wire.own_connections()
            self.log.write("opened", _by_ports({c: n for c, n in after.items() if c not in before}))
            return made

        def destroy_process_group(*args: Any, **kwargs: Any) -> None:
            if not self.enabled:
                return destroy(*args, **kwargs)
            # gloo closes its sockets later; those still open at the end of the run are read then
            self.log.write("closing", _by_ports(wire.own_connections()))
            # Closing a socket with unread bytes would reset the peer's before that is counted.
            if len(self.held_open) < MAX_HELD_SOCKETS:
                self.held_open += wire.duplicate_sockets(exclude=self.held_open)
            destroy(*args, **kwargs)

        c10d._new_group_with_tag = _new_group_with_tag
        c10d._new_process_group_helper = _new_process_group_helper
        c10d.destroy_process_group = dist.destroy_process_group = destroy_process_group

    @contextlib.contextmanager
    def run(self, with_memory: bool, delay_s: float = 0.0) -> Iterator[None]:
        """Record calls in this context.

        ``delay_s``: how long the rank pauses at its start, before each asynchronous call, and after
        each wait.  Ranks with a shorter delay overtake it wherever nothing synchronizes them.
        """
        self.delay_s, self.pauses = delay_s, 0
        self.open_works.clear()
        while self.held_open:  # all ranks have finished the previous function
            os.close(self.held_open.pop())
        self.ranks_of.clear()  # each run must log its groups again
        self.enabled = True
        self.pause(AT_START)
        try:
            if not with_memory:
                yield
            else:
                with memory_recorder.MemoryRecorder() as self.memory:
                    yield
            self._wait_for_callbacks()
        finally:
            self.enabled = False
            if self.memory is not None:
                self.log.write("memory", self.memory.summary())
                self.memory = None

    def pause(self, times: int = 1) -> None:
        """Let the other ranks overtake a delayed one."""
        is_main = threading.get_ident() == self.main_thread
        if self.delay_s and is_main and self.pauses < MAX_PAUSES:
            self.pauses += 1
            time.sleep(times * self.delay_s)

    def _wait_for_callbacks(self) -> None:
        """Wait for collectives whose end is reported only after the function has returned.

        DDP waits for the future, which completes before its callbacks run and before the Work
        reports completion.
        """
        until = time.monotonic() + CALLBACK_TIMEOUT_S
        while time.monotonic() < until and any(
            known.future is not None and known.future.done() and not known.has_ended
            for known in [*self.open_works.values()]
        ):
            time.sleep(0.001)

    @contextlib.contextmanager
    def block(self, label: str) -> Iterator[None]:
        try:
            with self._logged(label):
                yield
        finally:
            self._measured(label)

    def spans(self, spans: Iterable[Span]) -> None:
        for span in spans:
            self.log.write("span", span.name, span.kind, span.start_s, span.end_s)

    def mark(self, label: str) -> Any:
        """Log an empty block, without reading sockets.  Returns the next value that was withheld
        until its end, if there is one (RankSet.run)."""
        with self._phase(label):
            now = time.monotonic()
        self.log.write("block", label, now, now, {})
        return self._measured(label)

    def _phase(self, label: str) -> contextlib.AbstractContextManager[None]:
        return self.memory.phase(label) if self.memory else contextlib.nullcontext()

    def _measured(self, label: str) -> Any:
        is_main = threading.get_ident() == self.main_thread
        return self.await_measurement(label) if is_main else None

    @contextlib.contextmanager
    def _logged(self, label: str) -> Iterator[None]:
        before, start = wire.own_connections(), time.monotonic()
        try:
            with self._phase(label):
                yield
        finally:
            end, after = time.monotonic(), wire.own_connections()
            sent = {c: count - before.get(c, 0) for c, count in after.items()}
            self.log.write("block", label, start, end, _by_ports(sent))


def _member(ranks: list[int], index: int) -> int:
    """The global rank. torch accepts any number, and gloo then waits forever."""
    if not 0 <= index < len(ranks):
        raise ValueError(f"rank {index} is not in this group: its ranks are 0 to {len(ranks) - 1}")
    return ranks[index]


def _reduction(op: str, caller: FrameType | None) -> list[str]:
    """["op=MAX"], if the call was made by torch.distributed's Python function.

    The dispatcher's argument is an object of C++ that Python can't read: the operation of calls
    that DDP makes in C++ is unknown.
    """
    if "reduce" not in op or not _is_torch_distributed(caller):
        return []
    given = caller.f_locals.get("op") or getattr(caller.f_locals.get("opts"), "reduceOp", None)
    name = getattr(getattr(given, "op", given), "name", "")  # of a ReduceOp, or its RedOpType
    return [f"op={name}"] if name else []


def _by_ports(connections: dict[wire.Connection, int]) -> dict[str, int]:
    return {f"{local}:{remote}": count for (local, remote), count in connections.items() if count}


def _caller(frame: FrameType | None) -> FrameType | None:
    """The frame that made the call, above dispatch modes such as our MemoryRecorder.

    None if no Python function made it: in autograd's thread for a GPU, DDP's hooks call from C++.
    """
    while frame is not None and frame.f_code.co_filename in DISPATCH_FILES:
        frame = frame.f_back
    return frame


def _is_torch_distributed(frame: FrameType | None) -> TypeGuard[FrameType]:
    """Whether it is a Python function of torch.distributed."""
    return frame is not None and frame.f_code.co_filename == dist.distributed_c10d.__file__


def _has_to_wait(caller: FrameType | None) -> bool:
    """Whether the caller returns a Work that has to be waited for; `send` calls `isend`."""
    if not _is_torch_distributed(caller):
        return False
    is_p2p = caller.f_code.co_name in ("isend", "irecv")
    return is_p2p or bool(caller.f_locals.get("async_op", False))


def _is_blocking(caller: FrameType | None) -> bool:
    """Whether torch.distributed's Python function waits before it returns."""
    return _is_torch_distributed(caller) and (
        not _has_to_wait(caller) or _is_torch_distributed(caller.f_back)
    )
