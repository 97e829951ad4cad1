"""Runs a script under a real torchrun, on CPUs of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

QUIET = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}


def torchrun(
    script: Path, processes: int, *arguments: str, fails: bool = False, **variables: str
) -> str:
    """What all its processes printed; with ``fails``, also to stderr, and it must fail."""
    # Port 0: torchrun takes a free one.
    launcher = ("torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
    ran = subprocess.run(
        [
            *(sys.executable, "-m", *launcher, f"--nproc-per-node={processes}"),
            *(str(script), *arguments),
        ],
        env={**os.environ, **QUIET, **variables},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (ran.returncode != 0) is fails, ran.stdout[-3000:] + ran.stderr[-3000:]
    return ran.stdout + ran.stderr if fails else ran.stdout
