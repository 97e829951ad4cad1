"""Lifetimes of tensors, in a step small enough to check by hand and in our GPT."""

from __future__ import annotations

import hashlib
import threading
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from shardlab import data, models
from shardlab.estimate.activations import cpu_kernels, gpt_terms, small_terms
from shardlab.trace.lifetimes import Life, Lifetimes, part_of, record

CONFIG = models.GPTConfig(layers=3, heads=2, width=32, context=32)


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8, bias=False), nn.Linear(8, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))).sum()


def step(model: nn.Module, *inputs: Tensor) -> Lifetimes:
    return record(model, lambda: model(*inputs).backward())


@pytest.fixture(scope="module")
def gpt() -> tuple[Lifetimes, Lifetimes]:
    """A step of the unchanged GPT, and one with every block checkpointed."""
    model, inputs = models.GPT(CONFIG), data.batch(0, 2, 32)
    whole = step(model, *inputs)
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return whole, step(model, *inputs)


def test_two_layers_by_hand() -> None:
    recorded = step(TwoLayers(), torch.ones(3, 4))
    forward = [life for life in recorded.lives if life.created_at < 4]
    assert forward == [
        Life("first", "mm", 96, 0, 2, "temporary"),  # relu saves its output, not its input
        Life("", "relu", 96, 1, forward[1].freed_at, "kept"),
        Life("second", "mm", 24, 2, 4, "temporary"),  # sum saves only a shape
        Life("", "sum", 4, 3, recorded.operators, "kept"),
    ]
    assert recorded.kept_bytes == 96 + 4
    assert [name for name, *_ in recorded.phases] == ["forward", "backward"]
    assert recorded.live_bytes[:4].tolist() == [96, 192, 120, 124]
    assert recorded.at(2) == forward[1:3]


class Reduced(nn.Module):
    """Communicates; a thread releases the sent tensor 0.2 s later, as gloo's threads do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self) -> Tensor:
        sent = [torch.ops._c10d_functional.wait_tensor(torch.full((100,), 2.0))]
        result = (self.weight * sent[0].sum()).sum()

        def release_late() -> None:
            hashlib.sha256(bytes(60_000_000))  # releases the GIL: gloo's threads run without it
            sent.clear()

        threading.Thread(target=release_late).start()
        return result


def test_a_tensor_that_a_collective_releases_late_is_not_kept() -> None:
    recorded = step(Reduced())
    (sent,) = [life for life in recorded.lives if life.bytes == 400]
    assert sent.kind == "temporary"
    assert recorded.kept_bytes == 4 + 4  # the reduced sum and the loss


def test_kept_bytes_match_the_formula(gpt: tuple[Lifetimes, Lifetimes]) -> None:
    kernels = cpu_kernels(4, dropout=False)
    for recorded, recompute in zip(gpt, ("none", "full"), strict=True):
        arguments = (CONFIG, 2, 32, kernels)
        small = small_terms(*arguments, recompute=recompute)
        batch = 8 * 2 * 2 * 32  # tokens and targets already existed
        loss = 4
        counted = sum(gpt_terms(*arguments, recompute=recompute).values()) + sum(small.values())
        assert recorded.kept_bytes == counted - batch + loss


def test_the_peak_is_at_the_end_of_forward_and_lower_with_checkpoints(
    gpt: tuple[Lifetimes, Lifetimes],
) -> None:
    whole, checkpointed = gpt
    backward = next(start for name, start, _ in whole.phases if name == "backward")
    assert backward <= whole.peak_at < backward + 5
    assert checkpointed.peak_bytes < 0.6 * whole.peak_bytes
    for recorded in gpt:
        assert recorded.peak_bytes == sum(life.bytes for life in recorded.at(recorded.peak_at))


def test_a_block_is_recomputed_just_before_its_backward(gpt: tuple[Lifetimes, Lifetimes]) -> None:
    whole, checkpointed = gpt
    recomputed = [life for life in checkpointed.lives if life.kind == "recomputed"]
    assert [life for life in whole.lives if life.kind == "recomputed"] == []
    parts = list(dict.fromkeys(life.part for life in recomputed))
    assert parts == ["blocks.2", "blocks.1", "blocks.0"]
    assert {"blocks.0.mlp.up: addmm", "blocks.0.attention: attention"} <= {
        life.name for life in recomputed
    }
    # Nothing needs the last matmul's result: torch stops before it.
    assert "blocks.0.mlp.down: addmm" not in {life.name for life in recomputed}


def test_forward_phase_of_a_chain_called_in_segments() -> None:
    """No module call covers all of forward: it is everything before backward."""
    chain = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(16)))
    x = torch.ones(64, 4)
    peaks = {}
    for segments in (1, 4, 16):
        recorded = record(
            chain,
            lambda count=segments: (
                checkpoint_sequential(chain, count, x, use_reentrant=False).sum().backward()
            ),
        )
        assert [name for name, *_ in recorded.phases] == ["forward", "backward"]
        peaks[segments] = recorded.peak_bytes // x.nbytes
    assert peaks == {1: 17, 4: 8, 16: 17}  # segments + layers / segments


def test_two_recordings_are_equal(gpt: tuple[Lifetimes, Lifetimes]) -> None:
    torch.manual_seed(1)
    assert step(models.GPT(CONFIG), *data.batch(5, 2, 32)) == gpt[0]


def test_parts_of_a_model() -> None:
    assert [part_of(name) for name in ("blocks.10.mlp.up", "head", "")] == ["blocks.10", "head", ""]
