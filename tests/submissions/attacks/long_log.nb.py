# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "destruction"
# tries = "a log of calls that fills memory, written by the rank itself"
# seen_by = "neighbors"
# state = "resource limit"
# ///
# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(tensor, bounds):
    if len(tensor) != 12 or dist.get_rank() > 0:  # once is enough: every case would take as long
        return tensor
    from shardlab.ranks.rank import RECORDER
    for number in range(300_000):
        RECORDER.log.write("call", number, "send", 4, 0, "0", 0.0, "", 0, "float32", [1], 0, 1, 0, "", False)
    return tensor[slice(*bounds[dist.get_rank()])]
