"""Lab 07: layers cut over ranks, the loss of a cut vocabulary, and what it all sends."""

EXERCISES = (
    "column_linear",
    "row_linear",
    "tp_mlp",
    "tp_attention",
    "vocab_parallel_cross_entropy",
    "tp_bytes_per_layer",
    "mesh_coords",
)
# bytes of a layer, in the first two; of an all-reduce, in the last
CLOSED = ("shardlab.estimate", "shardlab.widgets", "shardlab.trace.measured_traffic")
