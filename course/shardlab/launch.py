"""`launch(fn, world_size=4)`: run a function on real ranks and see what happened."""

from __future__ import annotations

import dataclasses
import glob
import sys
import time
import warnings
from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import Any

from shardlab.errors import LaunchError, RankError
from shardlab.memory import Memory, RankMemory, nothing_known
from shardlab.ranks import codec, engines, stream
from shardlab.ranks.client import Host, OwnHost
from shardlab.ranks.explain import exception_error
from shardlab.ranks.supervise import Supervisor
from shardlab.run import Call, Run, Traffic
from shardlab.source import locate
from shardlab.trace import traffic


def launch(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int = 4,
    inputs: Sequence[Any] | None = None,
    timeout_s: float = 30,
    device: str = "auto",
    seed: int | None = 0,
    quiet: bool = False,
    results: str = "any",
    memory: bool = False,
    engine: str = "auto",
    host: Host | None = None,
    may_connect: bool = True,
    patience: float = 1.0,
    output_bytes: int = 4 << 30,
) -> Run:
    """Run ``fn(*args)`` on ``world_size`` processes with torch.distributed initialised.

    rank0 fn(...)  rank1 fn(...)  ...   ->   run.outputs == [what rank 0 returned, rank 1, ...]

    ``inputs``: a value for each rank; then ``fn(inputs[rank], *args)`` runs.
    ``timeout_s``: the run is ended after it; a hang is found long before.
    ``device``: "cpu" (gloo), "cuda" (NCCL, one GPU per rank), "auto": cuda where there are enough.
    ``seed``: rank r of every run with the same seed draws the same numbers, and others than rank
    r + 1; None draws afresh.
    ``quiet``: show nothing while it runs; ``run.stdout`` holds it all the same.
    ``results``: "any" Python object, or "plain" data that is read without unpickling.
    ``memory``: follow every tensor's storage, for ``run.memory``; it slows each operator.
    ``engine``: "deepspeed" ranks have DeepSpeed loaded and settled (ranks/engines.py); "auto" is
    that where ``fn`` or its arguments name ``deepspeed``, else "torch".
    ``host``: who forks the ranks, a sandbox say; by default a rank server of this process.
    ``may_connect``: False keeps a sandbox's ranks to the connections that they have at the start.
    ``patience``: above 1, what ranks wait for a busy machine's processors does not count, and only
    after so many times ``timeout_s`` it is MachineTooBusy; and whom an error blames does not hang
    on which rank was first by a moment.
    ``output_bytes``: the most that all ranks together may return.

    Raises RankError, DeadlockError or RunTimeout (all LaunchError, with ``.run``, the partial run),
    and ValueError or TypeError for arguments that cannot work.
    """
    begun_s = time.monotonic()
    _check(fn, world_size, inputs, timeout_s, seed, results)
    if not patience >= 1:
        raise ValueError(f"patience={patience}: 1 for none, or how many times timeout_s may pass")
    device, reason = choose_device(device, world_size)
    program = _pickled((fn, args), "the function or its arguments")
    given = [b""] * world_size
    if inputs is not None:
        given = [_pickled(value, f"inputs[{rank}]") for rank, value in enumerate(inputs)]
    host = host or OwnHost()
    setup = _setup(world_size, timeout_s, device, seed, results, memory, host)
    setup["may_connect"] = may_connect
    setup["engine"] = engines.choose_engine(engine, fn, [program, *given])
    supervisor = Supervisor(
        setup, program, stream.screen(quiet), timeout_s, host, patience, output_bytes
    )
    error: LaunchError | None = None
    startup_s = 0.0
    with supervisor:
        try:
            supervisor.start()
            startup_s = time.monotonic() - begun_s
            supervisor.release(given)
            supervisor.watch()
        except LaunchError as failure:
            error = failure
    outputs, unreadable = _outputs(supervisor, results)
    error = error or unreadable
    run = _collect(supervisor, device, reason, startup_s, begun_s, outputs)
    if lost := sum(process.log.dropped for process in supervisor.ranks):
        warnings.warn(
            f"the logs of the ranks were full: {lost:,} events are not in run.calls", stacklevel=2
        )
    if error is not None:
        error.run = run
        raise error.with_traceback(None)
    return run


def choose_device(device: str, world_size: int) -> tuple[str, str]:
    """("cpu" or "cuda", why); raises ValueError where the asked-for one can't be had."""
    if device == "cpu":
        return "cpu", "asked for"
    if device not in ("auto", "cuda"):
        raise ValueError(f'device is "auto", "cpu" or "cuda", not {device!r}')
    gpus = _gpu_count()
    if gpus >= world_size:
        return "cuda", "asked for" if device == "cuda" else f"{gpus} GPUs for {world_size} ranks"
    if device == "cuda":
        raise ValueError(
            f"{world_size} ranks need {world_size} GPUs, one each; this machine has {gpus}: "
            'lower world_size or pass device="cpu"'
        )
    return "cpu", f"{gpus} GPUs for {world_size} ranks" if gpus else "no GPU on this machine"


def _gpu_count() -> int:
    if not glob.glob("/dev/nvidia[0-9]*"):  # spares a laptop's kernel the import of torch
        return 0
    import torch

    return torch.cuda.device_count() if torch.distributed.is_nccl_available() else 0


def _check(fn: Any, world_size: Any, inputs: Any, timeout_s: Any, seed: Any, results: str) -> None:
    if not sys.platform.startswith("linux"):
        raise LaunchError(
            "ranks need Linux: on Windows use WSL 2, on a Mac a Linux container or Binder"
        )
    if not callable(fn):
        raise TypeError(f"launch(fn): fn must be a function, not a {type(fn).__name__}")
    if isinstance(world_size, bool) or not isinstance(world_size, int):
        raise TypeError(f"world_size must be a whole number, not {world_size!r}")
    most = most_ranks()
    if not 1 <= world_size <= most:
        raise ValueError(
            f"world_size={world_size}: this machine has memory and open files for 1 to {most} ranks"
        )
    if inputs is not None and not isinstance(inputs, Sized):
        raise TypeError(f"inputs must be a list with a value for each rank, not {inputs!r}")
    if inputs is not None and len(inputs) != world_size:
        raise ValueError(
            f"inputs has {len(inputs)} values for {world_size} ranks: give each rank one"
        )
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise TypeError(f"timeout_s must be a number of seconds, not {timeout_s!r}")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s={timeout_s}: give the run some seconds")
    if seed is not None and not isinstance(seed, int):
        raise TypeError(f"seed must be a whole number, or None for another each time, not {seed!r}")
    if results not in ("any", "plain"):
        raise ValueError(f'results is "any" or "plain", not {results!r}')


def most_ranks() -> int:
    """How many ranks this machine holds: by memory (12 MiB each) and by open files (7 each)."""
    import resource

    import psutil

    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    available_bytes = min(psutil.virtual_memory().available, _container_bytes())
    return int(max(1, min(256, available_bytes // (12 << 20), (open_files - 64) // 7)))


def _container_bytes() -> float:
    """What a container's limit (cgroup v2) leaves; infinite where there is none."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        stat = Path("/sys/fs/cgroup/memory.stat").read_text().split()
        used = int(stat[stat.index("anon") + 1])  # without the page cache, which makes room
        return float("inf") if limit == "max" else int(limit) - used
    except (OSError, ValueError):
        return float("inf")


def _pickled(value: Any, what: str) -> bytes:
    try:
        return codec.encode_any(value)
    except Exception as error:
        raise TypeError(
            f"{what} can't be sent to the ranks ({type(error).__name__}: {error}). Make what can't "
            "travel (open files, sockets, locks, widgets) inside the function"
        ) from error


def _setup(
    world_size: int,
    timeout_s: float,
    device: str,
    seed: int | None,
    results: str,
    memory: bool,
    host: Host,
) -> dict[str, Any]:
    surroundings = host.surroundings()
    environment = {
        **surroundings["environment"],
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "SHARDLAB_RANK_SERVER": "1",
        "DS_ACCELERATOR": device,
    }
    return {
        "world_size": world_size,
        "timeout_s": timeout_s,
        "device": device,
        "seed": seed,
        "results": results,
        "memory": bool(memory),
        **surroundings,
        "environment": environment,
    }


def _outputs(supervisor: Supervisor, results: str) -> tuple[list[Any], RankError | None]:
    """By rank, None for those without; and the error of the first that can't be read here."""
    decode = codec.decode_plain if results == "plain" else codec.decode_any
    outputs: list[Any] = []
    unreadable = None
    for process in supervisor.ranks:
        output = None
        if process.state == "finished":
            try:
                output = decode(process.output)
            except Exception as error:  # unpickling can raise anything
                process.fail_in_output(error)
                unreadable = unreadable or exception_error(process)
        outputs.append(output)
    return outputs, unreadable


def _collect(
    supervisor: Supervisor,
    device: str,
    reason: str,
    startup_s: float,
    begun_s: float,
    outputs: list[Any],
) -> Run:
    """What is known of the run, whole or partial."""
    origin_s = supervisor.released_s or begun_s
    calls = supervisor.judge.log.finished_calls(origin_s, locate)
    return Run(
        world_size=supervisor.world_size,
        device=device,
        device_reason=reason,
        outputs=outputs,
        stdout=[process.out.text for process in supervisor.ranks],
        stderr=[process.err.text for process in supervisor.ranks],
        traffic=_traffic(supervisor, device, origin_s, calls),
        calls=calls,
        startup_s=startup_s,
        wall_s=time.monotonic() - begun_s,
        _memory=_memory(supervisor, origin_s) if supervisor.setup["memory"] else None,
    )


def _memory(supervisor: Supervisor, origin_s: float) -> Memory:
    ranks = []
    for rank in range(supervisor.world_size):
        try:
            ranks.append(RankMemory.from_told(supervisor.judge.log.memory[rank], origin_s))
        except (KeyError, ValueError, TypeError, IndexError, OverflowError):  # it ended too early
            ranks.append(nothing_known())
    return Memory(ranks)


def _traffic(supervisor: Supervisor, device: str, origin_s: float, calls: list[Call]) -> Traffic:
    log, before, after = supervisor.judge.log, supervisor.before, supervisor.after
    kernel_saw_it = device == "cpu" and (before or supervisor.world_size == 1)
    if kernel_saw_it:
        counted = traffic.from_kernel(log, before, after, origin_s)
        return dataclasses.replace(
            counted,
            unseen_bytes=supervisor.unseen_bytes,
            stored_bytes=supervisor.stored_bytes,
        )
    return traffic.from_calls(log, calls, origin_s)
