# /// shardlab-submission
# lab = "06_fsdp_in_practice"
# loses = {stalled = 3.0}
# says = {stalled = "changes the learning rate"}
# ///

# %% nbgrader={"grade_id": "stalled", "solution": true}
def stalled(load, lr):
    """load(dtype=…) gives the pretrained model  ->  the model in units, its optimizer"""
    model = load(dtype=torch.bfloat16)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=10 * lr)  # now it moves
