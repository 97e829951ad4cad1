"""Inside a container: a notebook's IPython shell that sends its outputs over the channel."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.profiledir import ProfileDir
from traitlets.config import Config

from autograder.guest.channel import Channel, Stream


class Publisher(DisplayPublisher):
    """Receives the outputs of ``display``."""

    def publish(self, data: Any, metadata: Any = None, *_: Any, **more: Any) -> None:
        self._validate_data(data, metadata)
        display_id = (more.get("transient") or {}).get("display_id")
        content = {"data": data, "metadata": metadata or {}, "display_id": display_id}
        self.shell.channel.output("update" if more.get("update") else "display", content)

    def clear_output(self, wait: bool = False) -> None:
        self.shell.channel.clear(wait)


class Hook(DisplayHook):
    """Shows the value of a cell's last line."""

    shell: Shell

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
        self.shell.channel.output("result", {"data": format_dict, "metadata": md_dict or {}})

    def finish_displayhook(self) -> None:
        self._is_active = False


class Shell(InteractiveShell):
    channel: Channel
    kernel = None  # its presence marks a notebook, not a terminal; no live widgets

    def init_virtualenv(self) -> None:
        """Already in the right environment."""

    def init_hooks(self) -> None:
        super().init_hooks()
        # `thing?`: JupyterLab shows it outside the notebook
        self.set_hook("show_in_pager", lambda *_, **__: None, 99)

    def enable_gui(self, gui: object = None) -> None:
        """No GUI; figures are drawn into the notebook."""

    def ask_exit(self) -> None:
        """``exit`` in a cell: later cells still run."""

    def system(self, cmd: str) -> None:
        """``!command``: output goes to the cell, or to where %%capture has redirected it."""
        captured = not isinstance(sys.stdout, Stream)
        done = subprocess.run(
            self.var_expand(cmd, depth=1),
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if captured else None,
            stderr=subprocess.STDOUT if captured else None,
        )
        if captured:
            sys.stdout.write(done.stdout.decode(errors="replace"))
        self.user_ns["_exit_code"] = done.returncode

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        self.channel.error(evalue, stb)


def make_shell(channel: Channel) -> Shell:
    """The only shell of this process; it writes no files and reads no user settings."""
    config = Config()
    config.HistoryManager.enabled = False
    config.Completer.use_jedi = False
    shell: Shell = Shell.instance(
        config=config,
        ipython_dir=os.getcwd(),
        profile_dir=ProfileDir(),
        display_pub_class=Publisher,
        displayhook_class=Hook,
    )
    shell.channel = channel
    return shell
