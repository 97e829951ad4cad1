# /// shardlab-submission
# lab = "05_fsdp"
# loses = {which_is_it = 1.0}
# says = {which_is_it = "less than half of Ψ if most parameters are in the root"}
# ///

# %% nbgrader={"grade_id": "which_is_it", "solution": true}
def which_is_it(trace):
    """{"calls": [{"op": "all_gather", "bytes": 11352, …}, …], …}  ->  "FSDP" """
    whole_bytes = Counter()
    for call in trace["calls"]:
        slices = len(call["ranks"]) if call["op"] == "all_gather" else 1
        if call["bytes"] * slices == trace["activation_bytes"]:
            return "TP"
        whole_bytes[call["op"], call["phase"]] += call["bytes"] * slices
    large = {key for key, size in whole_bytes.items() if size > trace["parameter_bytes"] / 6}
    if ("all_gather", "step") in large:
        return "ZeRO-2"
    if ("all_gather", "forward") not in large:
        return "DDP"
    if ("all_reduce", "backward") in large:
        return "HSDP"
    return "FSDP" if ("all_gather", "backward") in large else "FSDP, not resharded"
