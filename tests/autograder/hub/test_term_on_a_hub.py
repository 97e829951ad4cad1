"""Follows docs/jupyterhub.md line by line: a lab goes from an instructor to two students and back,
on a JupyterHub whose users are Unix users."""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.autograder.hub.private_machine import PrivateMachine, private_machine, why_impossible
from tests.autograder.hub.running_hub import Person, running_hub
from tests.autograder.test_toy_lab import FILES, LAB
from tests.running_lab import ROOT, copy_repository
from tools import hub as proxy

pytestmark = [pytest.mark.ranks, pytest.mark.nbgrader, pytest.mark.long, pytest.mark.timeout(900)]
PAGE = (ROOT / "docs/jupyterhub.md").read_text()
SETTINGS = dict(re.findall(r"`(/etc/\S+\.py)`[^\n]*\n\n```python\n(.*?)^```", PAGE, re.M | re.S))
(EXCHANGE_LINE,) = re.findall(r"^```python\n(exchange = .*\n)^```", PAGE, re.M)
SET_UP, START = re.findall(r"^```bash\n(.*?)^```", PAGE, re.M | re.S)
INSTRUCTORS = re.findall(r"`((?:nbgrader|python -m autograder) [^`]*LAB[^`]*)`", PAGE)
(UNPACK,) = re.findall(r"`(python3 -m zipfile [^`]*)`", PAGE)
CHECKOUT, STUDENTS = "/home/teacher/shardlab", "/srv/shardlab-students"
INBOUND = "/srv/nbgrader/exchange/shardlab/inbound"
NOTEBOOK = f"{LAB}/{LAB}.ipynb"
FORMULA = "2 * (world_size - 1) * 4 * length / world_size"
ANSWER = "def mean_bytes(length, world_size):\n    return {}"
# Without the exercise on ranks, which takes longer to release, check and grade.
OTHER = "mean_of_all"
ONLY_FOR_OTHER = re.compile(rf'# %% nbgrader={{"grade_id": "{OTHER}".*|import torch.*?\n', re.S)
TOY = {
    name: ONLY_FOR_OTHER.sub("", text).replace(f', "{OTHER}"', ",")
    for name, text in FILES.items()
    if OTHER not in name and OTHER not in text.partition("# ///")[2]
}


@dataclass(frozen=True)
class Class:
    machine: PrivateMachine
    teacher: Person
    ada: Person
    bob: Person

    def run_as_instructor(self, *commands: str) -> str:
        return run_as_instructor(self.machine, *commands)


def run_as_instructor(machine: PrivateMachine, *commands: str) -> str:
    """Runs commands as the instructor. nbgrader starts slowly: its commands share a process."""
    if all(command.startswith("nbgrader ") for command in commands):
        quoted = " ".join(f"'{command.removeprefix('nbgrader ')}'" for command in commands)
        commands = (f"python tests/autograder/grading/run_in_one_process.py {quoted}",)
    lines = "\n".join(["cd shardlab", *commands]).replace("LAB", LAB)
    # The environment has the original checkout on its import path, so the copy must come first.
    return machine.run(
        lines, "teacher",
        PATH=f"{sys.prefix}/bin:/usr/bin:/bin", PYTHONPATH=f"{CHECKOUT}:{CHECKOUT}/course",
    )  # fmt: skip


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Class]:
    why = why_impossible() or (None if shutil.which(proxy.PROXY) else proxy.NONE)
    if why:
        pytest.skip(why)
    with private_machine(tmp_path_factory.mktemp("machine")) as machine:
        for name in ("teacher", "ada", "bob"):
            machine.add_user(name, f"password-of-{name}")
        make_checkout(machine)
        run_as_instructor(
            machine, "python -m autograder build", "python -m autograder release --archive"
        )
        for line in SET_UP.splitlines():
            if line.startswith("make "):
                make_environment(machine.path(STUDENTS))
            else:
                machine.run(line)
        for path, text in SETTINGS.items():
            machine.write(path, text)
        config = machine.path(f"{CHECKOUT}/nbgrader_config.py")
        config.write_text(
            re.sub(r"^exchange = .*\n", EXCHANGE_LINE, config.read_text(), flags=re.M)
        )
        run_as_instructor(machine, *INSTRUCTORS[:2])
        with running_hub(machine, START) as hub, ThreadPoolExecutor() as threads:
            people = {
                name: hub.log_in(name, f"password-of-{name}") for name in ("teacher", "ada", "bob")
            }
            list(threads.map(Person.start_server, people.values()))
            yield Class(machine, **people)


def make_checkout(machine: PrivateMachine) -> None:
    checkout = copy_repository(machine.path(CHECKOUT), only_lab=LAB)
    for name, text in TOY.items():
        machine.write(f"{CHECKOUT}/{name}", text)
    (checkout / ".venv").symlink_to(sys.prefix)
    machine.run(f"chown -R teacher: {CHECKOUT}")


def make_environment(package: Path) -> None:
    """Like `make env` there, but with the packages of this Python's environment."""
    venv.create(package / ".venv")
    (site_packages,) = (package / ".venv/lib").glob("python*/site-packages")
    paths = (STUDENTS, f"{STUDENTS}/course", sysconfig.get_path("purelib"))
    (site_packages / "course.pth").write_text("\n".join(paths))
    for folder in ("etc", "share"):
        (package / ".venv" / folder).symlink_to(Path(sys.prefix, folder))
    for name in ("jupyterhub", "jupyterhub-singleuser"):
        _, script = Path(sys.prefix, "bin", name).read_text().split("\n", 1)
        (package / ".venv/bin" / name).write_text(f"#!{STUDENTS}/.venv/bin/python\n{script}")
        (package / ".venv/bin" / name).chmod(0o755)


def assignments_of(person: Person, action: str = "", status: str = "") -> list[dict[str, Any]]:
    """The person's assignment list after an action such as fetch, filtered by ``status``."""
    about = {"course_id": "shardlab", "assignment_id": LAB}
    method, path = ("POST", f"assignments/{action}") if action else ("GET", "assignments")
    answer = person.server(method, path, **({"json": about} if action else {"params": about}))
    assert answer["success"], answer
    return [each for each in answer["value"] if each["status"] == status or not status]


def work(person: Person, answer: str) -> None:
    """Writes the answer and saves the notebook."""
    content = person.server("GET", f"api/contents/{NOTEBOOK}")["content"]
    for cell in content["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == "mean_bytes":
            cell["source"] = ANSWER.format(answer)
    saved = {"type": "notebook", "content": content}
    person.server("PUT", f"api/contents/{NOTEBOOK}", json=saved)


def require_bob_sees_only_his_own(course: Class) -> None:
    """Bob tries to read all files that exist at this point."""
    machine = course.machine
    (ada_submission,) = machine.path(INBOUND).glob("ada+*+????????????")
    paths = [
        f"/home/ada/{NOTEBOOK}",
        "/home/ada/.local/share/jupyter/nbgrader_cache",
        INBOUND,
        "/srv/nbgrader/exchange/shardlab/feedback",
        "/srv/jupyterhub/jupyterhub.sqlite",
        *(f"{CHECKOUT}/{name}" for name in (f"solutions/{NOTEBOOK}", "grading", "autograder")),
    ]
    assert [path for path in paths if not machine.path(path).exists()] == []
    tests = "\n".join(f"[ ! -r '{path}' ] || echo '{path}'" for path in paths)
    assert machine.run(tests, "bob") == ""
    # No folder that bob can list contains a solution.
    search = f"grep -rlF '{FORMULA}' /srv /home /etc 2> /dev/null || true"
    assert machine.run(search, "bob") == ""
    assert f"{CHECKOUT}/solutions/{NOTEBOOK}" in machine.run(search)
    # nbgrader's files in the exchange are protected by their random names only.
    assert FORMULA in machine.run(f"cat '{INBOUND}/{ada_submission.name}/{LAB}.ipynb'", "bob")
    # The checkout might be in a folder that everybody may enter.
    assert machine.path(f"{CHECKOUT}/grading").stat().st_mode & 0o077 == 0

    for person in (course.ada, course.teacher):
        url = f"{course.bob.url}user/{person.name}/api/contents"
        assert course.bob.session.get(url, timeout=60).status_code in (403, 404)


def test_a_lab_goes_to_students_and_back_and_each_sees_only_their_own(course: Class) -> None:
    machine, ada, bob = course.machine, course.ada, course.bob
    for person in (ada, bob):
        assert [each["status"] for each in assignments_of(person)] == ["released"]
        assert [each["status"] for each in assignments_of(person, "fetch")] == ["fetched"]
    work(ada, FORMULA)
    work(bob, "0")
    validated = ada.server("POST", "assignments/validate", json={"path": NOTEBOOK})
    assert validated == {"success": True, "value": {}}
    for person in (ada, bob):
        assignments_of(person, "submit")
    machine.run(UNPACK, "bob")
    assert machine.path("/home/bob/shardlab-students/course/front_page.ipynb").exists()

    forged = f"{INBOUND}/ada+{LAB}+2099-01-01 00:00:00 UTC+bob"
    machine.run(f"mkdir '{forged}'; cp {NOTEBOOK} '{forged}'", "bob")
    collect, grade, *feedback = INSTRUCTORS[2:]
    assert "in the name of ada" not in course.run_as_instructor(collect)  # ada's own comes first
    course.run_as_instructor(f"{grade} --jobs 1")
    submissions = course.teacher.server("GET", f"formgrader/api/submissions/{LAB}")
    assert {each["student"]: each["score"] for each in submissions} == {"ada": 2, "bob": 0}

    course.run_as_instructor(*feedback)
    for person in (ada, bob):
        (submitted,) = assignments_of(person, "fetch_feedback", "submitted")
        assert submitted["student_id"] == person.name
        (submission,) = submitted["submissions"]
        page = f"{submission['local_feedback_path']}/{LAB}.html"
        fetched = person.server("GET", f"api/contents/{page}")["content"]
        graded = machine.path(f"{CHECKOUT}/grading/feedback/{person.name}/{LAB}/{LAB}.html")
        assert fetched == graded.read_text()
    require_bob_sees_only_his_own(course)
