# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "theft"
# tries = "what another submission left in the machine's page cache: which pages of an installed file it dropped or used"
# seen_by = "loot"
# state = "graded"
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
import ctypes
import mmap
import os

def found():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    fd = os.open(os.__file__, os.O_RDONLY)
    place = ctypes.c_void_p(libc.mmap(None, 8192, 1, 1, fd, 0))
    ways = []
    for name, way in {
        "drop": lambda: os.posix_fadvise(fd, 0, 8192, os.POSIX_FADV_DONTNEED),
        "read ahead": lambda: os.posix_fadvise(fd, 0, 8192, os.POSIX_FADV_WILLNEED),
        "read without waiting": lambda: os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT),
        "list": lambda: must_succeed(libc.mincore(place, ctypes.c_size_t(8192), ctypes.create_string_buffer(2))),
        "count": lambda: must_succeed(libc.syscall(451, fd, (ctypes.c_ulong * 2)(0, 8192), (ctypes.c_ulong * 5)(), 0)),
        "page out": lambda: must_succeed(libc.madvise(place, ctypes.c_size_t(8192), 21)),
    }.items():
        try:
            way()
            ways.append(name)
        except OSError:
            pass
    return ways

def must_succeed(result):
    if result != 0:
        raise OSError(ctypes.get_errno())

def chunk_bounds(numel, n):
    if ways := found():
        raise ValueError(f"LOOT: {ways}")
    return []

if ways := found():
    print("LOOT", ways)
