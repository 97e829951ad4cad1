# /// shardlab-submission
# lab = "08_pipeline"
# loses = {interleaved_schedule = 5.0}
# says = {interleaved_schedule = "one forward too early"}
# ///

# %% nbgrader={"grade_id": "interleaved_schedule", "solution": true}
def interleaved_schedule(devices, micro_batches, chunks):
    schedule = []
    for d in range(devices):
        rounds = [range(i, i + devices) for i in range(0, micro_batches, devices)]
        mine = [c * devices + d for c in range(chunks)]
        forwards = [("F", s, k) for each in rounds for s in mine for k in each]
        backwards = [("B", s, k) for each in rounds for s in reversed(mine) for k in each]
        warm_up = min((chunks - 1) * devices + 2 * (devices - 1 - d), len(forwards))
        actions, ahead = forwards[:warm_up], forwards[warm_up:]
        for n, backward in enumerate(backwards):
            actions += [backward, *ahead[n : n + 1]]
        schedule.append(actions)
    return schedule
