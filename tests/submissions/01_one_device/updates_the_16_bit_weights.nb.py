# /// shardlab-submission
# lab = "01_one_device"
# loses = {sgd_with_master_weights = 4.0}
# says = {sgd_with_master_weights = "rounds its weights to 16 bits in every step"}
# ///

# %% nbgrader={"grade_id": "sgd_with_master_weights", "solution": true}
def sgd_with_master_weights(parameters, state, lr, momentum=0.0):
    if not state:
        state["velocities"] = [torch.zeros_like(p) for p in parameters]
    with torch.no_grad():
        for p, velocity in zip(parameters, state["velocities"], strict=True):
            velocity.mul_(momentum).add_(p.grad)
            p -= lr * velocity
