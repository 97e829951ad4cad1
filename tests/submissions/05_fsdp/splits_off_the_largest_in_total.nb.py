# /// shardlab-submission
# lab = "05_fsdp"
# loses = {wrap = 1.0}
# says = {wrap = "the one with the most bytes left for that unit"}
# ///

# %% nbgrader={"grade_id": "wrap", "solution": true}
def wrap(model, unit_bytes):
    """model, equal on all ranks  ->  its optimizer; the model is sharded in few enough units"""
    def total(module):
        return sum(p.numel() * p.element_size() for p in module.parameters())

    def rest(module):
        own = sum(p.numel() * p.element_size() for p in module.parameters(recurse=False))
        sizes = {child: total(child) for child in module.children()}
        left = {child: rest(child) for child in module.children()}
        while own + sum(left.values()) > unit_bytes:
            heaviest = max(left, key=sizes.get)
            fully_shard(heaviest)
            del left[heaviest]
        return own + sum(left.values())

    rest(model)
    fully_shard(model)
    return torch.optim.SGD(model.parameters(), lr=0.1)
