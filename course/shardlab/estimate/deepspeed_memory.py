"""The formulas of DeepSpeed's own estimators, by category: 16 bit, Adam, stages 2 and 3.

They are ``estimate_zero2_model_states_mem_needs`` (deepspeed/runtime/zero/stage_1_and_2.py) and
``estimate_zero3_model_states_mem_needs`` (stage3.py) of DeepSpeed 0.19.8; tests compare these
formulas with them.  DeepSpeed prints GiB but labels them GB.  Compared with the paper it adds

    gradients   fp32 copies of a rank's shard, for the update: 4Ψ/N
    largest     stage 3: the whole largest layer, 2 bytes of parameters and 2 of gradients
    host        room for every rank to load a whole fp32 model before it is sharded, if that is
                more, plus 50 % for buffers

The documentation's older table (https://deepspeed.readthedocs.io/en/latest/memory.html, t5-3b)
counts ZeRO-2 as 4Ψ + 16Ψ/N: whole 16-bit gradients, and no second copy of the shard.
"""

from __future__ import annotations

CONVENTIONS = ("deepspeed", "deepspeed-docs")
BUFFER_FACTOR = 1.5  # ``additional_buffer_factor``

ByCategory = dict[str, float]


def deepspeed_bytes(
    parameters: float,
    *,
    stage: int,
    world_size: int,
    offload_optimizer: bool,
    offload_parameters: bool,
    largest_layer: float,
    ranks_per_node: int | None,
    as_documented: bool,
) -> tuple[ByCategory, ByCategory]:
    """(device, host): bytes by category on one rank.

    DeepSpeed counts the host memory of a whole node; this returns one rank's share.  Assumes
    ``zero_init=True``.  Raises ValueError for stages that DeepSpeed does not estimate.
    """
    if stage not in (2, 3):
        raise ValueError(
            f"stage={stage}: DeepSpeed estimates only stages 2 and 3; convention='paper' has all"
        )
    if offload_parameters and not offload_optimizer:
        raise ValueError(
            "DeepSpeed estimates offload_parameters only together with offload_optimizer"
        )
    per_node = world_size if ranks_per_node is None else ranks_per_node
    if per_node < 1 or world_size % per_node:
        raise ValueError(f"ranks_per_node={per_node} does not divide world_size={world_size}")
    if stage == 2:
        device = _zero2_device(parameters, world_size, offload_optimizer, as_documented)
    else:
        device = _zero3_device(
            parameters, world_size, offload_optimizer, offload_parameters, largest_layer
        )
    shard = parameters / world_size
    on_host = {
        "parameters": 2 * shard if offload_parameters else 0.0,
        "gradients": 4 * shard if offload_optimizer else 0.0,
        "optimizer": 12 * shard if offload_optimizer else 0.0,
    }
    if stage == 2:
        node_bytes = _zero2_node(parameters, world_size, per_node, offload_optimizer)
    elif offload_optimizer:
        node_bytes = sum(on_host.values()) * per_node
    else:
        node_bytes = 4 * largest_layer * per_node
    host_bytes = BUFFER_FACTOR * node_bytes / per_node
    return device, on_host | {"other": host_bytes - sum(on_host.values())}


def _zero2_device(
    parameters: float, world_size: int, offload_optimizer: bool, as_documented: bool
) -> ByCategory:
    if offload_optimizer:
        return {"parameters": 2 * parameters, "gradients": 0.0, "optimizer": 0.0}
    shard = parameters / world_size
    # 2 bytes in 16 bit and 4 in fp32; in the documentation the 16-bit gradients are not sharded.
    gradients = 4 * shard + (2 * parameters if as_documented else 2 * shard)
    return {"parameters": 2 * parameters, "gradients": gradients, "optimizer": 12 * shard}


def _zero2_node(
    parameters: float, world_size: int, ranks_per_node: int, offload_optimizer: bool
) -> float:
    if offload_optimizer:
        # As in DeepSpeed: for all ranks, although a node holds only its own.
        return parameters * max(4 * world_size, 16)
    return parameters * 4 * ranks_per_node


def _zero3_device(
    parameters: float,
    world_size: int,
    offload_optimizer: bool,
    offload_parameters: bool,
    largest_layer: float,
) -> ByCategory:
    shard = parameters / world_size
    gathered = 2 * largest_layer
    return {
        "parameters": gathered + (0.0 if offload_parameters else 2 * shard),
        "gradients": gathered + (0.0 if offload_optimizer else 4 * shard),
        "optimizer": 0.0 if offload_optimizer else 12 * shard,
    }
