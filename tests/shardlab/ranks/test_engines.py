"""DeepSpeed on ranks: correct, quiet, fast to start, and compiled outside the ranks."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from shardlab import LaunchError, RankError, Run, launch
from shardlab.ranks import client, engines, stream

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(240)]

COMPILERS = {"cc1plus", "clang", "clang++"}  # process names while they compile C++
WORLD_SIZE, ROWS, STEPS, LR = 2, 3, 2, 0.1


def config(stage: int, **zero: object) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, **zero},
    }


def make_model_and_batch() -> tuple[torch.nn.Module, torch.Tensor]:
    """A model and the batch [steps, all ranks' rows, width] of one process."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1))
    return model, torch.randn(STEPS, WORLD_SIZE * ROWS, 7)


def train(stage: int) -> tuple[set[str], list[torch.Tensor]]:
    """(what DeepSpeed imports on the rank, parameters)."""
    before = set(sys.modules)
    import deepspeed

    model, batch = make_model_and_batch()
    optimizer = torch.optim.SGD(model.parameters(), LR)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config(stage, stage3_param_persistence_threshold=0)
    )
    rank = torch.distributed.get_rank()
    for rows in batch[:, rank * ROWS : (rank + 1) * ROWS]:
        engine.backward(engine(rows).pow(2).mean())
        engine.step()
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        whole = [parameter.detach().clone() for parameter in model.parameters()]
    return {name.split(".")[0] for name in set(sys.modules) - before}, whole


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    """Stages 0 to 3, one launch each."""
    return [launch(train, stage, world_size=WORLD_SIZE) for stage in range(4)]


@pytest.fixture(scope="module")
def expected() -> list[torch.Tensor]:
    model, batch = make_model_and_batch()
    optimizer = torch.optim.SGD(model.parameters(), LR)
    for rows in batch:
        optimizer.zero_grad()
        model(rows).pow(2).mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("stage", range(4))
def test_each_stage_steps_as_one_process_does(
    runs: list[Run], expected: list[torch.Tensor], stage: int
) -> None:
    for imported, parameters in runs[stage].outputs:
        assert not imported & {"deepspeed", "torch", "sympy"}  # the server has imported them
        for ours, one_process in zip(parameters, expected, strict=True):
            assert (ours - one_process).abs().max() < 1e-5


@pytest.mark.parametrize("stage", range(4))
def test_nothing_is_printed(runs: list[Run], stage: int) -> None:
    assert runs[stage].stdout == runs[stage].stderr == [""] * WORLD_SIZE


def use_loader_and_tools(folder: Path) -> None:
    import deepspeed
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    model, batch = make_model_and_batch()
    rows = torch.utils.data.TensorDataset(batch.flatten(0, 1))
    optimizer = torch.optim.SGD(model.parameters(), LR)
    both = {"model": model, "optimizer": optimizer}
    engine, _, loader, _ = deepspeed.initialize(**both, training_data=rows, config=config(3))
    for (inputs,) in loader:
        engine.backward(engine(inputs).pow(2).mean())
        engine.step()
    engine.save_checkpoint(folder)
    engine.load_checkpoint(folder)
    if torch.distributed.get_rank() == 0:
        get_fp32_state_dict_from_zero_checkpoint(folder)


def test_deepspeeds_loader_and_tools_show_no_warnings_or_short_progress_bars(
    tmp_path: Path,
) -> None:
    run = launch(use_loader_and_tools, tmp_path, world_size=WORLD_SIZE)
    assert run.stderr == [""] * WORLD_SIZE
    assert "Reconstructed" in run.stdout[0]  # what a tool prints is shown


def test_deepspeeds_calls_are_recorded_at_the_users_lines(runs: list[Run]) -> None:
    for stage, run in enumerate(runs):
        assert {call.source.split(",")[0] for call in run.calls} == {os.path.relpath(__file__)}
        codes = {call.code for call in run.calls if call.rank == 0}
        assert ("engine.backward(engine(rows).pow(2).mean())" in codes) or stage == 3
    ops = {call.op for call in runs[3].calls}
    assert {"all_gather_single", "reduce_scatter_single"} <= ops
    assert runs[3].traffic.sent_by_rank.min() > 0


def test_deepspeeds_server_does_not_import_inductor() -> None:
    """That takes a second, and only a compiled optimizer function needs it."""

    def has_inductor() -> bool:
        import deepspeed  # noqa: F401

        return "torch._inductor.compile_fx" in sys.modules

    assert launch(has_inductor, world_size=1).outputs == [False]


def test_ranks_of_the_torch_engine_do_not_import_the_other(runs: list[Run]) -> None:
    """DeepSpeed is not in this name: engine="auto" looks for it in the pickled function."""

    def loaded() -> set[str]:
        return {name.split(".")[0] for name in sys.modules}

    assert all("deepspeed" not in names for names in launch(loaded, world_size=2).outputs)
    assert "deepspeed" in launch(loaded, world_size=1, engine="deepspeed").outputs[0]


def test_deepspeed_is_configured_on_import_in_a_rank_of_the_torch_engine() -> None:
    def imports() -> tuple[bool, str, int]:
        import importlib.util
        import logging

        assert importlib.util.find_spec("deepspeed")  # as accelerate does, without importing it
        import deepspeed
        from deepspeed.ops.op_builder.builder import OpBuilder

        shm = deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"]
        return shm, OpBuilder.jit_load.__module__, logging.getLogger("DeepSpeed").level

    run = launch(imports, world_size=1, engine="torch")
    assert run.outputs == [(False, "shardlab.ranks.builds", 40)]
    assert run.stdout == run.stderr == [""]


def test_choice_of_the_engine() -> None:
    def names() -> None:
        import deepspeed.comm

        deepspeed.comm.barrier()

    assert engines.choose_engine("auto", names, [b"pickled by name"]) == "deepspeed"
    assert engines.choose_engine("auto", make_model_and_batch, [b"torch"]) == "torch"
    assert (
        engines.choose_engine("auto", make_model_and_batch, [b"", b".. deepspeed .."])
        == "deepspeed"
    )
    assert engines.choose_engine("torch", names, [b"deepspeed"]) == "torch"
    with pytest.raises(ValueError, match="engine is"):
        engines.choose_engine("horovod", names, [])
    assert [engines.server_of("deepspeed", device) for device in ("cpu", "cuda")] == [
        "deepspeed",
        "deepspeed-cuda",
    ]


def test_an_error_inside_deepspeed_names_the_users_line() -> None:
    def work() -> None:
        import deepspeed

        wrong = {**config(1), "train_batch_size": 100}
        deepspeed.initialize(model=torch.nn.Linear(2, 2), config=wrong)

    with pytest.raises(RankError, match="train_batch_size is not equal") as caught:
        launch(work, world_size=2)
    assert "deepspeed.initialize(model=torch.nn.Linear(2, 2), config=wrong)" in str(caught.value)


def offload() -> None:
    import deepspeed

    offloaded = {
        **config(2, offload_optimizer={"device": "cpu"}),
        "optimizer": {"type": "Adam", "params": {"lr": LR}},
    }
    deepspeed.initialize(model=torch.nn.Linear(2, 2), config=offloaded)


def test_a_missing_compiler_is_reported_with_an_alternative(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "/no/such/compiler")
    with pytest.raises(LaunchError, match="no C\\+\\+ compiler here") as caught:
        launch(offload, world_size=2)
    assert caught.value.headline.startswith("DeepSpeed's cpu_adam could not be compiled")
    assert '"torch_adam": true' in caught.value.detail


class RecordingScreen(stream.Screen):
    """Records the progress that is shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def progress(self, text: str) -> None:
        self.shown.append(text)


@contextlib.contextmanager
def interrupted_when(condition: Callable[[], bool]) -> Iterator[None]:
    """Interrupt the kernel once the condition is true, unless the block ends first."""
    ended = threading.Event()

    def wait() -> None:
        while not ended.wait(0.05):
            with contextlib.suppress(psutil.NoSuchProcess):
                if condition():
                    os.kill(os.getpid(), signal.SIGINT)
                    return

    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        yield
    finally:
        ended.set()
        waiting.join()


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_an_interrupted_build_leaves_no_process_and_the_next_one_is_not_blocked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    server = psutil.Process(client.rank_server("deepspeed").process.pid)
    screen = RecordingScreen()
    monkeypatch.setattr(stream, "screen", lambda quiet, progress: screen)

    def is_compiling() -> bool:
        """The build is running and its progress is shown."""
        is_shown = any("cpu_adam (once per machine)" in text for text in screen.shown)
        processes = server.children(recursive=True)
        return is_shown and any(process.name() in COMPILERS for process in processes)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), interrupted_when(is_compiling):
            launch(offload, world_size=2, timeout_s=60)
        assert server.children(recursive=True) == []
        assert list(tmp_path.glob("shardlab/torch_extensions/*/cpu_adam/build.ninja"))
    assert not list(tmp_path.glob("shardlab/torch_extensions/*/cpu_adam/built"))


def test_a_killed_server_is_replaced_and_its_loading_can_be_interrupted(
    runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = client.rank_server("deepspeed").process
    killed.kill()
    killed.wait()
    server = psutil.Process(client.rank_server("deepspeed").process.pid)
    assert server.pid != killed.pid
    screen = RecordingScreen()
    server.suspend()  # as if it loaded forever
    try:
        with monkeypatch.context() as patched:
            patched.setattr(stream, "screen", lambda quiet, progress: screen)
            with pytest.raises(KeyboardInterrupt), interrupted_when(lambda: bool(screen.shown)):
                launch(train, 1, world_size=WORLD_SIZE)
    finally:
        server.resume()  # other tests use it
    assert "loading DeepSpeed (once per notebook)" in screen.shown[0]
    run = launch(train, 1, world_size=WORLD_SIZE)
    assert "deepspeed" not in run.outputs[0][0]
    assert client.rank_server("deepspeed").process.pid == server.pid
    assert server.children() == []


def test_waiting_for_pytorch_is_shown_as_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = RecordingScreen()
    monkeypatch.setattr(stream, "screen", lambda quiet, progress: screen)
    server = psutil.Process(client.rank_server("torch").process.pid)
    server.suspend()  # as if it loaded forever
    try:
        with pytest.raises(KeyboardInterrupt), interrupted_when(lambda: bool(screen.shown)):
            launch(os.getpid, world_size=1)
    finally:
        server.resume()  # other tests use it
    assert "loading PyTorch for the ranks (once per notebook)" in screen.shown[0]


FIRST_LAUNCH = """
import sys
from shardlab import launch

def imported():
    return "torch.fx.experimental.symbolic_shapes" in sys.modules

def trains():
    return imported() and hasattr(imported, "backward") is False  # the name alone counts

print(launch(imported, world_size=1).outputs, launch(trains, world_size=2).outputs)
"""


def test_ranks_that_call_backward_start_with_its_imports() -> None:
    """Even from a server that has just started; otherwise each rank would import them itself."""
    done = subprocess.run([sys.executable, "-c", FIRST_LAUNCH], capture_output=True, text=True)
    assert done.stdout.split("\n")[-2] == "[False] [True, True]", done.stderr
