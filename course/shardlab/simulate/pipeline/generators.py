"""Generators of schedules: naive model parallelism, GPipe, 1F1B and interleaved 1F1B.

p devices, m micro-batches, v chunks on each device.  The orders are the same as in
torch.distributed.pipelining; a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardlab.simulate.pipeline.schedule import Action, Schedule


def naive(p: int, m: int = 1) -> Schedule:
    """Each micro-batch goes forward and back before the next starts: one device works at a time."""
    check_sizes(p, m)
    return [
        [Action(kind, stage, micro_batch) for micro_batch in range(m) for kind in "FB"]
        for stage in range(p)
    ]


def gpipe(p: int, m: int) -> Schedule:
    """All forwards, then all backwards (Huang et al., "GPipe", arXiv 1811.06965, figure 2c).

    Bubble over ideal: (p−1)/m.  Every device has m micro-batches in flight.
    """
    check_sizes(p, m)
    return [
        [Action(kind, stage, micro_batch) for kind in "FB" for micro_batch in range(m)]
        for stage in range(p)
    ]


def one_f_one_b(p: int, m: int) -> Schedule:
    """Forwards until the first backward can start, then alternate, then the remaining backwards.

    Harlap et al., "PipeDream", arXiv 1806.03377, with the flush of Narayanan et al.,
    "Memory-efficient pipeline-parallel DNN training", arXiv 2006.09503.  The same bubble as GPipe;
    at most p−i micro-batches in flight at stage i.
    """
    check_sizes(p, m)
    return [
        list(
            alternate(
                [Action("F", stage, micro_batch) for micro_batch in range(m)],
                [Action("B", stage, micro_batch) for micro_batch in range(m)],
                warm_up=p - 1 - stage,
            )
        )
        for stage in range(p)
    ]


def interleaved_one_f_one_b(p: int, m: int, v: int) -> Schedule:
    """1F1B with v chunks of the model on each device, assigned round-robin: device r has r + k·p.

    Narayanan et al., arXiv 2104.04473, section 2.2: bubble over ideal (p−1)/(v·m), with v times the
    messages.  Micro-batches go through a chunk in rounds of p (or of m/⌊m/p⌋ if p does not divide
    m, as in torch.distributed.pipelining).  One chunk is plain 1F1B.

    Raises ValueError if m does not divide into such rounds.
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
            alternate(
                list(_in_rounds("F", range(v), device, p, m, m // rounds)),
                list(_in_rounds("B", range(v - 1, -1, -1), device, p, m, m // rounds)),
                warm_up=(v - 1) * (m // rounds) + 2 * (p - 1 - device),
            )
        )
        for device in range(p)
    ]


def alternate(forwards: list[Action], backwards: list[Action], *, warm_up: int) -> Iterator[Action]:
    """``warm_up`` forwards, then a forward and a backward in turn, then the remaining backwards."""
    warm_up = min(warm_up, len(forwards))
    yield from forwards[:warm_up]
    for number, backward in enumerate(backwards):
        yield from forwards[warm_up + number : warm_up + number + 1]
        yield backward


def _in_rounds(
    kind: str, chunks: range, device: int, p: int, m: int, round_size: int
) -> Iterator[Action]:
    """Round by round, chunk by chunk, the round's micro-batches."""
    for first in range(0, m, round_size):
        for chunk in chunks:
            for micro_batch in range(first, first + round_size):
                yield Action(kind, chunk * p + device, micro_batch)


def check_sizes(p: int, m: int, v: int = 1) -> None:
    """Raises ValueError for invalid numbers of devices, micro-batches or chunks."""
    for name, value in (("p", p), ("m", m), ("v", v)):
        if isinstance(value, bool) or value != int(value) or value < 1:
            raise ValueError(f"{name}={value}: expected a whole number, 1 or more")
