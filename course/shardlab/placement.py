"""What a live DeepSpeed engine made of its configuration: stage, batch, and what lives where.

On a CPU "device" and "host" are one memory, so no address tells them apart: ``place`` is where the
engine itself decided to keep something, and would keep it on a GPU.  The sizes are those of the
engine's own buffers on this rank.  Read from DeepSpeed 0.19.8, whose attributes have no promise.
"""

from __future__ import annotations

from typing import Any

DEVICE, HOST = "device", "host"


def of_deepspeed(engine: Any) -> dict[str, Any]:
    """Plain data, to be returned from a rank. ``engine`` is the first that initialize returned.

    "stage"         0 to 3
    "precision"     "float32", "float16" or "bfloat16", of the parameters
    "micro_batch", "accumulation", "global_batch"   sequences
    "parameters"    {"place": "device" or "host", "elements": of this rank, between steps}
    "optimizer"     the same, of its fp32 masters; 0 elements where it has none
    "pinned"        whether memory on the host is pinned
    """
    optimizer = engine.optimizer
    parameters = list(engine.module.parameters())
    shards = [getattr(parameter, "ds_tensor", parameter) for parameter in parameters]
    # stages 1 and 2 say cpu_offload, stage 3 says offload_optimizer
    optimizer_is_off = _says(optimizer, "cpu_offload") or _says(optimizer, "offload_optimizer")
    zero = engine._config.zero_config
    return {
        "stage": int(engine.zero_optimization_stage()),
        "precision": str(parameters[0].dtype).removeprefix("torch."),
        "micro_batch": int(engine.train_micro_batch_size_per_gpu()),
        "accumulation": int(engine.gradient_accumulation_steps()),
        "global_batch": int(engine.train_batch_size()),
        "parameters": {
            "place": HOST if _says(optimizer, "offload_param") else DEVICE,
            "elements": sum(shard.numel() for shard in shards),
        },
        "optimizer": {
            "place": HOST if optimizer_is_off else DEVICE,
            "elements": sum(master.numel() for master in _masters(optimizer)),
        },
        "pinned": optimizer_is_off and bool(zero.offload_optimizer.pin_memory),
    }


def _says(optimizer: Any, name: str) -> bool:
    return bool(getattr(optimizer, name, False))


def _masters(optimizer: Any) -> list[Any]:
    """The fp32 copies that the update is added to; each kind of optimizer has its own name."""
    for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):
        if hasattr(optimizer, name):
            return list(getattr(optimizer, name))
    groups = getattr(optimizer, "fp32_groups", [])  # stage 0: lists of whole tensors
    return [master for group in groups for master in group]
