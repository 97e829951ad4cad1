# /// shardlab-submission
# lab = "11_save_resume"
# loses = {atomic_commit = 5.0}
# says = {atomic_commit = "gives the final name to a folder that is not complete"}
# ///

# %% nbgrader={"grade_id": "atomic_commit", "solution": true}
def atomic_commit(root, step, write):
    """root a Path, step an int, write(folder)  ->  root/step_00000012, complete or absent"""
    folder = root / name_of(step)
    if dist.get_rank() == 0:
        folder.mkdir(exist_ok=True)
    dist.barrier()
    write(folder)
    dist.barrier()
