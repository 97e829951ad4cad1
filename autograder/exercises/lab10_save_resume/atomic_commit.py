"""Kill a rank after every change on disk: a folder named like a step must always be complete."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from autograder.exercise import Attempt, Case, Finding, OnRanks, Plain
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.lab10_save_resume.disk_changes import ChangeCounter
from autograder.exercises.lab10_save_resume.forked_ranks import (
    NEVER_ENTERED,
    RAISED,
    Group,
    Outcome,
    raise_first_error,
    run_ranks,
)
from shardlab.errors import RankError

MOST_KILLS = 60  # in one case; a right answer makes about ten changes
OLD, NEW = "step_00000001", "step_00000002"  # one was saved before, the other is saved now
RENAMED_TOO_EARLY = "the new step had its name before all ranks had written"

Files = dict[str, str]  # what is in a folder: {path: content}


def draw_contents(case: Case, rng: np.random.Generator) -> Plain:
    """What each rank writes: {"old": by rank, "new": by rank}"""
    ranks = range(case.params["ranks"])
    return {which: [rng.bytes(24).hex() for _ in ranks] for which in ("old", "new")}


def files_of(texts: list[str]) -> Files:
    return {f"rank_{rank}.txt": text for rank, text in enumerate(texts)}


def disk_of(root: Path) -> dict[str, Files]:
    """{name of a file or folder in root: what is in it}, with the beginning of each content."""
    disk: dict[str, Files] = {}
    for path in sorted(root.rglob("*")):
        name, _, inside = str(path.relative_to(root)).partition("/")
        files = disk.setdefault(name, {})
        if inside:
            is_file = path.is_file()
            files[inside] = path.read_bytes()[:200].decode(errors="replace") if is_file else ""
    return disk


def is_broken(disk: dict[str, Files], given: Any) -> bool:
    """Whether the newest step differs from what was saved in it."""
    newest = max((name for name in disk if re.fullmatch(r"step_\d{8}", name)), default="")
    saved = {OLD: files_of(given["old"]), NEW: files_of(given["new"])}
    return newest not in saved or disk[newest] != saved[newest]


# ---- next to the student's code -----------------------------------------------------------------


def drive(subject: Any, given: Any, case: Case) -> Plain:
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        root = Path(name)
        prepare(root, given)
        counter = ChangeCounter()
        outcomes = commit(subject, root, given["new"], counter)
        left = disk_of(root)
        if NEW in left and any(each.how == RAISED for each in outcomes):
            raise RuntimeError(RENAMED_TOO_EARLY)  # others were still writing in that folder
        raise_first_error(outcomes)
        changes = range(1, min(counter.count.value, MOST_KILLS) + 1)
        kills = [kill(subject, root, given, case, change) for change in changes]
        return {
            "left": left,
            "returned too early": [r for r, each in enumerate(outcomes) if each.value is not True],
            "kills": kills,
            "broken by a kill": sum(each["broken"] for each in kills),
            "restarts that failed": sum(each["failure"] is not None for each in kills),
            "was killed": len(kills) > 2,  # a folder, a file, a rename
        }


def kill(subject: Any, root: Path, given: Any, case: Case, change: int) -> dict[str, Any]:
    """What a kill after that change leaves on disk, and the failure of a restart, if any."""
    prepare(root, given)
    commit(subject, root, given["new"], ChangeCounter(kill_at=change))
    left = disk_of(root)
    found = {"left": left, "broken": is_broken(left, given), "failure": None}
    if not any(name.startswith(NEW) for name in left):
        texts = given["new"][: case.params.get("ranks after the kill", case.params["ranks"])]
        try:
            raise_first_error(commit(subject, root, texts, ChangeCounter()))
            if disk_of(root).get(NEW) != files_of(texts):
                found["failure"] = ""  # no error, but the wrong files
        except Exception as error:
            found["failure"] = f"{type(error).__name__}: {error}"
    return found


def prepare(root: Path, given: Any) -> None:
    """A disk that contains only the old checkpoint."""
    shutil.rmtree(root)
    (root / OLD).mkdir(parents=True)
    for name, text in files_of(given["old"]).items():
        (root / OLD / name).write_text(text)


def commit(subject: Any, root: Path, texts: list[str], counter: ChangeCounter) -> list[Outcome]:
    """One rank for each text; returns whether the new step was complete when its call returned."""

    def on_rank(group: Group) -> bool:
        name, text = list(files_of(texts).items())[group.rank]

        def write(folder: Path) -> None:
            with (Path(folder) / name).open("w") as file:
                file.write(text[: len(text) // 2])
                file.flush()
                file.write(text[len(text) // 2 :])

        counter.watch(root)
        subject(root, int(NEW[5:]), write)
        return len(list((root / NEW).glob("*"))) >= len(texts)

    return run_ranks(on_rank, len(texts))


NAMED_TOO_EARLY = "gives the final name before all ranks have written: wait for them, then rename"


@on_each_rank
def broken_by_a_kill(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    """Names the mistake from what the first harmful kill left on disk."""
    left = next((each["left"] for each in output["kills"] if each["broken"]), None)
    if left is None:
        return None
    new = files_of(attempt.inputs[0]["new"])
    if NEW not in left:
        mistake = "removes the old checkpoint before the new one is complete"
        return f"{mistake}: a kill in between leaves none"
    if any(new.items() <= files.items() for name, files in left.items() if name[:5] != "step_"):
        return "copies the files to their final name: a copy takes many steps, a rename one"
    found = left[NEW]
    if found and found.items() < new.items():
        return NAMED_TOO_EARLY, f"{len(found)} of {len(new)} ranks' files are in {NEW}"
    consequence = "a kill during the write leaves half a checkpoint under a valid name"
    return f"writes under the final name: {consequence}", f"in {NEW}: {sorted(found)}"


ERRORS = {
    NEVER_ENTERED: "has a collective that not all ranks enter: every rank makes every call",
    RENAMED_TOO_EARLY: NAMED_TOO_EARLY,
    "FileNotFoundError": "writes into a folder that does not exist: one rank creates and renames "
    "it, the others wait at a barrier",
}


def stops(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if isinstance(error, RankError):
        for sign, mistake in ERRORS.items():
            if sign in f"{error.kind} {error.message}":
                return Finding("your answer", mistake, error.message, who_if_hidden="your answer")
    return None


@on_each_rank
def wrong_without_a_kill(output: Any, rank: int, attempt: Attempt) -> Any:
    left = output["left"]
    if NEW not in left:
        return "leaves no folder with the step's name", ", ".join(left)
    if output["returned too early"]:
        return Finding(
            f"rank {output['returned too early'][0]}",
            "returns before the new checkpoint has its name: let every rank wait for the rename",
        )
    if extra := [name for name in left if not name.startswith("step_")]:
        return "leaves something that is not a checkpoint", ", ".join(extra)
    return None


@on_each_rank
def failed_restart(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    failures = [each["failure"] for each in output["kills"] if each["failure"] is not None]
    if not failures:
        return None
    remove = "remove the temporary folder before you use it again"
    if failures[0]:
        return f"fails on files that a killed run left: {remove}", failures[0]
    return f"keeps files of a killed run in the new checkpoint: {remove}"


EXERCISE = OnRanks(
    points=5,
    cases=(Case("1 rank", 1, {"ranks": 1}), Case("2 ranks", 1, {"ranks": 2})),
    inputs=draw_contents,
    drive=drive,
    signs=(broken_by_a_kill, stops, wrong_without_a_kill, failed_restart),
)
