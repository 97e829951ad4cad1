"""Links between nodes: their speed against the one asked for, and how long nodes take to start.

.venv/bin/python -m benchmarks.links [--rounds N] [--json FILE] [--tiny]

One rank on each of two nodes: the first sends a tensor that takes half a second at the speed asked
for, and the second measures how long it waits for it, from a barrier on.  Starts alternate with
those of plain launches, in a process whose rank server is warm; results are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.launch import Goal, tiny
from shardlab import launch

SPEEDS_BITS_PER_S = (10e6, 100e6, 1000e6)
SENT_S = 0.5
RANKS, NODES = 8, (2, 4)


def receive_s(elements: int, rounds: int) -> list[float]:
    """On rank 1: seconds until it has a tensor of 4-byte elements."""
    seconds, tensor = [], torch.zeros(elements)
    for _ in range(rounds + 1):
        dist.barrier()
        start_s = time.perf_counter()
        if dist.get_rank() == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
        seconds.append(time.perf_counter() - start_s)
    return seconds[1:]  # the first is a warm-up


def measured_bits_per_s(asked: float, rounds: int) -> float:
    elements = int(asked * SENT_S / 32)
    run = launch(
        receive_s, elements, rounds, world_size=2, nodes=2, link_bits_per_s=asked, timeout_s=300
    )
    return 32 * elements / statistics.median(run.outputs[1])


def start_s(nodes: int) -> float:
    """Until all ranks can communicate."""
    speed = None if nodes == 1 else 100e6
    return launch(tiny, world_size=RANKS, nodes=nodes, link_bits_per_s=speed, quiet=True).startup_s


def starts_s(rounds: int) -> dict[int, float]:
    seconds: dict[int, list[float]] = {}
    for _ in range(rounds):
        for nodes in (1, *NODES):
            seconds.setdefault(nodes, []).append(start_s(nodes))
    return {nodes: statistics.median(found) for nodes, found in seconds.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument("--tiny", action="store_true", help="a quick smoke test")
    options = parser.parse_args(arguments)
    rounds = 1 if options.tiny else options.rounds
    start_s(NODES[0])  # starts the rank server and imports what makes nodes
    starts = starts_s(rounds)
    asked_speeds = SPEEDS_BITS_PER_S[:2] if options.tiny else SPEEDS_BITS_PER_S
    speeds = {asked: measured_bits_per_s(asked, rounds) for asked in asked_speeds}
    what = f"start of {RANKS} ranks on {{}} nodes: more than on one"
    found = [Goal(what.format(n), starts[n] - starts[1], 0.5, " s") for n in NODES]
    found += [
        Goal(f"{asked / 1e6:g} Mbit/s: difference", 100 * abs(speed / asked - 1), 5, " %")
        for asked, speed in speeds.items()
    ]
    print(f"{RANKS} ranks: seconds until all can communicate\n")
    for nodes, seconds in starts.items():
        print(f"  {nodes} node{'s' if nodes > 1 else ' '} {seconds:8.3f} s")
    print("\nOne large send between two nodes\n")
    for asked, speed in speeds.items():
        print(f"  {asked / 1e6:6g} Mbit/s asked {speed / 1e6:10.2f} Mbit/s measured")
    print("\nGoals\n")
    for goal in found:
        print(f"  {goal}")
    if options.json is not None:
        figures = {
            "start_s": starts,
            "bits_per_s": speeds,
            "goals": [{**vars(goal), "is_met": goal.is_met} for goal in found],
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
