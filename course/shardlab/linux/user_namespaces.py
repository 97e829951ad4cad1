"""Whether system settings forbid user namespaces, and which one."""

from __future__ import annotations

import contextlib
from pathlib import Path

SETTINGS = {  # name: (forbids, allows)
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
    "user.max_user_namespaces": ("0", "10000"),
}


def remedy() -> str:
    """The command that allows them: "sysctl NAME=VALUE"; "" if no setting forbids them."""
    for name, (forbids, allows) in SETTINGS.items():
        with contextlib.suppress(OSError):
            if Path("/proc/sys", name.replace(".", "/")).read_text().strip() == forbids:
                return f"sysctl {name}={allows}"
    return ""
