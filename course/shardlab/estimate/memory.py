"""Bytes of model states (parameters, gradients, optimizer) on each rank, by ZeRO stage.

ZeRO: Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models", arXiv 1910.02054, section 5.  With Ψ parameters on N ranks, 16 bit and Adam:

    stage 0  everything everywhere         16Ψ
    stage 1  optimizer states sharded      4Ψ + 12Ψ/N
    stage 2  and gradients                 2Ψ + 14Ψ/N
    stage 3  and parameters                16Ψ/N

Activations, buckets and padding are not model states and need additional memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from shardlab.estimate.deepspeed_memory import CONVENTIONS as DEEPSPEED_CONVENTIONS
from shardlab.estimate.deepspeed_memory import deepspeed_bytes

FP32_BYTES = 4
CONVENTIONS = ("paper", *DEEPSPEED_CONVENTIONS)

# (parameter, gradient, master copy of a parameter), in bytes.  Mixed precision applies
# updates to an fp32 master copy: arXiv 1710.03740.  "fp32-master" is DeepSpeed in fp32 training:
# its sharded optimizer copies its shard of the parameters even there.
PRECISION_BYTES = {
    "fp32": (4, 4, 0),
    "fp32-master": (4, 4, 4),
    "fp16": (2, 2, 4),
    "bf16": (2, 2, 4),
}

# 8-bit Adam: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", arXiv 2110.02861.
# Both states take one byte per element, plus an fp32 scale per block: 256 elements in bitsandbytes
# 0.50 (optim/optimizer.py), 2048 in the paper.  The two lookup tables per model are not counted.
EIGHT_BIT_BLOCK = 256
EIGHT_BIT_STATE_BYTES = 1 + FP32_BYTES / EIGHT_BIT_BLOCK

STATE_BYTES = {  # by optimizer: bytes of state per parameter, without the master copy
    "sgd": 0.0,
    "momentum": 1.0 * FP32_BYTES,
    "adam": 2.0 * FP32_BYTES,
    "adam8bit": 2 * EIGHT_BIT_STATE_BYTES,
}


@dataclass(frozen=True)
class ModelStates:
    """Bytes on one rank: {"parameters": …, "gradients": …, "optimizer": …} on device and host.

    "optimizer" includes the fp32 master copies.  With a DeepSpeed convention ``host`` also has
    "other": memory that DeepSpeed adds for loading the model and for its buffers.
    """

    device: dict[str, float]
    host: dict[str, float]

    @property
    def device_bytes(self) -> float:
        return sum(self.device.values())

    @property
    def host_bytes(self) -> float:
        return sum(self.host.values())


def model_states(
    parameters: float,
    *,
    stage: int = 0,
    world_size: int = 1,
    precision: str = "bf16",
    optimizer: str = "adam",
    offload_optimizer: bool = False,
    offload_parameters: bool = False,
    convention: str = "paper",
    largest_layer: float = 0,
    ranks_per_node: int | None = None,
) -> ModelStates:
    """Bytes of model states on each rank, for ``parameters`` parameters (Ψ) on ``world_size`` (N).

    convention:
      "paper"           the formulas above.  Ψ/N is not rounded up; padding is not included.
      "deepspeed"       the estimators of DeepSpeed 0.19.8, for stages 2 and 3.
      "deepspeed-docs"  the older formulas in DeepSpeed's documentation: 4Ψ + 16Ψ/N for ZeRO-2,
                        where the code now has 2Ψ + 18Ψ/N.
    offload_optimizer (stages 1 to 3): optimizer states and master copies are on the host.
      Gradients move there during backward, so at stages 2 and 3 the device keeps none
      (ZeRO-Offload, arXiv 2101.06840, section 3); at stage 1 it holds all of them first.
    offload_parameters (stage 3): each rank's shard of the parameters is on the host as well.
    largest_layer: parameters of the unit that stage 3 gathers.  While in use, the device holds
      it whole, with its gradients.  The paper neglects it: 0.
    ranks_per_node: for the DeepSpeed conventions, which count the host memory of a node; None means
      all ranks are on one node.

    Raises ValueError for invalid arguments.
    """
    check_world(parameters, world_size)
    _check_known("stage", stage, (0, 1, 2, 3))
    _check_known("precision", precision, tuple(PRECISION_BYTES))
    _check_known("optimizer", optimizer, tuple(STATE_BYTES))
    _check_known("convention", convention, CONVENTIONS)
    if offload_optimizer and stage == 0:
        raise ValueError("offload_optimizer needs a sharded optimizer: use stage 1, 2 or 3")
    if offload_parameters and stage != 3:
        raise ValueError(
            f"stage={stage} does not shard parameters: offload_parameters needs stage=3"
        )
    if not 0 <= largest_layer <= parameters:
        raise ValueError(
            f"largest_layer={largest_layer}: must be between 0 and parameters={parameters}"
        )
    if convention != "paper":
        if precision not in ("fp16", "bf16") or optimizer != "adam":
            raise ValueError(
                "DeepSpeed estimates only 16-bit training with Adam: use precision='bf16' and "
                "optimizer='adam', or convention='paper'"
            )
        device, host = deepspeed_bytes(
            parameters,
            stage=stage,
            world_size=world_size,
            offload_optimizer=offload_optimizer,
            offload_parameters=offload_parameters,
            largest_layer=largest_layer,
            ranks_per_node=ranks_per_node,
            as_documented=convention == "deepspeed-docs",
        )
        return ModelStates(device, host)
    parameter_bytes, gradient_bytes, master_bytes = PRECISION_BYTES[precision]
    optimizer_bytes = master_bytes + STATE_BYTES[optimizer]
    shard = parameters / world_size
    gathered = largest_layer if stage == 3 else 0
    device = {
        "parameters": parameter_bytes * ((shard if stage >= 3 else parameters) + gathered),
        "gradients": gradient_bytes * ((shard if stage >= 2 else parameters) + gathered),
        "optimizer": optimizer_bytes * (shard if stage >= 1 else parameters),
    }
    host = dict.fromkeys(device, 0.0)
    if offload_optimizer:
        host["optimizer"], device["optimizer"] = device["optimizer"], 0.0
        host["gradients"] = gradient_bytes * shard
        if stage >= 2:
            device["gradients"] = gradient_bytes * gathered
    if offload_parameters:
        host["parameters"], device["parameters"] = (
            parameter_bytes * shard,
            parameter_bytes * gathered,
        )
    return ModelStates(device, host)


def largest_model(
    capacity_bytes: float,
    *,
    host_capacity_bytes: float | None = None,
    stage: int = 0,
    world_size: int = 1,
    precision: str = "bf16",
    optimizer: str = "adam",
    offload_optimizer: bool = False,
    offload_parameters: bool = False,
    convention: str = "paper",
    largest_layer: float = 0,
    ranks_per_node: int | None = None,
) -> int:
    """The largest number of parameters whose model states fit in ``capacity_bytes`` per device.

    If ``host_capacity_bytes`` is given, they must also fit in that much host memory per rank.
    Nothing is reserved for activations: pass the bytes available for model states.

    Raises ValueError if not even ``largest_layer`` fits, or if there is no limit.
    """

    def states(parameters: float) -> ModelStates:
        return model_states(
            parameters,
            stage=stage,
            world_size=world_size,
            precision=precision,
            optimizer=optimizer,
            offload_optimizer=offload_optimizer,
            offload_parameters=offload_parameters,
            convention=convention,
            largest_layer=largest_layer,
            ranks_per_node=ranks_per_node,
        )

    most = _most_that_fits(lambda psi: states(psi).device_bytes, capacity_bytes, largest_layer)
    if host_capacity_bytes is not None:
        on_host = _most_that_fits(
            lambda psi: states(psi).host_bytes, host_capacity_bytes, largest_layer
        )
        most = min(most, on_host)
    if math.isinf(most):
        raise ValueError(
            "everything is on the host, so the device sets no limit: pass host_capacity_bytes"
        )
    return int(most)


def _most_that_fits(
    needed_bytes: Callable[[float], float], capacity_bytes: float, least: float
) -> float:
    """The largest whole number whose needed_bytes fit; needed_bytes must be linear."""
    fixed_bytes = needed_bytes(least)
    if not capacity_bytes >= fixed_bytes:
        raise ValueError(
            f"a capacity of {capacity_bytes:,.0f} bytes is too small for one gathered layer, "
            f"which needs {fixed_bytes:,.0f}"
        )
    bytes_each = (needed_bytes(least + 2.0**40) - fixed_bytes) / 2.0**40
    if bytes_each == 0:
        return math.inf
    most = math.floor(least + (capacity_bytes - fixed_bytes) / bytes_each) + 1
    while needed_bytes(most) > capacity_bytes:  # because of rounding in the quotient
        most -= 1
    return most


def check_world(parameters: float, world_size: int) -> None:
    if not 0 <= parameters < math.inf:
        raise ValueError(f"parameters={parameters}: expected a count of parameters, 0 or more")
    if world_size < 1 or world_size != int(world_size):
        raise ValueError(f"world_size={world_size}: expected a whole number of ranks, 1 or more")


def _check_known(name: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        choices = ", ".join(repr(choice) for choice in known)
        raise ValueError(f"{name}={value!r}: expected one of {choices}")
