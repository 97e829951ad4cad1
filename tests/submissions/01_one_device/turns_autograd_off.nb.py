# /// shardlab-submission
# lab = "01_one_device"
# loses = {sgd_with_master_weights = 4.0}
# says = {sgd_with_master_weights = "leaves autograd off"}
# ///

# %% nbgrader={"grade_id": "sgd_with_master_weights", "solution": true}
def sgd_with_master_weights(parameters, state, lr, momentum=0.0):
    if not state:
        state["masters"] = [p.detach().float() for p in parameters]
        state["velocities"] = [torch.zeros_like(master) for master in state["masters"]]
    torch.set_grad_enabled(False)
    for p, master, velocity in zip(
        parameters, state["masters"], state["velocities"], strict=True
    ):
        velocity.mul_(momentum).add_(p.grad.float())
        master -= lr * velocity
        p.copy_(master)
