# /// shardlab-submission
# lab = "07_tensor_parallel"
# loses = {mesh_coords = 2.0}
# says = {mesh_coords = "TypeError"}
# ///

# %% nbgrader={"grade_id": "mesh_coords", "solution": true}
def mesh_coords(rank, dp_size, tp_size):
    """(5, 2, 4)  ->  dp_rank 1, tp_rank 1, dp_group [1, 5], tp_group [4, 5, 6, 7]"""
    dp_rank, tp_rank = divmod(rank, tp_size)
    mesh = torch.arange(dp_size * tp_size).view(dp_size, tp_size)
    return {
        "dp_rank": dp_rank,
        "tp_rank": tp_rank,
        "dp_group": list(mesh[:, tp_rank]),
        "tp_group": list(mesh[dp_rank]),
    }
