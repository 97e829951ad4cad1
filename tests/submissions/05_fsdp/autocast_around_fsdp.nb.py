# /// shardlab-submission
# lab = "05_fsdp"
# loses = {stalled = 3.0}
# says = {stalled = "autocast only casts inside layers"}
# ///

# %% nbgrader={"grade_id": "stalled", "solution": true}
def stalled(load, lr):
    """load(dtype=…) gives the pretrained model  ->  the model in units, its optimizer"""
    model = load(dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)
    return model, torch.optim.AdamW(model.parameters(), lr=lr)
