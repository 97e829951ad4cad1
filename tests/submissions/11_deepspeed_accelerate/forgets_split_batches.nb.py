# /// shardlab-submission
# lab = "11_deepspeed_accelerate"
# loses = {schedule = 0.8571}
# says = {schedule = "even with split_batches"}
# ///

# %% nbgrader={"grade_id": "schedule", "solution": true}
def schedule(accelerator, optimizer, warmup_steps, total_steps):
    """steps of the optimizer  ->  a scheduler for the loop above"""
    each = accelerator.num_processes
    scheduler = linear_schedule(optimizer, warmup_steps * each, total_steps * each)
    return accelerator.prepare(scheduler)
