# /// shardlab-submission
# lab = "05_fsdp"
# loses = {stalled = 3.0}
# says = {stalled = "loads the checkpoint in bfloat16 before it converts"}
# ///

# %% nbgrader={"grade_id": "stalled", "solution": true}
def stalled(load, lr):
    model = load(dtype=torch.bfloat16).float()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model, torch.optim.AdamW(model.parameters(), lr=lr)
