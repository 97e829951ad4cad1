# /// shardlab-submission
# lab = "07_tensor_parallel"
# loses = {mesh_coords = 1.5}
# says = {mesh_coords = "separates the ranks of a tensor-parallel group"}
# ///

# %% nbgrader={"grade_id": "mesh_coords", "solution": true}
def mesh_coords(rank, dp_size, tp_size):
    tp_rank, dp_rank = divmod(rank, dp_size)
    return {
        "dp_rank": dp_rank,
        "tp_rank": tp_rank,
        "dp_group": list(range(tp_rank * dp_size, (tp_rank + 1) * dp_size)),
        "tp_group": list(range(dp_rank, dp_size * tp_size, dp_size)),
    }
