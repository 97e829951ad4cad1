# /// shardlab-submission
# lab = "04_zero"
# loses = {zero2_backward = 5.0}
# says = {zero2_backward = "in another order than its parameters"}
# ///

# %% nbgrader={"grade_id": "zero2_backward", "solution": true}
import functools


def zero2_backward(loss, buckets):
    n = dist.get_world_size()
    left = [len(bucket) for bucket in buckets]
    slices = [None] * len(buckets)

    ready = [[] for _ in buckets]

    def hook(i, parameter):
        ready[i].append(parameter.grad)
        parameter.grad = None
        left[i] -= 1
        if left[i] == 0:
            flat = flatten(ready[i], n)
            ready[i].clear()
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
