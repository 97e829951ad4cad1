"""The data of an opener: rows over time with blocks, messages and levels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

RECORDED = Path(__file__).with_name("recorded")
WAITS = " waits"  # at the end of a block's kind: the call waits for another rank to join it


class Block(NamedTuple):
    """A bar in a row. ``lane``: its place if several are concurrent, 0 at the top.

    kind: what color it has (draw.COLORS), or the name of a torch.distributed call,
    with `WAITS` after it while the call waits for another rank.
    """

    row: int
    lane: int
    start: float
    end: float
    kind: str
    label: str = ""


class Message(NamedTuple):
    """An arrow from one row to another, from when both ends were ready to its arrival."""

    from_row: int
    to_row: int
    start: float
    end: float


class Level(NamedTuple):
    """An amount over time, constant between ``times``. Levels of one row are stacked."""

    row: int
    kind: str
    times: tuple[float, ...]
    amounts: tuple[float, ...]


@dataclass(frozen=True)
class Opener:
    """What one recipe recorded. Times are in ``unit``, from 0 to ``end``."""

    title: str  # one line: what to watch
    caption: str  # what happens, in words, for those who do not see it move
    rows: tuple[str, ...]
    end: float
    unit: str = "s"  # or "operators"
    blocks: tuple[Block, ...] = ()
    messages: tuple[Message, ...] = ()
    levels: tuple[Level, ...] = ()


def names() -> list[str]:
    """The chapters that have an opener."""
    return sorted(path.stem for path in RECORDED.glob("*.json"))


def load(name: str) -> Opener:
    found = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    marks: dict[str, Callable[..., Any]] = {"blocks": Block, "messages": Message, "levels": _level}
    made = {key: tuple(make(*mark) for mark in found.pop(key)) for key, make in marks.items()}
    return Opener(**(found | {"rows": tuple(found["rows"])} | made))


def save(name: str, opener: Opener) -> None:
    """Writes what `load` reads, a line for each mark."""
    (RECORDED / f"{name}.json").write_text(as_json(opener), encoding="utf-8")


def as_json(opener: Opener) -> str:
    lines = []
    for field in fields(opener):
        value = getattr(opener, field.name)
        text = _list(value) if field.name in ("blocks", "messages", "levels") else _json(value)
        lines.append(f' "{field.name}": {text}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _level(row: int, kind: str, times: list[float], amounts: list[float]) -> Level:
    return Level(row, kind, tuple(times), tuple(amounts))


def _list(marks: Iterable[Any]) -> str:
    return "[" + ",".join(f"\n  {_json(mark)}" for mark in marks) + "]"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
