# /// shardlab-submission
# lab = "11_save_resume"
# loses = {load_sharded = 4.0}
# says = {load_sharded = "the file with its own rank"}
# ///

# %% nbgrader={"grade_id": "load_sharded", "solution": true}
def load_sharded(folder):
    """folder a Path  ->  {name: [length]}, this rank's slices for the current world size"""
    index = json.loads((folder / "index.json").read_text())
    shard = dist.get_rank() % index["world_size"]
    return torch.load(folder / shard_name(shard, index["world_size"]), weights_only=True)
