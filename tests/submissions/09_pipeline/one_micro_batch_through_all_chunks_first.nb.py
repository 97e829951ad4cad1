# /// shardlab-submission
# lab = "09_pipeline"
# loses = {interleaved_schedule = 5.0}
# says = {interleaved_schedule = "r"}
# ///

# %% nbgrader={"grade_id": "interleaved_schedule", "solution": true}
def interleaved_schedule(devices, micro_batches, chunks):
    schedule = []
    for d in range(devices):
        forwards, backwards = [], []
        for first in range(0, micro_batches, devices):
            for k in range(first, first + devices):
                forwards += [("F", c * devices + d, k) for c in range(chunks)]
            for c in reversed(range(chunks)):
                backwards += [("B", c * devices + d, k) for k in range(first, first + devices)]
        warm_up = min((chunks - 1) * devices + 2 * (devices - 1 - d), len(forwards))
        actions = forwards[:warm_up]
        for f, b in zip(forwards[warm_up:], backwards):
            actions += [f, b]
        actions += backwards[len(forwards) - warm_up :]
        schedule.append(actions)
    return schedule
