"""The command's loop, and the checks before it starts."""

from __future__ import annotations

import argparse
import signal
import time
from contextlib import ExitStack

from autograder.grading.command.grade_class import exit_code_of, late_work, open_pool
from autograder.grading.command.lab import LabGrading, UsageError
from autograder.grading.pool.worker import CannotGrade
from autograder.pages.on_submit.service import Service
from autograder.sandbox import bubblewrap


def serve(arguments: argparse.Namespace) -> int:
    """Run until interrupted. Returns the exit code, as `grade` does."""
    return exit_code_of(_serve, arguments)


def _serve(arguments: argparse.Namespace) -> int:
    if not arguments.every > 0:
        raise UsageError(f"--every {arguments.every:g}: must be more than 0 seconds")
    labs = [LabGrading(lab) for lab in dict.fromkeys(arguments.labs)]
    late_work(labs[0].app)
    if not (arguments.scheduler or arguments.unsandboxed or labs[0].unsandboxed):
        _require_sandbox()  # now, not when the first student submits
    with ExitStack() as stack:
        for lab in labs:
            stack.enter_context(lab.journal.locked())
        service = Service(
            labs,
            stack.enter_context(open_pool(arguments, labs)),
            shows_hidden=arguments.show == "hidden",
            every_s=arguments.every,
            say=lambda line: print(line, flush=True),
        )
        for stop in (signal.SIGINT, signal.SIGTERM):  # from a terminal, from systemd
            signal.signal(stop, signal.default_int_handler)
        print(f"Watching {service.inbound.folder}. Press Ctrl-C to stop.", flush=True)
        while True:
            service.step()
            time.sleep(arguments.every)


def _require_sandbox() -> None:
    try:
        bubblewrap.program()
    except bubblewrap.Unavailable as error:
        raise CannotGrade(str(error)) from error
