"""An example of each widget."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardlab import widgets
from shardlab.estimate.devices import DEVICES
from shardlab.estimate.work import product
from shardlab.widgets.picture import Picture
from tests.shardlab.widgets.synthetic import ring_all_reduce, traced, training, with_links
from tests.shardlab.widgets.test_activation_timeline import training as lifetimes
from tests.shardlab.widgets.test_disk_moments import picture as two_saves
from tests.shardlab.widgets.test_plan_map import example as layouts_of_bloom


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
    widgets.RooflinePlot: lambda: widgets.roofline_plot(
        DEVICES["H100"],
        [product(4096, 4096, 4096).measured(250e-6)],
        moving={rows: product(rows, 4096, 4096) for rows in (1, 16, 256)},
    ),
    widgets.PlanMap: layouts_of_bloom,
    widgets.Prediction: guess,
}
# Each kind that the package exports; a KeyError says which has no example.
EVERY_WIDGET = {
    name: EXAMPLES[kind]
    for name, kind in vars(widgets).items()
    if isinstance(kind, type) and issubclass(kind, Picture)
}
