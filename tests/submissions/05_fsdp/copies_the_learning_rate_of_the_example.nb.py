# /// shardlab-submission
# lab = "05_fsdp"
# loses = {stalled = 2.0}
# says = {stalled = "changes the learning rate"}
# ///

# %% nbgrader={"grade_id": "stalled", "solution": true}
def stalled(load, lr):
    """load(dtype=…) gives the pretrained model  ->  the model in units, its optimizer"""
    model = load(dtype=torch.float32)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-4)
