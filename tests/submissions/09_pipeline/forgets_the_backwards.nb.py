# /// shardlab-submission
# lab = "09_pipeline"
# loses = {gpipe_schedule = 3.0}
# says = {gpipe_schedule = "leaves out actions"}
# ///

# %% nbgrader={"grade_id": "gpipe_schedule", "solution": true}
def gpipe_schedule(devices, micro_batches):
    return [[("F", s, k) for k in range(micro_batches)] for s in range(devices)]
