# /// shardlab-submission
# lab = "05_fsdp"
# loses = {wrap = 3.5}
# says = {wrap = "has a unit that is too large"}
# ///

# %% nbgrader={"grade_id": "wrap", "solution": true}
def wrap(model, unit_bytes):
    fully_shard(model)
    return torch.optim.SGD(model.parameters(), lr=0.1)
