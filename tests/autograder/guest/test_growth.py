"""What an answer keeps of every step."""

from __future__ import annotations

from collections import deque
from functools import cache, partial
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from autograder.guest.growth import EARLY, STEPS, Growth, storages

KEPT: list[torch.Tensor] = []
KEPT_INSIDE: list[torch.Tensor] = []


class Cache:
    kept: ClassVar[list[torch.Tensor]] = []


class Answer(nn.Module):
    """Each step keeps what ``keeps`` names."""

    kept_by_the_class: ClassVar[list[torch.Tensor]] = []

    def __init__(self, keeps: str) -> None:
        super().__init__()
        self.keeps = keeps
        self.layer = nn.Linear(2, 2)
        self.steps = 0
        self.by_step: dict[int, torch.Tensor] = {}
        self.losses: list[float] = []
        self.latest: deque[float] = deque(maxlen=STEPS)
        self.in_flight: list[tuple[int, torch.Tensor]] = []
        self.velocity = torch.zeros(())
        self.array, self.text = np.zeros(0), ""
        self.layer.bias.seen = []
        self.chain: object = None

    @staticmethod
    def keep(tensor: torch.Tensor) -> None:
        Cache.kept.append(tensor)

    def step(self) -> None:
        loss = self.layer(torch.ones(2)).sum()
        self.steps += 1
        self.latest.append(loss.item())
        self.by_step = {self.steps: torch.zeros(2 * STEPS)}
        self.in_flight = []
        if self.keeps == "hooks":
            self.layer.weight.register_hook(lambda gradient: None)
        elif self.keeps == "partial hooks":
            self.layer.weight.register_post_accumulate_grad_hook(partial(print))
        elif self.keeps == "cache":
            cached(self.steps)
        elif self.keeps == "class":
            self.kept_by_the_class.append(loss.detach())
        elif self.keeps == "global":
            keep(loss.detach())
        elif self.keeps == "static method":
            self.keep(loss.detach())
        elif self.keeps == "default":
            keep_in_a_default(loss.detach())
        elif self.keeps == "inner function":
            (lambda: KEPT_INSIDE.append(loss.detach()))()
        elif self.keeps == "attributes":
            setattr(self, f"loss_{self.steps}", loss.detach())
        elif self.keeps == "numbers":
            self.losses.append(loss.item())
        elif self.keeps == "one tensor":
            self.velocity = torch.cat([self.velocity.view(-1), loss.detach().view(1)])
        elif self.keeps == "array":
            self.array = np.append(self.array, loss.item())
        elif self.keeps == "text":
            self.text += "."
        elif self.keeps == "attribute of a parameter":
            self.layer.bias.seen.append(self.steps)
        elif self.keeps == "tuples":
            self.chain = loss.item(), self.chain
        elif self.keeps == "objects":
            self.chain = Link(self.chain)
        elif self.keeps == "every second step":
            self.losses += [loss.item()] * (self.steps % 2)
        elif self.keeps == "graph":
            self.velocity = 0.9 * self.velocity + loss


class Link:
    def __init__(self, before: object) -> None:
        self.before = before


def keep(tensor: torch.Tensor) -> None:
    KEPT.append(tensor)


def keep_in_a_default(tensor: torch.Tensor, *, kept: list[torch.Tensor] = []) -> None:  # noqa: B006
    kept.append(tensor)


@cache
def cached(step: int) -> int:
    return step


# As for code from a notebook
for each in (
    Answer,
    cached,
    cached.__wrapped__,
    Answer.step,
    Answer.keep,
    Cache,
    Link,
    keep,
    keep_in_a_default,
):
    each.__module__ = "__main__"


def found(keeps: str) -> list[str]:
    answer = Answer(keeps)
    growth = Growth({"self": answer, "keep": keep})
    for step in range(STEPS):
        answer.step()
        growth.after(step)
    return growth.found()


def test_what_grows_is_named_with_its_sizes() -> None:
    sizes = f"{STEPS} items, {STEPS - EARLY} more than {STEPS - EARLY} steps before"
    assert found("hooks") == [f"hooks of self.layer.weight: {sizes}"]
    assert found("partial hooks") == [f"hooks of self.layer.weight: {sizes}"]
    assert found("cache") == [f"cached: {sizes}"]
    assert found("class") == [f"Answer.kept_by_the_class: {sizes}"]
    assert found("global") == [f"KEPT: {sizes}"]
    assert found("static method") == [f"Cache.kept: {sizes}"]
    assert found("default") == [f"the defaults of keep_in_a_default[0]: {sizes}"]
    assert found("inner function") == [f"KEPT_INSIDE: {sizes}"]
    assert found("numbers") == [f"self.losses: {sizes}"]
    assert found("array") == [f"self.array: {sizes}"]
    assert found("text") == [f"self.text: {sizes}"]
    assert found("attribute of a parameter") == [f"self.layer.bias.seen: {sizes}"]
    of_pairs = ["all in self.chain: 20 items, 14 more than 7 steps before"]
    assert found("tuples") == found("objects") == of_pairs
    assert found("every second step") == ["self.losses: 5 items, 3 more than 7 steps before"]
    assert found("one tensor")[0].startswith("self.velocity: ")
    assert found("attributes")[0].startswith("self: ")
    assert found("graph")[0].startswith("the graph of self.velocity: ")


def test_what_is_bounded_emptied_or_replaced_does_not_grow() -> None:
    assert found("nothing") == []


def test_nothing_is_found_before_the_last_step() -> None:
    assert Growth({}).found() == []


def test_memory_is_found_once_wherever_it_is_kept() -> None:
    answer = Answer("nothing")
    whole = torch.zeros(100)
    answer.by_step = {0: whole[:2], 1: whole[2:].view(2, 49)}
    answer.array = torch.ones(7).numpy()
    found = {name: size for name, _, size in storages({"self": answer})}
    assert found["self.by_step[0]"] == whole.nbytes
    assert "self.by_step[1]" not in found
    assert found["self.array"] == 28
    assert found["self.layer.weight"] == 16
