"""Interactive pictures of a run or of a formula, and predictions to compare with measurements."""

from shardlab.display import palette
from shardlab.widgets import plots
from shardlab.widgets.activation_timeline import ActivationTimeline, activation_timeline
from shardlab.widgets.color_legend import ColorLegend, color_legend
from shardlab.widgets.disk_moments import DiskMoments, disk_moments
from shardlab.widgets.lora_shapes import LoraShapes, lora_shapes
from shardlab.widgets.memory_bars import MemoryBars, memory_bars
from shardlab.widgets.memory_timeline import MemoryTimeline, memory_timeline
from shardlab.widgets.offload_times import OffloadTimes, offload_times
from shardlab.widgets.pipeline_schedule import PipelineSchedule, pipeline_schedule
from shardlab.widgets.plan_map import PlanMap, plan_map
from shardlab.widgets.prediction import Prediction, predict
from shardlab.widgets.quantization_grid import QuantizationGrid, quantization_grid
from shardlab.widgets.ring_player import RingPlayer, ring_player
from shardlab.widgets.roofline_plot import RooflinePlot, roofline_plot
from shardlab.widgets.shard_map import ShardMap, shard_map
from shardlab.widgets.tensor_split import TensorSplit, tensor_split
from shardlab.widgets.timeline import Timeline, timeline
from shardlab.widgets.traffic_map import TrafficMap, traffic_map
from shardlab.widgets.unit_life import UnitLife, unit_life
from shardlab.widgets.units import format_bytes

plots.show_in_theme()

__all__ = [
    "ActivationTimeline",
    "ColorLegend",
    "DiskMoments",
    "LoraShapes",
    "MemoryBars",
    "MemoryTimeline",
    "OffloadTimes",
    "PipelineSchedule",
    "PlanMap",
    "Prediction",
    "QuantizationGrid",
    "RingPlayer",
    "RooflinePlot",
    "ShardMap",
    "TensorSplit",
    "Timeline",
    "TrafficMap",
    "UnitLife",
    "activation_timeline",
    "color_legend",
    "disk_moments",
    "format_bytes",
    "lora_shapes",
    "memory_bars",
    "memory_timeline",
    "offload_times",
    "palette",
    "pipeline_schedule",
    "plan_map",
    "predict",
    "quantization_grid",
    "ring_player",
    "roofline_plot",
    "shard_map",
    "tensor_split",
    "timeline",
    "traffic_map",
    "unit_life",
]
