# /// shardlab-submission
# lab = "10_save_resume"
# loses = {atomic_commit = 5.0}
# says = {atomic_commit = "a link"}
# ///

# %% nbgrader={"grade_id": "atomic_commit", "solution": true}
def atomic_commit(root, step, write):
    folder = root / f"files_of_{step}"
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    dist.barrier()
    write(folder)
    dist.barrier()
    if dist.get_rank() == 0:
        (root / name_of(step)).symlink_to(folder)
    dist.barrier()
