"""Inside: a filter on system calls (seccomp), for this process and all that it starts.

Ranks are to speak by TCP, because that is what is counted: no datagrams, no System V memory, no
reading of each other's memory, and no signals where no exercise needs any.  And what widens the
kernel's surface without serving a lab is off.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

_LOAD, _JUMP_EQUAL, _JUMP_ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_NEW_NAMESPACES = 0x7E020000
_AF_INET, _AF_INET6, _AF_NETLINK, _SOCK_STREAM, _TCP = 2, 10, 16, 1, 6

_OF_SOCKETS = ("socket", "connect", "bind", "listen", "accept", "accept4")
_OF_SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
# By which messages can be held back and leave as one, which hides from whoever watches the wire
# where they begin: options of a socket, and "more is to come", where the kernel takes that from.
_OPTIONS = ("setsockopt", "splice", "sendfile")
_FLAGS_AT = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}  # the how-many-eth argument
_MSG_MORE = 0x8000
_WHEN_SEALED = (*_OF_SOCKETS, *_OF_SIGNALS, "pidfd_send_signal", *_OPTIONS, *_FLAGS_AT)
# By the name of the machine: the kernel's word for it, and the numbers of its calls.
_NUMBERS: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        {
            "socket": 41, "clone": 56, "clone3": 435, "unshare": 272, "setns": 308,
            "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
            "pidfd_getfd": 438, "process_madvise": 440,
            "shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "msgget": 68, "mq_open": 240,
            "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "open_tree": 428,
            "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "mount_setattr": 442,
            "open_by_handle_at": 304, "name_to_handle_at": 303, "quotactl": 179, "acct": 163,
            "swapon": 167, "swapoff": 168, "reboot": 169, "init_module": 175,
            "finit_module": 313, "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320,
            "syslog": 103, "settimeofday": 164, "clock_settime": 227, "adjtimex": 159,
            "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425,
            "io_uring_enter": 426, "io_uring_register": 427, "keyctl": 250, "add_key": 248,
            "request_key": 249, "fanotify_init": 300, "vhangup": 153, "iopl": 172, "ioperm": 173,
            "personality": 135,
            "connect": 42, "accept": 43, "accept4": 288, "bind": 49, "listen": 50,
            "kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129,
            "rt_tgsigqueueinfo": 297, "pidfd_send_signal": 424,
            "setsockopt": 54, "splice": 275, "sendfile": 40,
            "sendto": 44, "sendmsg": 46, "sendmmsg": 307,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "socket": 198, "clone": 220, "clone3": 435, "unshare": 97, "setns": 268,
            "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
            "pidfd_getfd": 438, "process_madvise": 440,
            "shmget": 194, "shmat": 196, "shmctl": 195, "semget": 190, "msgget": 186,
            "mq_open": 180, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51,
            "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432,
            "mount_setattr": 442, "open_by_handle_at": 265, "name_to_handle_at": 264,
            "quotactl": 60, "acct": 89, "swapon": 224, "swapoff": 225, "reboot": 142,
            "init_module": 105, "finit_module": 273, "delete_module": 106, "kexec_load": 104,
            "kexec_file_load": 294, "syslog": 116, "settimeofday": 170, "clock_settime": 112,
            "adjtimex": 171, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282,
            "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "keyctl": 219,
            "add_key": 217, "request_key": 218, "fanotify_init": 262, "vhangup": 58,
            "personality": 92,
            "connect": 203, "accept": 202, "accept4": 242, "bind": 200, "listen": 201,
            "kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138,
            "rt_tgsigqueueinfo": 240, "pidfd_send_signal": 424,
            "setsockopt": 208, "splice": 76, "sendfile": 71,
            "sendto": 206, "sendmsg": 211, "sendmmsg": 269,
        },
    ),
}  # fmt: skip


def is_known(machine: str = platform.machine()) -> bool:
    return machine in _NUMBERS


def install() -> None:
    """For this thread and what it starts, for ever. Raises OSError."""
    _install(filter_program())


def refuse_connections() -> None:
    """From now on this process and what it starts make no sockets, take in no connections and send
    signals to this process alone: what is connected stays so, by what is counted, and sends what it
    is given at once.  Raises OSError.
    """
    word, number = _NUMBERS[platform.machine()]
    allowed, refused = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERROR | errno.EPERM)
    lines = [(_LOAD, 0, 0, 4), (_JUMP_EQUAL, 1, 0, word), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for name in (*_OF_SOCKETS, *_OPTIONS, "pidfd_send_signal"):
        lines += [(_JUMP_EQUAL, 0, 1, number[name]), refused]
    for name in _OF_SIGNALS:  # to whom is said first
        to_itself = [(_LOAD, 0, 0, 16), (_JUMP_EQUAL, 0, 1, os.getpid()), allowed, refused]
        lines += [(_JUMP_EQUAL, 0, len(to_itself), number[name]), *to_itself]
    for name, argument in _FLAGS_AT.items():
        if_more = (_LOAD, 0, 0, 16 + 8 * argument), (_JUMP_ANY_BIT, 0, 1, _MSG_MORE)
        lines += [(_JUMP_EQUAL, 0, 4, number[name]), *if_more, refused, allowed]
    _install(_packed([*lines, allowed]))


def _install(program: bytes) -> None:
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog {unsigned short len; struct sock_filter *filter;}
    pointer = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, pointer, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, "the kernel does not take a seccomp filter")


def filter_program(machine: str = platform.machine()) -> bytes:
    """The filter in the kernel's classic BPF; raises KeyError for an unknown machine."""
    word, number = _NUMBERS[machine]
    refused = _RETURN, 0, 0, _ERROR | errno.EPERM
    lines = [
        (_LOAD, 0, 0, 4),  # struct seccomp_data: number, machine, instruction pointer, 6 arguments
        (_JUMP_EQUAL, 1, 0, word),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    if machine == "x86_64":  # x32, which numbers its calls otherwise
        lines += [(_JUMP_ANY_BIT, 0, 1, 0x40000000), refused]
    # The C library then uses clone, whose flags can be read.
    lines += [(_JUMP_EQUAL, 0, 1, number["clone3"]), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    for name, at in number.items():
        if name not in ("clone", "clone3", *_WHEN_SEALED):
            lines += [(_JUMP_EQUAL, 0, 1, at), refused]
    lines += [
        (_JUMP_EQUAL, 0, 4, number["clone"]),
        (_LOAD, 0, 0, 16),
        (_JUMP_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        refused,
        (_RETURN, 0, 0, _ALLOW),
        (_JUMP_EQUAL, 1, 0, number["socket"]),
        (_RETURN, 0, 0, _ALLOW),
        # socket(family, type, protocol): TCP, or what getifaddrs asks the kernel with
        (_LOAD, 0, 0, 16),
        (_JUMP_EQUAL, 9, 0, _AF_NETLINK),
        (_JUMP_EQUAL, 2, 0, _AF_INET),
        (_JUMP_EQUAL, 1, 0, _AF_INET6),
        refused,
        (_LOAD, 0, 0, 24),
        (_AND, 0, 0, 0xF),
        (_JUMP_EQUAL, 1, 0, _SOCK_STREAM),
        refused,
        (_LOAD, 0, 0, 32),
        (_JUMP_EQUAL, 3, 0, _TCP),
        (_LOAD, 0, 0, 32),  # where netlink jumps to: its protocol 0 is routing
        (_JUMP_EQUAL, 1, 0, 0),
        refused,
        (_RETURN, 0, 0, _ALLOW),
    ]
    return _packed(lines)


def _packed(lines: list[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
