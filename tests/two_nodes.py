"""Two nodes on one machine: network namespaces that a cable joins, each with a name of its own.

Needs root. On a node, programs see the addresses 10.77.0.1 (node-a) and 10.77.0.2 (node-b).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HOSTS = "127.0.0.1 localhost\n10.77.0.1 node-a\n10.77.0.2 node-b\n"
SSH = """#!/bin/bash
while [[ $1 != node-* ]]; do shift; done  # options
node=$1
shift
exec nsenter --net=/run/netns/{tag}${{node#node-}} unshare --uts --mount \\
    env -i PATH="$PATH" HOME="$HOME" sh -c 'hostname "$0" && eval "$*"' "$node" "$@"
"""
Start = Callable[..., "subprocess.Popen[str]"]  # (node, command, hosts=…, before=…, VARIABLE=…)


def sh(command: str) -> None:
    subprocess.run(command, shell=True, check=True)


def tag() -> str:
    """Network namespaces are called this and the letter of their node."""
    return f"two{os.getpid()}"


def remote_shell(folder: Path) -> str:
    """A folder for the PATH, with an `ssh` that runs a command on a node; for `start` on a node.

    It passes on no other variables, as a real one.
    """
    program = folder / "remote" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH.format(tag=tag()))
    program.chmod(0o755)
    return str(program.parent)


@contextmanager
def two_nodes(folder: Path) -> Iterator[Start]:
    """``before``: a shell command on the node, such as one that breaks its network."""
    for node in "ab":
        sh(f"ip netns add {tag()}{node}")
    try:
        sh(f"ip link add {tag()}a type veth peer name {tag()}b")
        for node, number in (("a", 1), ("b", 2)):
            inside = f"ip -n {tag()}{node}"
            sh(f"ip link set {tag()}{node} netns {tag()}{node} name eth0")
            sh(f"{inside} addr add 10.77.0.{number}/24 dev eth0")
            sh(f"{inside} link set eth0 up && {inside} link set lo up")

        def start(
            node: str,
            command: Sequence[str],
            *,
            hosts: str = HOSTS,
            before: str = "true",
            **variables: str,
        ) -> subprocess.Popen[str]:
            file = folder / f"hosts-{node}"
            file.write_text(hosts)
            setup = f"hostname node-{node} && mount --bind {file} /etc/hosts && {before}"
            spaces = f"nsenter --net=/run/netns/{tag()}{node} unshare --uts --mount"
            return subprocess.Popen(
                [*spaces.split(), "sh", "-c", f'{setup} && exec "$@"', "sh", *command],
                cwd=folder,
                env={**os.environ, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )

        yield start
    finally:
        for node in "ab":
            sh(f"ip netns del {tag()}{node}")  # with its end of the cable


def ends(*started: subprocess.Popen[str]) -> list[str]:
    """What each printed."""
    return [process.communicate(timeout=240)[0] for process in started]
