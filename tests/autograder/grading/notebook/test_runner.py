"""Student code may crash, hang, flood or forge messages: the rest of the notebook still runs."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import cloudpickle
import psutil
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from autograder.evaluation.trial import InfrastructureError
from autograder.grading.notebook import process
from autograder.grading.notebook.outputs import TRUNCATED
from autograder.grading.notebook.runner import CellsRun, name_of, run_cells
from autograder.sandbox import Limits
from autograder.sandbox.contained import Ending
from autograder.sandbox.plain_kernel import PlainCells, start_cells
from shardlab.ranks import messages
from tests.open_files import open_files

QUICK = Limits(cell_s=4, interrupt_grace_s=1, output_bytes=10_000)
# The socket to the grader, as a student would find it.
FIND_SOCKET = """
import os, socket, stat
fds = [int(fd) for fd in os.listdir("/proc/self/fd")]
sockets = [fd for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")
           and stat.S_ISSOCK(os.fstat(fd).st_mode)]
grader = [socket.socket(fileno=os.dup(fd)) for fd in sockets]
grader = [one for one in grader if one.type == socket.SOCK_STREAM and one.family == socket.AF_UNIX]
"""


def run(*sources: str, limits: Limits = QUICK) -> tuple[list[NotebookNode], CellsRun]:
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    done = run_cells(notebook, partial(start_cells, limits), limits, {"lab.one", "lab.two"})
    return list(notebook.cells), done


def text_of(cell: NotebookNode) -> str:
    parts = [output.get("text") or output.get("evalue") or "" for output in cell.outputs]
    parts += [output.data.get("text/plain", "") for output in cell.outputs if "data" in output]
    return "\n".join(filter(None, parts))


def statuses(done: CellsRun) -> list[str]:
    return [end.status for _, end in sorted(done.ends.items())]


def test_cells_after_a_dead_process_see_earlier_state() -> None:
    (before, exits, after, crashes, last), done = run(
        "from autograder import check\nkept = 41\nprint('once')",
        "import os; print('printed before'); os._exit(3)",
        "check('lab.one', lambda: kept)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "kept += 1; kept",
    )
    assert text_of(before) == "once\n"
    assert (
        text_of(exits) == "printed before\n\nThe kernel died in this cell: it exited with status 3."
    )
    assert after.outputs == []
    assert text_of(crashes) == "The kernel died in this cell: killed by SIGKILL."
    assert text_of(last) == "42"
    assert [cell.execution_count for cell in (before, exits, after, last)] == [1, 2, 2, 3]
    assert statuses(done) == ["ran", "died", "ran", "died", "ran"]
    assert cloudpickle.loads(done.answers["lab.one"])() == 41
    assert (done.limits_hit, done.tampering) == ([], [])


def test_a_cell_is_stopped_at_its_time_limit() -> None:
    (endless, waits, holds_the_gil, last), done = run(
        "print('begun')\nwhile True: pass",
        "import asyncio; await asyncio.sleep(99)",
        "sum(range(10**15))",
        "'still here'",
        limits=Limits(cell_s=1, interrupt_grace_s=2),
    )
    assert text_of(endless).startswith("begun\n")
    assert [output.get("ename") for output in endless.outputs][1:] == [
        "KeyboardInterrupt",
        "CellTimeout",
    ]
    assert "This cell was stopped after 1 s." in text_of(waits)
    assert "did not stop when interrupted: its kernel was killed." in text_of(holds_the_gil)
    assert text_of(last) == "'still here'"
    assert statuses(done) == ["limit", "limit", "limit", "ran"]
    assert len(done.limits_hit) == 3


def test_a_notebook_that_keeps_dying_ends() -> None:
    limits = Limits(cell_s=3, deaths=1)
    (*dead, unrun), done = run(*["import os; os._exit(1)"] * 2, "1", limits=limits)
    assert all("died in this cell" in text_of(cell) for cell in dead)
    assert text_of(unrun) == "This cell was not run: the kernel had died 2 times."
    assert statuses(done) == ["died", "died", "not run"]


def test_output_is_limited_and_a_later_error_is_kept() -> None:
    (lines, raw, image, animation, error), done = run(
        "for i in range(1_000_000): print('50 MB of this' * 4)",
        "import os; os.system('head -c 50000000 /dev/zero'); os.write(1, b'x' * 50_000_000)",
        "from IPython.display import HTML, clear_output\nHTML('x' * 20_000)",
        "for i in range(20): clear_output(wait=True); display(HTML('x' * 5000 + str(i)))",
        "print('x' * 20_000); raise ValueError('the reason')",
        limits=Limits(output_bytes=10_000),
    )
    assert all(10_000 <= len(cell.outputs[0].text) <= 10_001 for cell in (lines, raw, error))
    assert all(TRUNCATED in text_of(cell) for cell in (lines, raw, error))
    assert text_of(image) == TRUNCATED
    assert len(animation.outputs) == 1
    assert animation.outputs[0].data["text/html"].endswith("x19")
    assert error.outputs[-1].evalue == "the reason"
    assert len(done.limits_hit) == 4
    assert statuses(done) == ["ran"] * 4 + ["raised"]


def test_an_error_about_a_limit_counts_as_a_limit() -> None:
    _, done = run(
        "raise MemoryError",
        "import os\nwith open('file', 'wb') as file:\n    os.ftruncate(file.fileno(), 1 << 40)",
        "raise OSError(11, 'Resource temporarily unavailable')",
    )
    assert statuses(done) == ["raised"] * 3
    assert done.limits_hit == [
        "The cell that begins with `raise MemoryError`: It needed more memory than the limit.",
        "The cell that begins with `import os`: It needed more disk than the limit.",
    ]


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        (new_code_cell("1", metadata={"nbgrader": {"grade_id": "chunk_bounds"}}), "`chunk_bounds`"),
        (new_code_cell("\n\n  run = launch(f)\nrun"), "that begins with `run = launch(f)`"),
        (new_code_cell("a`b\x1b[2J" + "c" * 99), f"that begins with `a'b[2J{'c' * 54}…`"),
    ],
)
def test_a_cell_is_named_so_that_a_student_finds_it(cell: NotebookNode, name: str) -> None:
    assert name_of(cell) == name


def test_all_outputs_together_are_limited() -> None:
    limits = Limits(output_bytes=1000)
    cells, done = run(*["print('x' * 900)"] * 15, limits=limits)
    assert sum(len(text_of(cell)) for cell in cells if TRUNCATED not in text_of(cell)) <= 10_000
    assert statuses(done) == ["ran"] * 15
    assert done.limits_hit


def test_garbage_on_the_graders_socket_kills_the_process_and_is_reported() -> None:
    cells, done = run(
        FIND_SOCKET + "for one in grader: one.sendall(b'garbage' * 100)",
        "'goes on'",
    )
    assert "sent the grader a forged message" in text_of(cells[0])
    assert text_of(cells[1]) == "'goes on'"
    assert len(done.tampering) == 1
    assert statuses(done) == ["died", "ran"]


class Scripted:
    """Replaces a contained process: sends the given messages when asked to run a cell."""

    pid = os.getpid()

    def __init__(self, *sent: bytes) -> None:
        self.sock, self.inside = socket.socketpair()
        self.inside.sendall(messages.pack({"is": "ready"}) + b"".join(sent))

    def interrupt(self) -> None: ...
    def kill(self) -> None: ...
    def cpu_s(self) -> float:
        return 0.0

    def why_ended(self) -> Ending:
        return Ending("it was never there")

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()
        self.inside.close()


@pytest.mark.parametrize(
    "forged",
    [
        messages.pack({"is": "done", "cell": 7, "raised": False}),  # another cell's
        messages.pack({"is": "done", "cell": 1, "raised": "no"}),
        messages.pack({"is": "verdict", "points": 5}),
        messages.pack({"is": ["display"]}),
        messages.pack({"is": "mark", "at": [-1, "x"]}),
        messages.pack({"is": "answer", "name": 5}),
        struct.pack("<IQ", 20, 1 << 62),  # a body larger than any machine
        struct.pack("<IQ", 1 << 30, 0),
        struct.pack("<IQ", 9, 0) + b"[" * 9,
        struct.pack("<IQ", 50_000, 0) + b"[" * 50_000,
        struct.pack("<IQ", 4, 0) + b"\xff" * 4,
        messages.pack({"is": "mark"}) * 300,
    ],
)
def test_forged_messages_are_reported(forged: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_MESSAGES", 200)
    notebook = new_notebook(cells=[new_code_cell("1")])
    limits = Limits(cell_s=5, deaths=0)
    with Scripted(forged) as scripted:
        done = run_cells(notebook, lambda: scripted, limits, {"lab.one"})
    assert statuses(done) == ["died"]
    assert len(done.tampering) == 1


def test_a_forger_can_send_no_more_than_any_cell() -> None:
    (forger, last), done = run(
        FIND_SOCKET
        + """
import json
from shardlab.ranks import messages
from tests.open_files import open_files
def send(header, body=b""):
    for one in grader:
        messages.send(one, header, body)
deep = b'{"data": {"application/json": ' + b'[' * 500 + b']' * 500 + b'}}'
for body in (deep, b'{"data": {"application/json": NaN}}', b'{"data": {"text/plain": {"a": 1}}}',
             b'{"data": {"application/json": 1e999}}', b'[1]', b'[' * 5000,
             b'{"data": {"<script>": "x"}}'):
    send({"is": "display", "at": [0, 0]}, body)
send({"is": "display"}, b'{"data": {"text/plain": "\\\\ud800"}}')
send({"is": "error"}, b'{"ename": 1}')
send({"is": "answer", "name": "another.lab"}, b"x")
send({"is": "answer", "name": "lab.two"}, b"not a pickle")
os.ftruncate(100, 1 << 27)
""",
        "'last'",
    )
    assert len(forger.outputs) <= 12
    assert text_of(last) == "'last'"
    assert done.answers == {"lab.two": b"not a pickle"}


def test_no_process_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = f"600.{os.getpid()}"  # no other process sleeps that long
    kept: list[PlainCells] = []
    monkeypatch.setattr(
        "autograder.sandbox.plain_kernel.PlainCells.kill",
        lambda cells, kill=PlainCells.kill: (kept.append(cells), kill(cells))[1],
    )
    (_, closes), done = run(
        """
import os, subprocess, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
orphan = subprocess.Popen("setsid sleep SECONDS & setsid sleep SECONDS & sleep SECONDS", shell=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "SECONDS"])
    os._exit(0)
""".replace("SECONDS", seconds),
        "import os; os.fork() or __import__('time').sleep(605); os.closerange(3, 4096)",
    )
    assert statuses(done) == ["ran", "died"]
    assert "The kernel died in this cell" in text_of(closes)
    commands = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if command == f"sleep {seconds}"]
    assert all(not psutil.pid_exists(cells.pid) for cells in kept)
    assert all(cells.server.returncode is not None for cells in kept)


def test_time_spent_waiting_for_a_processor_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where this process hardly gets any CPU time."""
    first_seen: dict[int | None, float] = {}

    def waited_ns(pid: int | None) -> int:
        now = process.time.monotonic()
        return int((now - first_seen.setdefault(pid, now)) * 0.95e9)

    monkeypatch.setattr(process.thread, "waited_ns", waited_ns)
    notebook = new_notebook(cells=[new_code_cell("1")])
    limits = Limits(cell_s=0.2)
    with Scripted() as scripted:
        answer = messages.pack({"is": "done", "cell": 1, "raised": False})
        threading.Timer(0.4, scripted.inside.sendall, [answer]).start()
        assert statuses(run_cells(notebook, lambda: scripted, limits, ())) == ["ran"]
    monkeypatch.setattr(process, "MAX_SLOWDOWN", 3)
    monkeypatch.setattr(process, "START_S", 0.6)
    with Scripted() as scripted, pytest.raises(InfrastructureError, match="too busy"):
        run_cells(notebook, lambda: scripted, limits, ())


def test_cells_run_inside_an_event_loop_as_in_formgrader() -> None:
    async def handler() -> list[NotebookNode]:
        return run("6 * 7")[0]

    with ThreadPoolExecutor(1) as pool:  # this thread's event loop may be Playwright's
        (cell,) = pool.submit(lambda: asyncio.run(handler())).result()
    assert text_of(cell) == "42"


def test_no_file_of_the_grader_is_left_open() -> None:
    before = open_files()
    run("1")
    assert open_files() - before == set()
