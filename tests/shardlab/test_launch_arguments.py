"""Invalid arguments raise before any rank starts; the message says what to change."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from shardlab import launch
from shardlab.ranks import machine
from shardlab.ranks.machine import choose_device


def work() -> None: ...


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"world_size": 0}, ValueError, r"world_size=0: .* 1 to \d+ ranks"),
        ({"world_size": -1}, ValueError, r"1 to \d+ ranks"),
        ({"world_size": 10**6}, ValueError, r"world_size=1000000: .* 1 to \d+ ranks"),
        ({"world_size": 1.5}, TypeError, "world_size must be an integer, not 1.5"),
        ({"world_size": "4"}, TypeError, "world_size must be an integer, not '4'"),
        ({"world_size": True}, TypeError, "world_size must be an integer, not True"),
        ({"world_size": 3, "inputs": [1]}, ValueError, "inputs has 1 values for 3 ranks: pass one"),
        ({"world_size": 1, "inputs": [1, 2]}, ValueError, "inputs has 2 values for 1 ranks"),
        ({"timeout_s": 0}, ValueError, "timeout_s=0: it must be more than 0"),
        ({"timeout_s": -3}, ValueError, "timeout_s=-3"),
        ({"timeout_s": float("nan")}, ValueError, "timeout_s=nan"),
        ({"device": "tpu"}, ValueError, "device is .auto., .cpu. or .cuda., not 'tpu'"),
    ],
    ids=str,
)
def test_invalid_arguments_raise(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        launch(work, **arguments)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"timeout_s": None}, "timeout_s"),
        ({"timeout_s": "30"}, "timeout_s"),
        ({"world_size": 2, "inputs": (n for n in range(2))}, "inputs"),
        ({"world_size": 2, "inputs": 5}, "inputs"),
        ({"seed": "x"}, "seed"),
    ],
    ids=["timeout None", "timeout text", "generator", "number", "seed text"],
)
def test_an_argument_of_the_wrong_type_is_named(arguments: dict[str, Any], names: str) -> None:
    with pytest.raises((TypeError, ValueError), match=names):
        launch(work, **arguments)


@pytest.mark.parametrize("fn", [5, None, "work"])
def test_fn_must_be_a_function(fn: Any) -> None:
    with pytest.raises(TypeError, match=f"fn must be a function, not a {type(fn).__name__}"):
        launch(fn)


def test_a_function_that_cannot_be_pickled() -> None:
    lock = threading.Lock()

    def locked() -> None:
        with lock:
            pass

    with pytest.raises(TypeError, match=r"the function or its arguments can't.*lock.*inside the"):
        launch(locked)


def test_an_input_that_cannot_be_pickled_is_named_by_its_rank() -> None:
    with pytest.raises(TypeError, match=r"inputs\[1\] can't be sent to the ranks.*lock"):
        launch(work, world_size=2, inputs=[0, threading.Lock()])


class TestDevice:
    def test_cuda_without_enough_gpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "_gpu_count", lambda: 1)
        with pytest.raises(ValueError, match=r'2 ranks need 2 GPUs.*has 1.*pass device="cpu"'):
            launch(work, world_size=2, device="cuda")

    @pytest.mark.parametrize(
        ("gpus", "device", "why"),
        [
            (0, "cpu", "no GPU on this machine"),
            (2, "cpu", "2 GPUs for 4 ranks"),
            (4, "cuda", "4 GPUs for 4 ranks"),
            (8, "cuda", "8 GPUs for 4 ranks"),
        ],
    )
    def test_auto_picks_a_device_and_says_why(
        self, monkeypatch: pytest.MonkeyPatch, gpus: int, device: str, why: str
    ) -> None:
        monkeypatch.setattr(machine, "_gpu_count", lambda: gpus)
        assert choose_device("auto", 4) == (device, why)

    def test_a_request_for_cpu_is_respected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "_gpu_count", lambda: 8)
        assert choose_device("cpu", 4) == ("cpu", "requested")
