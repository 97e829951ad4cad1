# /// shardlab-submission
# lab = "11_save_resume"
# loses = {save_sharded = 3.0}
# says = {save_sharded = "leaves a file from an earlier save unchanged"}
# ///

# %% nbgrader={"grade_id": "save_sharded", "solution": true}
def save_sharded(folder, slices, shapes):
    """folder a Path, slices {name: [length]}, shapes {name: [int, …]}  ->  files in folder"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    path, index = folder / shard_name(rank, world_size), folder / "index.json"
    torch.save({name: each.clone() for name, each in slices.items()}, path)
    if rank == 0 and not index.exists():
        index.write_text(json.dumps({"world_size": world_size, "shapes": shapes}))
