# /// shardlab-submission
# lab = "10_save_resume"
# loses = {atomic_commit = 1.6667}
# says = {atomic_commit = "takes for a checkpoint: it must not match step_????????, whatever"}
# ///

# %% nbgrader={"grade_id": "atomic_commit", "solution": true}
def atomic_commit(root, step, write):
    """root a Path, step an int, write(folder)  ->  root/step_00000012, complete or absent"""
    folder = root / f"step_{step}.tmp"
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    dist.barrier()
    write(folder)
    dist.barrier()
    if dist.get_rank() == 0:
        folder.rename(root / name_of(step))
    dist.barrier()
