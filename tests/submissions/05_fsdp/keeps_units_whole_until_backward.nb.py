# /// shardlab-submission
# lab = "05_fsdp"
# loses = {wrap = 3.5}
# says = {wrap = "gathers each unit once a step"}
# ///

# %% nbgrader={"grade_id": "wrap", "solution": true}
def wrap(model, unit_bytes):
    def rest(module):
        own = sum(p.numel() * p.element_size() for p in module.parameters(recurse=False))
        left = {child: rest(child) for child in module.children()}
        while own + sum(left.values()) > unit_bytes:
            heaviest = max(left, key=left.get)
            fully_shard(heaviest, reshard_after_forward=False)
            del left[heaviest]
        return own + sum(left.values())

    rest(model)
    fully_shard(model)
    return torch.optim.SGD(model.parameters(), lr=0.1)
