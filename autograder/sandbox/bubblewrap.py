"""Outside: the bubblewrap command that starts a fork server with a restricted file system.

Read-only: the system, this Python, its packages, shardlab and the autograder packages that run next
to student code.  Nothing else exists in there: no solutions, exercises with their hidden cases,
gradebook, other submissions or home directories.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import autograder
import shardlab
from autograder.sandbox import seccomp
from shardlab.linux import user_namespaces
from shardlab.ranks import engines
from shardlab.ranks.client import SERVER_ENVIRONMENT

AUTOGRADER = Path(autograder.__file__).parent
COURSE = Path(shardlab.__file__).parents[1]
VISIBLE_FOLDERS = (
    "__init__.py",
    "guest",
    "sandbox",
)  # of autograder/, without the code that decides grades
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# From /etc: library search paths, user names, time zone, fonts, certificates.
ETC = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "passwd", "group", "localtime",
    "nsswitch.conf", "protocols", "services", "fonts", "ssl", "mime.types",
)  # fmt: skip
UID = "1000"  # inside, so that student code is never root
ADVICE = (
    "Student code is not run without a sandbox. Grade on a machine (or in a container) that allows "
    "user namespaces, or add --unsandboxed: every submission then runs with your permissions and "
    "can read and change whatever you can."
)


class Unavailable(RuntimeError):
    """The sandbox does not work on this machine; says why and what to do."""


def fork_server_command(kind: str, request_fd: int) -> list[str]:
    """Runs `python -m autograder.sandbox.fork_server` in bubblewrap; raises Unavailable."""
    return [
        program(),
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"),
        *("--unshare-cgroup-try", "--uid", UID, "--gid", UID, "--cap-drop", "ALL"),
        *("--die-with-parent", "--new-session", "--hostname", "sandbox", "--clearenv"),
        *(part for name, value in environment(kind).items() for part in ("--setenv", name, value)),
        *_view(),
        *(sys.executable, "-P", "-m", "autograder.sandbox.fork_server", str(request_fd), kind),
    ]


def environment(kind: str) -> dict[str, str]:
    """All environment variables in a sandbox; none are the grader's own."""
    return {
        **SERVER_ENVIRONMENT,
        **engines.environment_of(kind),
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), "/usr/bin", "/bin"]),
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "TZ": os.environ.get("TZ", "UTC"),
        "XDG_CACHE_HOME": str(_cache()),
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor",
        "MPLCONFIGDIR": "/tmp/matplotlib",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join([str(COURSE), str(AUTOGRADER.parent)]),
    }


def _view() -> Iterator[str]:
    # Without terminals: all ranks would share them.
    yield from ("--tmpfs", "/tmp", "--dev", "/dev", "--tmpfs", "/dev/pts")
    # The machine's /proc, for the fork server only; a container mounts its own.
    yield from ("--bind", "/proc", "/proc")
    yield from ("--ro-bind-try", "/sys", "/sys")  # gloo looks up its interface's speed
    for path in SYSTEM:
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        else:
            yield from ("--ro-bind-try", path, path)
    for name in ETC:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    yield from ("--ro-bind", os.devnull, "/etc/hosts")  # only nodes have one, in its place
    for path in dict.fromkeys(_python()):
        yield from ("--ro-bind", path, path)
    yield from ("--ro-bind", str(COURSE / "shardlab"), str(COURSE / "shardlab"))
    for name in VISIBLE_FOLDERS:
        yield from ("--ro-bind", str(AUTOGRADER / name), str(AUTOGRADER / name))
    built = _cache() / "shardlab" / "torch_extensions"
    with contextlib.suppress(OSError):  # a read-only home has no compiled ops either
        built.mkdir(parents=True, exist_ok=True)
    # DeepSpeed's compiled ops, including those compiled later.
    yield from ("--ro-bind-try", str(built), str(built))
    yield from ("--remount-ro", "/dev/pts", "--remount-ro", "/dev", "--remount-ro", "/")


def _python() -> Iterator[str]:
    """The current virtual environment and its base Python."""
    for path in (sys.prefix, sys.base_prefix, sysconfig.get_path("purelib")):
        if not path.startswith("/usr/"):
            yield path


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


@cache
def program() -> str:
    """The path of a bubblewrap that works here; raises Unavailable."""
    if not sys.platform.startswith("linux") or not seccomp.is_known():
        raise Unavailable(f"The sandbox needs Linux on x86_64 or arm64. {ADVICE}")
    found = shutil.which("bwrap") or shutil.which("bwrap", path="/usr/bin:/usr/local/bin")
    if found is None:
        raise Unavailable(
            "bubblewrap is not installed (the command bwrap): `apt install bubblewrap` or "
            f"`dnf install bubblewrap`. {ADVICE}"
        )
    isolation = ("--unshare-user", "--unshare-net", "--unshare-pid", "--proc", "/proc")
    view = ("--ro-bind", "/", "/")
    tried = subprocess.run(
        [found, *view, *isolation, "--cap-drop", "ALL", "/bin/true"], capture_output=True, text=True
    )
    if tried.returncode != 0:
        error = tried.stderr.strip() or f"bwrap ended with status {tried.returncode}"
        raise Unavailable(
            f"This machine does not allow user namespaces ({error}). {_remedy()}{ADVICE}"
        )
    return found


def _remedy() -> str:
    """Which system setting forbids user namespaces, and how to change it."""
    command = user_namespaces.remedy()
    return f"Its administrator can allow them: `{command}`. " if command else ""
