# /// shardlab-submission
# lab = "01_one_device"
# loses = {sgd_with_master_weights = 1.333}
# says = {sgd_with_master_weights = "does not build up velocity"}
# ///
# A running mean, as in Adam: right without momentum.

# %% nbgrader={"grade_id": "sgd_with_master_weights", "solution": true}
def sgd_with_master_weights(parameters, state, lr, momentum=0.0):
    if not state:
        state["masters"] = [p.detach().float() for p in parameters]
        state["velocities"] = [torch.zeros_like(master) for master in state["masters"]]
    for p, master, velocity in zip(parameters, state["masters"], state["velocities"], strict=True):
        velocity.mul_(momentum).add_((1 - momentum) * p.grad.float())
        master -= lr * velocity
        p.data.copy_(master)
