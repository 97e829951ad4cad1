"""Engines: which libraries a rank's server has preloaded, "torch" or "deepspeed".

Each engine has its own server (client.py), started on first use: importing everything ZeRO uses
takes seconds of processor time, which a rank forked from such a server does not pay.

DeepSpeed is configured as soon as it is imported, in its own server or in a rank of another
server: it logs only errors; its shared-memory op, which the first group would compile, is disabled;
and other ops are compiled through the kernel process (builds.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import CodeType, ModuleType
from typing import Any

from shardlab.ranks import builds

ENGINES = ("torch", "deepspeed")
SERVERS = ("torch", "deepspeed", "deepspeed-cuda")
# What `deepspeed.initialize`, a first step and its tools import, found by comparing sys.modules.
DEEPSPEED = (
    "deepspeed",
    "torch._dynamo",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.ops.triton_ops.autoep_fused_token_ops",
    "deepspeed.comm.mori",
    "torch._subclasses.schema_check_mode",
    "torch.profiler._cupti_monitor",
    "setuptools",
    "tqdm",
)


def server_of(engine: str, device: str) -> str:
    """DeepSpeed chooses its device on import, so each device has its own server."""
    return "deepspeed-cuda" if (engine, device) == ("deepspeed", "cuda") else engine


def environment_of(server: str) -> dict[str, str]:
    """Environment variables for the server, and for DeepSpeed in it."""
    if server == "torch":
        return {}
    # DeepSpeed's tools have progress bars; tqdm, imported with this, shows only longer ones.
    common = {"TQDM_DELAY": "2"}
    if server == "deepspeed":
        return {"DS_ACCELERATOR": "cpu", **common}
    # The server must not touch the GPU: after that, it could not fork.
    return {"DS_ACCELERATOR": "cuda", "PYTORCH_NVML_BASED_CUDA_CHECK": "1", **common}


def preload_of(server: str) -> tuple[str, ...]:
    return () if server == "torch" else DEEPSPEED


@contextlib.contextmanager
def nothing_compiled() -> Iterator[None]:
    """What is defined in this block is not compiled by torch: preparing for that takes 1 s.

    DeepSpeed marks a function of its Muon optimizer, which every engine imports.
    """
    name = "TORCHDYNAMO_DISABLE"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def choose_engine(engine: str, fn: Callable[..., Any], pickled: Sequence[bytes]) -> str:
    """ "torch" or "deepspeed"; "auto" is deepspeed if the code sent to the ranks names it."""
    if engine in ENGINES:
        return engine
    if engine != "auto":
        raise ValueError(f'engine is "auto", "torch" or "deepspeed", not {engine!r}')
    # Code from cells is pickled by value, code from a module by name only.
    named = any(b"deepspeed" in part for part in pickled)
    named = named or "deepspeed" in _names(getattr(fn, "__code__", None))
    return "deepspeed" if named else "torch"


def _names(code: CodeType | None) -> Iterator[str]:
    if code is not None:
        yield from (name.split(".")[0] for name in code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _names(constant)


def cache_cpu_info() -> None:
    """DeepSpeedCPUAdam queries the CPU model, half a second of work: query once for all ranks."""
    import cpuinfo

    known = cpuinfo.get_cpu_info()
    cpuinfo.get_cpu_info = lambda: dict(known)


class _ConfigureOnImport(MetaPathFinder):
    """Configures DeepSpeed at the end of its import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "deepspeed":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                configure(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def configure_deepspeed_on_import() -> None:
    sys.meta_path.insert(0, _ConfigureOnImport())


def configure(deepspeed: Any) -> None:
    """Make an imported DeepSpeed quiet and keep it from compiling ops itself."""
    make_quiet(deepspeed)
    from deepspeed.ops.op_builder.builder import OpBuilder

    OpBuilder.jit_load = builds.load_instead_of_jit(OpBuilder)


def make_quiet(deepspeed: Any) -> None:
    """It logs only errors, and on CPUs compiles no op for its first group."""
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # it calls torch functions by the names they had before 2.13
    warnings.filterwarnings(
        "ignore", r"`torch.distributed.(all_gather_into|reduce_scatter)_tensor` is", FutureWarning
    )
    if deepspeed.accelerator.get_accelerator().device_name() == "cpu":
        # its own loader asks for pinned memory, which helps only copies to a GPU
        warnings.filterwarnings(
            "ignore", r"'pin_memory' argument is set as true but no", UserWarning
        )
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
