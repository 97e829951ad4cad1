# /// shardlab-submission
# lab = "09_pipeline"
# loses = {one_f_one_b_schedule = 4.0}
# says = {one_f_one_b_schedule = "has a warm-up of the wrong length"}
# ///

# %% nbgrader={"grade_id": "one_f_one_b_schedule", "solution": true}
def one_f_one_b_schedule(devices, micro_batches):
    every = range(micro_batches)
    return [[("F", s, k) for k in every] + [("B", s, k) for k in every] for s in range(devices)]
