"""Values survive encoding and decoding, and reading plain data runs no code."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shardlab.ranks import codec

PLAIN = {
    "nothing": None,
    "yes": True,
    "int": -(2**70),
    "float": 0.1,
    "infinity": -math.inf,
    "text": "é\n\ud800",
    "bytes": bytes(range(256)),
    "nested": [1, (2, [3.5, ()]), {"a": {}}],
}


def equal(one: Any, other: Any) -> bool:
    return bool(
        type(one) is type(other)
        and one.dtype == other.dtype
        and one.shape == other.shape
        and (one == other).all()
    )


class TestPlain:
    @pytest.mark.parametrize("value", PLAIN.values(), ids=PLAIN.keys())
    def test_values_survive_a_round_trip(self, value: Any) -> None:
        back = codec.decode_plain(codec.encode_plain(value))
        assert back == value
        assert type(back) is type(value)

    def test_nan_survives_a_round_trip(self) -> None:
        assert math.isnan(codec.decode_plain(codec.encode_plain(math.nan)))

    @pytest.mark.parametrize(
        "tensor",
        [
            torch.arange(6.0).reshape(2, 3).t(),
            torch.tensor([1, 2], dtype=torch.int64),
            torch.tensor([1.5], dtype=torch.bfloat16),
            torch.tensor(True),
            torch.empty(0, 3),
            torch.nn.Parameter(torch.ones(2)),
        ],
        ids=["transposed", "int64", "bfloat16", "a number", "empty", "parameter"],
    )
    def test_tensors(self, tensor: torch.Tensor) -> None:
        back = codec.decode_plain(codec.encode_plain([tensor, tensor]))
        assert all(equal(t, tensor.detach()) for t in back)

    @pytest.mark.parametrize(
        "array", [np.arange(4.0)[::-1], np.zeros((0, 2), np.int32), np.array([True])]
    )
    def test_arrays(self, array: np.ndarray[Any, Any]) -> None:
        assert equal(codec.decode_plain(codec.encode_plain(array)), array)

    @pytest.mark.parametrize(
        ("value", "name"),
        [
            ({1, 2}, "set"),
            ({1: 2}, "dict"),
            (object(), "object"),
            (lambda: 0, "function"),
            (2j, "complex"),
            (Path("x"), "PosixPath"),
            (torch.eye(2).to_sparse(), "Tensor"),
            (type("Sum", (float,), {})(1.0), "Sum"),
            ([{"deep": [torch.nn.Linear(1, 1)]}], "Linear"),
        ],
    )
    def test_other_types_are_rejected_by_name(self, value: Any, name: str) -> None:
        with pytest.raises(TypeError, match=f"{name} is not plain data"):
            codec.encode_plain(value)


class Bomb:
    """Unpickling it creates a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


class TestReadingUntrustedBytes:
    def test_a_pickle_is_never_run(self, tmp_path: Path) -> None:
        mark = tmp_path / "mark"
        bomb = pickle.dumps(Bomb(mark))
        tree = json.dumps({"bytes": bomb.hex()}).encode()
        for data in (bomb, struct.pack("<Q", 0) + bomb, struct.pack("<Q", len(tree)) + tree + bomb):
            with pytest.raises(ValueError, match="not plain data"):
                codec.decode_plain(data)
        assert not mark.exists()
        pickle.loads(bomb)  # the pickle is a real one
        assert mark.exists()

    def test_random_bytes(self) -> None:
        draw = random.Random(0)
        for length in range(200):
            with pytest.raises(ValueError, match="not plain data"):
                codec.decode_plain(draw.randbytes(length))

    def test_truncated_or_corrupted_data_is_rejected_or_decodes_to_plain_data(self) -> None:
        good = codec.encode_plain({"x": [torch.ones(3), 1.5, "s"]})
        allowed = (bool, str, int, float, bytes, list, tuple, dict, torch.Tensor, np.ndarray)
        for at in range(len(good)):
            for data in (good[:at], good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :]):
                try:
                    value = codec.decode_plain(data)
                except ValueError:
                    continue
                assert value is None or isinstance(value, allowed)

    @pytest.mark.parametrize(
        "tree",
        [
            {"call": "os.system"},
            {"int": "1", "float": "0x1p0"},
            {"tensor": "7"},
            {"tensor": ["x"]},
            {"list": 3},
            {"bytes": 5},
            {"int": "9" * 10_000},
            {},
        ],
        ids=repr,
    )
    def test_trees_that_no_encoder_produces(self, tree: Any) -> None:
        text = json.dumps(tree).encode()
        empty = codec.encode_plain(None)
        (length,) = struct.unpack_from("<Q", empty)
        data = struct.pack("<Q", len(text)) + text + empty[8 + length :]
        with pytest.raises(ValueError, match="not plain data"):
            codec.decode_plain(data)

    def test_deep_nesting_does_not_crash(self) -> None:
        text = b'{"list": [' * 100_000
        with pytest.raises(ValueError, match="not plain data"):
            codec.decode_plain(struct.pack("<Q", len(text)) + text)


class TestAny:
    def test_functions_and_closures(self) -> None:
        factor = 3

        def times(x: int) -> int:
            return factor * x

        assert codec.decode_any(codec.encode_any(times))(2) == 6

    @pytest.mark.parametrize(
        "tensor",
        [
            torch.arange(6).reshape(2, 3).T,
            torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
            torch.tensor([1, 2], dtype=torch.uint16),
            torch.tensor([True, False]),
            torch.tensor([1 + 2j]),
            torch.empty(0, 3),
            torch.tensor(3.0),
        ],
        ids=lambda tensor: str(tensor.dtype),
    )
    def test_tensors_of_all_kinds(self, tensor: torch.Tensor) -> None:
        back = codec.decode_any(codec.encode_any(tensor))
        assert (back.dtype, back.stride()) == (tensor.dtype, tensor.stride())
        assert torch.equal(back, tensor)
        back.zero_()  # it is writable

    def test_a_view_sends_only_its_part(self) -> None:
        whole = torch.arange(1_000_000.0)
        data = codec.encode_any(whole[10:20])
        assert len(data) < 10_000
        assert torch.equal(codec.decode_any(data), whole[10:20])

    def test_a_view_keeps_requires_grad(self) -> None:
        whole = torch.zeros(100, requires_grad=True)
        assert codec.decode_any(codec.encode_any(whole[:2].detach().requires_grad_())).requires_grad

    def test_tensors_that_share_memory_still_share_it(self) -> None:
        base = torch.zeros(4)
        first, second = codec.decode_any(codec.encode_any((base, base)))
        first += 1
        assert second.tolist() == [1, 1, 1, 1]

    def test_modules(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
        back = codec.decode_any(codec.encode_any(model))
        assert all(map(torch.equal, back.parameters(), model.parameters()))


def test_a_function_may_use_dist_and_a_variable_named_config() -> None:
    """cloudpickle then includes torch.distributed.config, a module with its own class."""
    names = {"__name__": "__main__", "dist": torch.distributed, "config": {"width": 8}}
    exec("def width():\n    return dist.is_available() and config['width']", names)
    back = codec.decode_any(codec.encode_any(names["width"]))
    assert back() == 8


def test_a_wrapper_of_torch_is_sent_without_the_globals_of_its_module() -> None:
    """It has the name of the function that it wraps, so cloudpickle sends it by value."""
    names = {"__name__": "__main__", "decorator": torch.autograd.function.once_differentiable}
    exec("@decorator\ndef backward(ctx, gradient):\n    return 2 * gradient", names)
    data = codec.encode_any(names["backward"])
    assert len(data) < 20_000
    back = codec.decode_any(data)
    assert back.__globals__ is vars(torch.autograd.function)
    assert back(None, torch.ones(1)).item() == 2
