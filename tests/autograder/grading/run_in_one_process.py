"""Runs nbgrader's commands one after another in one process: it and its sandbox start once.

python run_in_one_process.py "autograde 04_zero" "autograde 06_offload"
"""

from __future__ import annotations

import sys

from nbgrader.apps import NbGraderApp
from traitlets.config import Application

if __name__ == "__main__":
    for command in sys.argv[1:]:
        NbGraderApp.launch_instance(command.split())
        # The command's own class keeps the instance of the singleton.
        type(Application.instance()).clear_instance()
