"""When the rank server is started: in a kernel on import, elsewhere at the first launch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shardlab.marked_processes import MarkedProcesses, marked_processes

pytestmark = pytest.mark.ranks


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[MarkedProcesses]:
    with marked_processes(tmp_path) as made:
        yield made


def test_a_script_that_only_computes_formulas_starts_no_server_and_imports_no_torch(
    processes: MarkedProcesses,
) -> None:
    printed = processes.run(
        "import sys, psutil\n"
        "from shardlab.estimate import ring_sent_bytes\n"
        "print(ring_sent_bytes(100, 4), psutil.Process().children(), 'torch' in sys.modules)"
    )
    assert printed == ["150.0 [] False"]


def test_the_first_launch_of_a_script_starts_the_one_server_that_it_needs(
    processes: MarkedProcesses,
) -> None:
    printed = processes.run(
        "import psutil\n"
        "from shardlab import launch\n"
        "def children():\n"
        "    return len(psutil.Process().children(recursive=True))\n"
        "for _ in range(2):\n"
        "    print(children(), launch(children, world_size=2).outputs)\n"
        "print(children())"
    )
    assert printed == ["0 [0, 0]", "1 [0, 0]", "1"]  # none at first; none started by a rank
