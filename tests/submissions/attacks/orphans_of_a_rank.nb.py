# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "destruction"
# tries = "a daemon that outlives its rank and keeps a port open"
# seen_by = "survivors"
# state = "graded"
# ///
# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(tensor, bounds):
    import os, socket, subprocess, sys
    code = "import socket,time; s=socket.create_server(('127.0.0.1', 45771)); time.sleep(3000)"
    subprocess.Popen([sys.executable, "-c", code, "@MARK@"], start_new_session=True)
    return tensor[slice(*bounds[dist.get_rank()])]
