# /// shardlab-submission
# lab = "04_zero"
# loses = {zero2_backward = 2.5}
# says = {zero2_backward = "is over its budget: exchanges one bucket at a time"}
# ///

# %% nbgrader={"grade_id": "zero2_backward", "solution": true}
import functools


def zero2_backward(loss, buckets):
    n = dist.get_world_size()
    left = [len(bucket) for bucket in buckets]
    slices = [None] * len(buckets)
    flats = {}

    def hook(i, parameter):
        left[i] -= 1
        if left[i] == 0:
            flat = flats[i] = flatten([p.grad for p in buckets[i]], n)
            for p in buckets[i]:
                p.grad = None
            slices[i] = reduce_scatter(flat) / n

    handles = [
        p.register_post_accumulate_grad_hook(functools.partial(hook, i))
        for i, bucket in enumerate(buckets)
        for p in bucket
    ]
    loss.backward()
    for handle in handles:
        handle.remove()
    return slices
