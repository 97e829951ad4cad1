"""A server postpones imports until a program names what needs them."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.ranks import codec
from shardlab.ranks.named_imports import POSTPONED, imports_needed, libraries_named
from shardlab.ranks.server import Server

COMMUNICATES = "import torch.distributed as dist\ndef fn(x):\n    dist.all_reduce(x)"
DIFFERENTIATES = "def fn(loss):\n    loss.backward()"
TRAINS = "from torch.optim import SGD\ndef fn(model):\n    SGD(model.parameters()).step()"
OFFLOADS = """
from torch.distributed.fsdp import fully_shard
config = {"offload_optimizer": {}}
def fn(model):
    return fully_shard(model, **config)
"""


def program(source: str) -> bytes:
    """The pickle of a function that was typed in a cell."""
    cells: dict[str, Any] = {"__name__": "__main__"}
    exec(source, cells)
    return codec.encode_any(cells["fn"])


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        (COMMUNICATES, []),
        (DIFFERENTIATES, ["autograd"]),
        (TRAINS, ["autograd", "training"]),
        (OFFLOADS, ["offload", "autograd", "training"]),
    ],
)
def test_a_program_waits_only_for_the_imports_that_it_names(source: str, needed: list[str]) -> None:
    assert imports_needed(program(source)) == needed


def test_a_library_that_a_program_imports_is_named() -> None:
    assert libraries_named(program("def fn():\n    import accelerate")) == ["accelerate"]
    assert libraries_named(program(COMMUNICATES)) == []


def test_a_server_has_postponed_what_programs_can_wait_for() -> None:
    assert {name for name, _ in Server(None, "deepspeed").idle_work} == {*POSTPONED, "forks"}
