"""What this machine lacks for a cluster, and how to allow it, in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

from shardlab.linux import user_namespaces

_CONTAINER_FILES = "/.dockerenv", "/run/.containerenv"
_CONTAINER_OPTIONS = (
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined"
)


class Missing(Exception):
    """Says what is missing and how to allow it."""


def namespaces(error: OSError) -> Missing:
    text = f"this machine does not allow the namespaces that nodes are made of ({error.strerror})"
    if remedy := user_namespaces.remedy():
        return Missing(f"{text}: its administrator can allow them with `{remedy}`")
    if any(map(os.path.exists, _CONTAINER_FILES)):
        return Missing(f"{text}: start the container with `{_CONTAINER_OPTIONS}`")
    return Missing(f"{text}: use a machine with user namespaces, or become root")


def kernel_module(name: str, code: int) -> Missing:
    """A part of the kernel that makes links; ``code``: its error."""
    if (Path("/sys/module") / name).exists():
        return Missing(f"links between nodes could not be made ({name}: {os.strerror(code)})")
    return Missing(
        f"links between nodes need the kernel module {name}, which is not loaded "
        f"({os.strerror(code)}): `sudo modprobe {name}` loads it if this kernel has it"
    )
