"""Runs nbgrader's commands one after another in one process: it and its sandbox start once.

python -m tests.autograder.grading.run_in_one_process "autograde 04_zero" "autograde 06_offload"
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Imported here: worker processes import this file too, and need no nbgrader.
    from nbgrader.apps import NbGraderApp
    from traitlets.config import Application

    for command in sys.argv[1:]:
        NbGraderApp.launch_instance(command.split())
        # The command's own class keeps the instance of the singleton.
        type(Application.instance()).clear_instance()
