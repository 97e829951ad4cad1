"""Lab 05: FSDP: who sends what, and a schedule of gathering and freeing."""

EXERCISES = ("hsdp_bytes", "gather_and_free")
CLOSED = ("shardlab.estimate", "shardlab.shards", "shardlab.widgets")
