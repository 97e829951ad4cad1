# /// shardlab-submission
# lab = "11_save_resume"
# loses = {load_sharded = 1.333}
# says = {load_sharded = "opens a file that has no part of its slices"}
# ///

# %% nbgrader={"grade_id": "load_sharded", "solution": true}
def load_sharded(folder):
    """folder a Path  ->  {name: [length]}, this rank's slices for the current world size"""
    index = json.loads((folder / "index.json").read_text())
    rank, world_size, slices = dist.get_rank(), dist.get_world_size(), {}
    names = [shard_name(shard, index["world_size"]) for shard in range(index["world_size"])]
    saved = [torch.load(folder / name, weights_only=True) for name in names]
    for name, shape in index["shapes"].items():
        whole = torch.cat([shard[name] for shard in saved])[: math.prod(shape)]
        slices[name] = F.pad(whole, (0, -len(whole) % world_size)).chunk(world_size)[rank].clone()
    return slices
