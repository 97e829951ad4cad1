# /// shardlab-submission
# lab = "08_pipeline"
# loses = {one_f_one_b_schedule = 4.0}
# says = {one_f_one_b_schedule = "runs some actions twice"}
# ///

# %% nbgrader={"grade_id": "one_f_one_b_schedule", "solution": true}
def one_f_one_b_schedule(devices, micro_batches):
    schedule = []
    for s in range(devices):
        warm_up = min(devices - 1 - s, micro_batches)
        actions = [("F", s, k) for k in range(warm_up)]
        for k in range(micro_batches - warm_up):
            actions += [("F", s, k), ("B", s, k)]
        actions += [("B", s, k) for k in range(micro_batches - warm_up, micro_batches)]
        schedule.append(actions)
    return schedule
