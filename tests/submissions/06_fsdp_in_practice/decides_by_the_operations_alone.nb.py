# /// shardlab-submission
# lab = "06_fsdp_in_practice"
# loses = {which_is_it = 3.0}
# says = {which_is_it = "by its operations without their sizes"}
# ///

# %% nbgrader={"grade_id": "which_is_it", "solution": true}
def which_is_it(trace):
    """{"calls": [{"op": "all_gather", "bytes": 8352, …}, …], …}  ->  "FSDP" """
    ops = {call["op"] for call in trace["calls"]}
    if ops == {"all_gather", "reduce_scatter", "all_reduce"}:
        return "HSDP"
    if ops == {"all_gather", "reduce_scatter"}:
        return "FSDP"
    return "ZeRO-2" if "all_gather" in ops else "DDP"
