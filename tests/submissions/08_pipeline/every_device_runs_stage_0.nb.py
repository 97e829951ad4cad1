# /// shardlab-submission
# lab = "08_pipeline"
# loses = {gpipe_schedule = 3.0}
# says = {gpipe_schedule = "leaves out actions"}
# ///

# %% nbgrader={"grade_id": "gpipe_schedule", "solution": true}
def gpipe_schedule(devices, micro_batches):
    every = range(micro_batches)
    return [[("F", 0, k) for k in every] + [("B", 0, k) for k in every]] * devices
