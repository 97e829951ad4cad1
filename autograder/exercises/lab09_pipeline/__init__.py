"""Lab 09: pipeline schedules as data, and a function that executes them."""

EXERCISES = (
    "naive_step",
    "gpipe_schedule",
    "bubble_fraction",
    "one_f_one_b_schedule",
    "run_schedule",
    "interleaved_schedule",
    "zero_bubble_schedule",
)
# shardlab.simulate.pipeline's simulator stays open: answers may simulate their schedules.
CLOSED = (
    "shardlab.pipeline",
    "shardlab.simulate.pipeline.generators",
    "shardlab.simulate.pipeline.zero_bubble",
    "shardlab.widgets",
    "torch.distributed.pipelining",
)
