# /// shardlab-submission
# lab = "08_pipeline"
# loses = {gpipe_schedule = 3.0}
# says = {gpipe_schedule = "in a different order on one device"}
# ///

# %% nbgrader={"grade_id": "gpipe_schedule", "solution": true}
def gpipe_schedule(devices, micro_batches):
    every = range(micro_batches)
    schedule = [
        [("F", s, k) for k in every] + [("B", s, k) for k in every] for s in range(devices)
    ]
    schedule[-1] = schedule[-1][:micro_batches] + schedule[-1][:micro_batches - 1:-1]
    return schedule
