"""`launch` from the cells of a real Jupyter kernel."""

from __future__ import annotations

import queue
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests import kernels
from tests.shardlab.marked_processes import HANG_LIMIT_S, MarkedProcesses, marked_processes

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(120)]


@dataclass
class Cell:
    """The outputs of one cell."""

    number: int
    stdout: str = ""
    stderr: str = ""
    shown: list[dict[str, str]] = field(default_factory=list)  # display areas, as last updated
    updates: int = 0
    error: str = ""
    traceback: str = ""

    @property
    def rank_lines(self) -> list[str]:
        """The lines that ranks printed, without the progress display of slow runs."""
        return [
            line
            for area in self.shown
            for line in area["text/plain"].splitlines()
            if re.match(r"rank \d", line)
        ]

    def add(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "stream":
            setattr(self, content["name"], getattr(self, content["name"]) + content["text"])
        elif kind == "display_data":
            self.shown.append(content["data"])
        elif kind == "update_display_data":
            self.updates += 1
            self.shown[-1:] = [content["data"]]
        elif kind == "error":
            self.error = content["ename"]
            text = "\n".join(content["traceback"])
            self.traceback = re.sub(r"\x1b\[[0-9;]*m", "", text)


class Notebook:
    def __init__(self, processes: MarkedProcesses, folder: Path) -> None:
        self.manager = KernelManager(kernel_name="python3", config=kernels.config(folder))
        self.manager.start_kernel(env=processes.environment)
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=HANG_LIMIT_S)

    def send(self, code: str) -> str:
        return self.client.execute(code)

    def result(self, sent: str, until: str | None = None) -> Cell:
        """The outputs until the cell is done, or until a display area shows some text."""
        cell = Cell(0)
        deadline = time.monotonic() + HANG_LIMIT_S
        while time.monotonic() < deadline:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "execute_input":
                cell.number = content["execution_count"]
            if kind == "status" and content["execution_state"] == "idle":
                return cell
            cell.add(kind, content)
            if until is not None and any(until in area["text/plain"] for area in cell.shown):
                return cell
        raise AssertionError("the cell did not end")

    def run(self, code: str) -> Cell:
        return self.result(self.send(code))

    def run_ok(self, code: str) -> Cell:
        cell = self.run(code)
        assert not cell.error, cell.traceback
        return cell

    def close(self) -> None:
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MarkedProcesses]:
    with marked_processes(tmp_path_factory.mktemp("kernel")) as marked:
        yield marked


@pytest.fixture(scope="module")
def notebook(
    processes: MarkedProcesses, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Notebook]:
    notebook = Notebook(processes, tmp_path_factory.mktemp("kernel"))
    notebook.run_ok("import time, torch, torch.distributed as dist\nfrom shardlab import launch")
    yield notebook
    notebook.close()


def test_a_function_from_a_cell(notebook: Notebook) -> None:
    notebook.run_ok("factor = 3\ndef times(x):\n    return factor * x")
    cell = notebook.run_ok("run = launch(times, world_size=2, inputs=[1, 2])\nprint(run.outputs)")
    assert cell.stdout == "[3, 6]\n"
    assert cell.rank_lines == []


def test_a_changed_cell_takes_effect_immediately(notebook: Notebook) -> None:
    notebook.run_ok("def times(x):\n    return 100 * x")
    cell = notebook.run_ok("print(launch(times, world_size=2, inputs=[1, 2]).outputs)")
    assert cell.stdout == "[100, 200]\n"


def test_a_decorated_function_and_a_class_from_cells(notebook: Notebook) -> None:
    notebook.run_ok(
        "import functools\n"
        "def logged(fn):\n"
        "    @functools.wraps(fn)\n"
        "    def wrapper(*args):\n"
        "        return fn.__name__, fn(*args)\n"
        "    return wrapper\n"
    )
    notebook.run_ok(
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.scale = 2\n"
        "    def step(self):\n"
        "        return self.scale * dist.get_rank()\n"
        "@logged\n"
        "def work(model):\n"
        "    return model.step()\n"
    )
    cell = notebook.run_ok(
        "print(launch(work, Model(), world_size=2).outputs)\n"
        "print(launch(Model().step, world_size=2).outputs)\n"
        "made = launch(Model, world_size=1).outputs[0]\n"
        "print(type(made) is Model)"
    )
    assert cell.stdout.splitlines() == ["[('work', 0), ('work', 2)]", "[0, 2]", "True"]


def test_the_traceback_shows_the_cells_own_lines(notebook: Notebook) -> None:
    inner = notebook.run_ok("def scale(x):\n    return x / 0")
    outer = notebook.run_ok("def work():\n    x = dist.get_rank()\n    return scale(x)")
    cell = notebook.run("launch(work, world_size=2)")
    assert cell.error == "RankError"
    first = cell.traceback.splitlines()[0]
    assert re.match(r"RankError: rank [01] failed: ZeroDivisionError: division by zero", first)
    assert f"[cell {inner.number}, line 2: return x / 0]" in first
    assert f"cell {outer.number}, line 3, in work\n    return scale(x)" in cell.traceback
    assert "supervise.py" not in cell.traceback
    assert "launch.py" not in cell.traceback


def test_calls_record_their_cell(notebook: Notebook) -> None:
    definition = notebook.run_ok("def work():\n    t = torch.ones(2)\n\n    dist.all_reduce(t)")
    cell = notebook.run_ok(
        "call = launch(work, world_size=2).calls[0]\nprint(call.source, '|', call.code)"
    )
    assert cell.stdout == f"cell {definition.number}, line 4 | dist.all_reduce(t)\n"


def test_a_deadlock_names_cell_and_line(notebook: Notebook) -> None:
    definition = notebook.run_ok(
        "def work():\n    t = torch.ones(2)\n    dist.send(t, 1 - dist.get_rank())"
    )
    cell = notebook.run("launch(work, world_size=2, timeout_s=20)")
    assert cell.error == "DeadlockError"
    first = cell.traceback.splitlines()[0]
    assert "0 → 1 → 0" in first
    assert f"cell {definition.number}, line 3: dist.send(t, 1 - dist.get_rank())" in first


def test_an_endless_loop_names_cell_and_line(notebook: Notebook) -> None:
    definition = notebook.run_ok("def work():\n    while True:\n        pass")
    cell = notebook.run("launch(work, world_size=1, timeout_s=1)")
    assert cell.error == "RunTimeout"
    assert f"[cell {definition.number}, line " in cell.traceback.splitlines()[0]


def test_ranks_print_into_one_output_area(notebook: Notebook) -> None:
    cell = notebook.run_ok(
        "def work():\n"
        "    for n in range(5_000):\n"
        "        print('<b>', n)\n"
        "run = launch(work, world_size=2)\n"
        "print([len(text.splitlines()) for text in run.stdout])"
    )
    (area,) = cell.shown
    assert len(area["text/plain"].splitlines()) < 200
    assert "are not shown; all are in run.stdout" in area["text/plain"]
    assert "<b>" not in area["text/html"]
    assert cell.updates < 200
    assert cell.stdout == "[5000, 5000]\n"


def test_quiet_shows_nothing_that_ranks_print(notebook: Notebook) -> None:
    cell = notebook.run_ok("_ = launch(lambda: print('x'), world_size=2)")
    assert sorted(cell.rank_lines) == ["rank 0 │ x", "rank 1 │ x"]
    cell = notebook.run_ok("_ = launch(lambda: print('x'), world_size=2, quiet=True)")
    assert (cell.rank_lines, cell.stdout) == ([], "")


def test_the_interrupt_button_stops_the_ranks(
    notebook: Notebook, processes: MarkedProcesses
) -> None:
    before = {process.pid for process in processes.alive()}
    notebook.run_ok("def stay():\n    print('up')\n    time.sleep(300)")
    sent = notebook.send("launch(stay, world_size=3, timeout_s=200)")
    notebook.result(sent, until="rank 0 │ up")
    notebook.manager.interrupt_kernel()
    assert notebook.result(sent).error == "KeyboardInterrupt"
    assert {process.pid for process in processes.alive()} == before
    assert (
        notebook.run_ok("print(launch(dist.get_rank, world_size=2).outputs)").stdout == "[0, 1]\n"
    )


def test_a_kernel_starts_its_server_on_import(tmp_path: Any) -> None:
    with marked_processes(tmp_path) as processes:
        notebook = Notebook(processes, tmp_path)
        try:
            (kernel,) = processes.alive()
            notebook.run_ok("import shardlab")
            assert len(kernel.children()) == 1
            notebook.run_ok("shardlab.launch(print, world_size=2)")
            assert len(kernel.children()) == 1
        finally:
            notebook.close()


@pytest.mark.parametrize("now", [False, True], ids=["restart", "kill"])
def test_restarting_the_kernel_leaves_no_process(tmp_path: Any, now: bool) -> None:
    with marked_processes(tmp_path) as processes:
        notebook = Notebook(processes, tmp_path)
        try:
            sent = notebook.send(
                "import time\nfrom shardlab import launch\n"
                "def stay():\n    print('up')\n    time.sleep(300)\n"
                "launch(stay, world_size=2, timeout_s=200)"
            )
            notebook.result(sent, until="rank 0 │ up")
            old = {process.pid for process in processes.alive()}
            assert len(old) >= 4  # the kernel, its rank server, two ranks
            notebook.manager.restart_kernel(now=now)
            notebook.client.wait_for_ready(timeout=HANG_LIMIT_S)
            deadline = time.monotonic() + 10
            while (
                old & {process.pid for process in processes.alive()} and time.monotonic() < deadline
            ):
                time.sleep(0.05)
            assert not old & {process.pid for process in processes.alive()}
        finally:
            notebook.close()
        assert not [left for left in processes.leftovers() if left.startswith("process")]
