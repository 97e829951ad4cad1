# /// shardlab-submission
# lab = "09_pipeline"
# loses = {zero_bubble_schedule = 5.0}
# says = {zero_bubble_schedule = "idles longer than the case allows"}
# ///

# %% nbgrader={"grade_id": "zero_bubble_schedule", "solution": true}
def zero_bubble_schedule(devices, micro_batches):
    return one_f_one_b_schedule(devices, micro_batches)
