"""Jupyter kernels for tests."""

from pathlib import Path

from traitlets.config import Config


def config(folder: Path) -> Config:
    """A kernel listens on sockets in ``folder``.  The port that a test's kernel was given could be
    taken by another process before it listens there.
    """
    connection_file = folder / "kernel.json"
    return Config(KernelManager={"transport": "ipc", "connection_file": str(connection_file)})
