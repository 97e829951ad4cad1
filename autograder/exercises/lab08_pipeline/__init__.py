"""Lab 08: a pipeline's schedules as data, and what carries them out."""

EXERCISES = (
    "naive_step",
    "gpipe_schedule",
    "bubble_fraction",
    "one_f_one_b_schedule",
    "run_schedule",
    "interleaved_schedule",
    "zero_bubble_schedule",
)
# shardlab.simulate.pipeline's simulator stays open: answers may simulate what they build.
CLOSED = (
    "shardlab.pipeline",
    "shardlab.simulate.pipeline.generators",
    "shardlab.simulate.pipeline.zero_bubble",
    "shardlab.widgets",
    "torch.distributed.pipelining",
)
