# /// shardlab-submission
# lab = "11_deepspeed_accelerate"
# loses = {save_everything = 4.0}
# says = {save_everything = "it is the total over all starts"}
# ///

# %% nbgrader={"grade_id": "save_everything", "solution": true}
def save_everything(accelerator, job, folder, until):
    """a new job, on every rank  ->  `until` steps are done, folder has a checkpoint"""
    ### BEGIN SOLUTION
    accelerator.register_for_checkpointing(job.scheduler, job.average, job.progress)
    if folder.exists():
        accelerator.load_state(folder)
    until += job.progress.steps
    while job.progress.steps < until:
        epoch, used = divmod(job.progress.steps, len(job.loader))
        job.loader.set_epoch(epoch)
        for batch in skip_first_batches(job.loader, used):
            job.step(batch)
            if job.progress.steps == until:
                break
    accelerator.save_state(folder)
    ### END SOLUTION
