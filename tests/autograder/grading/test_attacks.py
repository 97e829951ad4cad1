"""The corpus, graded by the real command: classes of attackers with some honest students.

Each attack earns no undeserved points and ends in its state, and nothing that it tried to steal is
in its record.  Together they change no other grade and no file, and leave no process and no new
file behind.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest

from autograder.grading.record.record import STATES, Record
from tests.autograder.grading.copied_course import REPO, Course, forks, source_of, with_answers
from tests.autograder.sandbox.without_root import is_possible, run_without_root
from tests.submissions import corpus
from tests.submissions.corpus import LAB, NAME, Entry, Place

pytestmark = [
    pytest.mark.long, pytest.mark.nbgrader, pytest.mark.ranks, pytest.mark.timeout(1800),
]  # fmt: skip

# Low limits, so that a whole class of bombs is quick to grade.
LIMITS = {
    "cell_s": 2, "submission_s": 12, "run_s": 1.5, "interrupt_grace_s": 1, "deaths": 1,
    "cpu_s": 60, "memory_bytes": 700_000_000, "processes": 160,
    "scratch_bytes": 64_000_000, "file_bytes": 100_000_000,
}  # fmt: skip
SECRET = "CANARY-7f3a"
MARK = f"mark{os.getpid()}"
WITH_NEIGHBOR = ("fork_bomb", "kills_the_parent", "opens_the_gradebook", "shared_memory_bomb")
# Attacks that depend on who grades; without root, the class has only these.
WITHOUT_ROOT = (
    "disk_bomb", "fork_bomb", "fork_bomb_on_a_rank", "goes_online", "hard_link", "kills_the_parent",
    "malicious_pickle", "memory_bomb_by_many_processes", "opens_the_gradebook", "orphans", "ptrace",
    "raises_its_limits", "reads_all_files", "reads_the_environment", "uses_the_shell",
)  # fmt: skip
# Names or kinds, to try only these: SHARDLAB_CORPUS=theft,fork_bomb
CHOSEN = set(filter(None, os.environ.get("SHARDLAB_CORPUS", "").split(",")))
ENTRIES = [
    entry
    for entry in [*corpus.attacks(), *corpus.honest()]
    if not CHOSEN or {entry.name, entry.kind} & CHOSEN
]
# The others of tests/submissions/accidents are in test_accidents.py.
ACCIDENTS = ("downloaded_twice", "merge_conflict_in_the_file", "zipped")
ATTACKS = [entry for entry in ENTRIES if entry.kind != "honest"]
# Names or kinds of the attacks of each row of docs/threat-model.md.
OF_ROW = {
    "Forging": ["forging"],
    "Computing instead of communicating": [
        "data_*", "rank_0_*", "inputs_redrawn_*", "own_store", "evaluates_the_dataset_itself",
    ],
    "Calls that an exercise forbids": ["library_collective*", "forged_log*"],
    "Evidence written by the answer": ["evidence_of_overlap_*", "ports_a_toy_model"],
    "Bytes hidden from the rank's own record": ["hides_*", "reduces_gradients_unrecorded"],
    "Fewer bytes than the numbers have": [
        "packed_into_16_bits", "fractions_of_*", "compressed_on_the_wire", "half_precision_*",
    ],
    "Memory hidden from a budget": ["states_*"],
    "Calling the library's own answers": ["closed_code_*"],
    "Replaying or keeping instead of saving": ["replays_*", "keeps_the_job_in_memory"],
    "Changes on disk that nobody sees": ["copies_*"],
    "Reading more than a budget allows": [
        "reads_all_files_as_*", "reads_all_files_by_*", "reads_all_files_with_*",
    ],
    "Theft": ["theft"],
    "Destruction": ["destruction"],
    "Smuggling": ["smuggling"],
    "Taking others down": [
        "exits*", "segmentation_fault", "kills_the_parent*", "request_never_read",
        "thousands_of_receives", "hundreds_of_measurements",
    ],
}  # fmt: skip
LABS = sorted({LAB, *(entry.lab for entry in ENTRIES)})
HONEST = [entry for entry in ENTRIES if entry.kind == "honest"]


def by_name(entries: list[Entry]) -> Any:
    return pytest.mark.parametrize("entry", entries, ids=[entry.name for entry in entries])


@dataclass
class Class:
    """A graded class, and what was seen around it."""

    course: Course
    home: Path
    temporary: Path
    calls: list[str]  # sockets outside that were reached
    before: dict[str, str] = field(default_factory=dict)  # {path: hash} of what must not change
    output: str = ""

    def record(self, student: str, lab: str = LAB) -> Record:
        path = self.course.root / f"grading/records/{lab}/{student}.json"
        return Record.from_json(path.read_bytes())

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "SHARDLAB_CANARY": SECRET,
            "PYTHONPATH": os.pathsep.join([str(REPO), str(REPO / "course")]),
        }

    def run_quietly(self, student: str) -> None:
        """Grades one student before the attacks, in a fork of this process."""
        command = ["python", "-m", "autograder", "grade", LAB, "--student", student, "--jobs", "1"]
        self._add(forks()(command, self.course.root, self.environment))

    def run(self, jobs: int, *labs: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "autograder", "grade", "--jobs", str(jobs), *labs],
            cwd=self.course.root,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=1700,
        )
        self._add(done)

    def _add(self, done: subprocess.CompletedProcess[str]) -> None:
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        self.output += done.stdout + done.stderr

    def fingerprints(self) -> dict[str, str]:
        """Of all files except those that grading writes."""
        found = {}
        for root in (self.course.root, self.home):
            for path in sorted(root.rglob("*")):
                name = str(path.relative_to(root.parent))
                if "/grading/" in name and "/grading/submitted" not in name:
                    continue
                if path.is_symlink() or not path.is_file():
                    found[name] = str(path.lstat().st_mode)
                elif not {".cache", "__pycache__"} & set(path.parts):
                    found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        return {name: value for name, value in found.items() if "/.cache" not in name}


@contextlib.contextmanager
def listeners(calls: list[str]) -> Iterator[int]:
    """Listens on a loopback port, which it yields, and at an abstract unix address."""
    tcp = socket.create_server(("127.0.0.1", 0))
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(f"\0{MARK}")
    unix.listen()

    def listen(sock: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock.accept()[0].close()
                calls.append(name)

    for sock, name in ((tcp, "loopback"), (unix, "unix")):
        threading.Thread(target=listen, args=(sock, name), daemon=True).start()
    try:
        yield tcp.getsockname()[1]
    finally:
        for sock in (tcp, unix):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Class:
    root = tmp_path_factory.mktemp("attacks")
    for name in ("course", "home", "tmp"):
        (root / name).mkdir()
    course = Course.create(root / "course")
    with (course.root / "nbgrader_config.py").open("a") as config:
        # The attacks on other labs must reach their largest cases.
        config.write(f"\nimport sys\nif {LAB!r} in sys.argv:\n")
        config.write(f"    c.RunAndDecide.limits = {LIMITS!r}\n")
    for lab in LABS:
        course.leave_out_demonstrations(lab)
    commands = [f"generate_assignment {lab}" for lab in LABS]
    assert course.nbgrader_in_one_process(*commands).returncode == 0
    corpus.LABS = course.root / "labs"
    (root / "home/.canary").write_text(SECRET)
    (course.root / "solutions/canary.txt").write_text(SECRET)
    found = Class(course, root / "home", root / "tmp", [])

    solution = course.solution(LAB)
    easy = {name: source_of(solution, name) for name in ("chunk_bounds", "bytes_per_rank")}
    easy["bytes_per_rank"] += f"\n# {SECRET}"
    honest = with_answers(course.released(LAB), easy)
    present = {entry.name for entry in ENTRIES}
    neighbors = [f"{name}-neighbor" for name in WITH_NEIGHBOR if name in present]
    for student in ("alone", *neighbors):
        course.submit(LAB, student, honest)
    for accident in ACCIDENTS:
        folder = course.root / "grading/submitted" / accident / LAB
        folder.mkdir(parents=True)
        happened = import_module(f"tests.submissions.accidents.{accident}")
        happened.submit(json.loads(json.dumps(honest)), folder)
    found.run_quietly("alone")
    with listeners(found.calls) as port:
        for entry in ENTRIES:
            folder = course.root / "grading/submitted" / entry.name / entry.lab
            folder.mkdir(parents=True)
            neighbor = course.root / "grading/submitted/alone" / LAB
            host = socket.gethostbyname(socket.gethostname())
            entry.submit(Place(folder, course.root, found.home, MARK, neighbor, port, host))
        found.before = found.fingerprints()
        found.run(3, LAB)
        if others := [lab for lab in LABS if lab != LAB]:
            found.run(2, *others)  # a few submissions: a third worker would take longer to start
    return found


@by_name(ATTACKS)
def test_an_attack_earns_nothing_and_is_named(graded: Class, entry: Entry) -> None:
    record = graded.record(entry.name, entry.lab)
    scores = graded.course.scores(entry.lab, entry.name)
    for answer, points in scores.items():
        assert (points or 0.0) <= entry.earns.get(answer, 0.0), (answer, record.verdicts)
    assert record.state == entry.state, record.reason
    if record.state != "graded":
        assert record.reason
    for cell in record.notebook["cells"]:
        cell["source"] = ""  # which contains the word anyway
    recorded = record.to_json()
    for loot in ("LOOT", SECRET):
        at = recorded.find(loot)
        assert at < 0, recorded[max(at - 200, 0) : at + 300]
    assert len(recorded) < 5_000_000


@by_name(HONEST)
def test_honest_work_that_looks_suspicious_keeps_its_points(graded: Class, entry: Entry) -> None:
    record = graded.record(entry.name)
    scores = graded.course.scores(LAB, entry.name)
    assert {name: points for name, points in scores.items() if points} == entry.earns, (
        record.reason,
        record.verdicts,
    )
    assert record.state == entry.state, record.reason


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_an_accident_costs_nothing(graded: Class, accident: str) -> None:
    record = graded.record(accident)
    assert record.points == graded.record("alone").points
    assert record.state == "graded"
    assert record.notes


def test_neighbors_are_graded_as_if_alone(graded: Class) -> None:
    def decided(student: str) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(graded.record(student).decided())
        return {**plain, "student": ""}

    alone = decided("alone")
    assert alone["state"] == "graded"
    assert sorted(alone["points"].values()) == [0, 0, 0, 0, 2, 2]
    for name in WITH_NEIGHBOR:
        if name in {entry.name for entry in ENTRIES}:
            assert decided(f"{name}-neighbor") == alone
            assert graded.course.scores(LAB, f"{name}-neighbor")["chunk_bounds"] == 2


def test_no_file_was_changed_or_left(graded: Class) -> None:
    assert graded.fingerprints() == graded.before
    assert [path for path in graded.temporary.rglob("*") if path.is_file()] == []
    for folder in ("/tmp", "/dev/shm", "/var/tmp"):
        assert [name for name in os.listdir(folder) if MARK in name] == []
    rows = {path.stem for path in (graded.course.root / "grading/records").glob("*/*.json")}
    assert {entry.name for entry in ENTRIES} < rows


def test_nothing_outside_was_reached(graded: Class) -> None:
    assert graded.calls == []


def test_nothing_is_left_running(graded: Class) -> None:
    left = [
        process.info
        for process in psutil.process_iter(["pid", "cmdline", "environ"])
        if MARK in " ".join(process.info["cmdline"] or [])
        or str(graded.temporary) in (process.info["environ"] or {}).get("TMPDIR", "")
    ]
    assert left == []


def test_no_attack_is_an_infrastructure_error(graded: Class) -> None:
    states = {graded.record(entry.name, entry.lab).state for entry in ENTRIES}
    assert "infrastructure error" not in states, graded.output[-3000:]


@pytest.mark.skipif(not is_possible(), reason="needs setpriv and unshare")
@pytest.mark.skipif(os.geteuid() != 0, reason="already without root")
@pytest.mark.exhaustive
def test_grading_without_root_is_as_safe() -> None:
    """Runs this file again without root, with the attacks for which that could matter or those in
    SHARDLAB_CORPUS."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", __file__]
    with tempfile.TemporaryDirectory(dir="/tmp") as home:  # pytest's folders are only for root
        done = run_without_root(
            [*command, f"--basetemp={home}/t"],
            Path(home),
            cwd=REPO,
            env={"SHARDLAB_CORPUS": ",".join(CHOSEN or WITHOUT_ROOT)},
        )
    assert done.returncode == 0, done.stdout[-5000:]


@by_name(ENTRIES)
def test_an_entry_names_one_state(entry: Entry) -> None:
    assert entry.state in STATES


def test_every_kind_of_attack_is_present() -> None:
    kinds = {entry.kind for entry in corpus.attacks()}
    assert kinds == {"forging", "theft", "destruction", "smuggling", "distributed"}
    for entry in corpus.attacks():
        assert entry.tries, entry.name
        assert entry.seen_by in ("points", "loot", "canary", "neighbors", "survivors"), entry.name
    assert f"{LAB}.ipynb" == NAME


def test_each_row_of_the_threat_model_has_attacks() -> None:
    """At least three, found by their names or kinds."""
    model = (REPO / "docs/threat-model.md").read_text()
    rows = re.findall(r"^\| \*\*([^*]+)\*\*", model, re.MULTILINE)
    assert rows == list(OF_ROW)
    names = {entry.name for entry in corpus.attacks()}
    kinds = [entry.kind for entry in corpus.attacks()]
    for row, patterns in OF_ROW.items():
        found = {name for pattern in patterns for name in fnmatch.filter(names, pattern)}
        assert len(found) + sum(kinds.count(pattern) for pattern in patterns) >= 3, row
