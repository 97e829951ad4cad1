# /// shardlab-submission
# lab = "06_fsdp_in_practice"
# loses = {which_is_it = 3.0}
# says = {which_is_it = "takes FSDP for TP"}
# ///

# %% nbgrader={"grade_id": "which_is_it", "solution": true}
def which_is_it(trace):
    """{"calls": [{"op": "all_gather", "bytes": 8352, …}, …], …}  ->  "FSDP" """
    small = {"step": trace["parameter_bytes"] / 20}
    found = {
        (call["op"], call["phase"])
        for call in trace["calls"]
        if call["bytes"] > small.get(call["phase"], 200)
    }
    # every rank has only some of the layers and sends in forward: the model must be partitioned
    if any(phase == "forward" for _, phase in found):
        return "TP"
    return "ZeRO-2" if ("all_gather", "step") in found else "DDP"
