# /// shardlab-submission
# lab = "08_pipeline"
# loses = {zero_bubble_schedule = 5.0}
# says = {zero_bubble_schedule = "has stage and micro-batch swapped"}
# ///

# %% nbgrader={"grade_id": "zero_bubble_schedule", "solution": true}
def zero_bubble_schedule(devices, micro_batches):
    """actions "F", "I" and "W": each stage and micro-batch has one of each"""
    schedule = []
    for s in range(devices):
        warm_up = min(devices - 1 - s, micro_batches)
        order = [("F", k) for k in range(warm_up)]
        for k in range(micro_batches):
            if warm_up + k < micro_batches:
                order.append(("F", warm_up + k))
            order.append(("I", k))
            if k >= s:
                order.append(("W", k - s))
        order += [("W", k) for k in range(max(micro_batches - s, 0), micro_batches)]
        schedule.append([(kind, k, s) for kind, k in order])
    return schedule
