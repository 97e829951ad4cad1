# /// shardlab-submission
# lab = "01_one_device"
# loses = {sgd_with_master_weights = 4.0}
# says = {sgd_with_master_weights = "is over its budget: keeps ≤ 8 bytes for each weight in state"}
# ///

# %% nbgrader={"grade_id": "sgd_with_master_weights", "solution": true}
def sgd_with_master_weights(parameters, state, lr, momentum=0.0):
    if not state:
        state["masters"] = [p.detach().double() for p in parameters]
        state["velocities"] = [torch.zeros_like(master) for master in state["masters"]]
    with torch.no_grad():
        for p, master, velocity in zip(parameters, state["masters"], state["velocities"], strict=True):
            velocity.mul_(momentum).add_(p.grad.double())
            master -= lr * velocity
            p.copy_(master)
