"""What is missing for nodes is said in one sentence, with how to allow it."""

from __future__ import annotations

import errno

import pytest
from pyroute2.netlink.exceptions import NetlinkError

from shardlab.linux import user_namespaces
from shardlab.nodes import missing, switch

FORBIDDEN = PermissionError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize(
    ("remedy", "container", "part"),
    [
        ("sysctl a.b=1", "/", "its administrator can allow them with `sysctl a.b=1`"),
        ("", "/", "start the container with `--security-opt seccomp=unconfined"),
        ("", "/nowhere", "use a machine with user namespaces, or become root"),
    ],
)
def test_namespaces(
    monkeypatch: pytest.MonkeyPatch, remedy: str, container: str, part: str
) -> None:
    monkeypatch.setattr(user_namespaces, "remedy", lambda: remedy)
    monkeypatch.setattr(missing, "_CONTAINER_FILES", (container,))
    text = str(missing.namespaces(FORBIDDEN))
    assert part in text
    assert "(Operation not permitted)" in text
    assert "\n" not in text


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOENT])
def test_a_kernel_without_a_kind_of_link(code: int) -> None:
    with (
        pytest.raises(missing.Missing, match="`sudo modprobe no_such_kind`"),
        switch._needs("no_such_kind"),
    ):
        raise NetlinkError(code)
