# /// shardlab-submission
# lab = "08_pipeline"
# loses = {one_f_one_b_schedule = 1.0}
# says = {one_f_one_b_schedule = "goes past the last micro-batch"}
# ///

# %% nbgrader={"grade_id": "one_f_one_b_schedule", "solution": true}
def one_f_one_b_schedule(devices, micro_batches):
    schedule = []
    for s in range(devices):
        warm_up = devices - 1 - s
        actions = [("F", s, k) for k in range(warm_up)]
        for k in range(micro_batches):
            if warm_up + k < micro_batches:
                actions.append(("F", s, warm_up + k))
            actions.append(("B", s, k))
        schedule.append(actions)
    return schedule
