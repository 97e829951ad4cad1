"""Run Python commands without starting Python for each: a server process imports what they need
once, and forks for every command.

Run as a program, this module is the server: it reads a line of JSON for each command and prints the
command's exit status.  Its arguments are the modules to import.
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
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NoReturn, Protocol

WITHOUT_TORCH = (
    "autograder.build.products",
    "autograder.grading.command.grade_class",
    "autograder.grading.gradebook.read_and_rebuild",
    "autograder.grading.late.late_work",
    "autograder.pages.feedback",
    "autograder.pages.report.class_page",
    "nbgrader.apps.nbgraderapp",
)


class Run(Protocol):
    def __call__(
        self, argv: list[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python -m ...`` or an installed program. ``environment`` replaces the settings."""


@contextmanager
def forking(
    root: Path, settings: Mapping[str, str], preloaded: Sequence[str] = WITHOUT_TORCH
) -> Iterator[Run]:
    """``root``: a copy of the repository; ``settings``: the complete environment."""
    with (
        tempfile.TemporaryDirectory() as logs,
        subprocess.Popen(
            [sys.executable, "-m", "tests.tools.forks", *preloaded],
            cwd=root, env=settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as server,
    ):  # fmt: skip
        commands, statuses = server.stdin, server.stdout
        assert commands is not None
        assert statuses is not None
        out, err = Path(logs, "out"), Path(logs, "err")

        def run(
            argv: list[str], folder: Path, environment: Mapping[str, str] | None = None
        ) -> subprocess.CompletedProcess[str]:
            variables = dict(settings if environment is None else environment)
            request = [argv, str(folder), str(out), str(err), variables]
            print(json.dumps(request), file=commands, flush=True)
            status = int(statuses.readline())
            return subprocess.CompletedProcess(argv, status, out.read_text(), err.read_text())

        yield run
        commands.close()  # ends the server


def serve() -> None:
    for name in sys.argv[1:]:
        import_module(name)
    gc.freeze()  # garbage collection in a child would copy every page
    for line in sys.stdin:
        child = os.fork()
        if not child:
            become(*json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def become(
    argv: list[str], folder: str, out: str, err: str, environment: dict[str, str]
) -> NoReturn:
    """Run the command in this process, with its streams, environment and folder, and exit."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), stream)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # recomputed from the environment
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
        # Not sys.exit: interpreter shutdown would take a second.
        os._exit(status if isinstance(status, int) else int(status is not None))


if __name__ == "__main__":
    serve()
