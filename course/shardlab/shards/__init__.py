"""Which rank holds which slice of which tensor: the flat buffers of a training run.

By formula, or read from the data structures of real ranks:

    layout = shards.flat(model, world_size=4, stage=2)

    def fn():
        …
        return shards.of_deepspeed(engine)  # or shards.of_fsdp2(model, optimizer)

    layout = shards.gather(launch(fn, world_size=4).outputs)

`shardlab.widgets.shard_map` draws a layout.
"""

from shardlab.shards.formula import flat
from shardlab.shards.layout import BUFFERS, Layout, Piece, Segment, gather
from shardlab.shards.of_deepspeed import of_deepspeed
from shardlab.shards.of_fsdp2 import of_fsdp2

__all__ = ["BUFFERS", "Layout", "Piece", "Segment", "flat", "gather", "of_deepspeed", "of_fsdp2"]
