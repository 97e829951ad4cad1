# /// shardlab-submission
# lab = "08_pipeline"
# loses = {gpipe_schedule = 3.0}
# says = {gpipe_schedule = "should return a list for each device"}
# ///

# %% nbgrader={"grade_id": "gpipe_schedule", "solution": true}
def gpipe_schedule(devices, micro_batches):
    every = range(micro_batches)
    [[("F", s, k) for k in every] + [("B", s, k) for k in every] for s in range(devices)]
