# /// shardlab-submission
# lab = "10_save_resume"
# loses = {atomic_commit = 5.0}
# says = {atomic_commit = "leaves files of a killed run in root"}
# ///

# %% nbgrader={"grade_id": "atomic_commit", "solution": true}
def atomic_commit(root, step, write):
    """root a Path, step an int, write(folder)  ->  root/step_00000012, complete or absent"""
    folder, marker = root / "unfinished", root / f"writing_{step}"
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        marker.touch()
    dist.barrier()
    write(folder)
    dist.barrier()
    if dist.get_rank() == 0:
        folder.rename(root / name_of(step))
        marker.unlink()
    dist.barrier()
