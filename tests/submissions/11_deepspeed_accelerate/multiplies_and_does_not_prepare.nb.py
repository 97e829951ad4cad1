# /// shardlab-submission
# lab = "11_deepspeed_accelerate"
# loses = {schedule = 2.5714}
# says = {schedule = "does not prepare the scheduler"}
# ///

# %% nbgrader={"grade_id": "schedule", "solution": true}
def schedule(accelerator, optimizer, warmup_steps, total_steps):
    """steps of the optimizer  ->  a scheduler for the loop above"""
    each = 1 if accelerator.split_batches else accelerator.num_processes
    scheduler = linear_schedule(optimizer, warmup_steps * each, total_steps * each)
    return scheduler
