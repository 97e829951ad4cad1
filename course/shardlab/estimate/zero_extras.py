"""Model states that DeepSpeed's ZeRO holds in addition to the paper's formulas, by name.

The paper simply divides Ψ by N.  In a real buffer the last shard is padded, a tensor that spans a
shard boundary is kept whole on both sides until the step, and stage 3 keeps small tensors whole,
because gathering them costs more than it saves.  All this can be computed from the tensors' sizes
(DeepSpeed 0.19.8, stage_1_and_2.py and stage3.py); tests/shardlab/estimate/test_zero_extras.py
compares the results with live bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardlab.estimate.memory import FP32_BYTES, PRECISION_BYTES, STATE_BYTES

ALIGNMENT = 2  # elements: in 16 bit a shard starts at a multiple of 4 bytes
PERSISTENCE_THRESHOLD = 100_000  # elements: stage3_param_persistence_threshold's default


def zero_extras(
    numels: Mapping[str, int],
    *,
    stage: int,
    world_size: int,
    precision: str = "bf16",
    optimizer: str = "adam",
    persistence_threshold: int = PERSISTENCE_THRESHOLD,
) -> dict[str, list[float]]:
    """Bytes on each rank after a backward pass, without accumulation, by reason: lists of N.

    Add them to `memory.model_states(…)`.  numels: tensor -> elements, in the model's order.

      "step counters"       Adam's, one for each tensor that it updates
      "fp32 masters"        a sharded optimizer copies its shard even in fp32 training
      "padding"             all shards have the same size, so the last ones are padded
      "tensors across a boundary"  stages 1 and 2: the gradient of a tensor that spans two shards is
                            whole on both ranks
      "freed gradients"     stage 1 keeps only its shard after reducing, like stage 2: less than in
                            the paper, so negative
      "persistent tensors"  stage 3: tensors below the threshold (in elements), whole on all ranks

    Contains only those that apply.  Raises KeyError for an unknown precision or optimizer.
    """
    parameter_bytes, gradient_bytes, master_bytes = PRECISION_BYTES[precision]
    psi, ranks = sum(numels.values()), range(world_size)
    extras: dict[str, list[float]] = {}
    if optimizer.startswith("adam"):
        counters = len(numels) if stage == 0 else 1  # a sharded Adam updates one flat tensor
        extras["step counters"] = [FP32_BYTES * counters for _ in ranks]
    if stage == 0:
        return extras
    if master_bytes == 0:
        master_bytes = FP32_BYTES
        extras["fp32 masters"] = [FP32_BYTES * psi / world_size for _ in ranks]
    optimizer_bytes = master_bytes + STATE_BYTES[optimizer]
    if stage == 3:
        padding = sum(-numel % world_size for numel in numels.values()) / world_size
        each = parameter_bytes + gradient_bytes + optimizer_bytes
        extras["padding"] = [padding * each for _ in ranks]
        small = [numel for numel in numels.values() if numel < persistence_threshold]
        gathered = sum(numel + -numel % world_size for numel in small)
        extras["persistent tensors"] = [float(parameter_bytes * gathered) for _ in ranks]
        return extras
    share = -(-psi // (ALIGNMENT * world_size)) * ALIGNMENT
    padding = share - psi / world_size  # per rank, on average
    whole = parameter_bytes * (share * world_size - psi)  # on all ranks: parameters are not sharded
    extras["padding"] = [whole + padding * (gradient_bytes + optimizer_bytes) for _ in ranks]
    extras["tensors across a boundary"] = [
        gradient_bytes * _beyond(numels, share * rank, share * (rank + 1)) for rank in ranks
    ]
    if stage == 1:
        freed = gradient_bytes * (psi - psi / world_size)
        extras["freed gradients"] = [-freed for _ in ranks]
    return extras


def _beyond(numels: Mapping[str, int], first: int, end: int) -> float:
    """Elements outside [first, end) of the flat buffer, of tensors that overlap it."""
    beyond, at = 0, 0
    for numel in numels.values():
        if at < end and at + numel > first:
            beyond += max(0, first - at) + max(0, at + numel - end)
        at += numel
    return float(beyond)
