"""Runs a schedule on real ranks: each rank does its own list, and receives what an action needs.

The order of messages is the one that ``messages`` gives, so that no schedule that the simulator
accepts can hang.
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

from shardlab.pipeline.late_weights import LateWeights
from shardlab.pipeline.message_order import Message, made_by, messages
from shardlab.simulate.pipeline import Action, Costs, Slot
from shardlab.simulate.pipeline.schedule import Checked, check

Loss = Callable[[Tensor, Any], Tensor]


@dataclass(frozen=True)
class Ran:
    """What one rank did. Gradients are where ``backward`` would have left them."""

    slots: tuple[Slot, ...]  # in seconds of time.monotonic(), which all ranks of a machine share
    loss: float | None  # mean over micro-batches, on the rank that holds the last stage
    peak_in_flight: int  # the most micro-batches of its stages whose activations it held at once


def run_schedule(
    schedule: Sequence[Iterable[Any]],
    stages: Mapping[int, nn.Module],
    inputs: Sequence[Any],
    targets: Sequence[Any],
    loss: Loss,
    *,
    between: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    group: dist.ProcessGroup | None = None,
    at_least_s: Costs | None = None,
) -> Ran:
    """One forward and backward of m micro-batches by all ranks of the group, device r on rank r.

    stages   this rank's, {number: module}: those that stand in schedule[rank]
    inputs   [m] what stage 0 is given; other ranks may hand in the same or anything of that length
    targets  [m] for ``loss(output of the last stage, target)``, a mean: gradients are those of the
             mean over micro-batches
    between  shape of what one stage hands to the next; ``dtype`` its type
    group    the pipeline's ranks; all of them by default
    at_least_s  seconds that each action lasts: a rank that computed faster sleeps the rest.  So
             ranks that share a few processors can play devices that compute side by side.

    Raises Illegal for a schedule that cannot run, and ValueError for stages or inputs that are not
    the schedule's.
    """
    checked = check(schedule)
    rank = dist.get_rank(group)
    _check_given(checked, rank, dist.get_world_size(group), stages, inputs, targets)
    device = _device_of(stages)
    mail = _Mail(
        messages(schedule), rank, group, lambda: torch.empty(between, dtype=dtype, device=device)
    )
    work = _Work(checked, stages, inputs, targets, loss)
    slots = []
    for action in checked.schedule[rank]:
        received = mail.receive(_needed_message(action, checked, rank))
        start_s = time.monotonic()
        made = work.do(action, received)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # so that the slot is when it computed
        if at_least_s is not None:
            time.sleep(max(0.0, start_s + at_least_s.of(action) - time.monotonic()))
        slots.append(Slot(action, start_s, time.monotonic()))
        if (message := made_by(action, checked.device_of)) is not None:
            assert made is not None
            mail.send(message, made)
    mail.finish()
    total = sum(work.losses) if work.losses else None
    return Ran(tuple(slots), total, work.peak)


def _check_given(
    checked: Checked,
    rank: int,
    world_size: int,
    stages: Mapping[int, nn.Module],
    inputs: Sequence[Any],
    targets: Sequence[Any],
) -> None:
    if len(checked.schedule) != world_size:
        raise ValueError(f"a schedule of {len(checked.schedule)} devices on {world_size} ranks")
    mine = {action.stage for action in checked.schedule[rank]}
    if set(stages) != mine:
        raise ValueError(f"rank {rank} runs stages {sorted(mine)} and was given {sorted(stages)}")
    for name, given in (("inputs", inputs), ("targets", targets)):
        if len(given) != checked.micro_batches:
            raise ValueError(f"{len(given)} {name} for {checked.micro_batches} micro-batches")


def _device_of(stages: Mapping[int, nn.Module]) -> torch.device:
    for stage in stages.values():
        for parameter in stage.parameters():
            return parameter.device
    return torch.device("cpu")


def _needed_message(action: Action, checked: Checked, rank: int) -> Message | None:
    """The tensor from another device that an action starts with, if it starts with one."""
    kind, stage, micro_batch = action
    if kind == "W":
        return None
    source = stage - 1 if kind == "F" else stage + 1
    sender = checked.device_of.get(source)
    if sender is None or sender == rank:
        return None
    return Message("F" if kind == "F" else "B", source, micro_batch, sender, rank)


class _Mail:
    """One rank's messages, posted in the order that all ranks agree on."""

    def __init__(
        self,
        everyones: list[Message],
        rank: int,
        group: dist.ProcessGroup | None,
        empty: Callable[[], Tensor],
    ) -> None:
        self.mine = [m for m in everyones if rank in (m.sender, m.receiver)]
        self.rank, self.group, self.empty = rank, group, empty
        self.posted = 0
        self.outgoing: dict[Message, Tensor] = {}
        self.incoming: dict[Message, tuple[Tensor, Any]] = {}
        self.sent: dict[tuple[str, int, int], tuple[Tensor, Any]] = {}  # alive until it is away

    def send(self, message: Message, tensor: Tensor) -> None:
        """Does not wait."""
        self.outgoing[message] = tensor.contiguous()
        self._post_up_to(message)

    def receive(self, message: Message | None) -> Tensor | None:
        """Waits until it is there."""
        if message is None:
            return None
        self._post_up_to(message)
        tensor, work = self.incoming.pop(message)
        work.wait()
        if message.kind == "B":  # an answer to the output, which has therefore arrived
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
class _Pass:
    """What a stage keeps of a micro-batch between its forward and its backward."""

    given: Tensor | None  # its input, where that has a gradient
    made: Tensor | None  # its output, or the loss
    late: LateWeights | None


@dataclass
class _Work:
    """What one rank computes."""

    checked: Checked
    stages: Mapping[int, nn.Module]
    inputs: Sequence[Any]
    targets: Sequence[Any]
    loss: Loss
    losses: list[float] = field(default_factory=list)
    passes: dict[tuple[int, int], _Pass] = field(default_factory=dict)
    at_home: dict[tuple[str, int, int], Tensor] = field(default_factory=dict)  # between own stages
    peak: int = 0

    def do(self, action: Action, received: Tensor | None) -> Tensor | None:
        """The tensor that another stage needs of this action, if it makes one."""
        kind, stage, micro_batch = action
        if kind == "F":
            return self._forward(stage, micro_batch, received)
        if kind == "W":
            late = self.passes.pop((stage, micro_batch)).late
            assert late is not None
            late.finish()
            return None
        return self._backward(kind, stage, micro_batch, received)

    def _forward(self, stage: int, micro_batch: int, received: Tensor | None) -> Tensor:
        x = (
            self.inputs[micro_batch]
            if stage == 0
            else self._take("F", stage - 1, micro_batch, received)
        )
        given = x.requires_grad_() if stage > 0 else None
        late = LateWeights() if (stage, micro_batch) in self.checked.split else None
        with late or contextlib.nullcontext():
            made = self.stages[stage](x)
            if stage == self.checked.stages - 1:
                made = self.loss(made, self.targets[micro_batch]) / self.checked.micro_batches
                self.losses.append(made.item())
        self.passes[stage, micro_batch] = _Pass(given, made, late)
        self.peak = max(self.peak, len(self.passes))
        return self._give("F", stage, micro_batch, made.detach())

    def _backward(
        self, kind: str, stage: int, micro_batch: int, received: Tensor | None
    ) -> Tensor | None:
        kept = self.passes[stage, micro_batch]
        is_last = stage == self.checked.stages - 1
        grad = None if is_last else self._take("B", stage + 1, micro_batch, received)
        assert kept.made is not None  # a schedule that was checked goes back once
        torch.autograd.backward(kept.made, grad)
        if kind == "B":
            del self.passes[stage, micro_batch]
        given, kept.given, kept.made = kept.given, None, None  # "W" needs kept.late alone
        if given is None:
            return None
        assert given.grad is not None
        return self._give("B", stage, micro_batch, given.grad)

    def _take(self, kind: str, stage: int, micro_batch: int, received: Tensor | None) -> Tensor:
        if received is not None:
            return received
        return self.at_home.pop((kind, stage, micro_batch))

    def _give(self, kind: str, stage: int, micro_batch: int, made: Tensor) -> Tensor:
        to = stage + 1 if kind == "F" else stage - 1
        if to in self.stages:
            self.at_home[kind, stage, micro_batch] = made
        return made
