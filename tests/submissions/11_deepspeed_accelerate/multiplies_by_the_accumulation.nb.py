# /// shardlab-submission
# lab = "11_deepspeed_accelerate"
# loses = {schedule = 1.7143}
# says = {schedule = "multiplies by the accumulation"}
# ///

# %% nbgrader={"grade_id": "schedule", "solution": true}
def schedule(accelerator, optimizer, warmup_steps, total_steps):
    """steps of the optimizer  ->  a scheduler for the loop above"""
    each = 1 if accelerator.split_batches else accelerator.num_processes
    each *= accelerator.gradient_accumulation_steps
    scheduler = linear_schedule(optimizer, warmup_steps * each, total_steps * each)
    return accelerator.prepare(scheduler)
