# /// shardlab-submission
# lab = "11_save_resume"
# typed = true
# above = "def shard_name"
# loses = {save_sharded = 3.0}
# says = {save_sharded = "does not leave exactly its own files"}
# ///

# %% nbgrader={"grade_id": "save_sharded", "solution": true}
def save_sharded(folder, slices, shapes):
    """folder a Path, slices {name: [length]}, shapes {name: [int, …]}  ->  files in folder"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    own = {name: each.clone() for name, each in slices.items()}
    torch.save(own, folder / shard_name(rank, world_size))
    if rank >= 0:
        index = {"world_size": world_size, "shapes": shapes}
        (folder / "index.json").write_text(json.dumps(index))
