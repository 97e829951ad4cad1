"""Lab 02: data parallelism through a hub, by all-reduce, and in buckets that overlap backward."""

EXERCISES = ("hub_step", "hub_bytes", "ddp_step", "ring_bytes", "bucketed_ddp")
CLOSED = ("shardlab.estimate", "shardlab.trace.measured_traffic")
