"""Jupyter kernels for tests."""

from pathlib import Path

from traitlets.config import Config


def config(folder: Path) -> Config:
    """Makes a kernel listen on Unix sockets in ``folder``.  Another process could take a TCP port
    after it was chosen and before the kernel listens on it.
    """
    connection_file = folder / "kernel.json"
    return Config(KernelManager={"transport": "ipc", "connection_file": str(connection_file)})
