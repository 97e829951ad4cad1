# /// shardlab-submission
# lab = "05_fsdp"
# loses = {stalled = 3.0}
# says = {stalled = "gathers parameters in float32"}
# ///

# %% nbgrader={"grade_id": "stalled", "solution": true}
def stalled(load, lr):
    """load(dtype=…) gives the pretrained model  ->  the model in units, its optimizer"""
    model = load(dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=lr)
