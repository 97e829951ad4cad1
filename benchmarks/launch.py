"""How fast launchers start ranks: `make bench`, or `make bench ARGS="--json figures.json"`.

Every launcher starts the same number of processes, which run one tiny all_reduce, and waits until
all have exited.  Rounds are interleaved, so that other load on the machine affects all launchers
equally; results are medians.  torchrun is timed as a command, the others inside a process that has
already imported torch, like a notebook's kernel.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shardlab import launch

MB = 1e6
REDUCED_BYTES = 256e6
BUCKETS = 10  # of 25 MB, DDP's default bucket size

# The script of every launcher except launch, a template with {ranks} and {port}.
TINY = """
import os, sys, time
os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
import torch
import torch.distributed as dist

def tiny():
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert tensor[0].item() == {ranks}
"""

TORCHRUN = (
    TINY
    + """
dist.init_process_group("gloo")
tiny()
dist.destroy_process_group()
"""
)

# Launchers that are called in a process; one process times all of them.
IN_PROCESS = (
    TINY
    + """
def bare_fork(path):
    for rank in range({ranks}):
        if os.fork() == 0:
            store = dist.FileStore(path, {ranks})
            dist.init_process_group("gloo", store=store, rank=rank, world_size={ranks})
            tiny()
            os._exit(0)
    for _ in range({ranks}):
        assert os.wait()[1] == 0

def on_spawn(rank, path):
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size={ranks})
    tiny()
    dist.destroy_process_group()

def on_notebook_launcher():
    from accelerate import PartialState
    assert PartialState(cpu=True).num_processes == {ranks}
    tiny()

if __name__ == "__main__":
    import json

    def time_of(start, *arguments, **options):
        start_s = time.perf_counter()
        start(*arguments, **options)
        return time.perf_counter() - start_s

    seconds = dict()
    bare_fork(sys.argv[0] + ".first")  # warm up
    seconds["bare fork + gloo"] = time_of(bare_fork, sys.argv[0] + ".second")

    import torch.multiprocessing
    store = sys.argv[0] + ".third"
    seconds["mp.spawn"] = time_of(torch.multiprocessing.spawn, on_spawn, (store,), nprocs={ranks})

    os.environ["ACCELERATE_USE_CPU"] = "true"
    from accelerate import notebook_launcher
    seconds["notebook_launcher"] = time_of(
        notebook_launcher, on_notebook_launcher, num_processes={ranks}, use_port="{port}"
    )
    print(json.dumps(seconds))
"""
)


def tiny() -> float:
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    return tensor[0].item()


def time_launch(ranks: int) -> float:
    """Seconds from call to return, which includes the ranks' exit."""
    start_s = time.perf_counter()
    run = launch(tiny, world_size=ranks, quiet=True)
    elapsed_s = time.perf_counter() - start_s
    assert run.outputs == [ranks] * ranks
    return elapsed_s


def time_in_process(ranks: int) -> dict[str, float]:
    """The seconds that the program printed, by launcher."""
    with tempfile.TemporaryDirectory() as folder:
        printed = _run([sys.executable, _write_program(folder, IN_PROCESS, ranks)])
        seconds: dict[str, float] = json.loads(printed.splitlines()[-1])
        return seconds


def time_torchrun(ranks: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = _write_program(folder, TORCHRUN, ranks)
        start_s = time.perf_counter()
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        _run([*torchrun, f"--nproc-per-node={ranks}", path])
        return time.perf_counter() - start_s


def _write_program(folder: str, text: str, ranks: int) -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = Path(folder) / "program.py"
    path.write_text(text.format(ranks=ranks, port=port))
    return str(path)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def compare(ranks: int, rounds: int) -> dict[str, float]:
    """Median seconds of each launcher, in interleaved rounds."""
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        found = {"shardlab.launch, warm": time_launch(ranks), **time_in_process(ranks)}
        found["torchrun --standalone"] = time_torchrun(ranks)
        for name, one in found.items():
            seconds.setdefault(name, []).append(one)
    return {name: statistics.median(values) for name, values in seconds.items()}


@dataclass
class Size:
    ranks: int
    seconds: float  # median of launch
    unique_bytes: int  # maximum over ranks, after the all_reduce

    @property
    def ms_per_rank(self) -> float:
        return 1000 * self.seconds / self.ranks


def scale(sizes: list[int], rounds: int) -> list[Size]:
    """launch at several world sizes, in interleaved rounds."""
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            seconds[size].append(time_launch(size))
    return [Size(n, statistics.median(seconds[n]), unique_bytes(n)) for n in sizes]


def unique_bytes(ranks: int) -> int:
    """Unique set size: memory that a rank shares with no other process."""

    def measured() -> int:
        tiny()
        with open("/proc/self/smaps_rollup") as file:  # importing psutil would add memory
            lines = [line.split() for line in file]
        dist.barrier()  # if a rank exited earlier, fewer pages would count as shared
        return sum(1024 * int(line[1]) for line in lines if line[0].startswith("Private_"))

    return max(launch(measured, world_size=ranks, quiet=True).outputs)


def tracing(ranks: int, reduced_bytes: float, calls: int, passes: int) -> tuple[float, float]:
    """Seconds of a series of all_reduces, with and without recording.

    Without recording, the recorder is removed from the dispatcher.  Runs of both kinds alternate.
    The slowest rank's time counts, since the others wait for it.
    """

    def work(recorded: bool) -> list[float]:
        from shardlab.ranks.rank import RECORDER

        if not recorded:
            RECORDER.library._destroy()
        tensor = torch.zeros(int(reduced_bytes / calls / 4))
        seconds = []
        for _ in range(4):
            dist.barrier()
            start_s = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(tensor)
            seconds.append(time.perf_counter() - start_s)
        return seconds[1:]  # the first is a warm-up

    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(passes):
        for recorded in (True, False) if number % 2 else (False, True):
            run = launch(work, recorded, world_size=ranks, timeout_s=300, quiet=True)
            found[recorded] += [max(one) for one in zip(*run.outputs, strict=True)]
    return statistics.median(found[True]), statistics.median(found[False])


@dataclass
class Goal:
    what: str
    found: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        return self.found >= self.limit if self.at_least else self.found <= self.limit

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        verdict = "met" if self.is_met else "MISSED"
        found, limit = f"{self.found:.3g}{self.unit}", f"{sign} {self.limit:g}{self.unit}"
        return f"{self.what:<46} {found:>10} {limit:>10}   {verdict}"


def goals(
    seconds: dict[str, float], sizes: list[Size], recorded_s: float, plain_s: float
) -> list[Goal]:
    ours = seconds["shardlab.launch, warm"]
    first, last = sizes[0], sizes[-1]
    per_rank = last.ms_per_rank / first.ms_per_rank
    return [
        Goal(
            "torchrun's time over launch's", seconds["torchrun --standalone"] / ours, 25, "×", True
        ),
        Goal("launch's time over a bare fork's", ours / seconds["bare fork + gloo"], 2, "×"),
        Goal(f"{last.ranks} ranks: start, all_reduce, exit", last.seconds, 4, " s"),
        Goal(f"unique memory of each of {last.ranks} ranks", last.unique_bytes / MB, 12, " MB"),
        # nearly constant: all pairs of ranks are connected, so each costs slightly more
        Goal(f"cost per rank, {last.ranks} ranks over {first.ranks}", per_rank, 1.5, "×"),
        Goal("recording the calls adds", 100 * (recorded_s / plain_s - 1), 5, " %"),
    ]


def table(ranks: int, seconds: dict[str, float], sizes: list[Size], found: list[Goal]) -> str:
    ours = seconds["shardlab.launch, warm"]
    lines = [f"{ranks} ranks: start, one tiny all_reduce, exit", ""]
    lines += [f"  {name:<24} {s:8.3f} s {s / ours:8.1f}×" for name, s in seconds.items()]
    lines += ["", "launch at several world sizes", ""]
    lines += [
        f"  {size.ranks:4} ranks {size.seconds:8.3f} s {size.ms_per_rank:8.1f} ms per rank"
        f" {size.unique_bytes / MB:8.1f} MB unique memory each"
        for size in sizes
    ]
    lines += ["", "Goals", "", *(f"  {goal}" for goal in found)]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument("--tiny", action="store_true", help="a quick smoke test with 2 ranks")
    options = parser.parse_args(arguments)
    ranks, rounds, sizes, reduced_bytes, passes = 4, options.rounds, [4, 16, 64], REDUCED_BYTES, 7
    if options.tiny:
        ranks, rounds, sizes, reduced_bytes, passes = 2, 1, [2, 3], 1e6, 1
    time_launch(ranks)  # starts the fork server, which loads torch once
    seconds = compare(ranks, rounds)
    by_size = scale(sizes, rounds)
    recorded_s, plain_s = tracing(ranks, reduced_bytes, BUCKETS, passes)
    many = 500
    small_recorded_s, small_plain_s = tracing(ranks, 4 * many, many, passes)
    call_us = 1e6 * (small_recorded_s - small_plain_s) / many
    found = goals(seconds, by_size, recorded_s, plain_s)
    print(table(ranks, seconds, by_size, found))
    print(
        f"\n  ({reduced_bytes / MB:.0f} MB all-reduced in {BUCKETS} calls: {plain_s:.2f} s. "
        f"A call of 4 bytes takes {1e6 * small_plain_s / many:.0f} µs without recording "
        f"and {call_us:.0f} µs more with it.)"
    )
    if options.json is not None:
        figures: dict[str, Any] = {
            "seconds": seconds,
            "sizes": [asdict(size) for size in by_size],
            "recorded_s": recorded_s,
            "not_recorded_s": plain_s,
            "recording_us_per_call": call_us,
            "goals": [{**asdict(goal), "is_met": goal.is_met} for goal in found],
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
