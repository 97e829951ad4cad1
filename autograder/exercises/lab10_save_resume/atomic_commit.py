"""Kills a rank after every change on disk: a folder with a step's name must always be complete."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cloudpickle
import numpy as np

from autograder.exercise import Attempt, Case, Finding, OnRanks, Plain
from autograder.exercise.signs import MistakeText, on_each_rank, raises
from autograder.exercises.lab10_save_resume.folders import name_of
from autograder.exercises.lab10_save_resume.forked_ranks import (
    RETURNED,
    Observer,
    Outcome,
    protected_parent,
    run_ranks,
    was_killed,
)
from autograder.exercises.lab10_save_resume.process_group import Group, Message
from autograder.exercises.lab10_save_resume.rank_errors import (
    fails_on_a_rank,
    has_no_collective,
    never_entered,
    never_waited,
    raise_first_error,
)
from autograder.guest.on_rank import gets_pickled_answer

MAX_KILLS = 60  # in one case; a correct answer makes about ten changes
MAX_ENTRIES, MAX_BYTES = 500, 200  # that are inspected on disk, and in each file
OLD, NEW = "step_00000001", "step_00000002"  # one was saved before, the other is being saved
AFTER = 3  # the step that a restart commits if NEW is complete
LONG_STEPS = [10**digits for digits in range(1, 7)]  # names with 2 to 7 digits
STEP_NAME = re.compile("step_.{8}", re.DOTALL)  # what the lab's `latest` takes for a checkpoint
LINK = " -> "  # instead of a file's name
NOT_THERE = "write was called with a folder that does not exist"
FINAL = "write was called with the final folder"
OUTSIDE = "write was called with a folder outside root"

Files = dict[str, str]  # a folder's contents: {path: content}
Disk = dict[str, Files]  # {name of a file or folder in root: its contents}


def draw_contents(case: Case, rng: np.random.Generator) -> Plain:
    """What the ranks write: {"old": by rank, "new": by rank}"""
    ranks = range(case.params["ranks"])
    return {which: [rng.bytes(24).hex() for _ in ranks] for which in ("old", "new")}


def files_of(texts: Sequence[str]) -> Files:
    return {f"rank_{rank}.txt": text for rank, text in enumerate(texts)}


def disk_of(root: str) -> Disk:
    """The disk with the beginning of each file, not following links; one in root is {LINK: ""}."""
    disk: Disk = {}
    for path in paths_in(root)[:MAX_ENTRIES]:
        name, _, inside = path[len(root) + 1 :].partition("/")
        files = disk.setdefault(name, {LINK: ""} if os.path.islink(path) else {})
        if inside:
            files[inside] = beginning_of(path)
    return disk


def paths_in(folder: str) -> list[str]:
    found: list[str] = []
    with (
        contextlib.suppress(OSError),
        os.scandir(folder) as entries,
    ):  # it may be removed in the meantime
        for entry in entries:
            found.append(entry.path)
            if entry.is_dir(follow_symlinks=False):
                found += paths_in(entry.path)
    return sorted(found)


def beginning_of(path: str) -> str:
    with contextlib.suppress(OSError):  # a folder, a link, or removed in the meantime
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return os.read(fd, MAX_BYTES).decode(errors="replace")
        finally:
            os.close(fd)
    return ""


def is_broken(disk: Disk, given: Any, new: str = NEW) -> bool:
    """Whether the newest step differs from what was saved in it."""
    newest = max((name for name in disk if STEP_NAME.fullmatch(name)), default="")
    saved = {OLD: files_of(given["old"]), new: files_of(given["new"])}
    return newest not in saved or disk[newest] != saved[newest]


# ---- next to the student's code -----------------------------------------------------------------


class DiskObserver(Observer):
    """Inspects the disk before each held call.

    Kills the rank that made change ``kill_at``, and pauses a rank before held call ``pause_at``.
    """

    def __init__(
        self, root: Path, given: Any, kill_at: int = 0, pause_at: int = 0, new: str = NEW
    ) -> None:
        self.watched = str(root)
        self.given, self.kill_at, self.pause_at, self.new = given, kill_at, pause_at, new
        self.calls = 0  # that were held
        self.changing_calls: list[int] = []
        self.seen = disk_of(self.watched)
        self.changes = 0
        # The first state that no kill may leave, with the one before it and, if the new checkpoint
        # was empty, the first one where it is not: [before, left, filled]
        self.broken: list[Disk] | None = None
        self.written: set[str] = set()  # what was in files, until then
        self.returned_too_early: list[int] = []
        self.elsewhere: list[str] = []  # what was in the current folder at the end

    def inspect(self) -> bool:
        """Whether the disk has changed since the last inspection."""
        disk = disk_of(self.watched or "")
        if disk == self.seen:
            return False
        before, self.seen = self.seen, disk
        self.changes += 1
        if self.broken is None:
            self.written.update(*(files.values() for files in disk.values()))
            if is_broken(disk, self.given, self.new):
                self.broken = [before, disk]
        if self.broken and len(self.broken) == 2 and disk.get(NEW):
            self.broken.append(disk)
        return True

    def should_kill(self, rank: int, message: Message | None) -> bool:
        has_changed = self.inspect()
        if has_changed:
            self.changing_calls.append(self.calls)
        if message is None:
            self.calls += 1
        has_returned = message is not None and message.get("op") == RETURNED
        if has_returned and self.seen.get(NEW) != files_of(self.given["new"]):
            self.returned_too_early.append(rank)
        return has_changed and self.changes == self.kill_at

    def should_pause(self, rank: int) -> bool:
        return self.calls == self.pause_at


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


@dataclass
class Commits:
    """Runs the answer, each time with only the old checkpoint on disk."""

    pickled: bytes
    root: Path
    given: Any
    case: Case
    most_paths: int = 0  # on a disk after a kill

    def without_a_kill(self, is_reversed: bool = False, pause_at: int = 0) -> DiskObserver:
        observer = self.prepare(pause_at=pause_at)
        outcomes = self.run(self.given["new"], observer, is_reversed)
        observer.inspect()
        observer.elsewhere = os.listdir(self.current)
        if observer.broken is None:
            raise_first_error(outcomes)
        return observer

    def with_a_kill(self, change: int) -> dict[str, Any]:
        """What a kill after this change leaves on disk, and how a restart fails, if it does."""
        observer = self.prepare(kill_at=change)
        is_reversed = change % 2 == 0
        outcomes = self.run(self.given["new"], observer, is_reversed)
        observer.inspect()
        self.keep_leftovers()
        return {
            "was killed": was_killed(outcomes),
            "broken": observer.broken,
            "failure": self.restart(is_reversed) if observer.seen.keys() != {OLD, NEW} else None,
        }

    def restart(self, is_reversed: bool) -> list[str] | None:
        """[kind of failure, evidence], or None"""
        ranks = self.case.params.get("ranks after the kill", self.case.params["ranks"])
        texts, files = self.given["new"][:ranks], files_of(self.given["new"][:ranks])
        step = AFTER if (self.root / NEW).exists() else int(NEW[5:])  # NEW is then complete
        try:
            raise_first_error(self.run(texts, None, not is_reversed, step))
        except Exception as error:
            kind = "error" if self.succeeds_on_a_clean_disk(texts, not is_reversed) else "ranks"
            return [kind, f"{type(error).__name__}: {error}"]
        return self.wrong_disk(name_of(step), files)

    def wrong_disk(self, new: str, files: Files) -> list[str] | None:
        disk = disk_of(str(self.root))
        if new not in disk:
            return ["files", f"in root: {', '.join(disk)}"]
        if disk[new] != files:
            kind = "kept" if disk[new].items() > files.items() else "files"
            return [kind, f"in {new}: {', '.join(disk[new]) or 'no file'}"]
        rest = disk.keys() - {OLD, NEW, new}
        return ["leftovers", ", ".join(sorted(rest))] if rest else None

    def keep_leftovers(self) -> None:
        """Keep a copy of the disk with the most files that a kill left."""
        if NEW not in disk_of(str(self.root)) and self.paths() > self.most_paths:
            self.most_paths = self.paths()
            shutil.rmtree(self.leftovers, ignore_errors=True)
            shutil.copytree(self.root, self.leftovers, symlinks=True)

    def paths(self) -> int:
        return len(paths_in(str(self.root)))

    def paused_restarts(self) -> list[list[str]]:
        """[failure] of a restart on all ranks, one of which is slow to remove leftovers, or []."""
        texts = self.given["new"]

        def restart(pause_at: int = 0) -> tuple[DiskObserver, list[Outcome]]:
            self.prepare()
            shutil.rmtree(self.root)
            shutil.copytree(self.leftovers, self.root, symlinks=True)
            observer = DiskObserver(self.root, self.given, pause_at=pause_at)
            return observer, self.run(texts, observer)

        if not self.most_paths:
            return []
        for call in restart()[0].changing_calls[: self.most_paths]:
            try:
                raise_first_error(restart(call)[1])
            except Exception as error:
                return [["race", f"{type(error).__name__}: {error}"]]
            if found := self.wrong_disk(NEW, files_of(texts)):
                return [found]
        return []

    def names_like_a_step(self, steps: Sequence[int]) -> list[str]:
        """Temporary names in commits of these steps that `latest` takes for checkpoints."""
        found = []
        for step in steps:
            observer = self.prepare(new=name_of(step))
            self.run(self.given["new"], observer, step=step)
            _, broken = observer.broken[:2] if observer.broken else ({}, {})
            found += [n for n in broken if STEP_NAME.fullmatch(n) and n not in (OLD, observer.new)]
        return found

    def succeeds_on_a_clean_disk(self, texts: Sequence[str], is_reversed: bool) -> bool:
        """Whether a restart fails only because of the files that a killed run left."""
        self.prepare()
        try:
            raise_first_error(self.run(texts, None, is_reversed))
        except Exception:
            return False
        return True

    @property
    def leftovers(self) -> Path:
        return self.root.parent / "leftovers"

    @property
    def current(self) -> Path:
        return self.root.parent / "current"

    def prepare(self, kill_at: int = 0, pause_at: int = 0, new: str = NEW) -> DiskObserver:
        for folder in (self.root, self.current):
            shutil.rmtree(folder, ignore_errors=True)
        self.current.mkdir()
        (self.root / OLD).mkdir(parents=True)
        for name, text in files_of(self.given["old"]).items():
            (self.root / OLD / name).write_text(text)
        return DiskObserver(self.root, self.given, kill_at, pause_at, new)

    def run(
        self,
        texts: Sequence[str],
        observer: DiskObserver | None,
        is_reversed: bool = False,
        step: int = int(NEW[5:]),
    ) -> list[Outcome]:
        """One rank for each text."""
        pickled, root, current = self.pickled, self.root, self.current

        def on_rank(group: Group) -> None:
            name, text = list(files_of(texts).items())[group.rank]
            os.chdir(current)  # where a name without root ends

            def write(given: Any) -> None:
                folder = Path(given)
                if not folder.resolve().is_relative_to(root.resolve()):
                    raise ValueError(OUTSIDE)
                if not folder.is_dir():
                    what = FINAL if folder.name == name_of(step) else NOT_THERE
                    raise FileNotFoundError(f"{what}: {folder.name}")
                (folder / name).write_text(text)  # two changes: an empty file, a complete one

            cloudpickle.loads(pickled)(root, step, write)

        order = range(len(texts))
        return run_ranks(on_rank, len(texts), observer, order[::-1] if is_reversed else order)


# ---- diagnosis ----------------------------------------------------------------------------------


@on_each_rank
def broken_by_a_kill(output: Any, rank: int, attempt: Attempt) -> MistakeText:
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
def wrong_without_a_kill(output: Any, rank: int, attempt: Attempt) -> Any:
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
def failed_restart(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    if not output["failures"]:
        return None
    kind, evidence = output["failures"][0]
    return FAILURES[kind], evidence


@on_each_rank
def name_like_a_step(output: Any, rank: int, attempt: Attempt) -> MistakeText:
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
