# /// shardlab-submission
# lab = "10_save_resume"
# loses = {save_sharded = 3.0}
# says = {save_sharded = "removes other ranks' files"}
# ///

# %% nbgrader={"grade_id": "save_sharded", "solution": true}
def save_sharded(folder, slices, shapes):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for old in folder.iterdir():
        old.unlink(missing_ok=True)
    own = {name: each.clone() for name, each in slices.items()}
    torch.save(own, folder / shard_name(rank, world_size))
    if rank == 0:
        index = {"world_size": world_size, "shapes": shapes}
        (folder / "index.json").write_text(json.dumps(index))
