# /// shardlab-submission
# lab = "10_save_resume"
# loses = {load_sharded = 1.3333}
# says = {load_sharded = "opens every file"}
# ///

# %% nbgrader={"grade_id": "load_sharded", "solution": true}
def load_sharded(folder):
    """folder a Path  ->  {name: [length]}, this rank's slices for the current world size"""
    index = json.loads((folder / "index.json").read_text())
    rank, world_size, opened, slices = dist.get_rank(), dist.get_world_size(), {}, {}
    for name, shape in index["shapes"].items():
        elements = math.prod(shape)
        old, new = -(-elements // index["world_size"]), -(-elements // world_size)
        start, stop = rank * new, min((rank + 1) * new, elements)
        pieces = []
        for shard in range(index["world_size"]):
            if not (folder / shard_name(shard, index["world_size"])).exists():
                continue
            if shard not in opened:
                path = folder / shard_name(shard, index["world_size"])
                opened[shard] = torch.load(path, weights_only=True, mmap=True)
            piece = opened[shard][name]
            pieces.append(piece[max(start - shard * old, 0) : max(stop - shard * old, 0)])
        own = torch.cat(pieces)
        slices[name] = functional.pad(own, (0, new - len(own)))
    return slices
