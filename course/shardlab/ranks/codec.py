"""How an output travels from a rank to the kernel.

"any" is cloudpickle: whatever Python can hold, for code that the receiver trusts (a student's own
kernel).  "plain" is data alone, a JSON tree beside safetensors: reading it runs nothing, so a
grader may read what an untrusted rank wrote.
"""

from __future__ import annotations

import functools
import io
import json
import struct
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import cloudpickle

MOST_TREE_BYTES = 8 << 20  # of what is not in tensors
PLAIN_TYPES = "tensors, numpy arrays, numbers, strings, bytes, None, lists, tuples and dicts"

NUMPYS_TYPES = {
    *("float16", "float32", "float64", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool"),
}

_CACHED = type(functools.cache(len))


def _cached_anew(fn: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(fn)


def _is_numpys(tensor: Any) -> bool:
    """Whether numpy can carry it with nothing lost, which takes a tenth of what torch.save does."""
    return (
        type(tensor) is sys.modules["torch"].Tensor
        and str(tensor.dtype).removeprefix("torch.") in NUMPYS_TYPES
        and not (tensor.requires_grad or tensor.is_neg() or tensor.__dict__)
    )


class _Pickler(cloudpickle.Pickler):
    """Sends tensors from any device as CPU tensors, and of a view only the viewed part.

    And functions with ``functools.cache`` on them, which pickle takes for a library's; and modules
    of a class of their own, such as torch.distributed.config, which cloudpickle finds in a function
    that names ``dist`` and some ``config`` of the user's.
    """

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is _CACHED and obj.__module__ == "__main__":
            return _cached_anew, (obj.__wrapped__, obj.cache_parameters())
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
            return import_module, (obj.__name__,)
        torch = sys.modules.get("torch")  # where it isn't loaded, nothing is a tensor
        if torch is None or type(obj) not in (torch.Tensor, torch.nn.Parameter):
            return super().reducer_override(obj)
        if obj.layout == torch.strided:
            storage_bytes = obj.untyped_storage().nbytes()
            if obj.device.type != "cpu":
                return obj.detach().cpu().requires_grad_(obj.requires_grad).__reduce_ex__(4)
            if storage_bytes > obj.numel() * obj.element_size():
                return obj.detach().clone().requires_grad_(obj.requires_grad).__reduce_ex__(4)
            if _is_numpys(obj):
                return torch.from_numpy, (obj.numpy(),)
        return super().reducer_override(obj)


def encode_any(value: Any) -> bytes:
    """Raises whatever pickling raises, with the reason."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def decode_any(data: bytes) -> Any:
    return cloudpickle.loads(data)


def encode_plain(value: Any) -> bytes:
    """Raises TypeError for what is not plain data (PLAIN_TYPES), ValueError for too much of it."""
    from safetensors.torch import save

    tensors: dict[str, Any] = {}
    tree = json.dumps(_to_tree(value, tensors)).encode()
    if len(tree) > MOST_TREE_BYTES:
        raise ValueError(
            f"{len(tree):,} bytes of numbers and strings, at most {MOST_TREE_BYTES:,}: return many "
            "numbers as a tensor"
        )
    return struct.pack("<Q", len(tree)) + tree + save(tensors)


def decode_plain(data: bytes) -> Any:
    """The value that `encode_plain` packed; raises ValueError for anything else. Runs no code.

    Takes memory in proportion to the data: some 40 times for what is not in a tensor.
    """
    from safetensors.torch import load

    try:
        (tree_bytes,) = struct.unpack_from("<Q", data)
        if tree_bytes > MOST_TREE_BYTES:
            raise ValueError(f"{tree_bytes:,} bytes beside its tensors")
        tree = json.loads(data[8 : 8 + tree_bytes])
        return _from_tree(tree, load(data[8 + tree_bytes :]))
    except Exception as error:
        raise ValueError(f"not plain data: {type(error).__name__}") from None


def _to_tree(value: Any, tensors: dict[str, Any]) -> Any:
    import numpy as np
    import torch

    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return {"int": str(value)}
    if type(value) is float:
        return {"float": value.hex()}
    if type(value) is bytes:
        return {"bytes": value.hex()}
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        key = str(len(tensors))
        tensors[key] = value.detach().cpu().contiguous().clone()
        return {"tensor": key}
    if isinstance(value, np.ndarray | np.generic):
        return {"array": _to_tree(torch.from_numpy(np.array(value)), tensors)["tensor"]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_to_tree(item, tensors) for item in value]}
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {"dict": {key: _to_tree(item, tensors) for key, item in value.items()}}
    raise TypeError(f"a {type(value).__name__} is not plain data ({PLAIN_TYPES})")


def _from_tree(tree: Any, tensors: dict[str, Any]) -> Any:
    if tree is None or isinstance(tree, bool | str):
        return tree
    ((kind, item),) = tree.items()
    if kind == "int":
        return int(item)
    if kind == "float":
        return float.fromhex(item)
    if kind == "bytes":
        return bytes.fromhex(item)
    if kind == "tensor":
        return tensors[item]
    if kind == "array":
        return tensors[item].numpy()
    if kind in ("list", "tuple"):
        items = [_from_tree(child, tensors) for child in item]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        return {key: _from_tree(child, tensors) for key, child in item.items()}
    raise ValueError(f"unknown kind {kind}")
