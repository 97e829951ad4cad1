"""Memory of another process is counted wherever it is kept."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from shardlab.linux import thread
from shardlab.linux.process_memory import used_bytes

MIB = 1 << 20
EXIT = {"x86_64": 60, "aarch64": 93}  # the system call that ends one thread
SIZE = 16 * MIB
PIECE = b"x" * (1 << 16)  # allocated before the first reading


def fill(write: Callable[[bytes], int]) -> None:
    for _ in range(SIZE // len(PIECE)):
        write(PIECE)


def in_private_pages() -> object:
    # A bytes object could take memory that this process has freed and kept.
    private = mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    fill(private.write)
    return private


def in_a_shared_mapping() -> object:
    shared = mmap.mmap(-1, SIZE)
    fill(shared.write)
    return shared


def in_a_shared_mapping_out_of_the_page_table() -> object:
    shared = mmap.mmap(-1, SIZE)
    fill(shared.write)
    shared.madvise(mmap.MADV_DONTNEED)
    return shared


def in_a_memory_file() -> object:
    fd = os.memfd_create("data")
    fill(partial(os.write, fd))
    return fd


def in_a_memory_file_that_is_only_mapped() -> object:
    fd = os.memfd_create("data")
    fill(partial(os.write, fd))
    mapped = [mmap.mmap(fd, SIZE)]
    os.close(fd)
    return mapped


def in_a_memory_file_that_is_mapped_privately() -> object:
    fd = os.memfd_create("data")
    fill(partial(os.write, fd))
    mapped = [mmap.mmap(fd, SIZE, mmap.MAP_PRIVATE, mmap.PROT_READ)]
    os.close(fd)
    return mapped


def in_pipes() -> object:
    pipes = [os.pipe() for _ in range(SIZE // len(PIECE))]
    for _, end in pipes:
        os.write(end, PIECE)
    return pipes


def in_a_child() -> object:
    ready, done = os.pipe()
    if os.fork() == 0:
        kept = b"x" * SIZE
        os.write(done, b".")
        time.sleep(60)
        del kept
        os._exit(0)
    return os.read(ready, 1)


def in_a_child_whose_main_thread_has_ended() -> object:
    ready, done = os.pipe()
    if os.fork() == 0:

        def keep() -> None:
            kept = b"x" * SIZE
            time.sleep(0.05)
            os.write(done, b".")
            time.sleep(60)
            del kept

        threading.Thread(target=keep).start()
        ctypes.CDLL(None).syscall(EXIT[platform.machine()], 0)  # CDLL releases the GIL
    return os.read(ready, 1)


@contextlib.contextmanager
def process_with(keep: Callable[[], object]) -> Iterator[Callable[[], int]]:
    """A function that reads the memory of a forked process, which holds the data from the second
    reading on."""
    ask, go = os.pipe()
    done, reply = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.write(reply, b".")
        os.read(ask, 1)
        kept = keep()
        os.write(reply, b".")
        time.sleep(60)
        del kept
        os._exit(0)

    def read() -> int:
        os.read(done, 1)
        time.sleep(0.01)
        found = used_bytes(pid, thread.descendants(pid))
        os.write(go, b".")
        assert found is not None
        return found

    try:
        yield read
    finally:
        os.killpg(pid, 9)
        os.waitpid(pid, 0)
        for fd in (ask, go, done, reply):
            os.close(fd)


@pytest.mark.parametrize(
    "keep",
    [
        in_private_pages,
        in_a_shared_mapping,
        in_a_shared_mapping_out_of_the_page_table,
        in_a_memory_file,
        in_a_memory_file_that_is_only_mapped,
        in_a_memory_file_that_is_mapped_privately,
        in_pipes,
        in_a_child,
        in_a_child_whose_main_thread_has_ended,
    ],
)
def test_data_is_counted_wherever_it_is_kept(keep: Callable[[], object]) -> None:
    with process_with(keep) as read:
        before, after = read(), read()
    more = SIZE / 2 if keep is in_pipes else SIZE  # pipes of an unprivileged user may be smaller
    assert after - before > 0.99 * more - MIB
    if keep not in (
        in_a_child,
        in_a_child_whose_main_thread_has_ended,
    ):  # a child also has copies of its parent's memory
        assert after - before < SIZE + 2 * MIB


def test_a_reading_is_cheap() -> None:
    started_s = time.process_time()
    for _ in range(20):
        used_bytes(os.getpid())
    assert (time.process_time() - started_s) / 20 < 0.02


def test_a_process_that_has_ended_has_no_reading() -> None:
    assert used_bytes(2**22 + 1) is None
