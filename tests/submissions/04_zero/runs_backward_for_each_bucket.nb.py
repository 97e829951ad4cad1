# /// shardlab-submission
# lab = "04_zero"
# loses = {zero2_backward = 4.375}
# says = {zero2_backward = "gives the wrong number in 'backward passes'"}
# ///

# %% nbgrader={"grade_id": "zero2_backward", "solution": true}
def zero2_backward(loss, buckets):
    world_size, slices = dist.get_world_size(), []
    for i, bucket in enumerate(buckets):
        gradients = torch.autograd.grad(loss, bucket, retain_graph=i + 1 < len(buckets))
        slices.append(reduce_scatter(flatten(gradients, world_size)) / world_size)
    return slices
