"""DeepSpeed's compiled extensions ("ops"), built once per machine and outside the ranks.

DeepSpeed compiles an op when a rank first needs it: 40 to 90 s that look like a hang, in all ranks,
and a rank killed during that time leaves a lock file that blocks every later run forever.
Here a rank that needs a missing op sends a request to the kernel process, waits for the answer and
loads the library itself.  The kernel process has the rank server fork a builder, shows a progress
line and pauses the run's clock.  Builders of all kernels share a lock, which the operating system
releases when its holder ends; if torch's own lock file exists then, it belongs to a dead builder.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

LIMIT_S = 900  # for one op, including the wait for another builder
NO_COMPILER = "there is no C++ compiler here (apt install g++, or conda install cxx-compiler)"
ADVICE = {
    "cpu_adam": (
        "Or use PyTorch's own Adam: \"torch_adam\": true in the optimizer's params "
        'and "zero_force_ds_cpu_optimizer": false in the configuration.'
    ),
    "fused_adam": "Or use PyTorch's own Adam: \"torch_adam\": true in the optimizer's params.",
    "async_io": (
        'Offload to "nvme" uses it; it needs the libaio headers (apt install libaio-dev). '
        'Or offload to "cpu".'
    ),
}
# Set in a rank (rank.py): requests an op from the kernel process and returns once it is built.  If
# the build fails, the kernel ends the run and says why.
request_build: Callable[[str], None] | None = None
_request_lock = threading.Lock()


def folder(name: str) -> Path:
    """Where this op is built, for these versions and this processor (-march=native)."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    versions = [importlib.metadata.version(package) for package in ("torch", "deepspeed")]
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    kind = "-".join([*versions, python, os.environ.get("DS_ACCELERATOR", ""), _processor()])
    return Path(cache, "shardlab", "torch_extensions", kind, name)


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "unknown"
    flags = re.search(r"^(flags|Features)\s*:.*$", text, re.MULTILINE)
    return hashlib.sha256((flags.group() if flags else "").encode()).hexdigest()[:8]


def is_built(name: str) -> bool:
    return (folder(name) / "built").exists()


def load_instead_of_jit(op_builder: Any) -> Callable[..., Any]:
    """A replacement for OpBuilder.jit_load: loads an op, requesting it first if missing."""
    compile_and_load = op_builder.jit_load

    def jit_load(self: Any, verbose: bool = True) -> Any:
        if request_build is None:  # in a builder
            return compile_and_load(self, verbose)
        with _request_lock:
            if not is_built(self.name):
                request_build(self.name)
        module = load(self.name)
        op_builder._loaded_ops[self.name] = module
        return module

    return jit_load


def load(name: str) -> Any:
    import torch  # noqa: F401  # the library links against it

    spec = importlib.util.spec_from_file_location(name, folder(name) / f"{name}.so")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(name: str, compile_op: Callable[[], object]) -> None:
    """Compile the op unless it is built; wait if another process is compiling it."""
    place = folder(name)
    place.mkdir(parents=True, exist_ok=True)
    with open(place.with_name(f"{name}.flock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_built(name):
            return
        (place / "lock").unlink(missing_ok=True)  # its owner held our lock, and is dead
        os.environ["TORCH_EXTENSIONS_DIR"] = str(place.parent)
        # another ninja on PATH would consider the build of the environment's ninja stale
        os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
        compile_op()
        (place / "built").touch()


def main(name: str, environment: dict[str, str], report_fd: int) -> NoReturn:
    """The main function of a forked builder; if it fails, its output is shown to the user."""
    os.environ.clear()
    os.environ.update(environment)
    for number in (1, 2):
        os.dup2(report_fd, number)
    signal.alarm(LIMIT_S)
    status = 1
    try:
        from deepspeed.ops.op_builder.all_ops import ALL_OPS

        if name not in ALL_OPS:
            raise ValueError(f"DeepSpeed has no op {name!r} on this device")
        if shutil.which(os.environ.get("CXX", "c++")) is None:
            raise FileNotFoundError(NO_COMPILER)
        build(name, lambda: ALL_OPS[name].jit_load(verbose=False))
        status = 0
    except BaseException as error:
        print(error if str(error) else type(error).__name__, flush=True)
    os._exit(status)


def failure_message(name: str, printed: str, exit_code: int) -> tuple[str, str]:
    """Headline and detail of the error for a builder that failed."""
    lines = [line for line in printed.splitlines() if line.strip()]
    why = lines[-1] if lines else f"the builder ended with code {exit_code}"
    if exit_code == -signal.SIGALRM:
        why = f"it took more than {LIMIT_S} s"
    advice = [ADVICE[name]] if name in ADVICE else []
    headline = f"DeepSpeed's {name} could not be compiled: {why}"
    return headline, "\n".join([*advice, *lines[-20:-1]])


if __name__ == "__main__":
    main(sys.argv[1], dict(os.environ), report_fd=1)
