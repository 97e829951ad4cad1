# /// shardlab-submission
# lab = "01_one_device"
# loses = {step_bytes = 2.778}
# says = {step_bytes = "counts fp32 log-probabilities"}
# ///

# %% nbgrader={"grade_id": "step_bytes", "solution": true}
def step_bytes(
    vocabulary, width, layers, batch_size, activation, tied, precision, optimizer
):
    """  ->  {"parameters": bytes, "gradients": bytes, "optimizer": bytes, "activations": bytes}"""
    element_bytes, master_bytes = {"fp32": (4, 0), "bf16": (2, 4)}[precision]
    states = {"sgd": 0, "momentum": 1, "adam": 2}[optimizer]
    matrices = 1 if tied else 2
    parameters = matrices * vocabulary * width + layers * (width * width + width)
    kept_per_layer = {"relu": 1, "gelu": 2}[activation] * width
    kept_per_token = width + layers * kept_per_layer + vocabulary
    return {
        "parameters": parameters * element_bytes,
        "gradients": parameters * element_bytes,
        "optimizer": parameters * (master_bytes + 4 * states),
        "activations": batch_size * ((kept_per_token - vocabulary) * element_bytes + vocabulary * 4),
    }
