# /// shardlab-submission
# lab = "11_save_resume"
# loses = {load_sharded = 0.667}
# says = {load_sharded = "opens a file that has no part of its slices"}
# ///

# %% nbgrader={"grade_id": "load_sharded", "solution": true}
def load_sharded(folder):
    """folder a Path  ->  {name: [length]}, this rank's slices for the current world size"""
    index = json.loads((folder / "index.json").read_text())
    rank, world_size, slices = dist.get_rank(), dist.get_world_size(), {}
    first, last = 10**9, 0
    for name, shape in index["shapes"].items():
        elements = math.prod(shape)
        old, new = -(-elements // index["world_size"]), -(-elements // world_size)
        start, stop = rank * new, min((rank + 1) * new, elements)
        first, last = min(first, start // old), max(last, (stop - 1) // old)
    opened = {s: torch.load(folder / shard_name(s, index["world_size"])) for s in range(first, last + 1)}
    for name, shape in index["shapes"].items():
        elements = math.prod(shape)
        old, new = -(-elements // index["world_size"]), -(-elements // world_size)
        start, stop = rank * new, min((rank + 1) * new, elements)
        whole = torch.cat([opened[s][name] for s in opened])[start - first * old : stop - first * old]
        slices[name] = F.pad(whole, (0, new - len(whole)))
    return slices
