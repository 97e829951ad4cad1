"""Time and memory of `python -m autograder grade`, compared with stock `nbgrader autograde`.

.venv/bin/python -m benchmarks.grading [--students N ...] [--rounds N] [--only ours|stock]
                                          [--jobs N] [--tiny] [--json FILE]

Both get the same notebooks.  Of every ten submissions, four are correct, three contain one of the
lab's planted mistakes, one is empty, one hangs (alternately ranks that wait for each other and a
cell that never ends) and one crashes (alternately the kernel dies and an answer raises).

Stock nbgrader uses its defaults: a separate course folder, none of our preprocessors, and check
cells that run in the student's kernel and test only the visible cases.  Ours also tests the hidden
cases, in a sandbox.  Rounds are interleaved, so that other load on the machine affects both.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from nbgrader.api import Gradebook

from benchmarks import descendants
from tests.submissions import planted

ROOT = Path(__file__).resolve().parent.parent
LAB = "03_ring_all_reduce"
NOTEBOOK = f"{LAB}/{LAB}.ipynb"
STOCK_CONFIG = "c = get_config()\nc.CourseDirectory.course_id = 'stock'\n"
TEN = ("right", "wrong", "right", "stub", "wrong", "right", "hangs", "wrong", "crashes", "right")
GIB = 2**30


def kind_of(student: int) -> str:
    return TEN[student % 10]


def answers_of(student: int) -> dict[str, str]:
    """{grade id: source} of the cells that this student changed."""
    solution, mistakes = planted.solution(LAB), {m.name: m for m in planted.of_lab(LAB)}
    deadlock = mistakes.pop("both_send_first").answers
    ten = student // 10
    match kind_of(student):
        case "right":
            return solution
        case "wrong":
            names = sorted(mistakes)
            return solution | mistakes[names[student % len(names)]].answers
        case "hangs":
            endless = {"reduce_scatter": "while True:\n    pass"}
            return solution | (endless if ten % 2 else deadlock)
        case "crashes":
            dies = {"reduce_scatter": "import os\nos._exit(7)"}
            raises = {"all_gather": "def all_gather(chunks):\n    return chunks[rank]"}
            return solution | (raises if ten % 2 else dies)
        case _:
            return {}


def submit_all(submitted: Path, students: int) -> None:
    released = json.loads((ROOT / "labs" / NOTEBOOK).read_text())
    for student in range(students):
        answers = answers_of(student)
        cells = [{**cell, "source": answers.get(cell["id"], cell["source"])}
                 for cell in released["cells"]]  # fmt: skip
        path = submitted / f"student{student:03d}" / NOTEBOOK
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({**released, "cells": cells}))


@dataclass
class Figures:
    side: str
    students: int
    wall_s: float
    cpu_s: float
    peak_bytes: int
    p50_s: float  # of one submission, from its start to its grade
    p95_s: float
    recorded: int  # students who have a score in the gradebook
    survivors: int  # processes still running after the command exited


class Grader:
    """One way to grade the class, in a separate course folder."""

    name = ""
    database = ""

    def __init__(self, root: Path, students: int) -> None:
        self.root = root
        self.environment = descendants.clean_environment(root.parent)
        self.set_up()
        submit_all(self.submitted, students)
        self.students = students
        self.nbgrader("generate_assignment", LAB, "--force")

    submitted: Path

    def set_up(self) -> None:
        raise NotImplementedError

    def command(self) -> list[str]:
        raise NotImplementedError

    def latencies_s(self) -> list[float]:
        raise NotImplementedError

    def on_line(self, line: str) -> None:
        pass

    def nbgrader(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "nbgrader", *arguments]
        done = descendants.run(command, self.root, self.environment)
        if done.exit_status:
            raise RuntimeError(f"nbgrader {arguments[0]} failed:\n{done.output[-3000:]}")

    def grade(self) -> Figures:
        used = descendants.run(self.command(), self.root, self.environment, self.on_line)
        (self.root / "log.txt").write_text(used.output)
        latencies_s = self.latencies_s()
        if not latencies_s:
            raise RuntimeError(f"{self.name} graded no submissions:\n{used.output[-3000:]}")
        return Figures(
            self.name,
            self.students,
            used.wall_s,
            used.cpu_s,
            used.peak_bytes,
            percentile(latencies_s, 50),
            percentile(latencies_s, 95),
            self._recorded(),
            used.survivors,
        )

    def _recorded(self) -> int:
        with Gradebook(f"sqlite:///{self.root / self.database}") as gradebook:
            return len(gradebook.submission_dicts(LAB))


PHASES = {  # of a record's timing
    "cells": "cells_cpu_s",
    "ranks": "ranks_cpu_s",
    "checker": "checker_cpu_s",
}


class Ours(Grader):
    name, database = "ours", "grading/gradebook.db"

    def __init__(self, root: Path, students: int, jobs: int | None) -> None:
        self.jobs = jobs
        super().__init__(root, students)

    def set_up(self) -> None:
        shutil.copy(ROOT / "nbgrader_config.py", self.root)
        shutil.copytree(ROOT / "solutions" / LAB, self.root / "solutions" / LAB)
        self.submitted = self.root / "grading/submitted"

    def command(self) -> list[str]:
        jobs = [] if self.jobs is None else ["--jobs", str(self.jobs)]
        return [sys.executable, "-m", "autograder", "grade", LAB, *jobs]

    def latencies_s(self) -> list[float]:
        return [timing["ran_s"] + timing["decided_s"] for timing in self._timings().values()]

    def phases(self, cpu_s: float) -> list[str]:
        """A table of CPU time by kind of submission and phase.

        ``cpu_s``: of everything.  What no submission accounts for is once for the class: imports,
        fork servers, the gradebook.
        """
        timings = self._timings()
        kinds: dict[str, list[dict[str, float]]] = {}
        for student, timing in timings.items():
            kinds.setdefault(kind_of(int(student[-3:])), []).append(timing)
        lines = [f"  {'CPU-s each':12}{'':>6}" + "".join(f"{phase:>10}" for phase in PHASES)]
        for kind, members in sorted(kinds.items()):
            means = [statistics.mean(each[key] for each in members) for key in PHASES.values()]
            shown = "".join(f"{mean:10.2f}" for mean in means)
            lines.append(f"  {kind:12}{len(members):6}{shown}")
        rest_s = cpu_s - sum(each["cpu_s"] for each in timings.values())
        return [*lines, f"  once for the class: {rest_s:.1f} CPU-s"]

    def _timings(self) -> dict[str, dict[str, float]]:
        records = (self.root / "grading/records" / LAB).glob("*.json")
        return {path.stem: json.loads(path.read_text())["timing"] for path in records}


class Stock(Grader):
    name, database = "stock", "gradebook.db"

    def set_up(self) -> None:
        (self.root / "nbgrader_config.py").write_text(STOCK_CONFIG)
        shutil.copytree(ROOT / "solutions" / LAB, self.root / "source" / LAB)
        for text in (self.root / "source" / LAB).glob("*.nb.py"):
            text.unlink()  # otherwise nbgrader would release it
        self.submitted = self.root / "submitted"
        self.started_s: dict[str, float] = {}

    def command(self) -> list[str]:
        return [sys.executable, "-m", "nbgrader", "autograde", LAB]

    def on_line(self, line: str) -> None:
        """Students are graded sequentially: each one's time ends when the next one starts."""
        if found := re.search(r"Converting notebook \S*/submitted/([^/]+)/", line):
            self.started_s.setdefault(found[1], time.monotonic())

    def latencies_s(self) -> list[float]:
        times = [*self.started_s.values(), time.monotonic()]
        return [later - earlier for earlier, later in itertools.pairwise(times)]


def percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def measure(students: int, side: str, jobs: int | None) -> Figures:
    with tempfile.TemporaryDirectory(prefix="shardlab-bench-") as folder:
        root = Path(folder) / "course"
        root.mkdir()
        if side == "stock":
            return Stock(root, students).grade()
        ours = Ours(root, students, jobs)
        figures = ours.grade()
        print("\n".join(ours.phases(figures.cpu_s)), flush=True)
        return figures


def median_of(rounds: list[Figures]) -> Figures:
    """The median of each timing, and the worst of each count over all rounds."""
    plain = [asdict(figures) for figures in rounds]
    medians: dict[str, Any] = {
        name: statistics.median(figures[name] for figures in plain)
        for name in ("wall_s", "cpu_s", "peak_bytes", "p50_s", "p95_s")
    }
    least = min(figures.recorded for figures in rounds)
    left = max(figures.survivors for figures in rounds)
    first = rounds[0]
    return Figures(first.side, first.students, **medians, recorded=least, survivors=left)


HEADER = (
    f"{'':6} {'students':>8} {'wall':>9} {'each':>8} {'CPU each':>9} {'peak':>9} "
    f"{'p50':>8} {'p95':>8} {'recorded':>9} {'left over':>9}"
)


def line(figures: Figures) -> str:
    return (
        f"{figures.side:6} {figures.students:8} {figures.wall_s:7.1f} s "
        f"{figures.wall_s / figures.students:6.2f} s {figures.cpu_s / figures.students:7.2f} s "
        f"{figures.peak_bytes / GIB:5.2f} GiB {figures.p50_s:6.2f} s {figures.p95_s:6.2f} s "
        f"{figures.recorded:9} {figures.survivors:9}"
    )


def ratios(ours: Figures, stock: Figures) -> str:
    return (
        f"stock over ours, {ours.students} students: wall {stock.wall_s / ours.wall_s:.1f}×, "
        f"CPU {stock.cpu_s / ours.cpu_s:.1f}×, peak memory "
        f"{stock.peak_bytes / ours.peak_bytes:.1f}×, p50 {stock.p50_s / ours.p50_s:.1f}×, "
        f"p95 {stock.p95_s / ours.p95_s:.1f}×"
    )


def machine() -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--students", type=int, nargs="+", default=[100])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=("ours", "stock"))
    parser.add_argument("--jobs", type=int, help="number of our workers; by default grade's own")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument("--tiny", action="store_true", help="a quick smoke test with one student")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.students, options.rounds = [1], 1
    info = machine()
    print(
        f"{LAB} on {info['cores']} cores, {info['memory_bytes'] / GIB:.0f} GiB, "
        f"{info['system']}, load {info['load_before']:.1f} before\n"
    )
    print(HEADER)
    results = []
    for students in options.students:
        measured: dict[str, list[Figures]] = {}
        for _ in range(options.rounds):
            for side in [options.only] if options.only else ["ours", "stock"]:
                measured.setdefault(side, []).append(measure(students, side, options.jobs))
        medians = {side: median_of(rounds) for side, rounds in measured.items()}
        for figures in medians.values():
            print(line(figures), flush=True)
        if len(medians) == 2:
            print(f"  {ratios(medians['ours'], medians['stock'])}\n", flush=True)
        results += [asdict(figures) for figures in medians.values()]
    if options.json is not None:
        mix = Counter(kind_of(student) for student in range(max(options.students)))
        written = {"machine": info, "lab": LAB, "mix": mix, "figures": results}
        options.json.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()
