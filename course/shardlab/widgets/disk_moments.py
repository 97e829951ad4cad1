"""Disk moments: what is on disk after each change of a save, and what a restart would load."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from shardlab.display.palette import ERROR, MEMORY, OK, WAIT
from shardlab.run import Run
from shardlab.trace.disk_recorder import Disk, DiskChange
from shardlab.widgets.picture import Adjustable, module
from shardlab.widgets.scene import Mark, Rect, Text, as_json, line, text_width, to_svg
from shardlab.widgets.units import format_bytes

WIDTH = 660.0  # fits a notebook on a screen of 1100 pixels
NAMES = 125.0  # width of the paths, to the left of the bars
ROW = 18.0
BAR = 12.0
LEGEND = 42.0  # height below the strips
STRIP = 22.0  # height of one of the two strips of moments
STATES = {  # what a restart finds -> color, hatched
    "old": (WAIT, False),
    "new": (OK, False),
    "mix": (ERROR, False),
    "broken": (ERROR, True),
}
KINDS = {"old": "the old one", "new": "the new one", "mix": "a mix of both", "broken": "an error"}
FAILURES = {"kill": "all ranks killed", "power": "power failure"}

Load = Callable[[Path], Any]
Before = Mapping[str, bytes]


@dataclass(frozen=True)
class Moment:
    """The disk after one change. found: {failure: (a key of STATES, what `load` returned)}."""

    text: str
    changed: str  # path of the file that it changed
    files: tuple[tuple[str, int, int], ...]  # path, bytes, bytes that were synced
    found: Mapping[str, tuple[str, str]]


class DiskMoments(Adjustable):
    """Made by `disk_moments`. ``settings``: "save", a name, and "moment", from 0."""

    _esm: ClassVar[str] = module("disk_moments.js")

    def __init__(self, saves: Mapping[str, Sequence[Moment]]) -> None:
        self._saves = {save: tuple(moments) for save, moments in saves.items()}
        paths = {save: _paths(moments) for save, moments in self._saves.items()}
        self._rows = max(map(len, paths.values()))
        self._height = 6 + ROW * self._rows + 12 + 2 * STRIP + LEGEND
        self._marks = {
            save: [self._moment_marks(moments, i, paths[save]) for i in range(len(moments))]
            for save, moments in self._saves.items()
        }
        scene = {
            "width": WIDTH,
            "height": self._height,
            "strip": {"left": NAMES, "right": WIDTH, "top": 6 + ROW * self._rows + 12},
            "strip_height": STRIP,
            "failures": FAILURES,
            "saves": [
                {
                    "save": save,
                    "strips": as_json(self._strips(moments)),
                    "moments": [
                        {
                            "text": moment.text,
                            "found": {key: list(found) for key, found in moment.found.items()},
                            "marks": as_json(marks),
                        }
                        for moment, marks in zip(moments, self._marks[save], strict=True)
                    ],
                }
                for save, moments in self._saves.items()
            ],
        }
        first = next(iter(self._saves))
        super().__init__(scene=scene, settings={"save": first, "moment": self._worst(first)})

    def found(self, save: str, failure: str = "kill") -> tuple[str, ...]:
        """What a restart would find at each moment: "old", "new", "mix" or "broken".

        failure: "kill" (of all ranks) or "power".
        """
        return tuple(moment.found[failure][0] for moment in self._saves[save])

    def _worst(self, save: str) -> int:
        """The initial moment: in the middle of those that a restart cannot use, if any."""
        bad = [
            i
            for i, moment in enumerate(self._saves[save])
            if moment.found["kill"][0] in ("mix", "broken")
        ]
        return bad[len(bad) // 2] if bad else len(self._saves[save]) // 2

    def check(self, settings: dict[str, Any]) -> None:
        """Raises ValueError for an unknown save or moment."""
        if settings["save"] not in self._saves:
            raise ValueError(f"save must be one of {list(self._saves)}")
        last = len(self._saves[settings["save"]]) - 1
        if not 0 <= settings["moment"] <= last:
            raise ValueError(f"moment must be 0 to {last}")

    def _moment_shown(self) -> tuple[str, int, Moment]:
        save, index = self.settings["save"], self.settings["moment"]
        return save, index, self._saves[save][index]

    def static_svg(self) -> str:
        save, index, _ = self._moment_shown()
        marks = [*self._marks[save][index], *self._strips(self._saves[save])]
        return to_svg(
            [*marks, self._cursor(save, index)],
            WIDTH,
            self._height,
            title=f"The disk while four ranks save: {save}",
            subtitle=f"moment {index} of {len(self._saves[save]) - 1}",
            footer=self.summary(),
        )

    def summary(self) -> str:
        save, _, moment = self._moment_shown()
        loads = "; ".join(
            f"after a {FAILURES[key]} a restart finds {KINDS[state]} ({text})"
            if key == "power"
            else f"with all ranks killed here, a restart finds {KINDS[state]} ({text})"
            for key, (state, text) in moment.found.items()
        )
        return f"{save}: {moment.text}; {loads}"

    # ---- marks ----

    def _moment_marks(self, moments: Sequence[Moment], index: int, paths: list[str]) -> list[Mark]:
        """A row for each path that ever existed; bars for those that exist now."""
        moment, largest = moments[index], max(_sizes(moments), default=1)
        marks: list[Mark] = []
        files = {path: rest for path, *rest in moment.files}
        for row, path in enumerate(paths):
            y = 6 + ROW * row
            here = path in files
            marks.append(
                Text(
                    x=NAMES - 10, y=y + 12, text=path, anchor="end",
                    weight=600 if path == moment.changed else 400,
                    fill="text" if here else "muted", opacity=1 if here else 0.45,
                )
            )  # fmt: skip
            if not here:
                continue
            size, synced = files[path]
            scale = (WIDTH - NAMES - 90) / max(largest, 1)
            color = MEMORY["parameters"]
            bars = ((0, synced, False), (synced, size, True))
            for start, end, unsynced in bars:
                if end > start:
                    marks.append(
                        Rect(
                            x=NAMES + start * scale, y=y + 2, width=(end - start) * scale,
                            height=BAR, fill=color, hatch=unsynced,
                        )
                    )  # fmt: skip
            marks.append(Rect(x=NAMES, y=y + 2, width=1.5, height=BAR, fill="text"))
            label = format_bytes(size) if size else "empty"
            x = NAMES + size * scale + 8
            marks.append(Text(x=x, y=y + 12, text=label, fill="muted", size=11))
        return marks

    def _strips(self, moments: Sequence[Moment]) -> list[Mark]:
        """For each failure, a strip of all moments, colored by what a restart would find."""
        marks: list[Mark] = []
        top = 6 + ROW * self._rows + 12
        step = (WIDTH - NAMES) / len(moments)
        marks.append(line(0, top - 6, WIDTH, top - 6))
        for row, (key, label) in enumerate(FAILURES.items()):
            y = top + STRIP * row
            marks.append(Text(x=NAMES - 10, y=y + 14, text=label, anchor="end", size=12))
            for index, moment in enumerate(moments):
                color, hatched = STATES[moment.found[key][0]]
                marks.append(
                    Rect(
                        x=NAMES + index * step + 0.5, y=y + 2, width=max(step - 1, 1),
                        height=STRIP - 6, fill=color, hatch=hatched, radius=1,
                    )
                )  # fmt: skip
        x, y = NAMES, top + 2 * STRIP + 6
        marks.append(Text(x=x - 10, y=y + 9, text="a restart finds", anchor="end", fill="muted"))
        for state, (color, hatched) in STATES.items():
            marks.append(Rect(x=x, y=y, width=10, height=10, fill=color, hatch=hatched))
            marks.append(Text(x=x + 15, y=y + 9, text=KINDS[state], fill="muted"))
            x += 32 + text_width(KINDS[state], 12)
        y += 18
        marks.append(Rect(x=NAMES, y=y, width=18, height=10, fill=MEMORY["parameters"], hatch=True))
        text = "bytes not synced yet (fsync)"
        marks.append(Text(x=NAMES + 23, y=y + 9, text=text, fill="muted"))
        return marks

    def _cursor(self, save: str, index: int) -> Mark:
        step = (WIDTH - NAMES) / len(self._saves[save])
        top = 6 + ROW * self._rows + 12
        return Rect(
            x=NAMES + index * step, y=top, width=step, height=2 * STRIP - 2, stroke="text",
            stroke_width=2,
        )  # fmt: skip


def disk_moments(saves: Mapping[str, tuple[Before, Run]], load: Load) -> DiskMoments:
    """Draw the disk after each change of a recorded save, and what a restart would load from it.

    saves: {name: (the folder's contents before, from `snapshot`; the run)}. Each rank of the run
        returns the changes that `disk_changes` recorded.
    load: called with a copy of the folder as it was at a moment; returns what a restart would
        continue with, one value per rank, or raises an exception if that is impossible. It is
        called twice for each moment: with everything that was written, which remains when all
        processes are killed, and without the bytes not followed by an fsync, which a power failure
        may lose.

    Raises ValueError for runs that changed nothing.
    """
    return DiskMoments(
        {save: moments_of(before, run, load) for save, (before, run) in saves.items()}
    )


def moments_of(before: Before, run: Run, load: Load) -> list[Moment]:
    """The disk before the first change, and after each one, by time."""
    changes: list[tuple[int, DiskChange]] = sorted(
        ((rank, change) for rank, made in enumerate(run.outputs) for change in made),
        key=lambda each: each[1].at_s,
    )
    if not changes:
        raise ValueError(
            "no change was recorded, so there is nothing to draw: return the list from "
            'disk_changes, and in a notebook open files with path.open("wb")'
        )
    disk = Disk(before)
    found = [_found(disk, load)]
    texts, files = [("before the save", "")], [_files(disk)]
    for rank, change in changes:
        disk.apply(change)
        found.append(_found(disk, load))
        files.append(_files(disk))
        texts.append((_in_words(rank, change), change.to or change.path))
    old, new = found[0]["kill"], found[-1]["kill"]
    return [
        Moment(text, changed, held, {key: _state(value, old, new) for key, value in each.items()})
        for (text, changed), held, each in zip(texts, files, found, strict=True)
    ]


def _found(disk: Disk, load: Load) -> dict[str, Any]:
    """What `load` returns after each failure, or the exception that it raises."""
    found: dict[str, Any] = {}
    for failure in FAILURES:
        with tempfile.TemporaryDirectory(prefix="shardlab-disk-") as name:
            disk.write_to(Path(name), only_synced=failure == "power")
            try:
                found[failure] = list(load(Path(name)))
            except Exception as error:
                found[failure] = error
    return found


def _state(value: Any, old: Any, new: Any) -> tuple[str, str]:
    if isinstance(value, Exception):
        return "broken", type(value).__name__
    text = ", ".join(map(str, value))
    return "new" if value == new else "old" if value == old else "mix", text


def _files(disk: Disk) -> tuple[tuple[str, int, int], ...]:
    return tuple((path, len(file.data), file.synced) for path, file in sorted(disk.files.items()))


def _in_words(rank: int, change: DiskChange) -> str:
    verbs = {
        "create": "opened {path}, now empty",
        "write": "wrote {size} to {path}",
        "fsync": "synced {path}",
        "mkdir": "created the folder {path}",
        "rename": "renamed {path} to {to}",
        "remove": "removed {path}",
        "rmdir": "removed the folder {path}",
    }
    path = "the folder" if change.path == "." else change.path
    size = format_bytes(len(change.data))
    return f"rank {rank} " + verbs[change.op].format(path=path, to=change.to, size=size)


def _paths(moments: Sequence[Moment]) -> list[str]:
    """All paths, in the order in which they appeared."""
    return list(dict.fromkeys(path for moment in moments for path, *_ in moment.files))


def _sizes(moments: Sequence[Moment]) -> list[int]:
    return [size for moment in moments for _, size, _ in moment.files]
