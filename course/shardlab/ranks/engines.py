"""Engines: what the server that a rank is forked from has loaded, "torch" or "deepspeed".

Each engine has a server of its own (client.py), started when it is first asked for: to import all
that ZeRO uses takes 10 s of processor time, and a rank forked from a process that has it pays none.

DeepSpeed is settled the moment it is imported, in its own server or in a rank that imports it
though nobody said so: its logger speaks of errors only, the kernel for shared memory, which every
first group would compile, is off, and what does have to be compiled is asked of the kernel process
(builds.py).
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

from shardlab.ranks import builds

ENGINES = ("torch", "deepspeed")
SERVERS = ("torch", "deepspeed", "deepspeed-cuda")
# What `deepspeed.initialize` and a first step import, found by comparing sys.modules.
DEEPSPEED = (
    "deepspeed",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.ops.triton_ops.autoep_fused_token_ops",
    "deepspeed.comm.mori",
    "torch._subclasses.schema_check_mode",
    "torch.profiler._cupti_monitor",
    "setuptools",
)


def server_of(engine: str, device: str) -> str:
    """DeepSpeed decides for a device when it is imported, so each device has its own server."""
    return "deepspeed-cuda" if (engine, device) == ("deepspeed", "cuda") else engine


def environment_of(server: str) -> dict[str, str]:
    """What the server, and in it DeepSpeed, is started with."""
    if server == "deepspeed":
        return {"DS_ACCELERATOR": "cpu"}
    if server == "deepspeed-cuda":
        # Neither may touch the GPU: a process that has cannot be forked any more.
        return {"DS_ACCELERATOR": "cuda", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    return {}


def preload_of(server: str) -> tuple[str, ...]:
    return () if server == "torch" else DEEPSPEED


def choose_engine(engine: str, fn: Callable[..., Any], pickled: Sequence[bytes]) -> str:
    """ "torch" or "deepspeed"; "auto" is deepspeed where what travels to the ranks names it."""
    if engine in ENGINES:
        return engine
    if engine != "auto":
        raise ValueError(f'engine is "auto", "torch" or "deepspeed", not {engine!r}')
    # Code of cells travels whole, that of a module by its name alone.
    named = any(b"deepspeed" in part for part in pickled)
    named = named or "deepspeed" in _names(getattr(fn, "__code__", None))
    return "deepspeed" if named else "torch"


def _names(code: CodeType | None) -> Iterator[str]:
    if code is not None:
        yield from (name.split(".")[0] for name in code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _names(constant)


def know_the_processor() -> None:
    """DeepSpeedCPUAdam asks which processor this is, a second each time: ask once for all ranks."""
    import cpuinfo

    known = cpuinfo.get_cpu_info()
    cpuinfo.get_cpu_info = lambda: dict(known)


class _SettleAtImport(MetaPathFinder):
    """Lets DeepSpeed's import be, and settles it at its end."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "deepspeed":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                settle(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def settle_deepspeed_at_import() -> None:
    sys.meta_path.insert(0, _SettleAtImport())


def settle(deepspeed: Any) -> None:
    """Make an imported DeepSpeed quiet and keep it from compiling on its own."""
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # it calls torch's functions by the names that they had before 2.13
    warnings.filterwarnings(
        "ignore", r"`torch.distributed.(all_gather_into|reduce_scatter)_tensor` is", FutureWarning
    )
    if deepspeed.accelerator.get_accelerator().device_name() == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    from deepspeed.ops.op_builder.builder import OpBuilder

    OpBuilder.jit_load = builds.load_instead_of_jit(OpBuilder)
