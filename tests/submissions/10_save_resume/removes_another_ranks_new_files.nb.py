# /// shardlab-submission
# lab = "10_save_resume"
# loses = {atomic_commit = 3.3333}
# says = {atomic_commit = "removes files that another rank has just written"}
# ///

# %% nbgrader={"grade_id": "atomic_commit", "solution": true}
def atomic_commit(root, step, write):
    """root a Path, step an int, write(folder)  ->  root/step_00000012, complete or absent"""
    folder = root / "unfinished"
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    write(folder)
    dist.barrier()
    if dist.get_rank() == 0:
        folder.rename(root / name_of(step))
    dist.barrier()
