"""Lab 03: a ring all-reduce from its pieces, each checked separately."""

EXERCISES = (
    "chunk_bounds",
    "reduce_scatter",
    "all_gather",
    "ring_all_reduce",
    "bytes_per_rank",
    "hierarchical_all_reduce",
)
CLOSED = ("shardlab.estimate", "shardlab.trace.measured_traffic")
