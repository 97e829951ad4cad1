# /// shardlab-submission
# lab = "11_deepspeed_accelerate"
# loses = {schedule = 1.2857}
# says = {schedule = "but not the warm-up"}
# ///

# %% nbgrader={"grade_id": "schedule", "solution": true}
def schedule(accelerator, optimizer, warmup_steps, total_steps):
    """steps of the optimizer  ->  a scheduler for the loop above"""
    each = 1 if accelerator.split_batches else accelerator.num_processes
    scheduler = linear_schedule(optimizer, warmup_steps, total_steps * each)
    return accelerator.prepare(scheduler)
