"""When a rank server starts: in a kernel on import or by warm_up, elsewhere at a launch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shardlab import warm_up
from tests.shardlab.marked_processes import HANG_LIMIT_S, MarkedProcesses, marked_processes

pytestmark = pytest.mark.ranks


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[MarkedProcesses]:
    with marked_processes(tmp_path) as marked:
        yield marked


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


IN_A_KERNEL = """
import sys, types
import psutil
from shardlab import launch, warm_up
from shardlab.display import source

source._shell = lambda: types.SimpleNamespace(kernel=True)  # after the import: no torch server
servers = psutil.Process().children
warm_up("deepspeed")
"""


def test_a_launch_uses_the_server_that_warm_up_started(processes: MarkedProcesses) -> None:
    printed = processes.run(
        IN_A_KERNEL + "warm_up('deepspeed')  # a cell that runs again\n"
        "started = servers()\n"
        "def is_loaded():\n"
        "    return 'deepspeed' in sys.modules\n"
        "print(launch(is_loaded, world_size=2, engine='deepspeed').outputs)\n"
        # read only now: /proc/PID/cmdline is empty for a moment while a new process runs exec
        "print([server.cmdline()[-1] for server in started], servers() == started)"
    )
    assert printed == ["[True, True]", "['deepspeed'] True"]
    assert processes.leftovers() == []


def test_a_server_that_is_still_loading_ends_with_its_killed_kernel(
    processes: MarkedProcesses,
) -> None:
    kernel = processes.start(IN_A_KERNEL + "print('up', flush=True)\nservers()[0].wait()")
    assert kernel.stdout is not None
    assert kernel.stdout.readline() == "up\n"
    servers = psutil.Process(kernel.pid).children()
    kernel.kill()
    kernel.communicate()
    assert len(servers) == 1
    assert psutil.wait_procs(servers, HANG_LIMIT_S)[1] == []
    assert processes.leftovers() == []


def test_warm_up_does_nothing_outside_a_kernel(processes: MarkedProcesses) -> None:
    printed = processes.run(
        "import psutil\n"
        "from shardlab import warm_up\n"
        "warm_up('deepspeed')\n"
        "print(psutil.Process().children())"
    )
    assert printed == ["[]"]
    with pytest.raises(ValueError, match="not 'horovod'"):
        warm_up("horovod")
