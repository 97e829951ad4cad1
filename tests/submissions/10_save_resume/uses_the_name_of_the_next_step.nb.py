# /// shardlab-submission
# lab = "10_save_resume"
# loses = {atomic_commit = 5.0}
# says = {atomic_commit = "the name of another step"}
# ///

# %% nbgrader={"grade_id": "atomic_commit", "solution": true}
def atomic_commit(root, step, write):
    folder = root / "unfinished"
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    dist.barrier()
    write(folder)
    dist.barrier()
    if dist.get_rank() == 0:
        folder.rename(root / name_of(step + 1))
    dist.barrier()
