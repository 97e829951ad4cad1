"""A job's processes with the `run` of a RankSet: every process calls it, and all get the result.

Differences from ranks that `launch` starts itself: nobody watches from outside, so a hang ends only
when torch.distributed's timeout has passed (and is then explained in the same words); what a rank
prints goes to its own output; and a rank that dies ends the job, through torchrun or Slurm.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from shardlab.display.source import locate
from shardlab.errors import LaunchError
from shardlab.job.environment import Job
from shardlab.ranks import codec, explain, explain_hang
from shardlab.ranks.deadlock import RankView, stuck
from shardlab.ranks.machine import choose_device
from shardlab.ranks.rank_set import pickled
from shardlab.ranks.threads import one_thread
from shardlab.run import Run, Traffic
from shardlab.run.live_memory import Memory, RankMemory, unknown_memory
from shardlab.trace import log as rank_log
from shardlab.trace import measure, measured_traffic, wire
from shardlab.trace.calls import CallLog, spans_since

Event = list[Any]
# Where the times of an event are, to be counted from the rank's own start: nodes have other clocks.
_TIMES_AT = {"call": (6,), "end": (2,), "block": (2, 3)}
_TIMED_OUT = ("timed out", "timeout")


@dataclass(frozen=True)
class Report:
    """What one rank tells all others after a function.  ``failure``: see explain.py."""

    output: bytes | None
    failure: Mapping[str, Any] | None
    failed_after_s: float
    events: list[Event]
    before: dict[wire.Connection, int]
    after: dict[wire.Connection, int]
    origin_s: float

    @property
    def timed_out(self) -> bool:
        """Whether a call of torch.distributed gave up waiting."""
        chain = self.failure["chain"] if self.failure else ()
        return any(word in cause["message"].lower() for cause in chain for word in _TIMED_OUT)


@dataclass(frozen=True)
class _Failed:
    """As much of a RankProcess as `explain.exception_error` reads."""

    rank: int
    failure: Mapping[str, Any] | None


class JobRanks:
    """Raises ValueError if there is no GPU for each rank and ``device`` is "cuda"."""

    def __init__(self, job: Job, device: str = "auto") -> None:
        os.environ.update(job.variables())
        self.job = job
        self.is_ours = not dist.is_initialized()  # the process group, which we may then replace
        self.is_broken = False
        self.groups_made = 0
        self.timeout_s = 0.0
        self.store: dist.Store | None = None
        self.device, self.device_reason = self._agree_on_device(device)
        self.own_ports: set[wire.Connection] = set()  # connections that are not the function's
        self.control: dist.ProcessGroup | None = None
        atexit.register(self._destroy_groups)

    def _destroy_groups(self) -> None:
        """While Python still runs: a thread of gloo that needs it for its last work ends a process
        that is already past that with "terminate called without an active exception"."""
        if not dist.is_initialized():  # nothing was launched, or the script has destroyed all
            return
        if self.is_ours:
            dist.destroy_process_group()
        elif self.control is not None:
            dist.destroy_process_group(self.control)

    def _agree_on_device(self, device: str) -> tuple[str, str]:
        """A GPU for each rank on every node, or none at all."""
        if not self.is_ours:
            is_cuda = "nccl" in dist.get_backend_config()
            return ("cuda", "the process group's") if is_cuda else ("cpu", "the process group's")
        self.store, *_ = next(dist.rendezvous("env://"))
        chosen, why = choose_device(device, self.job.local_world_size)
        self.store.set(f"shardlab/device/{self.job.rank}", chosen)
        keys = [f"shardlab/device/{rank}" for rank in range(self.job.world_size)]
        if any(self.store.get(key) == b"cpu" for key in keys):
            return "cpu", why if chosen == "cpu" else "another node lacks GPUs"
        return chosen, why

    def _connect(self, timeout_s: float) -> None:
        """Make the default group, unless it can be used again, and a group for our own messages."""
        if self.control is not None and (
            not self.is_ours or (self.timeout_s == timeout_s and not self.is_broken)
        ):
            return
        if self.is_ours:
            self._make_group(timeout_s)
        known = wire.own_connections()
        self.control = dist.new_group(backend="gloo", timeout=timedelta(days=1))
        self.own_ports |= {at for at in wire.own_connections() if at not in known}

    def _make_group(self, timeout_s: float) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        assert self.store is not None
        backend = "gloo"
        if self.device == "cuda":
            backend = "cpu:gloo,cuda:nccl"
            torch.cuda.set_device(self.job.local_rank)
        elif not torch.cuda.is_initialized():
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # as on the ranks of `launch`
            os.environ.setdefault("DS_ACCELERATOR", "cpu")
        dist.init_process_group(
            backend,
            store=dist.PrefixStore(f"shardlab/{self.groups_made}", self.store),
            rank=self.job.rank,
            world_size=self.job.world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        self.groups_made += 1
        self.timeout_s, self.is_broken = timeout_s, False

    def run(
        self,
        fn: Callable[..., Any],
        *args: Any,
        inputs: Sequence[Any] | None = None,
        seed: int | None = 0,
        results: str = "any",
        memory: bool = False,
        delay_s: Sequence[float] = (),
        timeout_s: float = 30,
        withheld: Sequence[Mapping[str, Sequence[Any]]] = (),
    ) -> Run:
        """As `RankSet.run`, with the result on every rank of the job."""
        started_s = time.monotonic()
        if self.is_broken and not self.is_ours:
            raise LaunchError(
                "an earlier launch of this job failed, and its process group was made by the "
                "script: let `launch` make it, or start the job again"
            )
        self._connect(timeout_s)
        startup_s = time.monotonic() - started_s
        delay = delay_s[self.job.rank] if delay_s else 0.0
        program = pickled((fn, args), "the function or its arguments")
        given = b"" if inputs is None else pickled(inputs[self.job.rank], "inputs")
        later = withheld[self.job.rank] if withheld else {}
        report = self._run(program, given, seed, results, memory, delay, later)
        reports = self._gather(report)
        run, log = self._collect(reports, results, memory)
        run.startup_s, run.wall_s = startup_s, time.monotonic() - started_s
        if any(report.failure for report in reports):
            self.is_broken = True
            error = error_of(reports, log)
            error.run = run
            raise error
        return run

    def _run(
        self,
        program: bytes,
        given: bytes,
        seed: int | None,
        results: str,
        memory: bool,
        delay_s: float,
        withheld: Mapping[str, Sequence[Any]],
    ) -> Report:
        from shardlab.ranks import rank as own  # its recorder then sees this process's calls

        own.seed_rank(self.job.rank, seed)
        output, failure = None, None
        left = {label: iter(values) for label, values in withheld.items()}
        own.RECORDER.await_measurement = lambda label: next(left.get(label, iter(())), None)
        with _log_of(own.RECORDER) as reader, one_thread():
            dist.barrier(self.control)
            before, origin_s = self._connections(), time.monotonic()
            stage = "unpickle"
            try:
                # Copies, as on a rank of `launch`: the caller's own tensors stay as they are, and
                # do not count as memory that the function holds.
                fn, args = cloudpickle.loads(program)
                if given:
                    args = (cloudpickle.loads(given), *args)
                stage = "run"
                with own.RECORDER.run(memory, delay_s):
                    returned = fn(*args)
                stage = "output"
                encode = codec.encode_plain if results == "plain" else codec.encode_any
                output = encode(returned)
            except Exception as error:
                failure = {"stage": stage, **own.describe(error)}
            failed_after_s = time.monotonic() - origin_s
            dist.barrier(self.control)  # all messages to and from this rank have arrived
            after = self._connections()
            events = [_from_start(event, origin_s) for event in reader.new_events()]
        return Report(output, failure, failed_after_s, events, before, after, origin_s)

    def _connections(self) -> dict[wire.Connection, int]:
        """Bytes on each connection, without ours and those to the store."""
        return {
            at: count
            for at, count in wire.own_connections().items()
            if at not in self.own_ports and self.job.master_port not in map(wire.port, at)
        }

    def _gather(self, report: Report) -> list[Report]:
        reports: list[Any] = [None] * self.job.world_size
        dist.all_gather_object(reports, report, group=self.control)
        return reports

    def _collect(
        self, reports: Sequence[Report], results: str, with_memory: bool
    ) -> tuple[Run, CallLog]:
        decode = codec.decode_plain if results == "plain" else codec.decode_any
        log = CallLog(self.job.world_size)
        for rank, report in enumerate(reports):
            for event in report.events:
                log.add(rank, event)
        calls = log.finished_calls(0.0, locate)
        run = Run(
            world_size=self.job.world_size,
            device=self.device,
            device_reason=f"{self.device_reason}; ranks of {self.job.starter}",
            outputs=[None if each.output is None else decode(each.output) for each in reports],
            stdout=[""] * len(reports),
            stderr=[""] * len(reports),
            traffic=self._traffic(reports, log),
            calls=calls,
            startup_s=0.0,
            wall_s=0.0,
            sent_before=[{}] * len(reports),
            spans=spans_since(0.0, log.spans),
            _memory=_memory(reports, log) if with_memory else None,
        )
        return run, log

    def _traffic(self, reports: Sequence[Report], log: CallLog) -> Traffic:
        if self.device != "cpu":
            return measured_traffic.from_calls(log, log.finished_calls(0.0, locate), 0.0)
        before, after = (
            {at: (rank, count) for rank, each in enumerate(readings) for at, count in each.items()}
            for readings in ([each.before for each in reports], [each.after for each in reports])
        )
        return measured_traffic.from_counters(log, before, after, 0.0)


def error_of(reports: Sequence[Report], log: CallLog) -> LaunchError:
    """The cause of the failures, in the words of `launch`."""
    if log.mismatch is not None:
        over = {rank for rank, each in enumerate(reports) if not each.timed_out}
        return explain_hang.mismatch_error(log.mismatch, log, over)
    failed = [_Failed(rank, each.failure) for rank, each in enumerate(reports) if each.failure]
    causes = [
        each
        for each in failed
        if not (reports[each.rank].timed_out or explain.is_consequence(each.failure))
    ]
    if not causes:
        views = [_view(rank, each, log) for rank, each in enumerate(reports)]
        if waits := stuck(views, log.groups):
            return explain_hang.deadlock_error(waits, views, log)
    return explain.exception_error(min(causes or failed, key=lambda each: each.rank))


def _view(rank: int, report: Report, log: CallLog) -> RankView:
    pending = [*log.pending[rank].values()]
    waits = report.failure is not None
    return RankView(
        rank=rank,
        finished=not waits,
        blocked_in=tuple(call for call in pending if call.waited) if waits else (),
        started=log.started[rank],
        receives_from_any=any(call.op == "recv" and call.peer is None for call in pending),
    )


def _memory(reports: Sequence[Report], log: CallLog) -> Memory:
    found = []
    for rank, report in enumerate(reports):
        try:
            found.append(RankMemory.from_summary(log.memory[rank], report.origin_s))
        except KeyError:  # it failed early
            found.append(unknown_memory())
    return Memory(found)


def _from_start(event: Event, origin_s: float) -> Event:
    for at in _TIMES_AT.get(event[0], ()):
        event[at] = max(0.0, event[at] - origin_s)
    return event


@contextlib.contextmanager
def _log_of(recorder: Any) -> Iterator[rank_log.LogReader]:
    """This process's recorder writes to a new log in this context."""
    fd = rank_log.create()
    try:
        recorder.log, recorder.in_job = rank_log.LogWriter(fd), True
        measure.recorder = recorder
        yield rank_log.LogReader(fd)
        recorder.log.map.close()
    finally:
        measure.recorder = None
        os.close(fd)
