"""A script that a real launcher starts (torchrun, `accelerate launch`), and what its ranks report.

The script ends with `report`; `start` returns the reports of all ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from shardlab.ranks import engines

PREFIX = "REPORT "


def start(script: Path, *launcher: str, **variables: str) -> list[list[Any]]:
    """Run ``python -m launcher… script`` on CPUs and return what each rank reported, sorted.

    Ends the launcher, and so its ranks, if it is interrupted. Raises RuntimeError if it fails.
    """
    quiet = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    on_cpu = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(
        [sys.executable, "-m", *launcher, str(script)],
        env={**os.environ, **quiet, **on_cpu, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = process.communicate()
    finally:
        process.terminate()
        process.wait()
    if process.returncode:
        raise RuntimeError(errors)
    lines = [line.partition(PREFIX)[2] for line in output.splitlines()]
    return sorted(json.loads(line) for line in lines if line)


def report(rank: int, *values: object) -> NoReturn:
    """Write ``values`` for `start`, and end the process."""
    # In one piece: other ranks write too.
    sys.stdout.write(f"{PREFIX}{json.dumps([rank, *values])}\n")
    sys.stdout.flush()
    os._exit(0)  # Python's own shutdown aborts now and then while gloo's threads end


def new_accelerator() -> Any:
    """An Accelerator on CPUs whose scheduler steps only when the script steps it."""
    from accelerate import Accelerator, InitProcessGroupKwargs

    handlers = []
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        import deepspeed

        engines.make_quiet(deepspeed)
        # Without a backend Accelerate counts one process.
        handlers = [InitProcessGroupKwargs(backend="gloo")]
    return Accelerator(kwargs_handlers=handlers, step_scheduler_with_optimizer=False)


def engine_settings(accelerator: Any, engine: Any) -> dict[str, Any]:
    """What a DeepSpeed engine runs; empty for other models."""
    if not hasattr(engine, "zero_optimization_stage"):
        return {}
    return {
        "stage": engine.zero_optimization_stage(),
        "batch": engine.train_batch_size(),
        "clip": engine.gradient_clipping(),
        "config": accelerator.state.deepspeed_plugin.deepspeed_config,
        "whole": [p.ds_persist for p in engine.parameters()],  # not partitioned between steps
    }
