# /// shardlab-submission
# lab = "08_pipeline"
# loses = {gpipe_schedule = 3.0}
# says = {gpipe_schedule = "runs actions in a different order on one device"}
# ///

# %% nbgrader={"grade_id": "gpipe_schedule", "solution": true}
def gpipe_schedule(devices, micro_batches):
    return [
        [("F", s, k) for k in (range(micro_batches) if s % 2 == 0 else reversed(range(micro_batches)))] + [("B", s, k) for k in range(micro_batches)]
        for s in range(devices)
    ]
