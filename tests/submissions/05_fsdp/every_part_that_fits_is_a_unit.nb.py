# /// shardlab-submission
# lab = "05_fsdp"
# loses = {wrap = 3.5}
# says = {wrap = "has more units than are needed"}
# ///

# %% nbgrader={"grade_id": "wrap", "solution": true}
def wrap(model, unit_bytes):
    def split(module):
        if sum(p.numel() * p.element_size() for p in module.parameters()) > unit_bytes:
            for child in module.children():
                split(child)
        fully_shard(module)

    split(model)
    return torch.optim.SGD(model.parameters(), lr=0.1)
