"""Runs a student's notebook in a kernel of its own, and outlives whatever that kernel does."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import ensure_async, run_sync
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_output

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())  # a dead kernel is the student's news, not the terminal's

MAX_SOCKET_FOLDER = 90  # characters: Unix takes about 104 for the name of a socket


@dataclass(frozen=True)
class Limits:
    """What one submission may use. The one place for these numbers."""

    cell_s: float = 60.0
    interrupt_grace_s: float = 5.0  # from the interrupt until the kernel is killed
    submission_s: float = 300.0
    deaths: int = 5  # kernels that may die; each costs a new one and a rerun
    output_bytes: int = 1_000_000  # of one cell


@dataclass(frozen=True)
class CellEnd:
    """How one cell ended.

    how: "ran", "raised", "limit" (time, output or memory), "died" (its process ended) or "not run"
    """

    how: str
    sentence: str = ""  # for the student; empty for "ran"


@dataclass
class CellsRun:
    """What ``run_cells(notebook, start, limits) -> CellsRun`` will return, the outputs aside."""

    answers: dict[str, bytes]  # by exercise's name: cloudpickles, never to be loaded here
    ends: dict[int, CellEnd]  # by the position of each code cell that is not empty
    limits_hit: list[str]  # a sentence each, for the student
    tampering: list[str]  # what cannot be an accident: forged messages


def run_student_kernel(
    notebook: NotebookNode, *, private: Path, deposits: Path, limits: Limits
) -> None:
    """Runs all code cells and leaves their outputs in ``notebook``; checks leave theirs in
    ``deposits``.

    A cell that kills its kernel or ignores its time limit gets an error output that says so; a
    new kernel reruns the cells before it, without it, and goes on behind it.  ``private`` is an
    empty folder: the kernel's sockets and working folder.

    This is where a sandbox belongs: besides the ranks of ``grade.decide`` only the kernel that
    starts here runs student code.
    """
    for cell in _code_cells(notebook).values():
        cell.outputs, cell.execution_count = [], None
    run_sync(_run)(notebook, private, deposits, limits)


async def _run(notebook: NotebookNode, private: Path, deposits: Path, limits: Limits) -> None:
    cells = _code_cells(notebook)
    waiting = [index for index, cell in cells.items() if cell.source.strip()]
    ran: list[int] = []  # and worth running again: they neither killed their kernel nor hung
    deadline = time.monotonic() + limits.submission_s
    for life in range(limits.deaths + 1):
        if not waiting or time.monotonic() >= deadline:
            break
        folder = private / f"kernel{life}"
        async with _kernel(deepcopy(notebook), folder, deposits, limits.output_bytes) as kernel:
            await _one_life(kernel, cells, ran, waiting, deadline, limits)
    why = (
        f"the {limits.submission_s:.0f} s for the whole notebook were used up"
        if time.monotonic() >= deadline
        else f"the kernel had died {limits.deaths + 1} times"
    )
    for index in waiting:
        cells[index].outputs = [_error("NotRun", f"This cell was not run: {why}.")]


async def _one_life(
    kernel: _Kernel,
    cells: dict[int, NotebookNode],
    ran: list[int],
    waiting: list[int],
    deadline: float,
    limits: Limits,
) -> None:
    """Runs ``ran`` again, then ``waiting``, up to the end, the deadline or the kernel's death.

    Moves cells from ``waiting`` to ``ran``, and out of both where they are not to be run again.
    """
    for index in [*ran, *waiting]:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return
        end = await _run_cell(kernel, index, min(limits.cell_s, left_s), limits)
        if index in waiting:
            waiting.remove(index)
            cells[index].outputs = kernel.nb.cells[index].outputs
            cells[index].execution_count = kernel.nb.cells[index].execution_count
            if end.clean:
                ran.append(index)
        elif not end.clean:
            ran.remove(index)
        if not end.clean:
            cells[index].outputs.append(_error(end.name, end.sentence))
        if end.kernel_lost:
            return


@dataclass(frozen=True)
class _End:
    """How one cell ended, as far as that is not what the cell itself raised."""

    name: str = ""
    sentence: str = ""
    kernel_lost: bool = False

    @property
    def clean(self) -> bool:
        return not self.name


async def _run_cell(kernel: _Kernel, index: int, seconds: float, limits: Limits) -> _End:
    assert kernel.km is not None
    running = asyncio.ensure_future(kernel.async_execute_cell(kernel.nb.cells[index], index))
    await asyncio.wait({running}, timeout=seconds)
    late = not running.done()
    if late:
        await ensure_async(kernel.km.interrupt_kernel())
        await asyncio.wait({running}, timeout=limits.interrupt_grace_s)
    stubborn = not running.done()
    if stubborn:
        await ensure_async(kernel.km.signal_kernel(signal.SIGKILL))
    try:
        await running
    except DeadKernelError:
        if late:
            return _End(
                "CellTimeout",
                f"This cell was still running after {seconds:.0f} s and did not stop when asked "
                "to: its kernel was ended.",
                kernel_lost=True,
            )
        return _End("DeadKernel", f"The kernel died in this cell: {kernel.death()}.", True)
    except Exception as error:
        # Only messages from the kernel can lead here, and those are the student's to shape.
        log.info("cell %d: unreadable messages", index, exc_info=True)
        return _End("DeadKernel", f"The kernel sent what cannot be read ({error}).", True)
    if late:
        return _End("CellTimeout", f"This cell was stopped after {seconds:.0f} s.")
    return _End()


class _Kernel(NotebookClient):
    """nbclient's bookkeeping of outputs, with a bound on them."""

    def __init__(self, notebook: NotebookNode, output_bytes: int, **kw: Any) -> None:
        super().__init__(notebook, coalesce_streams=True, **kw)
        self.log = log
        self._most = output_bytes
        self._seen: Counter[int] = Counter()  # bytes, by cell

    def output(
        self, outs: list[NotebookNode], msg: dict[str, Any], display_id: str | None, cell_index: int
    ) -> NotebookNode | None:
        if not outs or self.clear_before_next_output:
            self._seen[cell_index] = 0
        was_full = self._seen[cell_index] > self._most
        self._seen[cell_index] += _size(msg["content"])
        if self._seen[cell_index] <= self._most:
            return super().output(outs, msg, display_id, cell_index)
        if not was_full:
            outs.append(new_output("display_data", data={"text/plain": TOO_MUCH}))
        return None

    def death(self) -> str:
        """How the process ended: "killed by SIGSEGV"."""
        process = getattr(getattr(self.km, "provisioner", None), "process", None)
        code = process.poll() if process else None
        if code is None:
            return "it is gone"
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"it exited with status {code}"


TOO_MUCH = "... this cell printed more than is kept ..."


@asynccontextmanager
async def _kernel(
    notebook: NotebookNode, private: Path, deposits: Path, output_bytes: int
) -> AsyncIterator[_Kernel]:
    scratch = private / "work"
    scratch.mkdir(parents=True)
    manager = AsyncKernelManager(kernel_name="python3")
    # Sockets in a folder of ours rather than ports: nobody else can connect, none can clash.
    if len(str(private)) <= MAX_SOCKET_FOLDER:
        manager.transport, manager.ip = "ipc", str(private / "s")
    manager.connection_file = str(private / "kernel.json")
    environment = {
        **os.environ,
        "SHARDLAB_DEPOSIT": str(deposits),
        "IPYTHONDIR": str(private / "ipython"),  # nobody's profile, history or start-up files
    }
    kernel = _Kernel(
        notebook,
        output_bytes,
        km=manager,
        timeout=None,  # ours: see _run_cell
        allow_errors=True,
        iopub_timeout=10,
        store_widget_state=False,
        record_timing=False,
    )
    try:
        await manager.start_kernel(
            cwd=str(scratch),
            env=environment,
            extra_arguments=["--HistoryManager.hist_file=:memory:"],
        )
        await kernel.async_start_new_kernel_client()
        yield kernel
    finally:
        if kernel.kc is not None:
            kernel.kc.stop_channels()
        if manager.has_kernel:
            await manager.shutdown_kernel(now=True)
        await ensure_async(manager.cleanup_resources())


def _code_cells(notebook: NotebookNode) -> dict[int, NotebookNode]:
    return {i: cell for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"}


def _error(name: str, sentence: str) -> NotebookNode:
    return new_output("error", ename=name, evalue=sentence, traceback=[f"{name}: {sentence}"])


def _size(content: Any) -> int:
    """Roughly what it takes on disk."""
    if isinstance(content, dict):
        return sum(_size(value) for value in content.values())
    if isinstance(content, list | tuple):
        return sum(_size(value) for value in content)
    return len(content) if isinstance(content, str) else 8
