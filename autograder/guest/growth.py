"""Finds what an answer keeps of every step, in an exercise that drives it for STEPS steps.

    growth = Growth({"self": ddp, "model": model})  # in which an answer may keep something
    for step in range(STEPS):
        ...
        growth.after(step)
    output["grows"] = growth.found()
    # ["self.in_flight: 30 items, 21 more than 7 steps before"]

It follows attributes, containers, hooks, closures, defaults, the globals that a function names, and
autograd graphs.  A list of plain numbers counts as well, and so does a tensor, an array or a string
that gets longer and longer, or a chain: (loss, (loss, (loss, …))).
"""

from __future__ import annotations

import functools
import types
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sized
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

CACHE = type(functools.cache(len))
# The sizes after these steps are compared: also every second step makes each larger than the last.
EARLY, *_, STEPS = SAMPLED = (3, 5, 7, 10)
PLAIN = (int, float, complex, type(None), torch.dtype, torch.Size)
TEXT = (str, bytes, bytearray)
PARTS_OF_MODULES = ("_parameters", "_buffers", "_modules")
HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class Growth:
    def __init__(self, roots: Mapping[str, Any]) -> None:
        self.roots = roots
        self.sizes: dict[int, dict[str, int]] = {}  # by number of steps

    def after(self, step: int) -> None:
        if step + 1 in SAMPLED:
            self.sizes[step + 1] = sizes(self.roots)

    def found(self) -> list[str]:
        """What grows and grows; [] before step STEPS."""
        early, *_, late = sampled = [self.sizes.get(steps, {}) for steps in SAMPLED]
        return [
            f"{name}: {late[name]} items, {late[name] - early[name]} more than {STEPS - EARLY} "
            "steps before"
            for name in late
            if all(name in sizes for sizes in sampled)
            if all(one[name] < following[name] for one, following in pairwise(sampled))
        ]


def found_in_more_steps(
    roots: Mapping[str, Any], one_step: Callable[[], object], steps: int = STEPS
) -> list[str]:
    """What grows in every step while ``one_step`` runs again and again."""
    growth = Growth(roots)
    for step in range(steps):
        one_step()
        growth.after(step)
    return growth.found()


def sizes(roots: Mapping[str, Any]) -> dict[str, int]:
    """{where: number of items} of containers, elements of tensors, and nodes of autograd graphs.

    A tuple or an object also has a number of all items in the tuples and objects inside it.
    """
    found: dict[str, int] = {}
    in_chains: Counter[str] = Counter()
    for name, value, chain, inside in _reached_from(roots):
        if not _is_code(value) and not _is_bounded(value):
            found[name] = max(_length(value, inside), found.get(name, 0))
        if chain:
            in_chains[f"all in {chain}"] += len(inside)
    return found | in_chains


def storages(roots: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """(where, address, bytes) of the memory of all tensors and arrays, each once."""
    found: dict[int, tuple[str, int, int]] = {}
    for name, value, *_ in _reached_from(roots):
        if isinstance(value, np.ndarray):
            address, n_bytes = value.__array_interface__["data"][0], value.nbytes
        elif isinstance(value, torch.Tensor) and value.layout == torch.strided:
            storage = value.untyped_storage()
            address, n_bytes = storage.data_ptr(), storage.nbytes()
        else:
            continue
        found.setdefault(address, (name, address, n_bytes))
    return [*found.values()]


Items = list[tuple[str, Any]]


def _reached_from(roots: Mapping[str, Any]) -> Iterator[tuple[str, Any, str | None, Items]]:
    """(where, value, the chain that it belongs to, items inside it), each value once."""
    seen: dict[int, Any] = {}  # holds what was seen, so that no id is used twice
    left: deque[tuple[str, Any, str | None]] = deque((*root, None) for root in roots.items())
    while left:
        name, value, chain = left.popleft()
        if isinstance(value, PLAIN) or id(value) in seen:
            continue
        seen[id(value)] = value
        inside = list(_inside(name, value))
        chain = (chain or name) if _is_link(value) else None
        yield name, value, chain, inside
        left.extend((*each, chain) for each in inside)


def _length(value: Any, inside: Sized) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel()
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, CACHE):
        return value.cache_info().currsize
    return len(value if isinstance(value, TEXT) else inside)


def _is_link(value: Any) -> bool:
    """Of a chain, which may grow at its end: tuples, and objects of a student's own class."""
    is_object = not isinstance(value, nn.Module | type) and _is_students(type(value))
    return isinstance(value, tuple) or is_object


def _is_code(value: Any) -> bool:
    return isinstance(value, type | types.FunctionType | types.MethodType | functools.partial)


def _is_bounded(value: Any) -> bool:
    if isinstance(value, CACHE):
        return value.cache_info().maxsize is not None
    return isinstance(value, deque) and value.maxlen is not None


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{name}[{_quoted(key)}]", item) for key, item in [*value.items()])
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from ((f"{name}[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, torch.Tensor):
        yield f"{name}.grad", value.grad if value.is_leaf else None
        yield from ((f"hooks of {name}", getattr(value, hooks, None)) for hooks in HOOKS)
        yield from ((f"{name}.{key}", item) for key, item in [*vars(value).items()])
        yield f"the graph of {name}", None if value.grad_fn is None else _nodes(value.grad_fn)
    elif isinstance(value, CACHE):
        yield name, value.__wrapped__
    elif isinstance(value, functools.partial):
        yield from ((name, part) for part in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, types.MethodType):
        yield name, value.__self__
    elif isinstance(value, staticmethod | classmethod):
        yield name, value.__func__
    elif isinstance(value, type) and _is_students(value):
        yield from ((f"{value.__name__}.{key}", item) for key, item in [*vars(value).items()])
    elif isinstance(value, types.FunctionType) and _is_students(value):
        yield from _named_by(value)
    elif isinstance(value, nn.Module | torch.optim.Optimizer) or _is_students(type(value)):
        own = vars(value) if hasattr(value, "__dict__") else {}
        for key, item in [*own.items()]:
            if isinstance(value, nn.Module) and key in PARTS_OF_MODULES:
                yield from ((f"{name}.{part}", inside) for part, inside in item.items())
            else:
                yield f"{name}.{key}", item
        yield type(value).__name__, type(value)


def _named_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Its closure, defaults, attributes, and the globals that its code names."""
    code, cells = function.__code__, function.__closure__ or ()
    for name, cell in zip(code.co_freevars, cells, strict=True):
        if cell != types.CellType():  # not assigned yet
            yield name, cell.cell_contents
    defaults = *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()
    yield f"the defaults of {function.__name__}", defaults
    yield function.__name__, vars(function)
    names = _names_in(code) & function.__globals__.keys()
    yield from ((name, function.__globals__[name]) for name in sorted(names))


def _names_in(code: types.CodeType) -> set[str]:
    """With those of the functions inside it."""
    inner = (_names_in(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*inner)


def _nodes(node: Any) -> list[Any]:
    """Of an autograd graph, each once."""
    found, left = {node}, [node]
    while left:
        for following, _ in left.pop().next_functions:
            if following is not None and following not in found:
                found.add(following)
                left.append(following)
    return list(found)


def _is_students(what: Any) -> bool:
    """Whether it is a function or class from a notebook: it was pickled by value."""
    return getattr(what, "__module__", None) == "__main__"


def _quoted(key: Any) -> str:
    return repr(key) if isinstance(key, str | int) else "…"
