# /// shardlab-submission
# lab = "08_pipeline"
# loses = {bubble_fraction = 1.0}
# says = {bubble_fraction = "gives the wrong number"}
# ///

# %% nbgrader={"grade_id": "bubble_fraction", "solution": true}
def bubble_fraction(devices, micro_batches, chunks=1):
    return (devices - 1) / (micro_batches + devices - 1) / chunks
