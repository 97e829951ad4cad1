"""The settings that a DeepSpeed engine derived from its configuration, and where it keeps state.

On a CPU "device" and "host" are the same memory: ``place`` is where the engine would keep something
if it ran on a GPU.  Sizes are those of the engine's buffers on this rank.  They are read from
private attributes of DeepSpeed 0.19.8, which may change.
"""

from __future__ import annotations

from typing import Any

from shardlab.placement.pools import DEVICE, HOST


def of_deepspeed(engine: Any) -> dict[str, Any]:
    """Plain data, to be returned from a rank. ``engine``: the first value initialize returns.

    "stage"         0 to 3
    "precision"     "float32", "float16" or "bfloat16", of the parameters
    "micro_batch", "accumulation", "global_batch"   sequences
    "parameters"    {"place": "device" or "host", "elements": of this rank, between steps}
    "optimizer"     the same for its fp32 master weights; 0 elements if it has none
    "pinned"        whether memory on the host is pinned
    """
    optimizer = engine.optimizer
    parameters = list(engine.module.parameters())
    shards = [getattr(parameter, "ds_tensor", parameter) for parameter in parameters]
    # stages 1 and 2 call it cpu_offload, stage 3 offload_optimizer
    optimizer_is_off = _flag(optimizer, "cpu_offload") or _flag(optimizer, "offload_optimizer")
    zero = engine._config.zero_config
    return {
        "stage": int(engine.zero_optimization_stage()),
        "precision": str(parameters[0].dtype).removeprefix("torch."),
        "micro_batch": int(engine.train_micro_batch_size_per_gpu()),
        "accumulation": int(engine.gradient_accumulation_steps()),
        "global_batch": int(engine.train_batch_size()),
        "parameters": {
            "place": HOST if _flag(optimizer, "offload_param") else DEVICE,
            "elements": sum(shard.numel() for shard in shards),
        },
        "optimizer": {
            "place": HOST if optimizer_is_off else DEVICE,
            "elements": sum(master.numel() for master in _masters(optimizer)),
        },
        "pinned": optimizer_is_off and bool(zero.offload_optimizer.pin_memory),
    }


def _flag(optimizer: Any, name: str) -> bool:
    return bool(getattr(optimizer, name, False))


def _masters(optimizer: Any) -> list[Any]:
    """The fp32 master weights; each kind of optimizer names them differently."""
    for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):
        if hasattr(optimizer, name):
            return list(getattr(optimizer, name))
    groups = getattr(optimizer, "fp32_groups", [])  # stage 0: lists of whole tensors
    return [master for group in groups for master in group]
