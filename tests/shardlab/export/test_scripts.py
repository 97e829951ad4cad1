"""Exported scripts under a real torchrun give what the chapter's own launch gives."""

from __future__ import annotations

import re
import socket
import threading
from pathlib import Path

import pytest

from shardlab.__main__ import main
from shardlab.export import on_this_rank
from shardlab.trace import wire
from tests.torchrun import torchrun


def export(path: Path, *arguments: str) -> Path:
    assert main(["export", *arguments, "--to", str(path)]) == 0
    return path


@pytest.mark.ranks
def test_a_ring_runs_under_torchrun_and_sends_the_predicted_bytes(tmp_path: Path) -> None:
    script = export(tmp_path / "ring.py", "03", "all_reduce", "--launch", "1")
    assert "shardlab import" not in script.read_text()
    printed = torchrun(script, 4)
    assert [line for line in printed.splitlines() if "returned" in line] == [
        f"rank {rank} returned 6.0" for rank in range(4)
    ]
    sent = [int(each.replace(",", "")) for each in re.findall(r"sent ([\d,]+) bytes", printed)]
    assert sent == [pytest.approx(1.5 * 2**22, rel=0.01)] * 4


@pytest.mark.ranks
def test_inputs_by_rank_and_shardlabs_modules_work(tmp_path: Path) -> None:
    """DDP of chapter 05: each rank prints the losses that chapter's launch returns."""
    script = export(tmp_path / "ddp.py", "05", "with_ddp")
    printed = torchrun(script, 4)
    assert len(re.findall(r"rank \d returned", printed)) == 4
    assert "and this job has 2" in torchrun(script, 2, fails=True)


def test_the_scripts_counter_agrees_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        reader = threading.Thread(
            target=lambda: server.accept()[0].recv(1 << 20, socket.MSG_WAITALL)
        )
        reader.start()
        with socket.create_connection(server.getsockname()) as sender:
            before = on_this_rank.sent_bytes(), sum(wire.own_connections().values())
            sender.sendall(b"x" * 100_000)
            after = on_this_rank.sent_bytes(), sum(wire.own_connections().values())
            port = sender.getsockname()[1]
            monkeypatch.setenv("MASTER_PORT", str(port))
            without_store = on_this_rank.sent_bytes()
            sender.shutdown(socket.SHUT_WR)
        reader.join()
    assert [new - old for new, old in zip(after, before, strict=True)] == [100_000, 100_000]
    assert after[0] - without_store == 100_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["33", "f"], "no chapter '33'; there are 00_start_here"),
        (["03", "all_reduced"], "launches no 'all_reduced'; it launches all_reduce"),
        (["03", "all_reduce"], "launches all_reduce more than once"),
    ],
)
def test_errors_say_what_there_is(tmp_path: Path, capsys, arguments, message) -> None:
    script = tmp_path / "script.py"
    assert main(["export", *arguments, "--to", str(script)]) == 1
    assert message in capsys.readouterr().err
    assert not script.exists()


def test_a_scripts_first_lines_say_how_to_start_it(tmp_path: Path) -> None:
    script = export(tmp_path / "hello.py", "00", "hello")
    head = script.read_text().partition('"""\n')[0]
    assert "torchrun --nproc-per-node 4 hello.py" in head
