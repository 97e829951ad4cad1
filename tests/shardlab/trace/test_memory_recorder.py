"""Live bytes of real ranks match the arithmetic, category by category."""

from __future__ import annotations

import hashlib
import os
import threading
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardlab import RankError, data, launch, measure, models
from shardlab.run.live_memory import CATEGORIES, RankMemory
from shardlab.trace.memory_recorder import MemoryRecorder

pytestmark = pytest.mark.ranks

SIZE = "0.1M"
PARAMETERS = 120_576
PARAMETER_BYTES = 4 * PARAMETERS


def train(kind, steps=2):
    torch.manual_seed(0)
    model = models.gpt(SIZE)
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        loss = model(*data.batch(step, 4, 32, rank, world_size))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


@pytest.fixture(scope="module")
def plain():
    return launch(train, "plain", world_size=1, memory=True)


def test_one_device_matches_the_textbook(plain):
    memory = plain.memory[0]
    after_step = memory.at("step")
    assert after_step["parameters"] == PARAMETER_BYTES
    assert after_step["gradients"] == PARAMETER_BYTES
    # Adam: two states for each parameter, and a step counter for each tensor
    tensors = len(list(models.gpt(SIZE).parameters()))
    assert after_step["optimizer"] == 2 * PARAMETER_BYTES + 4 * tensors
    assert memory.units == ()  # of FSDP2
    assert after_step["buckets"] == 0
    assert after_step["activations"] == 4  # the loss


def test_activations_are_live_between_forward_and_backward(plain):
    memory = plain.memory[0]
    kept = memory.at("forward")["activations"]
    assert kept > PARAMETER_BYTES / 2
    assert memory.peak_of("activations") >= kept
    assert memory.at("backward")["activations"] <= 64  # the loss
    assert memory.peak_phase in ("forward", "backward")


def test_gradients_are_never_live_twice(plain):
    assert plain.memory[0].peak_of("gradients") == PARAMETER_BYTES


def test_phases_come_in_the_order_of_a_step(plain):
    phases = plain.memory[0].phases
    assert [phase.name for phase in phases] == ["forward", "backward", "step"] * 2
    assert all(before.end_s <= after.start_s for before, after in pairwise(phases))


def test_the_timeline_is_complete(plain):
    memory = plain.memory[0]
    total = sum(memory.live_bytes[category] for category in CATEGORIES)
    assert total.max() == memory.peak_bytes == sum(memory.at("peak").values())
    assert len(memory.times_s) == len(total)
    assert (memory.times_s[1:] >= memory.times_s[:-1]).all()
    assert memory.times_s[total.argmax()] == pytest.approx(memory.peak_s)
    assert memory.at("end")["parameters"] == 0  # the model was freed with the function


def test_ddp_keeps_everything_on_every_rank_plus_buckets():
    run = launch(train, "ddp", world_size=2, memory=True)
    after_step = run.memory.at("step")
    assert after_step["parameters"].tolist() == [PARAMETER_BYTES] * 2
    assert after_step["gradients"].tolist() == [PARAMETER_BYTES] * 2
    assert after_step["buckets"].tolist() == [PARAMETER_BYTES] * 2


def test_recording_memory_changes_neither_outputs_nor_calls():
    without = launch(train, "ddp", world_size=2)
    recorded = launch(train, "ddp", world_size=2, memory=True)
    assert recorded.outputs == without.outputs
    assert [(c.op, c.bytes) for c in recorded.calls if c.rank == 0] == [
        (c.op, c.bytes) for c in without.calls if c.rank == 0
    ]
    assert {c.source for c in recorded.calls} == {c.source for c in without.calls}


def test_fsdp2_keeps_a_shard_and_gathers_temporarily():
    run = launch(train, "fsdp2", world_size=2, memory=True)
    after_step = run.memory.at("step")
    for rank in range(2):
        assert after_step["parameters"][rank] == pytest.approx(PARAMETER_BYTES / 2, rel=0.001)
        assert after_step["gradients"][rank] == pytest.approx(PARAMETER_BYTES / 2, rel=0.001)
        assert after_step["optimizer"][rank] == pytest.approx(PARAMETER_BYTES, rel=0.001)
    # its own half plus gathered parameters; never two whole models
    assert (run.memory.peak_of("parameters") > 0.8 * PARAMETER_BYTES).all()
    assert (run.memory.peak_of("parameters") < 1.8 * PARAMETER_BYTES).all()


def mixed_precision():
    torch.manual_seed(0)
    model = models.gpt(SIZE).bfloat16()
    masters = [parameter.detach().float() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1, momentum=0.9)
    for step in range(2):
        model(*data.batch(step, 2, 16)).backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            master.grad = parameter.grad.float()
            parameter.grad = None
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)


def test_fp32_masters_belong_to_the_optimizer():
    run = launch(mixed_precision, world_size=1, memory=True)
    after_step = run.memory[0].at("step")
    assert after_step["parameters"] == 2 * PARAMETERS
    assert after_step["gradients"] == 4 * PARAMETERS
    assert after_step["optimizer"] == 4 * PARAMETERS + 4 * PARAMETERS  # master and momentum


def known_activations(batch, width):
    layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    x = torch.zeros(batch, width)
    y = layers(x)
    with measure("between"):
        pass
    y.sum().backward()


def test_activations_by_hand():
    run = launch(known_activations, 32, 8, world_size=1, memory=True)
    # the ReLU's output and the result; the first layer's output is freed after the ReLU, and the
    # input is not an activation
    now = run.memory[0].at("between")
    assert now["activations"] == 2 * 32 * 8 * 4
    assert now["other"] == 32 * 8 * 4


def weights_without_a_module():
    weight = torch.zeros(10, 10, requires_grad=True)
    view = weight.detach().view(100)[:50]  # shares the storage
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    (weight * weight).sum().backward()
    optimizer.step()
    return len(view)


def test_a_weight_needs_no_module_and_a_view_counts_once():
    run = launch(weights_without_a_module, world_size=1, memory=True)
    after_step = run.memory[0].at("step")
    assert after_step["parameters"] == after_step["gradients"] == after_step["optimizer"] == 400


def recompute(use_checkpoint):
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    x = torch.randn(128, 64, requires_grad=True)
    y = checkpoint(block, x, use_reentrant=True) if use_checkpoint else block(x)
    with measure("kept"):
        pass
    y.sum().backward()


def test_a_subclass_of_parameter_is_a_parameter():
    class Packed(nn.Parameter):  # like bitsandbytes' Params4bit
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs or {})

    def use():
        module = nn.Module()
        module.weight = Packed(torch.ones(1000))
        module.forward = lambda x: x * module.weight
        module(torch.ones(1)).sum().backward()

    memory = launch(use, world_size=1, memory=True).memory[0]
    assert memory.at("forward")["parameters"] == 4000
    assert memory.at("backward")["gradients"] == 4000


def test_checkpointing_keeps_less_and_recomputes():
    kept_whole, checkpointed = (
        launch(recompute, flag, world_size=1, memory=True).memory[0] for flag in (False, True)
    )
    assert kept_whole.at("kept")["activations"] > 128 * 512 * 4
    assert checkpointed.at("kept")["activations"] == 128 * 64 * 4  # only y
    assert checkpointed.peak_of("activations") > 128 * 512 * 4
    assert checkpointed.at("backward")["gradients"] == kept_whole.at("backward")["gradients"]


def test_memory_is_recorded_only_on_request():
    run = launch(dist.get_rank, world_size=1)
    with pytest.raises(ValueError, match=r"launch\(..., memory=True\)"):
        _ = run.memory


def test_a_failed_rank_reports_memory_up_to_its_failure():
    def fails():
        model = models.gpt(SIZE)
        model(*data.batch(0, 2, 16)).backward()
        raise OSError("no more")

    with pytest.raises(RankError) as caught:
        launch(fails, world_size=1, memory=True)
    assert caught.value.run.memory[0].at("backward")["gradients"] == PARAMETER_BYTES


def test_a_killed_rank_reports_no_memory():
    def dies():
        if dist.get_rank() == 1:
            os.abort()
        torch.zeros(10)

    with pytest.raises(RankError) as caught:
        launch(dies, world_size=2, memory=True)
    assert caught.value.run.memory[1].peak_bytes == 0
    with pytest.raises(KeyError, match="no phase 'step'"):
        caught.value.run.memory.at("step")


def test_backward_ends_when_other_threads_have_released_their_tensors():
    """As gloo's threads do with a collective's tensors, some time after it was waited for."""
    kept = []

    def release_late() -> None:
        hashlib.sha256(bytes(60_000_000))  # releases the GIL: gloo's threads run without it
        kept.clear()

    with MemoryRecorder() as memory:
        thread = threading.Thread(target=release_late)
        with memory.backward():
            kept.append(torch.ops._c10d_functional.wait_tensor(torch.ones(1000)))
            thread.start()
        thread.join()
    (backward,) = RankMemory.from_summary(memory.summary(), 0.0).phases
    assert backward.at_end["gradients"] == 0
    assert sum(backward.at_peak.values()) == 4000
