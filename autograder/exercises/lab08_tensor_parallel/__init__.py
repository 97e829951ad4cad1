"""Lab 08: layers split over ranks, the loss with a split vocabulary, and the bytes they send."""

EXERCISES = (
    "column_linear",
    "row_linear",
    "tp_mlp",
    "tp_attention",
    "vocab_parallel_cross_entropy",
    "tp_bytes_per_layer",
    "mesh_coords",
)
# The first two compute the bytes of a layer, the last those of an all-reduce.
CLOSED = ("shardlab.estimate", "shardlab.widgets", "shardlab.trace.measured_traffic")
