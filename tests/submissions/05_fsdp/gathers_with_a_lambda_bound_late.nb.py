# /// shardlab-submission
# lab = "05_fsdp"
# loses = {gather_and_free = 4.5}
# says = {gather_and_free = "computes with a unit that has no memory"}
# ///

# %% nbgrader={"grade_id": "gather_and_free", "solution": true}
def gather_and_free(modules):
    """modules, equal on all ranks  ->  their slices on this rank, which the optimizer updates"""
    units = [Unit(module) for module in modules]

    def fetch(k):
        if 0 <= k < len(units) and not units[k].has_memory:
            units[k].start_gather()

    def before(k, following, *_):
        fetch(k)
        units[k].wait()
        fetch(following)

    def after_forward(k, module, inputs, output):
        units[k].free()
        output.register_hook(partial(before, k, k - 1))

    def after_backward(k):
        flat = units[k].take_gradients()
        units[k].free()
        units[k].own.grad = reduce_scatter(flat) / dist.get_world_size()

    for k, unit in enumerate(units):
        unit.module.register_forward_pre_hook(lambda *_: before(k, k + 1))
        unit.module.register_forward_hook(partial(after_forward, k))
        unit.when_gradients_are_complete(partial(after_backward, k))
    return [unit.own for unit in units]
