# /// shardlab-submission
# lab = "11_deepspeed_accelerate"
# loses = {schedule = 1.7143}
# says = {schedule = "too fast by a factor of num_processes"}
# ///

# %% nbgrader={"grade_id": "schedule", "solution": true}
def schedule(accelerator, optimizer, warmup_steps, total_steps):
    """steps of the optimizer  ->  a scheduler for the loop above"""
    scheduler = linear_schedule(optimizer, warmup_steps, total_steps)
    return accelerator.prepare(scheduler)
