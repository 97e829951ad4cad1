"""Runs a schedule on real ranks: each rank runs its own list and receives what each action needs.

Messages are posted in the order of ``messages``, so no schedule that the simulator accepts can
hang.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab.pipeline.deferred_weights import DeferredWeightGradients
from shardlab.pipeline.message_order import Message, message_after, messages
from shardlab.simulate.pipeline import Action, Costs, Slot
from shardlab.simulate.pipeline.schedule import CheckedSchedule, check

Loss = Callable[[Tensor, Any], Tensor]


@dataclass(frozen=True)
class StepResult:
    """What one rank did in a step. Gradients are in the parameters' ``grad``."""

    slots: tuple[Slot, ...]  # in seconds of time.monotonic(), which all ranks of a machine share
    loss: float | None  # mean over micro-batches, on the rank with the last stage
    peak_in_flight: int  # the most micro-batches, over its stages, whose activations it held


def run_schedule(
    schedule: Sequence[Iterable[Any]],
    stages: Mapping[int, nn.Module],
    inputs: Sequence[Any],
    targets: Sequence[Any],
    loss: Loss,
    *,
    activation_shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    group: dist.ProcessGroup | None = None,
    minimum_s: Costs | None = None,
) -> StepResult:
    """One forward and backward of m micro-batches on all ranks of the group, device r on rank r.

    stages   this rank's stages, {number: module}: those in schedule[rank]
    inputs   [m] inputs of stage 0; other ranks may pass anything of that length
    targets  [m] for ``loss(output of the last stage, target)``, a mean: gradients are those of the
             mean over micro-batches
    activation_shape  of the activations between stages; ``dtype`` is their dtype
    group    the pipeline's ranks; by default all ranks
    minimum_s  minimum seconds of each action: a rank that finishes earlier sleeps, so ranks that
             share a few cores can emulate devices that compute in parallel.

    Raises IllegalSchedule for a schedule that cannot run, and ValueError for stages or inputs that
    do not match the schedule.
    """
    checked = check(schedule)
    rank = dist.get_rank(group)
    _check_arguments(checked, rank, dist.get_world_size(group), stages, inputs, targets)
    device = _device_of(stages)
    channel = _Channel(
        messages(schedule),
        rank,
        group,
        lambda: torch.empty(activation_shape, dtype=dtype, device=device),
    )
    worker = _Worker(checked, stages, inputs, targets, loss)
    slots = []
    for action in checked.schedule[rank]:
        received = channel.receive(_needed_message(action, checked, rank))
        start_s = time.monotonic()
        output = worker.run(action, received)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # so that the slot covers the computation
        if minimum_s is not None:
            time.sleep(max(0.0, start_s + minimum_s.of(action) - time.monotonic()))
        slots.append(Slot(action, start_s, time.monotonic()))
        if (message := message_after(action, checked.device_of)) is not None:
            assert output is not None
            channel.send(message, output)
    channel.finish()
    total = sum(worker.losses) if worker.losses else None
    return StepResult(tuple(slots), total, worker.peak)


def _check_arguments(
    checked: CheckedSchedule,
    rank: int,
    world_size: int,
    stages: Mapping[int, nn.Module],
    inputs: Sequence[Any],
    targets: Sequence[Any],
) -> None:
    if len(checked.schedule) != world_size:
        raise ValueError(f"a schedule for {len(checked.schedule)} devices on {world_size} ranks")
    mine = {action.stage for action in checked.schedule[rank]}
    if set(stages) != mine:
        raise ValueError(f"rank {rank} runs stages {sorted(mine)} but was passed {sorted(stages)}")
    for name, values in (("inputs", inputs), ("targets", targets)):
        if len(values) != checked.micro_batches:
            raise ValueError(f"{len(values)} {name} for {checked.micro_batches} micro-batches")


def _device_of(stages: Mapping[int, nn.Module]) -> torch.device:
    for stage in stages.values():
        for parameter in stage.parameters():
            return parameter.device
    return torch.device("cpu")


def _needed_message(action: Action, checked: CheckedSchedule, rank: int) -> Message | None:
    """The message from another device that an action needs, if any."""
    kind, stage, micro_batch = action
    if kind == "W":
        return None
    source = stage - 1 if kind == "F" else stage + 1
    sender = checked.device_of.get(source)
    if sender is None or sender == rank:
        return None
    return Message("F" if kind == "F" else "B", source, micro_batch, sender, rank)


class _Channel:
    """Sends and receives one rank's messages, posted in the order that all ranks agree on."""

    def __init__(
        self,
        all_messages: list[Message],
        rank: int,
        group: dist.ProcessGroup | None,
        empty: Callable[[], Tensor],
    ) -> None:
        self.mine = [m for m in all_messages if rank in (m.sender, m.receiver)]
        self.rank, self.group, self.empty = rank, group, empty
        self.posted = 0
        self.outgoing: dict[Message, Tensor] = {}
        self.incoming: dict[Message, tuple[Tensor, Any]] = {}
        self.sent: dict[tuple[str, int, int], tuple[Tensor, Any]] = {}  # kept until sending is done

    def send(self, message: Message, tensor: Tensor) -> None:
        """Does not wait."""
        self.outgoing[message] = tensor.contiguous()
        self._post_up_to(message)

    def receive(self, message: Message | None) -> Tensor | None:
        """Waits for the message."""
        if message is None:
            return None
        self._post_up_to(message)
        tensor, work = self.incoming.pop(message)
        work.wait()
        if message.kind == "B":  # the gradient of an output, so that output has arrived
            _, work = self.sent.pop(("F", message.stage - 1, message.micro_batch))
            work.wait()
        return tensor

    def finish(self) -> None:
        for _, work in self.sent.values():
            work.wait()
        self.sent.clear()

    def _post_up_to(self, message: Message) -> None:
        while message not in self.incoming and self.posted < len(self.mine):
            following = self.mine[self.posted]
            self.posted += 1
            peer = following.receiver if following.sender == self.rank else following.sender
            peer = peer if self.group is None else dist.get_global_rank(self.group, peer)
            if following.sender == self.rank:
                tensor = self.outgoing.pop(following)
                self.sent[following[:3]] = tensor, dist.isend(tensor, peer, group=self.group)
            else:
                tensor = self.empty()
                self.incoming[following] = tensor, dist.irecv(tensor, peer, group=self.group)
            if following == message:
                return


@dataclass
class _SavedForward:
    """What a stage keeps of a micro-batch between forward and backward."""

    input: Tensor | None  # if it needs a gradient
    output: Tensor | None  # or the loss
    deferred: DeferredWeightGradients | None


@dataclass
class _Worker:
    """Runs one rank's actions."""

    checked: CheckedSchedule
    stages: Mapping[int, nn.Module]
    inputs: Sequence[Any]
    targets: Sequence[Any]
    loss: Loss
    losses: list[float] = field(default_factory=list)
    saved: dict[tuple[int, int], _SavedForward] = field(default_factory=dict)
    local: dict[tuple[str, int, int], Tensor] = field(default_factory=dict)  # between own stages
    peak: int = 0

    def run(self, action: Action, received: Tensor | None) -> Tensor | None:
        """Returns the tensor that another stage needs, if the action produces one."""
        kind, stage, micro_batch = action
        if kind == "F":
            return self._forward(stage, micro_batch, received)
        if kind == "W":
            deferred = self.saved.pop((stage, micro_batch)).deferred
            assert deferred is not None
            deferred.finish()
            return None
        return self._backward(kind, stage, micro_batch, received)

    def _forward(self, stage: int, micro_batch: int, received: Tensor | None) -> Tensor:
        x = (
            self.inputs[micro_batch]
            if stage == 0
            else self._take("F", stage - 1, micro_batch, received)
        )
        input = x.requires_grad_() if stage > 0 else None
        is_split = (stage, micro_batch) in self.checked.split
        deferred = DeferredWeightGradients() if is_split else None
        with deferred or contextlib.nullcontext():
            output = self.stages[stage](x)
            if stage == self.checked.stages - 1:
                output = self.loss(output, self.targets[micro_batch]) / self.checked.micro_batches
                self.losses.append(output.item())
        self.saved[stage, micro_batch] = _SavedForward(input, output, deferred)
        self.peak = max(self.peak, len(self.saved))
        return self._give("F", stage, micro_batch, output.detach())

    def _backward(
        self, kind: str, stage: int, micro_batch: int, received: Tensor | None
    ) -> Tensor | None:
        saved = self.saved[stage, micro_batch]
        is_last = stage == self.checked.stages - 1
        grad = None if is_last else self._take("B", stage + 1, micro_batch, received)
        assert saved.output is not None  # a checked schedule has one backward
        torch.autograd.backward(saved.output, grad)
        if kind == "B":
            del self.saved[stage, micro_batch]
        input, saved.input, saved.output = saved.input, None, None  # "W" needs only saved.deferred
        if input is None:
            return None
        assert input.grad is not None
        return self._give("B", stage, micro_batch, input.grad)

    def _take(self, kind: str, stage: int, micro_batch: int, received: Tensor | None) -> Tensor:
        if received is not None:
            return received
        return self.local.pop((kind, stage, micro_batch))

    def _give(self, kind: str, stage: int, micro_batch: int, output: Tensor) -> Tensor:
        to = stage + 1 if kind == "F" else stage - 1
        if to in self.stages:
            self.local[kind, stage, micro_batch] = output
        return output
