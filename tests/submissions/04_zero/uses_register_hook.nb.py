# /// shardlab-submission
# lab = "04_zero"
# loses = {zero2_backward = 5.0}
# says = {zero2_backward = "(not of register_hook)"}
# ///

# %% nbgrader={"grade_id": "zero2_backward", "solution": true}
from functools import partial


def zero2_backward(loss, buckets):
    """loss [], buckets of parameters  ->  [slice of the first bucket's mean gradient, …]"""
    world_size = dist.get_world_size()
    slices, missing = [None] * len(buckets), [len(bucket) for bucket in buckets]

    def hook(i, _):
        missing[i] -= 1
        if missing[i] == 0:
            flat = flatten([parameter.grad for parameter in buckets[i]], world_size)
            for parameter in buckets[i]:
                parameter.grad = None
            slices[i] = reduce_scatter(flat) / world_size

    handles = [
        parameter.register_hook(partial(hook, i))
        for i, bucket in enumerate(buckets)
        for parameter in bucket
    ]
    loss.backward()
    for handle in handles:
        handle.remove()
    return slices
