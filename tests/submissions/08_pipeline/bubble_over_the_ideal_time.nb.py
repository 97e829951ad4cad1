# /// shardlab-submission
# lab = "08_pipeline"
# loses = {bubble_fraction = 2.0}
# says = {bubble_fraction = "divides by the ideal time"}
# ///

# %% nbgrader={"grade_id": "bubble_fraction", "solution": true}
def bubble_fraction(devices, micro_batches, chunks=1):
    return (devices - 1) / (chunks * micro_batches)
