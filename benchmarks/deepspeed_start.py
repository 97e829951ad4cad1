"""DeepSpeed start-up time: start 4 ranks, initialize ZeRO-3, run one step, exit.

.venv/bin/python -m benchmarks.deepspeed_start [--rounds N] [--json FILE]

Compares launch with torchrun and DeepSpeed's own launcher, which run the same work as a script.
The first launch, in which the fork server loads DeepSpeed, is timed separately.  The scripts do not
build DeepSpeed's shared-memory extension, which takes a minute on the very first start.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from shardlab import launch

RANKS = 4
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3},
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
}
SCRIPT = f"""
import os, torch, deepspeed
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed("gloo")
model = torch.nn.Linear(64, 64)
engine, *_ = deepspeed.initialize(model=model, config={CONFIG!r})
engine.backward(engine(torch.ones(1, 64)).sum())
engine.step()
"""


def work() -> None:
    import deepspeed

    engine, *_ = deepspeed.initialize(model=torch.nn.Linear(64, 64), config=CONFIG)
    engine.backward(engine(torch.ones(1, 64)).sum())
    engine.step()


def time_launch() -> float:
    return launch(work, world_size=RANKS, device="cpu", quiet=True).wall_s


def time_command(*command: str) -> float:
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    environment["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.py")
        path.write_text(SCRIPT)
        start_s = time.perf_counter()
        done = subprocess.run(
            [*command, str(path)], env=environment, capture_output=True, text=True, timeout=300
        )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return time.perf_counter() - start_s


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
DEEPSPEED = (sys.executable, "-m", "deepspeed.launcher.runner", f"--num_gpus={RANKS}")
LAUNCHERS: dict[str, Callable[[], float]] = {
    "shardlab.launch, warm": time_launch,
    "torchrun --standalone": lambda: time_command(*TORCHRUN, f"--nproc-per-node={RANKS}"),
    "deepspeed": lambda: time_command(*DEEPSPEED),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    options = parser.parse_args(arguments)
    seconds: dict[str, list[float]] = {"shardlab.launch, first": [time_launch()]}
    for _ in range(options.rounds):
        for name, timed in LAUNCHERS.items():
            seconds.setdefault(name, []).append(timed())
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ours = medians["shardlab.launch, warm"]
    print(f"ZeRO-3 on {RANKS} ranks: start, initialize, one step, exit\n")
    for name, median in medians.items():
        print(f"  {name:<24} {median:8.2f} s {median / ours:8.1f}×")
    if options.json is not None:
        options.json.write_text(json.dumps(medians, indent=2) + "\n")


if __name__ == "__main__":
    main()
