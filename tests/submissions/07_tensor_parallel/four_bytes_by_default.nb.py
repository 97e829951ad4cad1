# /// shardlab-submission
# lab = "07_tensor_parallel"
# loses = {tp_bytes_per_layer = 0.8}
# says = {tp_bytes_per_layer = "counts 4 bytes per element unless told otherwise"}
# ///

# %% nbgrader={"grade_id": "tp_bytes_per_layer", "solution": true}
def tp_bytes_per_layer(batch, tokens, width, tp_size, element_bytes=4):
    """(1, 2048, 12288, 8)  ->  352,321,536 bytes that one rank sends, forward and backward"""
    tensor_bytes = batch * tokens * width * element_bytes
    return 4 * 2 * (tp_size - 1) / tp_size * tensor_bytes
