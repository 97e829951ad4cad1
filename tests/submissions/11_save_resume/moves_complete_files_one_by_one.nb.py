# /// shardlab-submission
# lab = "11_save_resume"
# loses = {atomic_commit = 5.0}
# says = {atomic_commit = "gives the final name to a folder that is not complete"}
# ///

# %% nbgrader={"grade_id": "atomic_commit", "solution": true}
def atomic_commit(root, step, write):
    """root a Path, step an int, write(folder)  ->  root/step_00000012, complete or absent"""
    own, final = root / f"unfinished_{dist.get_rank()}", root / name_of(step)
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    write(own)
    dist.barrier()
    final.mkdir(exist_ok=True)
    for path in own.iterdir():
        path.rename(final / path.name)
    own.rmdir()
    dist.barrier()
