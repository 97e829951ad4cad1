# /// shardlab-submission
# lab = "10_save_resume"
# loses = {save_sharded = 3.0}
# says = {save_sharded = "replaces tensors in the caller's dict"}
# ///

# %% nbgrader={"grade_id": "save_sharded", "solution": true}
def save_sharded(folder, slices, shapes):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for name in slices:
        slices[name] = slices[name].clone()
    torch.save(slices, folder / shard_name(rank, world_size))
    if rank == 0:
        index = {"world_size": world_size, "shapes": shapes}
        (folder / "index.json").write_text(json.dumps(index))
