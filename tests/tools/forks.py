"""Run Python commands without starting Python for each: a process imports once what they need, and
forks for every command.

As a program it reads a line of JSON for each command and prints the command's exit status.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NoReturn, Protocol

# The last imports torch.
PRELOADED = (
    "autograder.build",
    "autograder.grading.command.grade_class",
    "autograder.grading.gradebook.steps",
    "autograder.grading.late.course",
    "autograder.pages.feedback",
    "autograder.pages.report.class_page",
    "nbgrader.apps.nbgraderapp",
    "autograder.release.package",
)


class Run(Protocol):
    def __call__(self, argv: list[str], folder: Path) -> tuple[int, str]:
        """(exit status, all that was printed) of ``python -m ...`` or of an installed program."""


@contextmanager
def forking(root: Path, settings: dict[str, str]) -> Iterator[Run]:
    """``root``: a copy of the repository; ``settings``: all environment variables."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.tools.forks"],
        cwd=root, env=settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        to, answers = server.stdin, server.stdout
        assert to is not None
        assert answers is not None
        log = root.with_suffix(".log")

        def run(argv: list[str], folder: Path) -> tuple[int, str]:
            print(json.dumps([argv, str(folder), str(log)]), file=to, flush=True)
            return int(answers.readline()), log.read_text()

        yield run
        to.close()  # ends it


def serve() -> None:
    for name in PRELOADED:
        import_module(name)
    gc.freeze()  # a collection in a child would copy every page
    for line in sys.stdin:
        child = os.fork()
        if not child:
            become(*json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def become(argv: list[str], folder: str, log: str) -> NoReturn:
    """Run the command in this process: its streams, folder and arguments, to its end."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.dup2(1, 2)
    os.chdir(folder)
    status: object = 1
    try:
        if argv[:2] == ["python", "-m"]:
            sys.argv = argv[2:]
            runpy.run_module(argv[2], run_name="__main__", alter_sys=True)
        else:
            program = shutil.which(argv[0])
            assert program, argv
            sys.argv = [program, *argv[1:]]
            runpy.run_path(program, run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit: to take all modules apart costs a second.
        os._exit(status if isinstance(status, int) else int(status is not None))


if __name__ == "__main__":
    serve()
