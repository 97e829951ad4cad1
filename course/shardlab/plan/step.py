"""Seconds of a training step, by part, from six constants of a cluster and its stack.

With m micro-batches on p stages, v chunks on each, and L/p layers on a rank:

    step = (m + (p − 1)/v) · micro-batch + logits + data-parallel traffic + optimizer

A micro-batch is its products, its memory-bound work, its tensor-parallel, context-parallel, expert
and pipeline traffic, and an overhead.  Products reach a share of the peak that falls with their
size (x elements: half of it at x = `half_size`).  Memory-bound work moves a constant times the
bytes that the layer saves for backward.  The bubble is (p − 1)/v micro-batches: Narayanan et al.,
arXiv 2104.04473, section 2.2.  Traffic of tensor, sequence and pipeline parallelism:
estimate.model_traffic; of data parallelism: 2(d − 1)/d · 2N bytes of 16-bit gradients.

Traffic hides behind nothing, except ZeRO-3's gathers: those wait only where they take longer than
the micro-batch's own work.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardlab.estimate import collectives, flops, model_traffic
from shardlab.plan.layouts import RECOMPUTE, Layout, Layouts
from shardlab.plan.memory import layer_bytes, rank_parameters
from shardlab.plan.model import Cluster, Model

HALF_BYTES = 2  # of a 16-bit element
OPTIMIZER_BYTES = 30  # moved for each parameter: states read and written, gradients read
BACKWARD_MEMORY = 1.5  # memory-bound work of backward, of that of forward


@dataclass(frozen=True)
class Constants:
    """What a calibration finds (calibrate.py). The defaults are a guess to start from."""

    gemm_share: float = 0.8  # of the peak that large products reach
    half_size: float = 1e6  # elements of a layer's input on a rank at which half of that is lost
    memory_factor: float = 1.5  # memory-bound bytes, of twice those saved for backward
    node_share: float = 0.6  # of the link's bytes per second within a node that collectives reach
    network_share: float = 0.5  # the same between nodes
    overhead_s: float = 2e-3  # of a micro-batch on a rank


@dataclass(frozen=True)
class Step:
    """Seconds by part, [n] each, in the order of the layouts; and what the parts are made of.

    Sums are kept: `Plans` reads them for one layout at a time.
    """

    parts: dict[str, np.ndarray]
    model_flops: float
    hardware_flops: np.ndarray
    peak_flops_per_s: float  # of all devices

    @cached_property
    def seconds(self) -> np.ndarray:
        return np.sum(list(self.parts.values()), axis=0)

    @cached_property
    def mfu(self) -> np.ndarray:
        return self.model_flops / self.seconds / self.peak_flops_per_s

    @cached_property
    def hfu(self) -> np.ndarray:
        return self.hardware_flops / self.seconds / self.peak_flops_per_s


def step(
    model: Model,
    cluster: Cluster,
    batch: int,
    layouts: Layouts | Layout,
    constants: Constants | None = None,
) -> Step:
    """A step of ``batch`` sequences. The layouts must be legal (layouts.reasons)."""
    known = constants or Constants()
    if isinstance(layouts, Layout):
        layouts = Layouts.of([layouts])
    t, p, c, d = layouts.tensor, layouts.pipeline, layouts.context, layouts.data
    m, v = layouts.micro_batches(batch), layouts.interleave
    layers = layouts.layers(model)
    links = _Links(cluster, known)

    forward, backward = _products_s(model, cluster, layouts, known)
    moved_s = 2 * known.memory_factor / cluster.memory_bytes_per_s
    memory_s = moved_s * layer_bytes(model, layouts, "none")
    scores_s = memory_s - moved_s * layer_bytes(model, layouts, "selective")
    tensor_s = _tensor_bytes(model, layouts) / links.within(t, 1)
    context_s = _context_bytes(model, layouts) / links.within(c, t)
    expert_s = _expert_bytes(model, layouts) / links.within(layouts.expert, t)
    full = layouts.recompute == RECOMPUTE.index("full")
    selective = layouts.recompute == RECOMPUTE.index("selective")
    again = np.where(full, 1.0, 0.0)
    attention_s = _attention_share(model) * forward
    per_layer = {
        "products": forward + backward + again * forward + np.where(selective, attention_s, 0.0),
        "memory-bound work": (1 + BACKWARD_MEMORY + again) * memory_s
        + np.where(selective, scores_s, 0.0),
        "tensor parallelism": (2 + again) * tensor_s,
        # Backward moves keys and values again, and their gradients: twice.
        "context parallelism": (3 + again) * context_s,
        "expert parallelism": (2 + again) * expert_s,
    }
    parts = {name: m * layers * seconds for name, seconds in per_layer.items()}
    boundary = HALF_BYTES * layouts.micro_batch * (model.sequence // c) * model.width / t
    sent_s = np.where(p > 1, 2 * v * boundary / links.within(p, t * c * d), 0.0)
    parts["pipeline traffic"] = m * sent_s
    parts["overhead"] = m * known.overhead_s
    work_s = sum(parts.values()) / m
    parts["bubble"] = (p - 1) / v * work_s
    logits = flops.training_flops(model.vocabulary * model.width, 1) * model.sequence
    products_per_s = cluster.flops_per_s * _efficiency(model, layouts, known)
    parts["logits"] = m / p * layouts.micro_batch * logits / (t * c * products_per_s)
    parts["data parallelism"] = _data_s(model, layouts, links, m, work_s)
    held = sum(rank_parameters(model, layouts))
    own = np.where(layouts.stage >= 1, held / (d * c), held)
    parts["optimizer"] = OPTIMIZER_BYTES * own / cluster.memory_bytes_per_s
    return Step(
        parts=parts,
        model_flops=_training_flops(model, batch),
        hardware_flops=_hardware_flops(model, batch, layouts),
        peak_flops_per_s=cluster.devices * cluster.flops_per_s,
    )


@dataclass(frozen=True)
class _Links:
    cluster: Cluster
    constants: Constants

    def within(self, size: np.ndarray, stride: np.ndarray | int) -> np.ndarray:
        """Bytes per second that each rank of a group sends: ``size`` ranks, ``stride`` apart."""
        inside = size * stride <= self.cluster.per_node
        return np.where(
            inside,
            self.cluster.node_bytes_per_s * self.constants.node_share,
            self.cluster.network_bytes_per_s * self.constants.network_share,
        )


def _efficiency(model: Model, layouts: Layouts, constants: Constants) -> np.ndarray:
    """The share of the peak that a rank's products reach."""
    tokens = layouts.micro_batch * model.sequence / layouts.context
    size = tokens * model.width / layouts.tensor
    return constants.gemm_share / (1 + constants.half_size / size)


def _products_s(
    model: Model, cluster: Cluster, layouts: Layouts, constants: Constants
) -> tuple[np.ndarray, np.ndarray]:
    """Of a layer, forward and backward."""
    attention = flops.attention_flops(1, model.width, model.sequence) / 3
    per_token = flops.FORWARD * model.active_parameters + attention
    tokens = layouts.micro_batch * model.sequence / (layouts.context * layouts.tensor)
    per_s = cluster.flops_per_s * _efficiency(model, layouts, constants)
    forward = tokens * per_token / per_s
    return forward, flops.BACKWARD / flops.FORWARD * forward


def _attention_share(model: Model) -> float:
    """Of a layer's operations, those of scores and values: what "selective" computes again."""
    attention = flops.attention_flops(1, model.width, model.sequence) / 3
    return attention / (attention + flops.FORWARD * model.active_parameters)


def _tensor_bytes(model: Model, layouts: Layouts) -> np.ndarray:
    """Sent by a rank in the forward pass of a layer; as many in backward."""
    one = model_traffic.tensor_parallel_layer(1, model.width, 2).forward_bytes  # (t−1)/t = 1/2
    tokens = layouts.micro_batch * model.sequence / layouts.context
    return tokens * one * 2 * (layouts.tensor - 1) / layouts.tensor


def _context_bytes(model: Model, layouts: Layouts) -> np.ndarray:
    """Keys and values of the other ranks, forward: 2(c−1)/c · b·s·kv elements, divided among t."""
    whole = 2 * HALF_BYTES * layouts.micro_batch * model.sequence * model.kv_width
    return whole / layouts.tensor * (layouts.context - 1) / layouts.context


def _expert_bytes(model: Model, layouts: Layouts) -> np.ndarray:
    """Dispatch and combine, forward: 2(n−1)/n of each token's k copies, if routing is balanced."""
    if not model.experts:
        return np.zeros(len(layouts))
    tokens = layouts.micro_batch * model.sequence / layouts.context
    copies = HALF_BYTES * tokens * model.experts_per_token * model.width / layouts.tensor
    return 2 * copies * (layouts.expert - 1) / layouts.expert


def _data_s(
    model: Model, layouts: Layouts, links: _Links, m: np.ndarray, work_s: np.ndarray
) -> np.ndarray:
    """Exposed traffic of gradients, once a step; of ZeRO-3's parameters, for each micro-batch."""
    found = np.zeros(len(layouts))
    dense, experts = rank_parameters(model, layouts)
    ranks = layouts.data * layouts.context
    for held, among in ((dense, ranks), (experts, ranks // layouts.expert)):
        per_s = links.within(among, layouts.tensor)
        all_reduce_s = HALF_BYTES * held * _ring_share(among) / per_s
        # Gathered forward and backward, and gradients scattered: each half an all-reduce.
        exposed_s = np.maximum(1.5 * all_reduce_s - work_s, 0.0)
        found += all_reduce_s + np.where(layouts.stage == 3, m * exposed_s, 0.0)
    return found


def _ring_share(ranks: np.ndarray) -> np.ndarray:
    """2(n−1)/n, of an all-reduce (collectives.ring_sent_bytes)."""
    of_two = collectives.ring_sent_bytes(1, 2)
    return of_two * 2 * (ranks - 1) / ranks


def _training_flops(model: Model, batch: int, *, recomputed: bool = False) -> float:
    return flops.training_flops(
        model.product_parameters,
        batch * model.sequence,
        layers=model.layers,
        width=model.width,
        sequence=model.sequence,
        recomputed=recomputed,
    )


def _hardware_flops(model: Model, batch: int, layouts: Layouts) -> np.ndarray:
    """With what is computed again.  "selective" adds s/6h of 72·BsLh², as Korthikanti et al. do in
    equation 9: as much as all of attention, though only its forward pass runs again."""
    attention = flops.attention_flops(model.layers, model.width, model.sequence)
    by_kind = {
        "none": _training_flops(model, batch),
        "selective": _training_flops(model, batch) + batch * model.sequence * attention,
        "full": _training_flops(model, batch, recomputed=True),
    }
    return np.array([by_kind[kind] for kind in RECOMPUTE])[layouts.recompute]
