"""How errors name ranks and calls."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from shardlab import launch
from shardlab.ranks import wording
from shardlab.run import Call
from shardlab.trace.calls import CallLog


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([2], "rank 2"),
        ([1, 0], "ranks 0 and 1"),
        ([0, 1, 3], "ranks 0, 1 and 3"),
        ([0, 1, 2, 3, 4], "ranks 0–4"),
        ([0, 2, 4, 6], "ranks 0, 2, 4 and 6"),
    ],
)
def test_ranks_as_text(ranks: list[int], text: str) -> None:
    assert wording.ranks_text(ranks) == text


def test_calls_for_which_nobody_waited_are_reported_once_for_each_line() -> None:
    def call(rank: int, op: str, line: int, waited: bool) -> Call:
        source = f"cell 3, line {line}"
        more = {"waited": waited, "code": "f()"}
        return Call(rank, op, 4, None, (0, 1), 0, 1, source, 1, "float32", (1,), 0, 1, **more)  # type: ignore[arg-type]

    calls = [call(rank, "all_reduce", 2, False) for rank in (0, 1)]
    calls += [call(0, "send", 5, False), call(1, "all_gather", 6, True)]
    notes = wording.lucky_notes(calls, CallLog(2))
    assert [note.split("  ")[1] for note in notes] == [
        "[cell 3, line 2: f()]",
        "[cell 3, line 5: f()]",
    ]
    assert notes[0].startswith(
        "each of ranks 0 and 1 starts all_reduce with async_op=True and never"
    )
    assert notes[1].startswith("rank 0 starts a send with isend and never waits for it")
    calls.append(call(0, "all_reduce", 2, True))
    assert any("(1 of its 2 calls)" in note for note in wording.lucky_notes(calls, CallLog(2)))


@pytest.mark.ranks
def test_a_buffer_that_changes_before_it_is_sent_is_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def work(waits_first: bool) -> None:
        buffer = torch.zeros(4)
        if dist.get_rank():
            dist.recv(buffer, 0)
        else:
            sending = dist.isend(buffer, 1)
            assert sending is not None
            if waits_first:
                sending.wait()
            buffer += 1
            if not waits_first:
                sending.wait()

    launch(work, True, world_size=2)
    assert "changes" not in "".join(capsys.readouterr())
    launch(work, False, world_size=2)
    shown = "".join(capsys.readouterr())
    assert "rank 0 changes the tensor of an isend before it has waited" in shown
    assert "sending = dist.isend(buffer, 1)" in shown
