# /// shardlab-submission
# lab = "09_pipeline"
# loses = {zero_bubble_schedule = 5.0}
# says = {zero_bubble_schedule = "has an action twice"}
# ///

# %% nbgrader={"grade_id": "zero_bubble_schedule", "solution": true}
def zero_bubble_schedule(devices, micro_batches):
    schedule = []
    for s in range(devices):
        warm_up = min(devices - 1 - s, micro_batches)
        actions = [("F", s, k) for k in range(warm_up)]
        for k in range(micro_batches):
            if warm_up + k < micro_batches:
                actions.append(("F", s, warm_up + k))
            actions.append(("I", s, k))
            if k >= s:
                actions.append(("B", s, k - s))
        actions += [("W", s, k) for k in range(max(micro_batches - s, 0), micro_batches)]
        schedule.append(actions)
    return schedule
