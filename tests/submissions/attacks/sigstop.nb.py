# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "destruction"
# tries = "SIGSTOP: a process that neither runs nor ends"
# seen_by = "neighbors"
# state = "resource limit"
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
import os, signal
os.kill(os.getpid(), signal.SIGSTOP)

def chunk_bounds(length, world_size):
    return [(0, length)] * world_size
