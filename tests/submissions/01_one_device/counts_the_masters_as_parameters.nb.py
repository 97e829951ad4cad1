# /// shardlab-submission
# lab = "01_one_device"
# loses = {step_bytes = 2.778}
# says = {step_bytes = "counts the fp32 masters in 'parameters'"}
# ///

# %% nbgrader={"grade_id": "step_bytes", "solution": true}
def step_bytes(
    vocabulary, width, layers, batch_size, activation, tied, precision, optimizer
):
    element_bytes = {"fp32": 4, "bf16": 2}[precision]
    states = {"sgd": 0, "momentum": 1, "adam": 2}[optimizer]
    matrices = 1 if tied else 2
    parameters = matrices * vocabulary * width + layers * (width * width + width)
    kept = width + layers * {"relu": 1, "gelu": 2}[activation] * width + vocabulary
    return {
        "parameters": parameters * {"fp32": 4, "bf16": 6}[precision],
        "gradients": parameters * element_bytes,
        "optimizer": parameters * 4 * states,
        "activations": batch_size * kept * element_bytes,
    }
