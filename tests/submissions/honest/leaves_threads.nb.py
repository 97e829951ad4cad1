# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "honest"
# tries = "threads and child processes that are still running when a cell or an answer ends"
# seen_by = "points"
# state = "graded"
# earns = {chunk_bounds = 2, bytes_per_rank = 2}
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
import subprocess
import threading
import time

threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
subprocess.Popen(['sleep', '30'])

def chunk_bounds(length, world_size):
    small, extra = divmod(length, world_size)
    starts = [r * small + min(r, extra) for r in range(world_size + 1)]
    return list(zip(starts[:-1], starts[1:]))

# %% nbgrader={"grade_id": "bytes_per_rank", "solution": true}
def bytes_per_rank(length, element_bytes, world_size):
    import threading, time
    threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
    return 2 * (world_size - 1) * length * element_bytes / world_size
