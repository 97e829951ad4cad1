# /// shardlab-submission
# lab = "07_tensor_parallel"
# loses = {tp_mlp = 3.0}
# says = {tp_mlp = "holds the whole weights"}
# ///

# %% nbgrader={"grade_id": "tp_mlp", "solution": true}
def tp_mlp(mlp):
    return mlp
