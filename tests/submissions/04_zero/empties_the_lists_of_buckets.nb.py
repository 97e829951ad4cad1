# /// shardlab-submission
# lab = "04_zero"
# loses = {zero2_backward = 5}
# says = {zero2_backward = "changes the lists of buckets"}
# ///

# %% nbgrader={"grade_id": "zero2_backward", "solution": true}
from functools import partial


def zero2_backward(loss, buckets):
    """loss [], buckets of parameters  ->  [slice of the first bucket's mean gradient, …]"""
    n = dist.get_world_size()
    slices = [None] * len(buckets)
    missing = [len(b) for b in buckets]

    def hook(i, parameter):
        missing[i] -= 1
        if missing[i]:
            return
        flat = flatten([p.grad for p in buckets[i]], n)
        for p in buckets[i]:
            p.grad = None
        buckets[i].clear()
        slices[i] = reduce_scatter(flat) / n

    handles = [
        p.register_post_accumulate_grad_hook(partial(hook, i))
        for i, b in enumerate(buckets) for p in b
    ]
    loss.backward()
    for h in handles:
        h.remove()
    return slices
