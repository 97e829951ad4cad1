# /// shardlab-submission
# lab = "06_fsdp_in_practice"
# loses = {which_is_it = 2.0}
# says = {which_is_it = "misses TP"}
# ///

# %% nbgrader={"grade_id": "which_is_it", "solution": true}
def which_is_it(trace):
    """{"calls": [{"op": "all_gather", "bytes": 8352, …}, …], …}  ->  "FSDP" """
    small = {"step": trace["parameter_bytes"] / 20}
    found = {
        (call["op"], call["phase"])
        for call in trace["calls"]
        if call["bytes"] > small.get(call["phase"], 100)
    }
    if ("all_reduce", "forward") in found:
        return "TP"
    if ("all_gather", "forward") in found:
        if ("all_reduce", "backward") in found:
            return "HSDP"
        return "FSDP" if ("all_gather", "backward") in found else "FSDP, not resharded"
    return "ZeRO-2" if ("all_gather", "step") in found else "DDP"
