# /// shardlab-submission
# lab = "07_tensor_parallel"
# loses = {tp_bytes_per_layer = 1.6}
# says = {tp_bytes_per_layer = "rounds 2(N - 1)/N to a whole number"}
# ///

# %% nbgrader={"grade_id": "tp_bytes_per_layer", "solution": true}
def tp_bytes_per_layer(batch, tokens, width, tp_size, element_bytes=2):
    """(1, 2048, 12288, 8)  ->  352,321,536 bytes that one rank sends, forward and backward"""
    tensor_bytes = batch * tokens * width * element_bytes
    return 4 * (2 * (tp_size - 1) // tp_size) * tensor_bytes
