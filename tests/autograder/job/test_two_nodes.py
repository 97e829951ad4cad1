"""Exported functions and answers under torchrun on two nodes, as docs/many-nodes.md says."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from shardlab.__main__ import main as shardlab
from tests.autograder.job.test_script import LAB, script, without_bytes
from tests.submissions import planted
from tests.torchrun import QUIET, torchrun
from tests.two_nodes import ends, two_nodes

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: needs root"),
    pytest.mark.long,
    pytest.mark.ranks,
]


def on_two_nodes(folder: Path, path: Path) -> list[str]:
    """Two ranks on each node; what they printed, by node."""
    rendezvous = ("--rdzv-id=1", "--rdzv-backend=c10d", "--rdzv-endpoint=node-a:29400")
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"]
    variables = {**QUIET, "GLOO_SOCKET_IFNAME": "eth0"}
    with two_nodes(folder) as start:
        return ends(
            *(start(node, [*command, *rendezvous, str(path)], **variables) for node in "ab")
        )


def test_a_chapters_function(tmp_path: Path) -> None:
    path = tmp_path / "ring.py"
    assert shardlab(["export", "03", "all_reduce", "--launch", "1", "--to", str(path)]) == 0
    printed = on_two_nodes(tmp_path, path)
    assert sorted(re.findall(r"rank (\d) returned 6.0", "".join(printed))) == [*"0123"], printed
    sent = [
        int(each.replace(",", "")) for each in re.findall(r"sent ([\d,]+) bytes", "".join(printed))
    ]
    assert sent == [pytest.approx(1.5 * 2**22, rel=0.01)] * 4
    assert all(text.count("returned") == 2 for text in printed)  # each node shows its own ranks


def test_an_answer_gets_the_same_verdict_as_on_one_node(tmp_path: Path) -> None:
    (wrong,) = (each for each in planted.of_lab(LAB) if each.name == "gathers_by_adding")
    path = script(tmp_path, "all_gather", planted.solution(LAB) | wrong.answers)
    of_a, of_b = on_two_nodes(tmp_path, path)
    on_one = torchrun(path, 4, fails=True)
    table = re.search(r"✗ all_gather.*?(?=skipped)", on_one, re.DOTALL)
    assert table
    assert without_bytes(table[0]) in without_bytes(of_a + of_b)
    assert wrong.says["all_gather"] in table[0]
