# /// shardlab-submission
# lab = "05_fsdp"
# loses = {wrap = 4.0}
# says = {wrap = "has more units than are needed"}
# ///

# %% nbgrader={"grade_id": "wrap", "solution": true}
def wrap(model, unit_bytes):
    for module in model.modules():
        if isinstance(module, nn.Linear):
            fully_shard(module)
    fully_shard(model)
    return torch.optim.SGD(model.parameters(), lr=0.1)
