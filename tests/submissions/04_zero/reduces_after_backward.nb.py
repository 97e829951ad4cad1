# /// shardlab-submission
# lab = "04_zero"
# loses = {zero2_backward = 2.5}
# says = {zero2_backward = "holds more gradients at a time"}
# ///

# %% nbgrader={"grade_id": "zero2_backward", "solution": true}
def zero2_backward(loss, buckets):
    loss.backward()
    slices = []
    for bucket in buckets:
        flat = flatten([parameter.grad for parameter in bucket], dist.get_world_size())
        for parameter in bucket:
            parameter.grad = None
        slices.append(reduce_scatter(flat) / dist.get_world_size())
    return slices
