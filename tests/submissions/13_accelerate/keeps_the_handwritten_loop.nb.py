# /// shardlab-submission
# lab = "13_accelerate"
# loses = {port_a_loop = 4.0}
# says = {port_a_loop = "never creates an Accelerator"}
# ///

# %% nbgrader={"grade_id": "port_a_loop", "solution": true}
def port_a_loop(model, dataset, batch_size, accumulation, lr, max_norm, save):
    return train_with_ddp(model, dataset, batch_size, accumulation, lr, max_norm, save)
