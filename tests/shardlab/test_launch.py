"""The results of successful runs."""

from __future__ import annotations

import functools
import os
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from shardlab import RankError, Run, launch
from tests.open_files import open_files

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def run() -> Run:
    """One run of four ranks that covers most features; most tests here use it."""

    def work(mine: list[int], offset: int) -> dict[str, Any]:
        rank = dist.get_rank()
        total = torch.tensor([float(sum(mine))])
        dist.all_reduce(total)
        print(f"rank {rank} has {mine}")
        print("é → 𝄞", end="", flush=True)
        print("careful", file=sys.stderr)
        if rank == 0:
            for number in range(100_000):
                print("line", number)
        os.write(1, b"written past Python\n")
        return {
            "rank": rank,
            "world_size": dist.get_world_size(),
            "environment": {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")},
            "mine": mine,
            "total": total.item() + offset,
            "drawn": (random.random(), np.random.rand(), torch.rand(1).item()),
            "threads": torch.get_num_threads(),
            "main": sys.modules["__main__"].__name__,
            "argv": sys.argv,
            "cwd": os.getcwd(),
            "backend": dist.get_backend(),
        }

    inputs = [[rank, 10 * rank] for rank in range(4)]
    return launch(work, 1000, world_size=4, inputs=inputs, quiet=True)


def test_outputs_are_indexed_by_rank(run: Run) -> None:
    assert [output["rank"] for output in run.outputs] == [0, 1, 2, 3]
    assert run.world_size == 4


def test_each_rank_has_its_own_input_and_the_shared_arguments(run: Run) -> None:
    assert [output["mine"] for output in run.outputs] == [[0, 0], [1, 10], [2, 20], [3, 30]]
    assert [output["total"] for output in run.outputs] == [1066.0] * 4


def test_a_rank_sees_the_environment_that_torchrun_sets(run: Run) -> None:
    for rank, output in enumerate(run.outputs):
        assert output["world_size"] == 4
        assert output["environment"] == {"RANK": str(rank), "WORLD_SIZE": "4"}
        assert output["main"] == "__main__"
        assert output["argv"] == sys.argv
        assert output["cwd"] == os.getcwd()
        assert output["backend"] == "gloo"


def test_all_printed_text_is_kept(run: Run) -> None:
    lines = run.stdout[0].splitlines()
    assert lines[0] == "rank 0 has [0, 0]"
    assert [line for line in lines if line.startswith(("line", "é"))] == [
        "é → 𝄞line 0",
        *(f"line {number}" for number in range(1, 100_000)),
    ]
    assert run.stdout[3] == "rank 3 has [3, 30]\né → 𝄞written past Python\n"


def test_stderr_is_kept_separately(run: Run) -> None:
    assert run.stderr == ["careful\n"] * 4


def test_device_and_times(run: Run) -> None:
    assert run.device == "cpu"
    assert run.device_reason
    assert 0 < run.startup_s < run.wall_s


def test_ranks_draw_different_random_numbers_and_runs_are_reproducible(run: Run) -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(1).item()

    drawn = [output["drawn"] for output in run.outputs]
    again = launch(draw, world_size=4, quiet=True).outputs
    assert again == drawn
    for source in zip(*drawn, strict=True):
        assert len(set(source)) == 4
    assert launch(draw, world_size=2, quiet=True, seed=1).outputs[0] not in drawn


def test_seed_none_is_not_reproducible() -> None:
    def draw() -> float:
        return torch.rand(1).item()

    first, second = (launch(draw, world_size=2, seed=None, quiet=True) for _ in range(2))
    assert len({*first.outputs, *second.outputs}) == 4


def test_results_do_not_depend_on_the_number_of_cores(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sum_up() -> tuple[int, str, list[str], str]:
        values = torch.randn(1_000_000)
        names = list({"delta", "alpha", "gamma", "beta"})  # a set's order depends on the hash seed
        return (
            torch.get_num_threads(),
            values.sum().item().hex(),
            names,
            os.environ["OMP_NUM_THREADS"],
        )

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    one = launch(sum_up, world_size=2, quiet=True).outputs
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    seven = launch(sum_up, world_size=2, quiet=True).outputs
    assert one == seven
    assert {threads for threads, *_ in one} == {1}
    assert [output["threads"] for output in run.outputs] == [1] * 4


def test_ranks_have_the_callers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET_BY_CALLER", "now")  # long after the rank server was started
    assert launch(lambda: os.environ.get("SET_BY_CALLER"), world_size=1, quiet=True).outputs == [
        "now"
    ]


def test_a_single_rank() -> None:
    def alone() -> float:
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        return tensor.sum().item()

    run = launch(alone, world_size=1, quiet=True)
    assert run.outputs == [3.0]
    assert run.traffic.sent_bytes.tolist() == [[0]]


def twice(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any) -> Any:
        return fn(*args), fn(*args)

    return wrapper


class Counter:
    def __init__(self, start: int) -> None:
        self.count = start

    def step(self) -> int:
        self.count += dist.get_rank() + 1
        return self.count

    def __call__(self) -> int:
        return self.count


class TestWhatCanBeLaunched:
    def test_a_closure(self) -> None:
        factor = 5
        assert launch(lambda: factor * dist.get_rank(), world_size=2, quiet=True).outputs == [0, 5]

    def test_a_decorated_function(self) -> None:
        decorated = twice(lambda: dist.get_rank())
        assert launch(decorated, world_size=2, quiet=True).outputs == [(0, 0), (1, 1)]

    def test_a_method_leaves_the_callers_object_unchanged(self) -> None:
        counter = Counter(10)
        assert launch(counter.step, world_size=2, quiet=True).outputs == [11, 12]
        assert counter.count == 10

    def test_a_callable_object_and_a_partial(self) -> None:
        assert launch(Counter(3), world_size=1, quiet=True).outputs == [3]
        assert launch(functools.partial(max, 4), 9, world_size=1, quiet=True).outputs == [9]

    def test_a_recursive_local_function_and_a_local_class(self) -> None:
        class Box:
            def __init__(self, value: int) -> None:
                self.value = value

        def fibonacci(n: int) -> int:
            return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

        (box,) = launch(lambda: Box(fibonacci(10)), world_size=1, quiet=True).outputs
        assert box.value == 55
        assert isinstance(box, Box)

    def test_a_module_can_be_returned(self) -> None:
        def train() -> torch.nn.Module:
            return torch.nn.Linear(2, 2)

        models = launch(train, world_size=2, quiet=True).outputs
        assert not torch.equal(models[0].weight, models[1].weight)


def test_no_files_stay_open_in_the_kernel() -> None:
    launch(int, world_size=2, quiet=True)
    before = open_files()
    for _ in range(3):
        launch(int, world_size=3, quiet=True)
        with pytest.raises(RankError):
            launch(divmod, 1, 0, world_size=2, quiet=True)
    assert open_files() - before == set()


def test_the_terminal_shows_each_line_with_its_rank(capfd: pytest.CaptureFixture[str]) -> None:
    def hello() -> None:
        print("hello\nfrom", dist.get_rank())

    launch(hello, world_size=2)
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == [
        "[rank 0] from 0",
        "[rank 0] hello",
        "[rank 1] from 1",
        "[rank 1] hello",
    ]


def test_quiet_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(lambda: print("hello"), world_size=2, quiet=True).stdout == ["hello\n"] * 2
    assert capfd.readouterr() == ("", "")
