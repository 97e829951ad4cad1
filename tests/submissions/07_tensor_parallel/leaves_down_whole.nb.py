# /// shardlab-submission
# lab = "07_tensor_parallel"
# loses = {tp_mlp = 3.0}
# says = {tp_mlp = "and does not split down: up leaves each rank"}
# ///

# %% nbgrader={"grade_id": "tp_mlp", "solution": true}
def tp_mlp(mlp):
    """models.MLP, equal on all ranks  ->  the same, with this rank's share of up and down"""
    mlp.up = ColumnLinear(mlp.up)
    return mlp
