"""Kills a rank after every change on disk: a folder with a step's name must always be complete."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from autograder.exercise import Attempt, Case, Finding, OnRanks, Plain
from autograder.exercise.signs import MistakeText, on_each_rank, raises
from autograder.exercises.lab10_save_resume.commits import (
    FINAL,
    LINK,
    NEW,
    NOT_THERE,
    OLD,
    OUTSIDE,
    STEP_NAME,
    Commits,
    files_of,
)
from autograder.exercises.lab10_save_resume.forked_ranks import protected_parent
from autograder.exercises.lab10_save_resume.rank_errors import (
    fails_on_a_rank,
    has_no_collective,
    never_entered,
    never_waited,
)
from autograder.guest.on_rank import gets_pickled_answer

MAX_KILLS = 60  # in one case; a correct answer makes about ten changes
LONG_STEPS = [10**digits for digits in range(1, 7)]  # names with 2 to 7 digits


def draw_contents(case: Case, rng: np.random.Generator) -> Plain:
    """What the ranks write: {"old": by rank, "new": by rank}"""
    ranks = range(case.params["ranks"])
    return {which: [rng.bytes(24).hex() for _ in ranks] for which in ("old", "new")}


@gets_pickled_answer
def drive(pickled: bytes, given: Any, case: Case) -> Plain:
    with protected_parent(), TemporaryDirectory(ignore_cleanup_errors=True) as name:
        complete = {OLD: files_of(given["old"]), NEW: files_of(given["new"])}
        commits = Commits(pickled, Path(name) / "root", given, case)
        found = [commits.without_a_kill(is_reversed) for is_reversed in (False, True)]
        if case.params.get("paused"):
            calls = found[0].changing_calls[:MAX_KILLS]
            found += [commits.without_a_kill(pause_at=call) for call in calls if call]
        broken_run = next((run for run in found if run.broken), None)
        changes = 0 if broken_run else min(max(run.changes for run in found), MAX_KILLS)
        kills = [commits.with_a_kill(change) for change in range(1, changes + 1)]
        kills = [kill for kill in kills if kill["was killed"]]
        failures = [kill["failure"] for kill in kills if kill["failure"]]
        if case.params.get("paused") and not failures:
            failures += commits.paused_restarts()
        is_right = not (broken_run or failures or any(run.seen != complete for run in found))
        long_steps = case.params.get("long steps", []) if is_right else []
        return {
            "left": [run.seen for run in found if run.seen != complete],
            "in the current folder": sorted(set().union(*(run.elsewhere for run in found))),
            "returned too early": sorted({r for run in found for r in run.returned_too_early}),
            "broken": broken_run.broken
            if broken_run
            else next((kill["broken"] for kill in kills if kill["broken"]), None),
            "all had written": bool(broken_run and broken_run.written.issuperset(given["new"])),
            "names like a step": commits.names_like_a_step(long_steps),
            "failures": failures,
            "was killed": len(kills) > 2,  # a folder, a file, a rename
        }


@on_each_rank
def broken_by_a_kill(output: Any, attempt: Attempt) -> MistakeText:
    """The mistake that the first disk state shows which no kill may leave."""
    if output["broken"] is None:
        return None
    before, left, *later = output["broken"]
    given = attempt.inputs[0]
    old, new = files_of(given["old"]), files_of(given["new"])
    if more := left.get(OLD, {}).keys() - old.keys():
        return "writes into the old checkpoint", ", ".join(sorted(more))
    if left.get(OLD) != old:
        verb = "removes" if left.get(OLD, {}).items() < old.items() else "changes"
        mistake = f"{verb} the old checkpoint before the new one is complete"
        return f"{mistake}: a kill in between leaves none", ", ".join(left)
    newest = max(name for name in left if STEP_NAME.fullmatch(name))
    if newest != NEW and any(newest in end and NEW not in end for end in output["left"]):
        return "gives the new checkpoint the name of another step", newest
    if newest != NEW:
        return TAKEN_FOR_A_STEP, newest
    found = left[NEW]
    if LINK in found:
        return "gives the final name to a link: a checkpoint is a folder, so rename the folder"
    if others := [name for name in found if name not in new]:
        return "has files in the checkpoint that write did not make", ", ".join(others)
    inside = ", ".join(sorted(found)) or "no file"
    if NEW not in before and any(before[name] == found for name in before.keys() - left.keys()):
        if output["all had written"]:
            return (
                "removes files that another rank has just written: let all ranks wait between the "
                "removal of old files and the first write",
                f"after the rename, in {NEW}: {inside}",
            )
        return (
            "gives the final name before all ranks have written: let every rank write, wait for "
            "all, then rename",
            f"after the rename, in {NEW}: {inside}",
        )
    filled = (later or [left])[0]
    if not found and filled[NEW] == new and left.keys() - filled.keys():  # it was replaced
        return (
            "leaves an empty folder under the final name: a kill then leaves an empty checkpoint; "
            "rename the complete folder to a name that does not exist yet",
            f"then, in {NEW}: {inside}",
        )
    folders = [item for disk in (before, left, filled) for item in disk.items()]
    elsewhere = [files for name, files in folders if not STEP_NAME.fullmatch(name)]
    if any(text in new.values() for files in elsewhere for text in files.values()):
        mistake = "puts complete files under the final name one by one: that takes many steps"
        return f"{mistake}, and a rename of their folder takes one", f"in {NEW}: {inside}"
    consequence = "a kill during the write leaves half a checkpoint under a valid name"
    return f"writes under the final name: {consequence}", f"in {NEW}: {inside}"


@on_each_rank
def wrong_without_a_kill(output: Any, attempt: Attempt) -> Any:
    left_by_all = output["left"]
    if output["in the current folder"]:
        mistake = "puts a folder or a file into the current folder, not into root: a relative name "
        return f"{mistake}needs `root / ` before it", ", ".join(output["in the current folder"])
    if left_by_all and not any(NEW in left for left in left_by_all):
        return "leaves no folder with the step's name", ", ".join(left_by_all[0])
    if early := output["returned too early"]:
        mistake = (
            "returns before the new checkpoint has its name: let every rank wait for the rename"
        )
        return Finding(f"rank {early[0]}", mistake)
    for left in left_by_all:
        if NEW not in left:
            return "leaves no folder with the step's name", ", ".join(left)
        if extra := [name for name in left if not STEP_NAME.fullmatch(name)]:
            return "leaves something that is not a checkpoint", ", ".join(extra)
        if left[NEW] != files_of(attempt.inputs[0]["new"]):
            return "leaves a checkpoint without all ranks' files", ", ".join(left[NEW]) or "none"
        if OLD not in left:
            return "removes the old checkpoint: older ones stay on disk"
    return None


TAKEN_FOR_A_STEP = (
    "uses a temporary name that `latest` takes for a checkpoint: it must not match step_????????, "
    "whatever the step's number is"
)
FAILURES = {
    "error": "fails on files that a killed run left: remove the temporary folder before you use it "
    "again",
    "race": "fails if all ranks remove the files that a killed run left at the same time: let one "
    "rank remove them, or ignore files that are already gone",
    "ranks": "fails when it is restarted with fewer ranks, with or without files of a killed run",
    "kept": "keeps files of a killed run in the new checkpoint: remove the temporary folder before "
    "you use it again",
    "files": "leaves a wrong checkpoint when it is restarted after a kill",
    "leftovers": "leaves files of a killed run in root: even after a restart, it must contain only "
    "checkpoints",
}


@on_each_rank
def failed_restart(output: Any) -> MistakeText:
    if not output["failures"]:
        return None
    kind, evidence = output["failures"][0]
    return FAILURES[kind], evidence


@on_each_rank
def name_like_a_step(output: Any) -> MistakeText:
    if not output["names like a step"]:
        return None
    return TAKEN_FOR_A_STEP, ", ".join(output["names like a step"])


EXERCISE = OnRanks(
    points=5,
    cases=(
        Case("1 rank", 1, {"ranks": 1, "long steps": LONG_STEPS}),
        Case("2 ranks, then 1", 1, {"ranks": 2, "ranks after the kill": 1, "paused": True}),
    ),
    inputs=draw_contents,
    drive=drive,
    signs=(
        broken_by_a_kill,
        never_waited,
        never_entered,
        has_no_collective,
        raises(
            FINAL,
            "calls write with the final folder, which does not exist yet: call it with the "
            "temporary folder",
            "your answer",
        ),
        raises(
            NOT_THERE,
            "calls write with a folder that does not exist: one rank creates it, and the others "
            "wait at a barrier until it has",
            "your answer",
            quoted=True,
        ),
        raises(
            OUTSIDE,
            "writes into a temporary folder outside root: create it in root, because a rename "
            "works only within one file system",
            "your answer",
        ),
        fails_on_a_rank,
        wrong_without_a_kill,
        failed_restart,
        name_like_a_step,
    ),
)
