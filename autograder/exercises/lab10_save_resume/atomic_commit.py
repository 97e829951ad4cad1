"""Lab 10, atomic_commit: killed whenever something has changed on disk, and looked at afterwards.

A folder that is called a step has to be all that was to be saved in it, whenever it is looked at.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from autograder.exercise import Attempt, Case, Exercise, Finding, Plain
from autograder.exercises.shared_disk import (
    RAISED,
    RETURNED,
    WAITS_FOR_EVER,
    Colleagues,
    Ended,
    Moments,
    count_changes,
    raise_what_went_wrong,
    run_ranks,
)
from shardlab.errors import RankError

MOST_KILLS = 60  # moments of one case; a right answer has about ten
OLD, NEW = 1, 2  # steps: one that was saved before, and the one that is saved now

RENAMED_UNDER_WAY = "the new step had its name before all ranks had written"

Files = dict[str, str]  # what lies below a folder: {path: content}


def draw_contents(case: Case, rng: np.random.Generator) -> list[Plain]:
    """What each rank writes: {"old": by rank, "new": by rank}"""

    def texts() -> list[str]:
        return [rng.bytes(24).hex() for _ in range(case.params["ranks"])]

    return [{"old": texts(), "new": texts()}]


def step_name(step: int) -> str:
    return f"step_{step:08}"


# ---- disks ------------------------------------------------------------------------------------


def complete(texts: list[str], step: int) -> Files:
    name = step_name(step)
    return {f"{name}/{file_name(rank)}": text for rank, text in enumerate(texts)}


def steps_in(files: Files) -> dict[int, Files]:
    """{step: its files}, of folders that are called a step."""
    steps: dict[int, Files] = {}
    for path, content in files.items():
        match = re.fullmatch(r"step_(\d{8})(/.*)?", path)
        if match:
            steps.setdefault(int(match[1]), {})
            if match[2] and "/" not in match[2][1:]:
                steps[int(match[1])][path] = content
    return steps


def is_broken(files: Files, given: Any) -> bool:
    """Whether the newest step is not what was saved in it."""
    steps = steps_in(files)
    if not steps:
        return True
    newest = max(steps)
    texts = {OLD: given["old"], NEW: given["new"]}.get(newest, [])
    return steps[newest] != complete(texts, newest)


# ---- beside the student's code ------------------------------------------------------------------


def drive_commit(subject: Any, given: Any, case: Case) -> Plain:
    root = Path(tempfile.mkdtemp())
    again = given["new"][: case.params.get("again on", case.params["ranks"])]
    try:
        prepare(root, given)
        ends, moments = commit(subject, root, given["new"])
        if NEW in steps_in(files_in(root)) and any(ended.how == RAISED for ended in ends):
            raise RuntimeError(RENAMED_UNDER_WAY)  # the others' folder is gone from under them
        raise_what_went_wrong(ends)
        early = [rank for rank, ended in enumerate(ends) if ended.value is not True]
        output: dict[str, Any] = {"left": files_in(root), "returned too early": early, "kills": []}
        for moment in range(1, min(moments.count, MOST_KILLS) + 1):
            prepare(root, given)
            ends, _ = commit(subject, root, given["new"], kill_at=moment)
            kill: dict[str, Any] = {"left": files_in(root), "again": {}, "error": []}
            if not any(path.startswith(step_name(NEW)) for path in kill["left"]):
                ends, _ = commit(subject, root, again)
                kill["again"], kill["error"] = files_in(root), errors(ends)
            kill["broken"] = is_broken(kill["left"], given)
            kill["failed"] = bool(kill["again"]) and (
                bool(kill["error"]) or steps_in(kill["again"]).get(NEW) != complete(again, NEW)
            )
            output["kills"].append(kill)
        output["broken by a kill"] = sum(kill["broken"] for kill in output["kills"])
        output["restarts that failed"] = sum(kill["failed"] for kill in output["kills"])
        output["was killed"] = len(output["kills"]) > 2  # a folder, a file, a rename
        return output
    finally:
        shutil.rmtree(root, ignore_errors=True)


def prepare(root: Path, given: Any) -> None:
    """A disk with one checkpoint on it."""
    shutil.rmtree(root)
    folder = root / step_name(OLD)
    folder.mkdir(parents=True)
    for rank, text in enumerate(given["old"]):
        (folder / file_name(rank)).write_text(text)


def file_name(rank: int) -> str:
    return f"rank_{rank}.txt"


def commit(
    subject: Any, root: Path, texts: list[str], kill_at: int = 0
) -> tuple[list[Ended], Moments]:
    """On so many ranks as there are texts; each returns whether the new step was there then."""
    moments = Moments(kill_at)

    def on_rank(colleagues: Colleagues) -> bool:
        text = texts[colleagues.rank]

        def write(folder: Path) -> None:
            with (Path(folder) / file_name(colleagues.rank)).open("w") as file:
                file.write(text[: len(text) // 2])
                file.flush()
                file.write(text[len(text) // 2 :])

        count_changes(root, moments)
        subject(root, NEW, write)
        return len(list((root / step_name(NEW)).glob("*"))) >= len(texts)

    return run_ranks(on_rank, len(texts)), moments


def errors(ends: list[Ended]) -> list[str]:
    found = [": ".join(ended.value) for ended in ends if ended.how == RAISED]
    if not found and any(ended.how != RETURNED for ended in ends):
        return [WAITS_FOR_EVER]
    return found


def files_in(root: Path) -> Files:
    """A file's content, its beginning at least; "" for a folder."""
    found = {}
    for path in sorted(root.rglob("*")):
        content = path.read_bytes()[:200].decode(errors="replace") if path.is_file() else ""
        found[str(path.relative_to(root))] = content
    return found


# ---- in the checker's process -------------------------------------------------------------------


def expect_commit(case: Case, inputs: Any) -> list[Plain]:
    given = inputs[0]
    folders = {step_name(OLD): "", step_name(NEW): ""}
    left = folders | complete(given["old"], OLD) | complete(given["new"], NEW)
    return [
        {
            "left": left,
            "returned too early": [],
            "broken by a kill": 0,
            "restarts that failed": 0,
            "was killed": True,
        }
    ]


def kills(output: Any) -> Iterator[Any]:
    yield from output["kills"] if isinstance(output, dict) else []


def verdict_on_kills(attempt: Attempt) -> Finding | None:
    """The first kill that left something broken, by what it left."""
    given = attempt.inputs[0]
    for kill in kills(attempt.outputs[0]):
        left, steps = kill["left"], steps_in(kill["left"])
        if not kill["broken"]:
            continue
        if NEW not in steps:
            return finding(
                "removes the old checkpoint before the new one is there: killed in between it "
                "leaves none"
            )
        whole = complete(given["new"], NEW)
        elsewhere = [
            content
            for path, content in left.items()
            if not path.startswith("step_") and content in given["new"]
        ]
        if len(elsewhere) == len(given["new"]):
            return finding(
                "copies the files to their final name: a copy is many steps, a rename is one"
            )
        there = {path: text for path, text in steps[NEW].items() if whole.get(path) == text}
        if there and there == steps[NEW] and len(there) < len(whole):
            return finding(
                NAMED_TOO_EARLY,
                f"{len(there)} of {len(whole)} ranks' files are in {step_name(NEW)}",
            )
        return finding(
            "writes under the final name: killed meanwhile it leaves half a checkpoint that is "
            "called complete",
            f"in {step_name(NEW)}: {sorted(Path(path).name for path in steps[NEW])}",
        )
    return None


NAMED_TOO_EARLY = "gives the final name before all ranks have written: wait for them, then rename"


def finding(mistake: str, evidence: str = "") -> Finding:
    return Finding("atomic_commit", mistake, evidence, anyone="atomic_commit")


def verdict_on_restarts(attempt: Attempt) -> Finding | None:
    for kill in kills(attempt.outputs[0]):
        if not kill["failed"]:
            continue
        if kill["error"]:
            return finding(
                "trips over what a killed run left behind: clear the temporary folder away before "
                "it is used again",
                kill["error"][0],
            )
        return finding(
            "takes files of a killed run over into the new checkpoint: clear the temporary folder "
            "away before it is used again",
        )
    return None


def without_a_kill(attempt: Attempt) -> Finding | None:
    output, error = attempt.outputs[0], attempt.error
    if isinstance(error, RankError) and WAITS_FOR_EVER in error.message:
        return finding("has a collective that not all ranks come to: every rank makes every call")
    if isinstance(error, RankError) and RENAMED_UNDER_WAY in error.message:
        return finding(NAMED_TOO_EARLY)
    if isinstance(error, RankError) and error.kind == "FileNotFoundError":
        return finding(
            "has ranks at work in a folder that is not there: one rank makes and renames it, the "
            "others wait at a barrier",
            error.message,
        )
    if not isinstance(output, dict):
        return None
    if NEW not in steps_in(output["left"]):
        return finding(
            "leaves no folder of the step's name behind", ", ".join(steps_seen(output["left"]))
        )
    if output["returned too early"]:
        rank = output["returned too early"][0]
        return Finding(
            f"rank {rank}",
            "returns before the new checkpoint has its name: let every rank wait for the rename",
        )
    if extra := [path for path in output["left"] if not path.startswith("step_")]:
        return finding("leaves something behind that is no checkpoint", ", ".join(extra))
    return None


def steps_seen(files: Files) -> list[str]:
    return sorted({path.partition("/")[0] for path in files})


ATOMIC_COMMIT = Exercise(
    name="save_resume.atomic_commit",
    points=5,
    cases=(
        Case("1 rank", 1, {"ranks": 1}),
        Case("2 ranks", 1, {"ranks": 2}),
        Case("2 ranks, then 1", 1, {"ranks": 2, "again on": 1}, hidden=True),
    ),
    draw=draw_contents,
    drive=drive_commit,
    expect=expect_commit,
    diagnoses=(verdict_on_kills, without_a_kill, verdict_on_restarts),
)
