"""Inside: a seccomp filter on system calls, for this process and all that it starts.

Ranks must communicate by TCP, which is counted: no datagrams, no System V memory, no reading of
each other's memory, and no signals if the exercise needs none.  Nor may one submission read which
pages of a file another one has used.  System calls that no lab needs are refused as well, to reduce
the operating system's attack surface.
"""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Sequence

from autograder.guest import filters
from autograder.guest.filters import (
    ALLOW,
    AND,
    ERROR,
    JUMP_ANY_BIT,
    JUMP_EQUAL,
    LOAD,
    RETURN,
    Line,
    is_known,
    load_argument,
)

__all__ = ["install", "is_known", "refuse_connections", "refuse_hiding_places", "refuse_netlink"]

_ALLOWED, _REFUSED = (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERROR | errno.EPERM)
_ABSENT = (RETURN, 0, 0, ERROR | errno.ENOSYS)  # the C library then does without the call
_NEW_NAMESPACES, _CLONE_THREAD, _CLONE_FILES, _CLOSE_RANGE_UNSHARE = 0x7E020000, 0x10000, 0x400, 2
_AF_INET, _AF_INET6, _AF_NETLINK, _SOCK_STREAM, _TCP = 2, 10, 16, 1, 6

# Advice that drops pages of a file from the machine's cache.  MADV_DONTNEED, which allocators use,
# only drops this process's view of them.
_PAGE_OUT = (20, 21)  # MADV_COLD, MADV_PAGEOUT
# Flags of these can read the cache without filling it, or write past it.
_READS_WITH_FLAGS = ("preadv2", "pwritev2")
# Requests of futex.  All of its own threads use private ones; pthread_join waits for a thread's end
# in a way that others could use, too.  Two ranks that map one file could wake each other.
_PRIVATE_FUTEX, _FUTEX_REQUEST, _FUTEX_WAITS = 0x80, 0x7F, (0, 9)
_SET_VMA_NAME = 0x53564D61  # an option of prctl
# Memory of the operating system that is in no list of what a process uses.
_HIDING_PLACES = (
    "socketpair", "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "landlock_create_ruleset",
)  # fmt: skip

_SOCKET_CALLS = ("socket", "connect", "bind", "listen", "accept", "accept4")
_SIGNAL_CALLS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
# With these, several messages can leave in one packet, which hides from the wire trace where they
# begin: socket options, splice and sendfile, and the flag "more to come" of the sending calls.
_OPTIONS = ("setsockopt", "splice", "sendfile")
_FLAGS_AT = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}  # index of the flags argument
_MSG_MORE = 0x8000
# What a process sets here for itself or another one, every process of the same user can read.
_PROCESS_CALLS = (
    "prlimit64", "sched_setparam", "sched_getparam", "sched_setscheduler", "sched_getscheduler",
    "sched_setaffinity", "sched_getaffinity", "sched_setattr", "sched_getattr",
)  # fmt: skip
# Ranks could also read them, even on a file that nobody may write.
_LOCKS = (5, 6, 7, 36, 37, 38, 1024, 1026)  # requests of fcntl: locks, leases, notifications
_SHARED_STATE = ("flock", "getpriority", "setpriority", "ioprio_get", "ioprio_set")
# Allowed at first; refuse_connections() then refuses or restricts them.
_REFUSED_LATER = (
    *_SOCKET_CALLS, *_SIGNAL_CALLS, "pidfd_send_signal", *_OPTIONS, *_FLAGS_AT, *_PROCESS_CALLS,
    *_SHARED_STATE, "fcntl", "close_range", "madvise", *_READS_WITH_FLAGS, "futex",
    *_HIDING_PLACES, "prctl",
)  # fmt: skip
_NUMBERS: filters.Numbers = {
    "socket": (41, 198), "clone": (56, 220), "clone3": (435, 435), "unshare": (272, 97),
    "setns": (308, 268), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "kcmp": (312, 272), "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "mount_setattr": (442, 442), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "quotactl": (179, 60), "acct": (163, 89), "swapon": (167, 224), "swapoff": (168, 225),
    "reboot": (169, 142), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "syslog": (103, 116), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "fanotify_init": (300, 262), "vhangup": (153, 58),
    "iopl": (172, None), "ioperm": (173, None), "personality": (135, 92), "connect": (42, 203),
    "accept": (43, 202), "accept4": (288, 242), "bind": (49, 200), "listen": (50, 201),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424), "setsockopt": (54, 208),
    "splice": (275, 76), "sendfile": (40, 71), "sendto": (44, 206), "sendmsg": (46, 211),
    "sendmmsg": (307, 269), "socketpair": (53, 199),
    "close_range": (436, 436), "prlimit64": (302, 261), "sched_setparam": (142, 118),
    "sched_getparam": (143, 121), "sched_setscheduler": (144, 119),
    "sched_getscheduler": (145, 120), "sched_setaffinity": (203, 122),
    "sched_getaffinity": (204, 123), "sched_setattr": (314, 274), "sched_getattr": (315, 275),
    "getpriority": (140, 141), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "ioprio_get": (252, 31), "flock": (73, 32), "fcntl": (72, 25), "inotify_init": (253, None),
    "inotify_init1": (294, 26), "memfd_secret": (447, 447), "fadvise64": (221, 223),
    "readahead": (187, 213), "mincore": (27, 232), "cachestat": (451, 451),
    "madvise": (28, 233), "preadv2": (327, 286), "pwritev2": (328, 287), "futex": (202, 98),
    "futex_waitv": (449, 449), "futex_wake": (454, 454), "futex_wait": (455, 455),
    "futex_requeue": (456, 456), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "landlock_create_ruleset": (444, 444), "prctl": (157, 167),
}  # fmt: skip


def install() -> None:
    """For this thread and all that it starts; it cannot be removed. Raises OSError."""
    number, lines = filters.numbers_here(_NUMBERS), filters.first_lines()
    if platform.machine() == "x86_64":  # refuse x32, which has other system call numbers
        lines += [(JUMP_ANY_BIT, 0, 1, 0x40000000), _REFUSED]
    # The C library then uses clone, whose flags a filter can read.
    lines += [(JUMP_EQUAL, 0, 1, number["clone3"]), _ABSENT]
    for name, at in number.items():
        if name not in ("clone", "clone3", *_REFUSED_LATER):
            lines += [(JUMP_EQUAL, 0, 1, at), _REFUSED]
    lines += [
        (JUMP_EQUAL, 0, 6, number["clone"]),
        (LOAD, 0, 0, 16),
        (JUMP_ANY_BIT, 2, 0, _NEW_NAMESPACES),
        # A thread with open files of its own could hide memory files from the grader.
        (JUMP_ANY_BIT, 0, 2, _CLONE_THREAD),
        (JUMP_ANY_BIT, 1, 0, _CLONE_FILES),
        _REFUSED,
        _ALLOWED,
        (JUMP_EQUAL, 0, 4, number["close_range"]),
        (LOAD, 0, 0, 32),
        (JUMP_ANY_BIT, 0, 1, _CLOSE_RANGE_UNSHARE),
        _REFUSED,
        _ALLOWED,
        *_refused_if(number["madvise"], 2, _PAGE_OUT),
        *[line for name in _READS_WITH_FLAGS for line in _allowed_if(number[name], 5, (0,))],
        (JUMP_EQUAL, 1, 0, number["socket"]),
        _ALLOWED,
        # socket(family, type, protocol): TCP, or netlink for getifaddrs
        (LOAD, 0, 0, 16),
        (JUMP_EQUAL, 9, 0, _AF_NETLINK),
        (JUMP_EQUAL, 2, 0, _AF_INET),
        (JUMP_EQUAL, 1, 0, _AF_INET6),
        _REFUSED,
        (LOAD, 0, 0, 24),
        (AND, 0, 0, 0xF),
        (JUMP_EQUAL, 1, 0, _SOCK_STREAM),
        _REFUSED,
        (LOAD, 0, 0, 32),
        (JUMP_EQUAL, 3, 0, _TCP),
        (LOAD, 0, 0, 32),  # target of the netlink jump: protocol 0 is routing
        (JUMP_EQUAL, 1, 0, 0),
        _REFUSED,
        _ALLOWED,
    ]
    filters.load(lines)


def _refused_if(call: int, argument: int, values: Sequence[int]) -> list[Line]:
    """The call is refused if the argument has one of these values, else allowed."""
    checks = [line for value in values for line in ((JUMP_EQUAL, 0, 1, value), _REFUSED)]
    return [(JUMP_EQUAL, 0, 2 + len(checks), call), load_argument(argument), *checks, _ALLOWED]


def _allowed_if(call: int, argument: int, values: Sequence[int]) -> list[Line]:
    """The call is allowed if the argument has one of these values, else refused."""
    checks = [line for value in values for line in ((JUMP_EQUAL, 0, 1, value), _ALLOWED)]
    return [(JUMP_EQUAL, 0, 2 + len(checks), call), load_argument(argument), *checks, _REFUSED]


def refuse_netlink() -> None:
    """From now on this process and its children cannot open netlink sockets: answers that wait in
    them are memory of the operating system that no control group counts.  Raises OSError."""
    number = filters.numbers_here(_NUMBERS)["socket"]
    filters.load([*filters.first_lines(), *_refused_if(number, 0, (_AF_NETLINK,)), _ALLOWED])


def refuse_connections() -> None:
    """From now on this process and its children cannot create sockets, accept connections, signal
    other processes or wake their threads, read or set their limits, or lock files.  Existing
    connections stay and send without delay.  Raises OSError.
    """
    number, lines = filters.numbers_here(_NUMBERS), filters.first_lines()
    for name in (*_SOCKET_CALLS, *_OPTIONS, *_SHARED_STATE, "pidfd_send_signal"):
        lines += [(JUMP_EQUAL, 0, 1, number[name]), _REFUSED]
    for name in _SIGNAL_CALLS:  # the first argument is the target
        to_itself = [(LOAD, 0, 0, 16), (JUMP_EQUAL, 0, 1, os.getpid()), _ALLOWED, _REFUSED]
        lines += [(JUMP_EQUAL, 0, len(to_itself), number[name]), *to_itself]
    for name in _PROCESS_CALLS:
        own = [(JUMP_EQUAL, 1, 0, 0), (JUMP_EQUAL, 0, 1, os.getpid()), _ALLOWED, _ABSENT]
        lines += [(JUMP_EQUAL, 0, 1 + len(own), number[name]), (LOAD, 0, 0, 16), *own]
    requests = [line for each in _LOCKS for line in ((JUMP_EQUAL, 0, 1, each), _REFUSED)]
    lines += [(JUMP_EQUAL, 0, 2 + len(requests), number["fcntl"]), (LOAD, 0, 0, 24), *requests]
    lines += [_ALLOWED]
    for name, argument in _FLAGS_AT.items():
        if_more = (LOAD, 0, 0, 16 + 8 * argument), (JUMP_ANY_BIT, 0, 1, _MSG_MORE)
        lines += [(JUMP_EQUAL, 0, 4, number[name]), *if_more, _REFUSED, _ALLOWED]
    waits = [line for each in _FUTEX_WAITS for line in ((JUMP_EQUAL, 0, 1, each), _ALLOWED)]
    is_private = load_argument(1), (JUMP_ANY_BIT, 0, 1, _PRIVATE_FUTEX), _ALLOWED
    own = [*is_private, (AND, 0, 0, _FUTEX_REQUEST), *waits, _REFUSED]
    lines += [(JUMP_EQUAL, 0, len(own), number["futex"]), *own]
    filters.load([*lines, _ALLOWED])


def refuse_hiding_places() -> None:
    """From now on this process and its children cannot create what holds data that no list of their
    memory shows: pairs of sockets (their buffers, and files sent through them), attributes of
    files, names of mappings.  Raises OSError."""
    number, lines = filters.numbers_here(_NUMBERS), filters.first_lines()
    for name in _HIDING_PLACES:
        lines += [(JUMP_EQUAL, 0, 1, number[name]), _REFUSED]
    filters.load([*lines, *_refused_if(number["prctl"], 0, (_SET_VMA_NAME,)), _ALLOWED])
