# /// shardlab-submission
# lab = "10_save_resume"
# loses = {save_sharded = 3.0}
# says = {save_sharded = "each rank should write its own slices"}
# ///

# %% nbgrader={"grade_id": "save_sharded", "solution": true}
def save_sharded(folder, slices, shapes):
    """folder a Path, slices {name: [length]}, shapes {name: [int, …]}  ->  files in folder"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    gathered = [None] * world_size
    dist.all_gather_object(gathered, {name: each.clone() for name, each in slices.items()})
    if rank == 0:
        for other in range(world_size):
            torch.save(gathered[other], folder / shard_name(other, world_size))
        index = {"world_size": world_size, "shapes": shapes}
        (folder / "index.json").write_text(json.dumps(index))
