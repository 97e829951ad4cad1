"""Kills a rank after every change on disk: a folder with a step's name must always be complete."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from autograder.exercise import Attempt, Case, OnRanks, Plain
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.lab11_save_resume.commits import (
    NEW,
    OLD,
    STEP_NAME,
    Commits,
    Disk,
    files_of,
    listing,
)
from autograder.exercises.lab11_save_resume.forked_ranks import protected_parent
from autograder.exercises.lab11_save_resume.rank_errors import fails_on_a_rank, with_cell
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
        if case.params.get("paused") and not any(run.taken for run in found):
            calls = found[0].changing_calls[:MAX_KILLS]
            found += [commits.without_a_kill(pause_at=call) for call in calls if call]
        broken = [run.broken for run in found]
        is_broken = any(each is not None for each in broken)
        changes = 0 if is_broken else min(max(run.changes for run in found), MAX_KILLS)
        kills = [commits.with_a_kill(change) for change in range(1, changes + 1)]
        kills = [kill for kill in kills if kill["was killed"]]
        broken += [kill["broken"] for kill in kills]
        failures = [kill["failure"] for kill in kills if kill["failure"]]
        if case.params.get("paused") and not failures:
            failures += commits.paused_restarts()
        is_right = not (is_broken or failures or any(run.seen != complete for run in found))
        long_steps = case.params.get("long steps", []) if is_right else []
        return {
            "left": [run.seen for run in found if run.seen != complete],
            "in the current folder": sorted(set().union(*(run.elsewhere for run in found))),
            "returned too early": sorted({r for run in found for r in run.returned_too_early}),
            "broken": next((b for b in broken if b is not None), None),
            "taken away": sorted(set().union(*(run.taken for run in found))),
            "names like a step": commits.names_like_a_step(long_steps),
            "failures": failures,
            "was killed": len(kills) > 2,  # a folder, a file, a rename
        }


@on_each_rank
def leaves_wrong_files(output: Any, given: Any, attempt: Attempt) -> MistakeText:
    if output["broken"] is not None:
        return broken_by_a_kill(output["broken"], given)
    if output["left"] or output["in the current folder"]:
        found = [listing(disk) for disk in output["left"][:1]]
        found += [f"in the current folder: {name}" for name in output["in the current folder"]]
        mistake = "does not leave exactly the old and the new checkpoint in root, and nothing else"
        return mistake, "; ".join(found)
    if output["returned too early"]:
        return "returns before the new checkpoint has its name: let every rank wait for the rename"
    if output["taken away"]:
        mistake = (
            "removes what another rank has just made: let one rank remove and make the temporary "
            "folder, and the others wait for it"
        )
        return mistake, ", ".join(output["taken away"])
    if output["failures"]:
        kind, evidence = output["failures"][0]
        return FAILURES[kind], with_cell(evidence, attempt.trust)
    if output["names like a step"]:
        return TAKEN_FOR_A_STEP, ", ".join(output["names like a step"])
    return None


FAILURES = {
    "error": "stops when it is restarted after a kill",
    "files": "does not leave exactly complete checkpoints when it is restarted after a kill: "
    "remove what the killed run left",
}
TAKEN_FOR_A_STEP = (
    "uses another name that `latest` takes for a checkpoint: a temporary name must not match "
    "step_????????, whatever the step's number is"
)


def broken_by_a_kill(left: Disk, given: Any) -> MistakeText:
    """The mistake that a state of the disk shows which no kill may leave."""
    mistake = (
        "gives the final name to a folder that is not complete, which a kill then leaves: empty a "
        "temporary folder on one rank, wait, write on all, wait, then rename it in one step"
    )
    if left.get(OLD) != files_of(given["old"]):
        mistake = "changes or removes the old checkpoint before the new one is complete"
    elif (newest := max(name for name in left if STEP_NAME.fullmatch(name))) != NEW:
        is_done = left[newest] == files_of(given["new"])
        other_name = "gives the checkpoint another name than name_of(step)"
        mistake = other_name if is_done else TAKEN_FOR_A_STEP
    elif left[NEW].keys() - files_of(given["new"]).keys():
        mistake = "has something in the new checkpoint that write did not make"
    return mistake, f"a kill can leave {listing(left)}"


EXERCISE = OnRanks(
    points=5,
    cases=(
        Case("1 rank", 1, {"ranks": 1, "long steps": LONG_STEPS}),
        Case("2 ranks, then 1", 1, {"ranks": 2, "ranks after the kill": 1, "paused": True}),
    ),
    inputs=draw_contents,
    drive=drive,
    signs=(fails_on_a_rank, leaves_wrong_files),
)
