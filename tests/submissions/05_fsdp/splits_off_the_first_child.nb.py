# /// shardlab-submission
# lab = "05_fsdp"
# loses = {wrap = 3.0}
# says = {wrap = "the one with the most bytes left for that unit"}
# ///

# %% nbgrader={"grade_id": "wrap", "solution": true}
def wrap(model, unit_bytes):
    def rest(module):
        own = sum(p.numel() * p.element_size() for p in module.parameters(recurse=False))
        left = {child: rest(child) for child in module.children()}
        while own + sum(left.values()) > unit_bytes:
            first = next(iter(left))
            fully_shard(first)
            del left[first]
        return own + sum(left.values())

    rest(model)
    fully_shard(model)
    return torch.optim.SGD(model.parameters(), lr=0.1)
