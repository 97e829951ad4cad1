"""Layouts: how a model and its batch are divided among devices, one or hundreds of thousands.

The ranks of one tensor-parallel group are next to each other; then come context, data and pipeline
parallelism, as in Megatron and torchtitan.  So a tensor-parallel group is within a node wherever it
can be, and neighboring stages of a pipeline are the farthest apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from functools import cached_property

import numpy as np

from shardlab.plan.model import Cluster, Model

RECOMPUTE = ("none", "selective", "full")
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
CHUNKS = (1, 2, 3, 4, 6, 8)  # of an interleaved pipeline, on each rank


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism, whose product is the number of devices, and how each is used."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    micro_batch: int = 1  # sequences
    interleave: int = 1  # chunks of layers on each pipeline rank
    stage: int = 1  # of ZeRO; 3 is FSDP
    recompute: str = "none"
    sequence_parallel: bool = False
    expert: int = 1  # of the data · context ranks, over which experts are divided

    def __str__(self) -> str:
        degrees = [("DP", self.data), ("TP", self.tensor), ("PP", self.pipeline)]
        degrees += [("CP", self.context), ("EP", self.expert)]
        words = [f"{name} {degree}" for name, degree in degrees if degree > 1] or ["one device"]
        words += [f"micro-batch {self.micro_batch}", f"ZeRO-{self.stage}"]
        words += [f"{self.interleave} chunks"] if self.interleave > 1 else []
        words += [f"{self.recompute} recomputation"] if self.recompute != "none" else []
        return ", ".join(words + (["sequence parallel"] if self.sequence_parallel else []))


class Layouts:
    """Many layouts as one array for each field of a Layout: ``layouts.tensor`` is [n]."""

    data: np.ndarray
    tensor: np.ndarray
    pipeline: np.ndarray
    context: np.ndarray
    micro_batch: np.ndarray
    interleave: np.ndarray
    stage: np.ndarray
    recompute: np.ndarray  # indices into RECOMPUTE
    sequence_parallel: np.ndarray  # of bool
    expert: np.ndarray

    def __init__(self, **columns: np.ndarray) -> None:
        vars(self).update(columns)

    @classmethod
    def of(cls, layouts: Sequence[Layout]) -> Layouts:
        rows = [list(astuple(layout)) for layout in layouts]
        columns = {
            each.name: np.array([row[at] for row in rows]) for at, each in enumerate(fields(Layout))
        }
        columns["recompute"] = np.array([RECOMPUTE.index(each.recompute) for each in layouts])
        return cls(**columns)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, at: int) -> Layout:
        row = {each.name: vars(self)[each.name][at].item() for each in fields(Layout)}
        return Layout(**row | {"recompute": RECOMPUTE[row["recompute"]]})

    def where(self, chosen: np.ndarray) -> Layouts:
        """Those at these indices, or where this mask is true."""
        return Layouts(**{each.name: vars(self)[each.name][chosen] for each in fields(Layout)})

    @cached_property
    def shapes(self) -> tuple[list[tuple[int, int, int, bool]], np.ndarray]:
        """The kinds of activations' shapes: (tensor, context, micro_batch, sequence_parallel), and
        which one each layout has."""
        key = (self.tensor * 65_536 + self.context) * 4_096 + self.micro_batch
        _, first, which = np.unique(
            2 * key + self.sequence_parallel, return_index=True, return_inverse=True
        )
        columns = (self.tensor, self.context, self.micro_batch, self.sequence_parallel)
        return [tuple(column[at].item() for column in columns) for at in first], which

    def micro_batches(self, batch: int) -> np.ndarray:
        """Of each pipeline in a step of ``batch`` sequences."""
        return batch // (self.data * self.micro_batch)

    def layers(self, model: Model) -> np.ndarray:
        """Of the fullest rank.

        Embedding and logits may count as a layer each (BLOOM: 70 + 2 on 12 stages).
        """
        return -(-model.layers // self.pipeline)


def enumerate_layouts(model: Model, cluster: Cluster, batch: int) -> Layouts:
    """All legal layouts of a step of ``batch`` sequences on all devices."""
    degrees = divisors(cluster.devices)
    tensor, pipeline, context, micro_batch, interleave, expert = (
        each.ravel()
        for each in np.meshgrid(
            [t for t in degrees if t <= cluster.per_node and not model.heads % t],
            [p for p in degrees if p <= model.layers],
            [c for c in degrees if c == 1 or not model.sequence % (2 * c)],
            MICRO_BATCHES,
            CHUNKS,
            divisors(model.experts or 1),
            indexing="ij",
        )
    )
    divided = cluster.devices % (tensor * pipeline * context) == 0
    data = cluster.devices // (tensor * pipeline * context)
    columns = {
        "data": data,
        "tensor": tensor,
        "pipeline": pipeline,
        "context": context,
        "micro_batch": micro_batch,
        "interleave": interleave,
        "expert": expert,
    }
    divided &= data > 0
    columns = {name: column[divided] for name, column in columns.items()}
    few = Layouts(**columns, **_defaults(len(columns["data"])))
    few = few.where(_legal(model, cluster, batch, few))
    kinds = [
        (stage, recompute, sharded)
        for stage in (1, 2, 3)
        for recompute in range(len(RECOMPUTE))
        for sharded in (False, True)
    ]
    many = {name: np.repeat(column, len(kinds)) for name, column in vars(few).items()}
    stage, recompute, sharded = (np.tile(each, len(few)) for each in zip(*kinds, strict=True))
    many |= {"stage": stage, "recompute": recompute, "sequence_parallel": sharded}
    layouts = Layouts(**many)
    return layouts.where(~layouts.sequence_parallel | (layouts.tensor > 1))


def reasons(model: Model, cluster: Cluster, batch: int, layout: Layout) -> list[str]:
    """Why this layout is impossible; empty if it is not."""
    return [
        why.format(**vars(layout), model=model, cluster=cluster, batch=batch)
        for why, wrong in _rules(model, cluster, batch, Layouts.of([layout])).items()
        if wrong.any()
    ]


def divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if not number % each]


def _defaults(length: int) -> dict[str, np.ndarray]:
    one = np.ones(length, int)
    return {"stage": one, "recompute": 0 * one, "sequence_parallel": one > 1}


def _legal(model: Model, cluster: Cluster, batch: int, layouts: Layouts) -> np.ndarray:
    wrong = np.zeros(len(layouts), bool)
    for each in _rules(model, cluster, batch, layouts).values():
        wrong |= each
    return ~wrong


def _rules(model: Model, cluster: Cluster, batch: int, layouts: Layouts) -> dict[str, np.ndarray]:
    """{what is wrong: where it is}"""
    t, p, c, d, v = (
        layouts.tensor, layouts.pipeline, layouts.context, layouts.data, layouts.interleave
    )  # fmt: skip
    kv_heads = model.kv_heads or model.heads
    even = (model.layers % (p * v) == 0) | ((p > 1) & ((model.layers + 2) % (p * v) == 0))
    micro_batches = np.maximum(layouts.micro_batches(batch), 1)
    return {
        "data {data} · tensor {tensor} · pipeline {pipeline} · context {context} is not the number "
        "of devices, {cluster.devices}": t * p * c * d != cluster.devices,
        "tensor={tensor} does not divide {model.heads} heads": model.heads % t != 0,
        "tensor={tensor} does not divide the key-value heads, and they do not divide it": (
            (kv_heads % t != 0) & (t % kv_heads != 0)
        ),
        "tensor={tensor} is more than the {cluster.per_node} devices of a node": (
            t > cluster.per_node
        ),
        "sequence parallelism: tensor={tensor} does not divide {model.sequence} tokens": (
            layouts.sequence_parallel & (model.sequence % t != 0)
        ),
        "context={context}: {model.sequence} tokens are not divisible into 2 · {context} chunks": (
            (c > 1) & (model.sequence % (2 * c) != 0)
        ),
        "{model.layers} layers, with or without 2 for embedding and logits, are not divisible by "
        "pipeline · interleave = {pipeline} · {interleave}": ~even,
        "an interleaved schedule needs a pipeline": (v > 1) & (p == 1),
        "a batch of {batch} is not divisible by data · micro_batch = {data} · {micro_batch}": (
            batch % (d * layouts.micro_batch) != 0
        ),
        "interleaved: the number of micro-batches is not a multiple of {pipeline} stages": (
            (v > 1) & (micro_batches % p != 0)
        ),
        "expert={expert} does not divide {model.experts} experts, or not data · context ranks": (
            (layouts.expert > 1)
            & ((max(model.experts, 1) % layouts.expert != 0) | ((d * c) % layouts.expert != 0))
        ),
    }
