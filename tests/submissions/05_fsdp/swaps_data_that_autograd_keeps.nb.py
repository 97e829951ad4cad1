# /// shardlab-submission
# lab = "05_fsdp"
# loses = {gather_and_free = 3.0}
# says = {gather_and_free = "is over its budget: two units live in forward"}
# ///

# %% nbgrader={"grade_id": "gather_and_free", "solution": true}
def gather_and_free(modules):
    n, slices, gathers = dist.get_world_size(), [], {}

    def free(k):
        for parameter in modules[k].parameters():
            parameter.data = torch.empty(0)

    def fetch(k):
        if 0 <= k < len(modules) and k not in gathers:
            flat = slices[k].new_empty(n * len(slices[k]))
            start = 0
            for parameter, shape in zip(modules[k].parameters(), shapes[k]):
                parameter.data = flat[start : start + shape.numel()].view(shape)
                start += shape.numel()
            gathers[k] = dist.all_gather_single(flat, slices[k], async_op=True)

    def before(k, following, *_):
        fetch(k)
        if gathers[k] is not None:
            gathers[k].wait()
        gathers[k] = None
        fetch(following)

    def after(k):
        free(k)
        del gathers[k]

    def after_forward(k, module, inputs, output):
        after(k)
        output.register_hook(partial(before, k, k - 1))

    arrived = [0] * len(modules)

    def after_gradient(k, _):
        arrived[k] += 1
        parameters = list(modules[k].parameters())
        if arrived[k] % len(parameters) == 0:
            flat = flatten([parameter.grad for parameter in parameters], n)
            for parameter in parameters:
                parameter.grad = None
            after(k)
            slices[k].grad = reduce_scatter(flat) / n

    shapes = [[parameter.shape for parameter in module.parameters()] for module in modules]
    for k, module in enumerate(modules):
        whole = flatten(list(module.parameters()), n)
        slices.append(whole.chunk(n)[dist.get_rank()].clone())
        free(k)
        module.register_forward_pre_hook(partial(before, k, k + 1))
        module.register_forward_hook(partial(after_forward, k))
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(partial(after_gradient, k))
    return slices
