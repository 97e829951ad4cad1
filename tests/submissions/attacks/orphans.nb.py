# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "destruction"
# tries = "daemons in new sessions that outlive their parents"
# seen_by = "survivors"
# state = "graded"
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
import os, signal, subprocess, sys, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(1, 32):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except OSError:
                    pass
            os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(3000)", "@MARK@"])
        os._exit(0)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3000)", "@MARK@"], start_new_session=True)

def chunk_bounds(length, world_size):
    return [(0, length)] * world_size
