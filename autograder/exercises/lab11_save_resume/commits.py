"""Commits of a step by an answer: what they leave on disk, and after kills and pauses."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from autograder.exercise import Case
from autograder.exercises.lab11_save_resume.folders import name_of
from autograder.exercises.lab11_save_resume.forked_ranks import (
    RETURNED,
    Observer,
    Outcome,
    run_ranks,
    was_killed,
)
from autograder.exercises.lab11_save_resume.process_group import Group, Message
from autograder.exercises.lab11_save_resume.rank_errors import raise_first_error

MAX_ENTRIES, MAX_BYTES = 500, 200  # that are inspected on disk, and in each file
OLD, NEW = "step_00000001", "step_00000002"  # one was saved before, the other is being saved
AFTER = 3  # the step that a restart commits if NEW is complete
STEP_NAME = re.compile("step_.{8}", re.DOTALL)  # what the lab's `latest` takes for a checkpoint

Files = dict[str, str]  # a folder's contents: {path: content}
Disk = dict[str, Files]  # {name of a file or folder in root: its contents}


def files_of(texts: Sequence[str]) -> Files:
    return {f"rank_{rank}.txt": text for rank, text in enumerate(texts)}


def disk_of(root: str) -> Disk:
    """With the beginning of each file, not following links; one in root is {"a link": ""}."""
    disk: Disk = {}
    for path in paths_in(root)[:MAX_ENTRIES]:
        name, _, inside = path[len(root) + 1 :].partition("/")
        files = disk.setdefault(name, {"a link": ""} if os.path.islink(path) else {})
        if inside:
            files[inside] = beginning_of(path)
    return disk


def paths_in(folder: str) -> list[str]:
    found: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # it may be removed meanwhile
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


def listing(disk: Disk) -> str:
    """step_00000001: rank_0.txt, rank_1.txt; unfinished: nothing"""
    return "; ".join(f"{name}: {', '.join(files) or 'nothing'}" for name, files in disk.items())


def is_broken(disk: Disk, given: Any, new: str = NEW) -> bool:
    """Whether the newest step differs from what was saved in it."""
    newest = max((name for name in disk if STEP_NAME.fullmatch(name)), default="")
    saved = {OLD: files_of(given["old"]), new: files_of(given["new"])}
    return newest not in saved or disk[newest] != saved[newest]


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
        self.broken: Disk | None = None  # the first state that no kill may leave
        self.makers: dict[str, int] = {}  # the rank that made each file or folder in root
        self.taken: list[str] = []  # those that another rank removed
        self.returned_too_early: list[int] = []
        self.elsewhere: list[str] = []  # what was in the current folder at the end

    def inspect(self, rank: int | None = None) -> bool:
        """Whether the disk has changed since the last inspection; only ``rank`` has run since."""
        disk = disk_of(self.watched or "")
        if disk == self.seen:
            return False
        if rank is not None:
            if self.new not in disk:  # else it may have been renamed
                gone = self.seen.keys() - disk.keys()
                self.taken += [name for name in gone if self.makers.get(name, rank) != rank]
            self.makers |= dict.fromkeys(disk.keys() - self.seen.keys(), rank)
        self.seen = disk
        self.changes += 1
        if self.broken is None and is_broken(disk, self.given, self.new):
            self.broken = disk
        return True

    def should_kill(self, rank: int, message: Message | None) -> bool:
        has_changed = self.inspect(rank)
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


@dataclass
class Commits:
    """Runs the answer, each time with only the old checkpoint on disk."""

    pickled: bytes
    root: Path
    given: Any
    case: Case
    most_paths: int = 0  # on a disk after a kill

    def __post_init__(self) -> None:
        self.leftovers, self.current = self.root.parent / "leftovers", self.root.parent / "current"

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
            return ["error", f"{type(error).__name__}: {error}"]
        return self.wrong_disk(name_of(step), files)

    def wrong_disk(self, new: str, files: Files) -> list[str] | None:
        disk = disk_of(str(self.root))
        is_right = disk.get(new) == files and disk.keys() <= {OLD, NEW, new}
        evidence = f"{listing(disk)}; expected {listing({new: files})}"
        return None if is_right else ["files", evidence]

    def keep_leftovers(self) -> None:
        """Keep a copy of the disk with the most files that a kill left."""
        paths = len(paths_in(str(self.root)))
        if NEW not in disk_of(str(self.root)) and paths > self.most_paths:
            self.most_paths = paths
            shutil.rmtree(self.leftovers, ignore_errors=True)
            shutil.copytree(self.root, self.leftovers, symlinks=True)

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
                return [["error", f"{type(error).__name__}: {error}"]]
            if found := self.wrong_disk(NEW, files_of(texts)):
                return [found]
        return []

    def names_like_a_step(self, steps: Sequence[int]) -> list[str]:
        """Temporary names in commits of these steps that `latest` takes for checkpoints."""
        found: list[str] = []
        for step in steps:
            observer = self.prepare(new=name_of(step))
            self.run(self.given["new"], observer, step=step)
            names = (observer.broken or {}).keys() - {OLD, observer.new}
            found += sorted(name for name in names if STEP_NAME.fullmatch(name))
        return found

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
                    what = "is outside root: a rename works only within one file system"
                    raise ValueError(f"write got a folder that {what}")
                if not folder.is_dir():
                    raise FileNotFoundError(
                        f"write got a folder that does not exist yet: {folder.name}"
                    )
                (folder / name).write_text(text)  # two changes: an empty file, a complete one

            cloudpickle.loads(pickled)(root, step, write)

        order = range(len(texts))
        return run_ranks(on_rank, len(texts), observer, order[::-1] if is_reversed else order)
