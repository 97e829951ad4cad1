"""Lab 07: layers split over ranks, the loss with a split vocabulary, and the bytes they send."""

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
