"""The encoding of an output sent from a rank to the kernel.

"any" is cloudpickle: any Python object, from code that the receiver trusts (a student's kernel).
"plain" is pure data, a JSON tree plus safetensors: reading it runs no code, so a grader can read
the output of an untrusted rank.
"""

from __future__ import annotations

import functools
import io
import json
import struct
import sys
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

MAX_TREE_BYTES = 8 << 20  # of all data outside tensors
PLAIN_TYPES = "tensors, numpy arrays, numbers, strings, bytes, None, lists, tuples and dicts"

NUMPY_DTYPES = {
    *("float16", "float32", "float64", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool"),
}

_LRU_CACHE = type(functools.cache(len))


def _with_new_cache(fn: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(fn)


def _fits_numpy(tensor: Any) -> bool:
    """Whether numpy can store it without loss, which takes a tenth of the time of torch.save."""
    return (
        type(tensor) is sys.modules["torch"].Tensor
        and str(tensor.dtype).removeprefix("torch.") in NUMPY_DTYPES
        and not (tensor.requires_grad or tensor.is_neg() or tensor.__dict__)
    )


class _GlobalsOf:
    """Pickled as the module's globals, wherever they are unpickled."""

    def __init__(self, module: ModuleType | None) -> None:
        self.module = module

    def __reduce__(self) -> Any:
        return vars, (self.module,)


class _Pickler(cloudpickle.Pickler):
    """Sends tensors from any device as CPU tensors, and only the viewed part of a view.

    Also handles functions decorated with ``functools.cache``, which pickle would look up by name in
    a module; and modules with a class of their own, such as torch.distributed.config, which
    cloudpickle finds in a function that uses ``dist`` and a variable named ``config``.  A wrapper
    from an installed package, such as that of ``once_differentiable``, has the name of what it
    wraps, so it is sent by value, but it uses that package's globals, of which not all can be sent.
    """

    def _dynamic_function_reduce(self, func: FunctionType) -> Any:
        reduced = super()._dynamic_function_reduce(func)
        module = sys.modules.get(func.__globals__.get("__name__", ""))
        is_installed = "site-packages" in (getattr(module, "__file__", None) or "")
        if not (is_installed and vars(module) is func.__globals__):
            return reduced
        make, (code, _, *others), (own, slots), *rest = reduced
        new = code, _GlobalsOf(module), *others
        return make, new, (own, slots | {"__globals__": {}}), *rest

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is _LRU_CACHE and obj.__module__ == "__main__":
            return _with_new_cache, (obj.__wrapped__, obj.cache_parameters())
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
            return import_module, (obj.__name__,)
        torch = sys.modules.get("torch")  # if it isn't loaded, nothing is a tensor
        if torch is None or type(obj) not in (torch.Tensor, torch.nn.Parameter):
            return super().reducer_override(obj)
        if obj.layout == torch.strided:
            storage_bytes = obj.untyped_storage().nbytes()
            if obj.device.type != "cpu":
                obj = obj.detach().cpu().requires_grad_(obj.requires_grad)
            elif storage_bytes > obj.numel() * obj.element_size():
                obj = obj.detach().clone().requires_grad_(obj.requires_grad)
            if _fits_numpy(obj):
                return torch.from_numpy, (obj.numpy(),)
            return obj.__reduce_ex__(4)
        return super().reducer_override(obj)


def encode_any(value: Any) -> bytes:
    """Raises the exception that pickling raises, which gives the reason."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def decode_any(data: bytes) -> Any:
    return cloudpickle.loads(data)


def encode_plain(value: Any) -> bytes:
    """Raises TypeError for types other than PLAIN_TYPES, ValueError for too much data."""
    from safetensors.torch import save

    tensors: dict[str, Any] = {}
    tree = json.dumps(_to_tree(value, tensors)).encode()
    if len(tree) > MAX_TREE_BYTES:
        raise ValueError(
            f"{len(tree):,} bytes of numbers and strings; the limit is {MAX_TREE_BYTES:,}: "
            "return a long list of numbers as a tensor"
        )
    return struct.pack("<Q", len(tree)) + tree + save(tensors)


def decode_plain(data: bytes) -> Any:
    """The value that `encode_plain` packed; raises ValueError for anything else. Runs no code.

    Needs memory proportional to the data: about 40 times its size outside tensors.
    """
    from safetensors.torch import load

    try:
        (tree_bytes,) = struct.unpack_from("<Q", data)
        if tree_bytes > MAX_TREE_BYTES:
            raise ValueError(f"{tree_bytes:,} bytes in addition to its tensors")
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
    raise TypeError(f"{type(value).__name__} is not plain data ({PLAIN_TYPES})")


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
