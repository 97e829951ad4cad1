# /// shardlab-submission
# lab = "04_zero"
# loses = {zero2_backward = 1.875}
# says = {zero2_backward = "does not pad to a multiple of N"}
# ///

# %% nbgrader={"grade_id": "zero2_backward", "solution": true}
def zero2_backward(loss, buckets):
    """loss [], buckets of parameters  ->  [slice of the first bucket's mean gradient, …]"""
    world_size = dist.get_world_size()
    slices, missing = [None] * len(buckets), [len(bucket) for bucket in buckets]

    def make_hook(i):
        def hook(_):
            missing[i] -= 1
            if missing[i] == 0:
                flat = torch.cat([parameter.grad.flatten() for parameter in buckets[i]])
                for parameter in buckets[i]:
                    parameter.grad = None
                slices[i] = reduce_scatter(flat) / world_size
        return hook

    handles = [
        parameter.register_post_accumulate_grad_hook(make_hook(i))
        for i, bucket in enumerate(buckets)
        for parameter in bucket
    ]
    loss.backward()
    for handle in handles:
        handle.remove()
    return slices
