"""`launch` on the processes of a real torchrun, compared with `launch` on ranks of its own."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from tests.torchrun import torchrun

pytestmark = pytest.mark.ranks
HEAD = """
import json, sys, torch, torch.distributed as dist
from shardlab import LaunchError, launch, measure

def sum_and_draw(own, length):
    tensor = torch.full((length,), own)
    with measure("sum"):
        dist.all_reduce(tensor)
    return tensor[0].item(), torch.rand(1).item()

def both_receive_first():
    other = 1 - dist.get_rank()
    message = torch.zeros(1)
    dist.recv(message, src=other)
    dist.send(message, dst=other)

def divides_by_zero():
    if dist.get_rank() == 1:
        return 1 / 0
    dist.barrier()

def described(run):
    calls = [(c.rank, c.op, c.bytes, c.source, c.end_s > c.start_s >= 0) for c in run.calls]
    sent = [run.traffic.sent_by_rank.tolist(), run.traffic["sum"].sent_by_rank.tolist()]
    peak = run.memory[0].peak_bytes
    return {"outputs": run.outputs, "calls": sorted(calls), "sent": sent, "peak": peak}

def error_of(fn):
    try:
        launch(fn, world_size=2, device="cpu", timeout_s=5)
    except LaunchError as error:
        return type(error).__name__, error.headline
"""


def both_ways(tmp_path: Path, body: str) -> list[object]:
    """What `body` computes as `result` with ranks of its own, and on each rank of a job."""
    script = tmp_path / "script.py"
    end = "sys.stdout.write(json.dumps(result) + '\\n')\nsys.stdout.flush()\n"
    script.write_text(HEAD + textwrap.dedent(body) + end)
    lines = torchrun(script, 1).splitlines() + torchrun(script, 2).splitlines()
    assert len(lines) == 3
    return [json.loads(line) for line in lines]


def test_outputs_traffic_calls_and_memory_are_those_of_own_ranks(tmp_path: Path) -> None:
    own, *of_job = both_ways(
        tmp_path,
        """
        more = {"world_size": 2, "device": "cpu", "memory": True}
        result = described(launch(sum_and_draw, 2**18, inputs=[1.0, 2.0], **more))
        """,
    )
    assert of_job[0] == of_job[1]  # every process gets the same run
    assert isinstance(own, dict)
    assert isinstance(of_job[0], dict)
    assert own["outputs"][0][0] == 3.0
    for key in ("outputs", "calls", "peak"):
        assert of_job[0][key] == own[key], key
    for job_sent, own_sent in zip(of_job[0]["sent"], own["sent"], strict=True):
        assert job_sent == pytest.approx(own_sent, rel=0.001)
        assert min(job_sent) >= 2**20  # S bytes on two ranks


def test_errors_are_explained_in_the_same_words_and_the_next_launch_works(tmp_path: Path) -> None:
    own, *of_job = both_ways(
        tmp_path,
        """
        result = [error_of(both_receive_first), error_of(divides_by_zero)]
        run = launch(sum_and_draw, 4, inputs=[1.0, 2.0], world_size=2, device="cpu")
        result.append(run.outputs[1][0])
        """,
    )
    assert of_job == [own, own]
    assert isinstance(own, list)
    assert [each[0] for each in own[:2]] == ["DeadlockError", "RankError"]
    assert own[2] == 3.0


def test_another_size_names_both_numbers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from shardlab import launch\nlaunch(print, world_size=3, device='cpu')\n")
    printed = torchrun(script, 2, fails=True)
    assert "launch(…, world_size=3) inside a job of 2 processes (torchrun)" in printed


@pytest.mark.parametrize("made_by", ["launch", "the script"])
def test_our_groups_are_destroyed_before_python_ends(tmp_path: Path, made_by: str) -> None:
    script = tmp_path / "script.py"
    first = "dist.init_process_group('gloo')\n" if made_by == "the script" else ""
    asked = """
        import atexit
        from torch.distributed.distributed_c10d import _world

        def names():
            print(f"groups: {len(_world.pg_map)}\\n", end="")

        atexit.register(names)  # before the first launch, so after what that registers
        run = launch(sum_and_draw, 8, inputs=[1.0, 2.0], world_size=2, device="cpu")
        assert run.outputs[0][0] == 3.0
        """
    script.write_text(HEAD + first + textwrap.dedent(asked))
    assert torchrun(script, 2).count(f"groups: {int(bool(first))}") == 2
