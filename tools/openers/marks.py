"""From what a run recorded to an opener's rows, blocks, messages and levels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardlab.run import Call, Run
from shardlab.run.live_memory import RankMemory
from shardlab.run.matching import match_calls
from tools.openers.opener import WAITS, Block, Level, Message, Opener

DIGITS = 7  # of seconds: tenths of a microsecond


def of_calls(run: Run, title: str, caption: str, *, lanes: dict[str, int] | None = None) -> Opener:
    """Measured blocks and calls by rank, and an arrow for each send.

    Calls and blocks after each rank's last barrier are shown; ``lanes`` has the lane of some ops. A
    measured block is named by what it does: a kind of draw.COLORS; others are not shown.
    """
    start = {call.rank: ended(call) for call in run.calls if call.op == "barrier"}
    calls = [
        call
        for call in run.calls
        if call.start_s >= start.get(call.rank, 0) and call.op != "barrier"
    ]
    blocks = [
        Block(each.rank, 0, each.start_s, each.end_s, each.label)
        for each in run.traffic.blocks
        if each.start_s >= start.get(each.rank, 0)
        and each.label in ("compute", "forward", "backward")
    ]
    groups = match_calls(calls)
    for matched in groups:
        for call in matched.calls:
            lane, moved_s = (lanes or {}).get(call.op, 0), matched.transfer_start_s(call)
            if moved_s is None:  # a rank never joined, or joined before the last barrier
                moved_s = call.start_s
            if moved_s > call.start_s:
                blocks.append(Block(call.rank, lane, call.start_s, moved_s, call.op + WAITS))
            blocks.append(Block(call.rank, lane, moved_s, ended(call), call.op))
    begin, end = min(block.start for block in blocks), max(block.end for block in blocks)
    arrows = [
        Message(sender.rank, receiver.rank, matched.all_began_s - begin, ended(receiver) - begin)
        for matched in groups
        if (sender := matched.sender) and (receiver := matched.receiver) and matched.all_began_s
    ]
    return Opener(
        title,
        caption,
        rank_rows(run.world_size),
        round(end - begin, DIGITS),
        blocks=shifted(blocks, begin),
        messages=rounded(arrows),
    )


def ended(call: Call) -> float:
    assert call.end_s is not None, f"{call.op} never ended"
    return call.end_s


def levels_of(
    row: int, memory: RankMemory, start: float, end: float, most: int, *kinds: str
) -> tuple[Level, ...]:
    """Live bytes of some categories between two times, at most ``most`` values of each."""
    inside = [i for i, at in enumerate(memory.times_s) if start <= at <= end]
    inside = [max(inside[0] - 1, 0), *inside]  # what was live at the start
    stacked = [[int(memory.live_bytes[kind][i]) for i in inside] for kind in kinds]
    sums = [sum(amounts) for amounts in zip(*stacked, strict=True)]
    kept = places(sums, most)
    times = tuple(max(round(float(memory.times_s[inside[i]]) - start, DIGITS), 0.0) for i in kept)
    return tuple(
        Level(row, kind, times, tuple(amounts[i] for i in kept))
        for kind, amounts in zip(kinds, stacked, strict=True)
        if any(amounts)
    )


def thinned(
    times: Sequence[float], amounts: Sequence[int], most: int
) -> tuple[list[float], list[int]]:
    kept = places(amounts, most)
    return [times[i] for i in kept], [amounts[i] for i in kept]


def places(amounts: Sequence[int], most: int) -> list[int]:
    """The highest value of each of ``most`` equal parts, and both ends."""
    size = max(1, -(-len(amounts) // most))
    parts = (range(i, min(i + size, len(amounts))) for i in range(0, len(amounts), size))
    return sorted({0, len(amounts) - 1, *(max(part, key=amounts.__getitem__) for part in parts)})


def rank_rows(world_size: int) -> tuple[str, ...]:
    return tuple(f"rank {rank}" for rank in range(world_size))


def shifted(blocks: Iterable[Block], start: float) -> tuple[Block, ...]:
    """Blocks by time, counted from ``start``."""
    moved = (
        each._replace(start=round(each.start - start, DIGITS), end=round(each.end - start, DIGITS))
        for each in blocks
    )
    return tuple(sorted(moved, key=lambda each: (each.start, each.row)))


def rounded(messages: Iterable[Message]) -> tuple[Message, ...]:
    return tuple(
        each._replace(start=round(each.start, DIGITS), end=round(each.end, DIGITS))
        for each in sorted(messages, key=lambda each: each.start)
    )
