# /// shardlab-submission
# lab = "05_fsdp"
# loses = {which_is_it = 2.5}
# says = {which_is_it = "takes ZeRO-2 for FSDP"}
# ///

# %% nbgrader={"grade_id": "which_is_it", "solution": true}
def which_is_it(trace):
    """{"calls": [{"op": "all_gather", "bytes": 8352, …}, …], …}  ->  "FSDP" """
    whole_bytes = Counter()
    for call in trace["calls"]:
        slices = len(call["ranks"]) if call["op"] == "all_gather" else 1
        if call["bytes"] * slices == trace["activation_bytes"]:
            return "TP"
        whole_bytes[call["op"], call["phase"]] += call["bytes"] * slices
    large = {key for key, size in whole_bytes.items() if size > trace["parameter_bytes"] / 10}
    gathers = [phase for op, phase in large if op == "all_gather"]
    if not gathers:
        return "DDP"
    if len({tuple(call["ranks"]) for call in trace["calls"]}) > 1 and (
        ("all_reduce", "backward") in large
    ):
        return "HSDP"
    return "FSDP" if "backward" in gathers else "FSDP, not resharded"
