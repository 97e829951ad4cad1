"""Pictures of a run that can be pointed at: traffic map, ring player, timeline."""

from shardlab.widgets import palette
from shardlab.widgets.memory_timeline import MemoryTimeline, memory_timeline
from shardlab.widgets.ring_player import RingPlayer, ring_player
from shardlab.widgets.timeline import Timeline, timeline
from shardlab.widgets.traffic_map import TrafficMap, traffic_map
from shardlab.widgets.units import format_bytes

__all__ = [
    "MemoryTimeline",
    "RingPlayer",
    "Timeline",
    "TrafficMap",
    "format_bytes",
    "memory_timeline",
    "palette",
    "ring_player",
    "timeline",
    "traffic_map",
]
