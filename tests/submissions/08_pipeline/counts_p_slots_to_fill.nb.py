# /// shardlab-submission
# lab = "08_pipeline"
# loses = {bubble_fraction = 2.0}
# says = {bubble_fraction = "counts p slots to fill"}
# ///

# %% nbgrader={"grade_id": "bubble_fraction", "solution": true}
def bubble_fraction(devices, micro_batches, chunks=1):
    return devices / (chunks * micro_batches + devices)
