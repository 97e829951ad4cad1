# /// shardlab-submission
# lab = "08_pipeline"
# loses = {zero_bubble_schedule = 1.0}
# says = {zero_bubble_schedule = "runs each W right after"}
# ///

# %% nbgrader={"grade_id": "zero_bubble_schedule", "solution": true}
def zero_bubble_schedule(devices, micro_batches):
    schedule = []
    for s in range(devices):
        warm_up = devices - 1 - s  # no more than there are micro-batches
        order = [("F", k) for k in range(warm_up)]
        for k in range(micro_batches):
            if warm_up + k < micro_batches:
                order.append(("F", warm_up + k))
            order.append(("I", k))
            if devices == micro_batches:
                order.append(("W", k))
            elif k >= s:
                order.append(("W", k - s))
        if devices != micro_batches:
            order += [("W", k) for k in range(micro_batches - s, micro_batches)]
        schedule.append([(kind, s, k) for kind, k in order])
    return schedule
