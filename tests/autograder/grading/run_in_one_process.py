"""Runs nbgrader commands one after another in one process, with one start of the sandbox.

python -m tests.autograder.grading.run_in_one_process "autograde 04_zero" "autograde 07_offload"
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Imported here, because worker processes also import this file and do not need nbgrader.
    from nbgrader.apps import NbGraderApp
    from traitlets.config import Application

    for command in sys.argv[1:]:
        NbGraderApp.launch_instance(command.split())
        # The command's own class keeps the instance of the singleton.
        type(Application.instance()).clear_instance()
