# /// shardlab-submission
# lab = "05_fsdp"
# loses = {wrap = 4.0}
# says = {wrap = "leaves parameters in no unit"}
# ///

# %% nbgrader={"grade_id": "wrap", "solution": true}
def wrap(model, unit_bytes):
    for block in model:
        if isinstance(block, nn.Sequential):
            fully_shard(block)
    return torch.optim.SGD(model.parameters(), lr=0.1)
