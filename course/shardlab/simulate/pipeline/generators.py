"""Schedules by name: naive model parallelism, GPipe, 1F1B and interleaved 1F1B.

p devices, m micro-batches, v chunks on each device.  The orders are those of
torch.distributed.pipelining, which a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardlab.simulate.pipeline.schedule import Action, Schedule


def naive(p: int, m: int = 1) -> Schedule:
    """One micro-batch through all stages and back before the next: one device works at a time."""
    check_sizes(p, m)
    return [
        [Action(kind, stage, micro_batch) for micro_batch in range(m) for kind in "FB"]
        for stage in range(p)
    ]


def gpipe(p: int, m: int) -> Schedule:
    """All forwards, then all backwards (Huang et al., "GPipe", arXiv 1811.06965, figure 2c).

    Bubble over the ideal (p−1)/m; m micro-batches in flight on every device.
    """
    check_sizes(p, m)
    return [
        [Action(kind, stage, micro_batch) for kind in "FB" for micro_batch in range(m)]
        for stage in range(p)
    ]


def one_f_one_b(p: int, m: int) -> Schedule:
    """Forwards until the first backward can come, then one of each in turn, then what is left.

    Harlap et al., "PipeDream", arXiv 1806.03377, with the flush of Narayanan et al.,
    "Memory-efficient pipeline-parallel DNN training", arXiv 2006.09503.  Bubble as GPipe's; at most
    p−i micro-batches in flight at stage i.
    """
    check_sizes(p, m)
    return [
        list(
            in_turn(
                [Action("F", stage, micro_batch) for micro_batch in range(m)],
                [Action("B", stage, micro_batch) for micro_batch in range(m)],
                warm_up=p - 1 - stage,
            )
        )
        for stage in range(p)
    ]


def interleaved_one_f_one_b(p: int, m: int, v: int) -> Schedule:
    """1F1B with v chunks of the model on each device, dealt out in turn: device r has r + k·p.

    Narayanan et al., arXiv 2104.04473, section 2.2: bubble over the ideal (p−1)/(v·m), for v times
    the messages.  Micro-batches go through a chunk in rounds of p (or of m/⌊m/p⌋ where p does not
    divide m, as in torch.distributed.pipelining).  One chunk is plain 1F1B.

    Raises ValueError where m does not divide into such rounds.
    """
    check_sizes(p, m, v)
    if v == 1:
        return one_f_one_b(p, m)
    rounds = max(1, m // p)
    if m % rounds:
        raise ValueError(
            f"m={m} micro-batches do not divide into {rounds} rounds of at least p={p}"
        )
    return [
        list(
            in_turn(
                list(_dealt("F", range(v), device, p, m, m // rounds)),
                list(_dealt("B", range(v - 1, -1, -1), device, p, m, m // rounds)),
                warm_up=(v - 1) * (m // rounds) + 2 * (p - 1 - device),
            )
        )
        for device in range(p)
    ]


def in_turn(forwards: list[Action], backwards: list[Action], *, warm_up: int) -> Iterator[Action]:
    """So many forwards, then a forward and a backward in turn, then the backwards that are left."""
    warm_up = min(warm_up, len(forwards))
    yield from forwards[:warm_up]
    for number, backward in enumerate(backwards):
        yield from forwards[warm_up + number : warm_up + number + 1]
        yield backward


def _dealt(
    kind: str, chunks: range, device: int, p: int, m: int, each_round: int
) -> Iterator[Action]:
    """Round by round, chunk by chunk, the round's micro-batches."""
    for first in range(0, m, each_round):
        for chunk in chunks:
            for micro_batch in range(first, first + each_round):
                yield Action(kind, chunk * p + device, micro_batch)


def check_sizes(p: int, m: int, v: int = 1) -> None:
    """Raises ValueError for what is no number of devices, micro-batches or chunks."""
    for name, value in (("p", p), ("m", m), ("v", v)):
        if isinstance(value, bool) or value != int(value) or value < 1:
            raise ValueError(f"{name}={value}: a whole number, 1 or more")
