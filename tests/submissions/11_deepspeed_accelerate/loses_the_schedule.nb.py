# /// shardlab-submission
# lab = "11_deepspeed_accelerate"
# loses = {save_everything = 4.0}
# says = {save_everything = "starts the schedule over"}
# ///

# %% nbgrader={"grade_id": "save_everything", "solution": true}
def save_everything(accelerator, job, folder, until):
    accelerator.register_for_checkpointing(job.average, job.progress)
    if folder.exists():
        accelerator.load_state(folder)
    while job.progress.steps < until:
        epoch, used = divmod(job.progress.steps, len(job.loader))
        job.loader.set_epoch(epoch)
        for batch in skip_first_batches(job.loader, used):
            job.step(batch)
            if job.progress.steps == until:
                break
    accelerator.save_state(folder)
