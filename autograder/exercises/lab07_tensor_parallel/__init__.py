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
CLOSED = ("shardlab.estimate", "shardlab.widgets")  # bytes of a layer, in both
