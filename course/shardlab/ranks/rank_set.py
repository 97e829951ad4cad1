"""Rank processes that run several functions one after another, with options for graders."""

from __future__ import annotations

import dataclasses
import sys
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from typing import Any

from shardlab.display.source import locate
from shardlab.errors import LaunchError, RankError
from shardlab.ranks import codec, engines, stream
from shardlab.ranks.client import Host, OwnHost
from shardlab.ranks.execution import Execution
from shardlab.ranks.explain import exception_error
from shardlab.ranks.machine import choose_device, max_ranks
from shardlab.ranks.named_imports import POSTPONED, imports_needed, libraries_named
from shardlab.ranks.process import RankProcess
from shardlab.ranks.supervise import Supervisor
from shardlab.ranks.trust import Trust
from shardlab.ranks.wording import lucky_notes
from shardlab.run import Call, Run, Traffic
from shardlab.run.live_memory import Memory, RankMemory, unknown_memory
from shardlab.trace import measured_traffic
from shardlab.trace.calls import CallLog, spans_since

# A frame of 9 KB takes 72 ms on the slowest link; the kernel counts bytes per second in 32 bits.
MIN_BITS_PER_S, MAX_BITS_PER_S = 1e6, 3e10
OUTPUT_BYTES = 4 << 30  # all ranks together


class RankSet:
    """`with RankSet(4) as ranks: ranks.run(fn, *args)`. For shared arguments see `launch`.

    The first `run` starts the ranks.  State that one function leaves in a rank process is visible
    to the next, so a grader counts only failures on fresh ranks.
    """

    def __init__(
        self,
        world_size: int,
        *,
        smaller: Collection[int] = (),
        timeout_s: float = 30,
        device: str = "auto",
        quiet: bool = False,
        progress: bool = False,
        engine: str = "auto",
        host: Host | None = None,
        may_connect: bool = True,
        trust: Trust = Trust.OWN,
        preload: Sequence[str] = (),
        prepare: Sequence[str] = (),
        hide: Sequence[str] = (),
        nodes: int = 1,
        link_bits_per_s: float | None = None,
        unplug_after_s: float | tuple[float, int] | None = None,
    ) -> None:
        """``smaller``: additional world sizes; with size n, a function runs on ranks 0 to n − 1.

        ``quiet``: show nothing while functions run, except, with ``progress``, that they still do.
        ``host``: forks the ranks, for example in a sandbox; default: this process's rank server.
        ``may_connect``: if False, a sandbox's ranks cannot open connections after the start.
        ``preload``: modules that the ranks' parent process imports, once for all its ranks.
        ``prepare``: a function that it calls before it forks them, as "module:name", and the
        strings to call it with.
        ``hide``: folders and files that a sandbox's ranks see empty.
        ``nodes``, ``link_bits_per_s``, ``unplug_after_s``: see `launch`.
        """
        _check_set(world_size, timeout_s)
        _check_nodes(nodes, link_bits_per_s, world_size, device)
        self.unplug = _unplug(unplug_after_s, nodes)
        self.world_size = world_size
        self.nodes, self.link_bits_per_s = nodes, link_bits_per_s
        self.sizes = sorted({world_size, *smaller})
        self.timeout_s = timeout_s
        self.device, self.device_reason = choose_device(device, world_size)
        if nodes > 1 and self.device != "cpu":  # GPUs of one machine would not use the links
            self.device, self.device_reason = "cpu", f"{nodes} nodes"
        self.quiet, self.progress = quiet, progress
        self.engine = engine
        self.host = host or OwnHost()
        self.may_connect = may_connect
        self.trust = trust
        self.preload, self.prepare, self.hide = preload, prepare, hide
        self._supervisor: Supervisor | None = None
        self._last: Execution | None = None

    def __enter__(self) -> RankSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of the set."""
        if self._supervisor is not None:
            supervisor, self._supervisor = self._supervisor, None
            supervisor.close()

    @property
    def is_fresh(self) -> bool:
        """Whether no function has run on these ranks yet."""
        return self._last is None

    @property
    def is_reusable(self) -> bool:
        """Whether another function can run here: the last one returned or raised on every rank and
        left nothing open in the ranks' groups."""
        return self._supervisor is not None and (
            self._last is None or self._last.left_nothing_behind
        )

    def run(
        self,
        fn: Callable[..., Any],
        *args: Any,
        world_size: int | None = None,
        inputs: Sequence[Any] | None = None,
        seed: int | None = 0,
        results: str = "any",
        memory: bool = False,
        process_memory: bool = False,
        delay_s: Sequence[float] = (),
        timeout_s: float | None = None,
        output_bytes: int = OUTPUT_BYTES,
        withheld: Sequence[Mapping[str, Sequence[Any]]] = (),
    ) -> Run:
        """Like `launch`, on ranks 0 to ``world_size`` − 1 of the set (default: all).

        ``results``: "any" Python object, or "plain" data, which is read without unpickling.
        ``process_memory``: of untrusted code, with ``memory``: also measure the ranks' processes
        from outside, at the end of each block.
        ``delay_s``: by rank, how long it pauses at its start and at each of its calls; default: 0.
        ``timeout_s``: time limit of this function; default: the set's.
        ``output_bytes``: the most bytes that all ranks together may return.
        ``withheld``: by rank, small values that it receives one at a time, each at the end of a
        block with that label, once `Run.sent_before` has been measured.
        """
        started_s = time.monotonic()
        world_size = self.world_size if world_size is None else world_size
        check_run(fn, world_size, inputs, seed, results)
        if world_size not in self.sizes:
            raise ValueError(f"world_size={world_size}: this RankSet has only sizes {self.sizes}")
        program = pickled((fn, args), "the function or its arguments")
        given = [b""] * world_size
        if inputs is not None:
            given = [pickled(value, f"inputs[{rank}]") for rank, value in enumerate(inputs)]
        measured = bool(memory and process_memory) and self.trust is Trust.UNTRUSTED
        options = {
            "world_size": world_size,
            "seed": seed,
            "results": results,
            "memory": bool(memory),
            "process_memory": measured,
            "ranks_per_node": self.world_size // self.nodes,
            "measured_blocks": None if memory else sorted({key for own in withheld for key in own}),
            "delay_s": [*delay_s] or [0.0] * world_size,
        }
        later = [
            {label: [pickled(value, label) for value in values] for label, values in own.items()}
            for own in withheld
        ]
        execution: Execution | None = None
        error: LaunchError | None = None
        startup_s = 0.0
        try:
            supervisor = self._start(fn, program, given, measured)
            startup_s = time.monotonic() - started_s
            limits = (timeout_s or self.timeout_s, output_bytes)
            execution = self._last = supervisor.begin(options, program, given, *limits, later)
            supervisor.watch(execution)
        except LaunchError as failure:
            error = failure
        except BaseException:
            self.close()  # interrupted: end all processes
            raise
        outputs, unreadable = _outputs(execution, world_size, results)
        error = error or unreadable
        run = self._collect(execution, world_size, outputs, bool(memory))
        run.startup_s, run.wall_s = startup_s, time.monotonic() - started_s
        if error is None and execution is not None:
            for note in lucky_notes(run.calls, execution.log):
                supervisor.screen.note(note)
        if error is not None:
            if not (isinstance(error, RankError) and self.is_reusable):
                self.close()
            error.run = run
            raise error.with_traceback(None)
        return run

    def _start(
        self, fn: Callable[..., Any], program: bytes, given: list[bytes], measured: bool
    ) -> Supervisor:
        if self._supervisor is None:
            if self._last is not None:
                raise ValueError("these ranks have ended: create a new RankSet")
            process_settings = self.host.process_settings()
            environment = {
                **process_settings["environment"],
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo" if self.nodes == 1 else "eth0",
                "DS_ACCELERATOR": self.device,
            }
            setup = {
                **process_settings,
                "environment": environment,
                "world_size": self.world_size,
                "nodes": self.nodes,
                "link_bits_per_s": self.link_bits_per_s,
                "unplug": self.unplug,
                "smaller_groups": self.sizes[:-1],
                "timeout_s": self.timeout_s,
                "device": self.device,
                "may_connect": self.may_connect,
                "engine": engines.choose_engine(self.engine, fn, [program, *given]),
                # else the first use of a postponed module would add its size to the process
                "imports_needed": [*POSTPONED] if measured else imports_needed(program),
                "preload": [*self.preload, *libraries_named(program), *_maker_of(self.nodes)],
                "prepare": [*self.prepare],
                "hide": [*self.hide],
            }
            screen = stream.screen(self.quiet, self.progress)
            self._supervisor = Supervisor(setup, screen, self.host, self.trust)
            self._supervisor.start()
        return self._supervisor

    def _collect(
        self, execution: Execution | None, world_size: int, outputs: list[Any], with_memory: bool
    ) -> Run:
        """The run's results so far, complete or partial."""
        log = execution.log if execution else CallLog(world_size)
        origin_s = execution.started_s if execution else 0.0
        calls = log.finished_calls(origin_s, locate)
        processes = execution.ranks if execution else []
        if dropped := sum(process.log.dropped for process in processes):
            warnings.warn(
                f"the ranks' logs were full: {dropped:,} events are missing from run.calls",
                stacklevel=4,
            )
        return Run(
            world_size=world_size,
            device=self.device,
            device_reason=self.device_reason,
            outputs=outputs,
            stdout=[process.out.text for process in processes] or [""] * world_size,
            stderr=[process.err.text for process in processes] or [""] * world_size,
            traffic=self._traffic(execution, log, calls, origin_s),
            calls=calls,
            startup_s=0.0,
            wall_s=0.0,
            sent_before=[process.sent_before for process in processes] or [{}] * world_size,
            spans=spans_since(origin_s, log.spans),
            _memory=_memory(processes, log, origin_s) if with_memory else None,
        )

    def _traffic(
        self, execution: Execution | None, log: CallLog, calls: list[Call], origin_s: float
    ) -> Traffic:
        traffic = self._counted_traffic(execution, log, calls, origin_s)
        per_node = self.world_size // self.nodes
        of_rank = tuple(rank // per_node for rank in range(log.world_size))
        meter = None if execution is None else execution.link_meter
        links = None if meter is None else meter.links(self.link_bits_per_s)
        return dataclasses.replace(traffic, nodes=of_rank, links=links)

    def _counted_traffic(
        self, execution: Execution | None, log: CallLog, calls: list[Call], origin_s: float
    ) -> Traffic:
        if execution is None or execution.after is None:
            return measured_traffic.from_calls(log, calls, origin_s)
        before, after = (
            each.between(log.world_size) for each in (execution.before, execution.after)
        )
        if self.device != "cpu" or not (before or log.world_size == 1):
            return measured_traffic.from_calls(log, calls, origin_s)
        after = execution.closed() | after
        counted = measured_traffic.from_counters(log, before, after, origin_s)
        return dataclasses.replace(
            counted,
            unseen_bytes=execution.unseen_bytes,
            stored_bytes=execution.stored_bytes,
            collectives=execution.collectives,
        )


def _outputs(
    execution: Execution | None, world_size: int, results: str
) -> tuple[list[Any], RankError | None]:
    """Outputs by rank, None if missing, and the error of the first that can't be decoded."""
    decode = codec.decode_plain if results == "plain" else codec.decode_any
    outputs: list[Any] = [None] * world_size
    unreadable = None
    for process in execution.ranks if execution else ():
        if process.state == "finished":
            try:
                outputs[process.rank] = decode(process.output)
            except Exception as error:  # unpickling can raise anything
                process.fail_in_output(error)
                unreadable = unreadable or exception_error(process)
    return outputs, unreadable


def _memory(processes: Sequence[RankProcess], log: CallLog, origin_s: float) -> Memory:
    ranks = []
    for rank in range(log.world_size):
        try:
            measured = RankMemory.from_summary(log.memory[rank], origin_s)
        except (KeyError, ValueError, TypeError, IndexError, OverflowError):  # it ended early
            measured = unknown_memory()
        seen = processes[rank].process_bytes if processes else {}
        ranks.append(dataclasses.replace(measured, process_bytes=seen))
    return Memory(ranks)


def _check_set(world_size: Any, timeout_s: Any) -> None:
    if not sys.platform.startswith("linux"):
        raise LaunchError(
            "ranks need Linux: on Windows use WSL 2, on a Mac a Linux container or Binder"
        )
    if isinstance(world_size, bool) or not isinstance(world_size, int):
        raise TypeError(f"world_size must be an integer, not {world_size!r}")
    most = max_ranks()
    if not 1 <= world_size <= most:
        raise ValueError(
            f"world_size={world_size}: this machine has memory and open files for 1 to {most} ranks"
        )
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise TypeError(f"timeout_s must be a number of seconds, not {timeout_s!r}")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s={timeout_s}: it must be more than 0")


def _check_nodes(nodes: Any, link_bits_per_s: Any, world_size: int, device: str) -> None:
    if isinstance(nodes, bool) or not isinstance(nodes, int):
        raise TypeError(f"nodes must be an integer, not {nodes!r}")
    if nodes < 1 or world_size % nodes:
        raise ValueError(
            f"world_size={world_size} can't be divided equally among nodes={nodes}: every node "
            "has the same number of ranks"
        )
    if link_bits_per_s is not None:
        is_number = isinstance(link_bits_per_s, int | float)
        if not is_number:
            raise TypeError(f"link_bits_per_s must be a number, not {link_bits_per_s!r}")
        if nodes == 1:
            raise ValueError("link_bits_per_s is the speed of links between nodes: pass nodes=2")
        if not MIN_BITS_PER_S <= link_bits_per_s <= MAX_BITS_PER_S:
            raise ValueError(
                f"link_bits_per_s={link_bits_per_s:g}: it must be from {MIN_BITS_PER_S:g} to "
                f"{MAX_BITS_PER_S:g}; leave it out for links as fast as this machine allows"
            )
    if nodes > 1 and device == "cuda":
        raise ValueError(f"nodes={nodes}: this machine's GPUs would not use links between nodes")


def _unplug(after: Any, nodes: int) -> tuple[float, int] | None:
    """When a link is taken down, in seconds, and of which node."""
    if after is None:
        return None
    after_s, node = after if isinstance(after, tuple) and len(after) == 2 else (after, nodes - 1)
    if any(isinstance(each, bool) for each in (after_s, node)) or not (
        isinstance(after_s, int | float) and isinstance(node, int)
    ):
        raise TypeError(f"unplug_after_s must be seconds or (seconds, node), not {after!r}")
    if nodes == 1:
        raise ValueError("unplug_after_s takes down a link between nodes: pass nodes=2")
    if not (after_s >= 0 and 0 <= node < nodes):
        raise ValueError(f"unplug_after_s={after!r}: seconds from 0 on, and a node below {nodes}")
    return after_s, node


def _maker_of(nodes: int) -> list[str]:
    """The module that the rank server needs to make nodes."""
    return ["shardlab.nodes.switch"] if nodes > 1 else []


def check_run(fn: Any, world_size: Any, inputs: Any, seed: Any, results: str) -> None:
    if not callable(fn):
        raise TypeError(f"launch(fn): fn must be a function, not a {type(fn).__name__}")
    if inputs is not None and not isinstance(inputs, Sized):
        raise TypeError(f"inputs must be a list with one value per rank, not {inputs!r}")
    if inputs is not None and len(inputs) != world_size:
        raise ValueError(
            f"inputs has {len(inputs)} values for {world_size} ranks: pass one value per rank"
        )
    if seed is not None and not isinstance(seed, int):
        raise TypeError(f"seed must be an integer, or None for a new one each time, not {seed!r}")
    if results not in ("any", "plain"):
        raise ValueError(f'results is "any" or "plain", not {results!r}')


def pickled(value: Any, what: str) -> bytes:
    try:
        return codec.encode_any(value)
    except Exception as error:
        raise TypeError(
            f"{what} can't be sent to the ranks ({type(error).__name__}: {error}). What can't "
            "be pickled (open files, sockets, locks, widgets) must be created inside the function"
        ) from error
