# /// shardlab-submission
# lab = "01_one_device"
# loses = {step_bytes = 3.889}
# says = {step_bytes = "Adam keeps two for each parameter"}
# ///

# %% nbgrader={"grade_id": "step_bytes", "solution": true}
def step_bytes(
    vocabulary, width, layers, batch_size, activation, tied, precision, optimizer
):
    element_bytes, master_bytes = {"fp32": (4, 0), "bf16": (2, 4)}[precision]
    states = {"sgd": 0, "momentum": 1, "adam": 1}[optimizer]
    matrices = 1 if tied else 2
    parameters = matrices * vocabulary * width + layers * (width * width + width)
    kept = width + layers * {"relu": 1, "gelu": 2}[activation] * width + vocabulary
    return {
        "parameters": parameters * element_bytes,
        "gradients": parameters * element_bytes,
        "optimizer": parameters * (master_bytes + 4 * states),
        "activations": batch_size * kept * element_bytes,
    }
