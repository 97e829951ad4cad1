"""An example of each widget."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardlab import widgets
from shardlab.widgets.picture import Picture
from tests.shardlab.widgets.synthetic import ring_all_reduce, traced, training, with_links
from tests.shardlab.widgets.test_activation_timeline import training as lifetimes
from tests.shardlab.widgets.test_disk_moments import picture as two_saves


def guess() -> Picture:
    prediction = widgets.predict("Bytes that each rank sends (saved)", unit="B", ranks=4)
    prediction.value = 2**20
    return prediction


EXAMPLES: dict[type[Picture], Callable[[], Picture]] = {
    widgets.TrafficMap: lambda: widgets.traffic_map(with_links(ring_all_reduce(4), 2)),
    widgets.RingPlayer: lambda: widgets.ring_player(ring_all_reduce(4)),
    widgets.Timeline: lambda: widgets.timeline(traced()),
    widgets.MemoryTimeline: lambda: widgets.memory_timeline(training(2)),
    widgets.ActivationTimeline: lambda: widgets.activation_timeline(lifetimes()),
    widgets.MemoryBars: widgets.memory_bars,
    widgets.ShardMap: lambda: widgets.shard_map({"w": 8, "b": 3, "v": 8}, world_size=4, stage=1),
    widgets.OffloadTimes: widgets.offload_times,
    widgets.TensorSplit: widgets.tensor_split,
    widgets.PipelineSchedule: widgets.pipeline_schedule,
    widgets.UnitLife: widgets.unit_life,
    widgets.DiskMoments: two_saves,
    widgets.QuantizationGrid: lambda: widgets.quantization_grid(
        np.random.default_rng(0).normal(size=4096)
    ),
    widgets.LoraShapes: widgets.lora_shapes,
    widgets.Prediction: guess,
}
# Each kind that the package exports; a KeyError says which has no example.
EVERY_WIDGET = {
    name: EXAMPLES[kind]
    for name, kind in vars(widgets).items()
    if isinstance(kind, type) and issubclass(kind, Picture)
}
