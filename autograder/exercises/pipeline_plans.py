"""Schedules that students emit: judged by simulation in the checker, then run on real ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

from autograder.exercise import Attempt, Budget, Case, Finding, Plain
from autograder.exercises.outputs import finished
from autograder.exercises.pipeline import (
    Plan,
    Stage,
    actions_of,
    all_actions,
    as_schedule,
    draw_model,
    gradients_by_rank,
    is_schedule,
)
from autograder.guest.library import on_its_own
from shardlab.run import Run
from shardlab.simulate.pipeline import Illegal, PipelineTimeline, simulate

NOT_A_SCHEDULE = -1  # slots or activations of what cannot run


def plan_case(
    name: str, *asked: tuple[int, ...], runs: bool = True, hidden: bool = False, **params: Any
) -> Case:
    """``asked``: (devices, micro_batches[, chunks]) of each schedule that the case wants.

    One that ``runs`` does so on a rank for each device; else there is one rank, and all are only
    simulated.
    """
    devices, micro_batches, *chunks = asked[0]
    sizes = {
        "asked": [list(sizes) for sizes in asked],
        "micro_batches": micro_batches,
        "chunks": chunks[0] if chunks else 1,
        "runs": runs,
        "samples": 2,
        "width": 3,
    }
    weight = params.pop("weight", 1.0)
    return Case(name, devices if runs else 1, sizes | params, hidden, weight)


def draw_plans(case: Case, rng: np.random.Generator) -> list[Plain]:
    return draw_model(case, rng) if case.params["runs"] else [None]


def drive_plans(subject: Any, given: Any, case: Case) -> Plain:
    asked, halves = case.params["asked"], case.params.get("halves", False)
    with on_its_own():
        plans = [as_schedule(subject(*sizes)) for sizes in asked]
    told: dict[str, Plain] = {
        "plans": plans,
        "actions": [actions_of(plan, halves=halves) for plan in plans],
        "gradients": None,
    }
    if given is not None and told["actions"] == wanted_actions(case) and can_run(plans[0]):
        shape = case.params["samples"], case.params["width"]
        told["gradients"] = executed(plans[0], given, shape)
    return told


def wanted_actions(case: Case) -> list[Plan]:
    backward = "IW" if case.params.get("halves") else "B"
    return [all_actions(sizes, backward) for sizes in case.params["asked"]]


def can_run(plan: Plan) -> bool:
    try:
        simulate(plan)
    except Illegal:
        return False
    return True


def executed(plan: Plan, given: Any, shape: tuple[int, int]) -> Plain:
    """This rank's part of a schedule, on its own stages: [weight's gradient, bias's] of each."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = [Stage(*weights) for weights in given["weights"]]
    last = len(mine) * ranks - 1
    kept: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = {}
    posted = []

    def tag(stage: int, k: int, forward: bool) -> int:
        return (2 * stage + forward) * 10_000 + k

    def post(tensor: torch.Tensor, stage: int, k: int, forward: bool) -> None:
        work = dist.isend(tensor, stage % ranks, tag=tag(stage, k, forward))
        posted.append((work, tensor))

    def arrived(stage: int, k: int, forward: bool) -> torch.Tensor:
        buffer = torch.empty(shape)
        peer = (stage - 1 if forward else stage + 1) % ranks
        dist.recv(buffer, peer, tag=tag(stage, k, forward))
        return buffer

    for kind, stage, k in plan[rank]:
        module = mine[stage // ranks]
        if kind == "F":
            x = given["inputs"][k].clone() if stage == 0 else arrived(stage, k, forward=True)
            x.requires_grad_()
            y = module(x)
            if stage == last:
                y = mse_loss(y, given["targets"][k]) / len(given["targets"])
            else:
                post(y.detach(), stage + 1, k, forward=True)
            kept[stage, k] = x, y, None
            continue
        x, y, upstream = kept.pop((stage, k))
        if kind in "BI" and stage < last:
            upstream = arrived(stage, k, forward=False)
        if kind in "BI":
            (x_grad,) = torch.autograd.grad(y, [x], upstream, retain_graph=True)
            if stage > 0:
                post(x_grad, stage - 1, k, forward=False)
        if kind in "BW":
            own = list(module.parameters())
            for parameter, part in zip(own, torch.autograd.grad(y, own, upstream), strict=True):
                parameter.grad = part if parameter.grad is None else parameter.grad + part
        else:
            kept[stage, k] = x, y, upstream
    for work, _ in posted:
        if work is not None:
            work.wait()
    return [[module.weight.grad, module.bias.grad] for module in mine]


def expect_plans(case: Case, inputs: Any) -> list[Plain]:
    runs, actions = case.params["runs"], wanted_actions(case)
    gradients = gradients_by_rank(case, inputs) if runs else [None]
    return [{"actions": actions, "gradients": each} for each in gradients]


# ---- what a schedule costs, decided where no student code runs -----------------------------------


@dataclass(frozen=True)
class Facts:
    """Of one schedule. Slots: a forward takes 1, a backward 2, each of its halves 1."""

    plan: Plan
    timeline: PipelineTimeline | None
    illegal: Illegal | None

    @property
    def idle(self) -> list[int]:
        """Slots by device."""
        return [round(slots) for slots in self.timeline.idle] if self.timeline else []

    @property
    def in_flight(self) -> list[int]:
        """Micro-batches' activations at most, by device."""
        return list(self.timeline.peak_in_flight) if self.timeline else []


def facts_of(plan: Plain) -> Facts:
    if not is_schedule(plan):
        return Facts([], None, Illegal("form", "it is no schedule"))
    try:
        return Facts(plan, simulate(plan), None)
    except Illegal as error:
        return Facts(plan, None, error)


def facts_in(output: Any) -> list[Facts]:
    """Of each schedule in a rank's output, which may be anything. Empty where they are not what the
    rank says they are: then what it says of their actions counts for nothing."""
    if not isinstance(output, dict) or not isinstance(plans := output.get("plans"), list):
        return []
    for halves in (False, True):
        if output.get("actions") == [actions_of(plan, halves=halves) for plan in plans]:
            return [facts_of(plan) for plan in plans]
    return []


def measured(
    run: Run, of: Callable[[Facts], list[int]], fold: Callable[[list[int]], int] = sum
) -> list[int]:
    """By rank, of its own device; where schedules are only simulated, of all devices together."""
    found = []
    for rank, output in enumerate(run.outputs):
        facts = facts_in(output)
        if not facts or any(each.timeline is None for each in facts):
            found.append(NOT_A_SCHEDULE)
        elif run.world_size == 1:
            found.append(sum(fold(of(each)) for each in facts))
        else:
            by_device = of(facts[0])
            found.append(by_device[rank] if rank < len(by_device) else NOT_A_SCHEDULE)
    return found


def by_device(case: Case, rule: Callable[..., Sequence[int]]) -> list[float]:
    """``rule(devices, micro_batches, …)``: by device. Limits in the form of ``measured``."""
    rows = [rule(*sizes) for sizes in case.params["asked"]]
    if case.params["runs"]:
        return [float(limit) for limit in rows[0]]
    return [float(sum(map(sum, rows)))]


def idle_budget(label: str, rule: Callable[..., Sequence[int]]) -> Budget:
    return Budget(
        label,
        limit=lambda case: by_device(case, rule),
        used=lambda run: measured(run, lambda facts: facts.idle),
        heading="idle",
        unit="slots",
    )


def in_flight_budget(
    label: str,
    rule: Callable[..., Sequence[int]],
    *,
    exactly: bool = False,
    unit: str = "micro-batches",
) -> Budget:
    return Budget(
        label,
        limit=lambda case: by_device(case, rule),
        used=lambda run: measured(run, lambda facts: facts.in_flight),
        least=(lambda case: by_device(case, rule)) if exactly else None,
        heading="in flight",
        unit=unit,
    )


# ---- mistakes by their names --------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """One schedule beside what was asked for."""

    facts: Facts
    sizes: list[int]

    @property
    def devices(self) -> int:
        return self.sizes[0]

    @property
    def micro_batches(self) -> int:
        return self.sizes[1]

    @property
    def chunks(self) -> int:
        return self.sizes[2] if len(self.sizes) > 2 else 1

    @property
    def plan(self) -> Plan:
        return self.facts.plan


Names = Callable[[Look], str | None]  # the mistake in a schedule that fell short


def named(
    answer: str, *rules: Names, evidence: Callable[[Look], str] = lambda look: ""
) -> Callable[[Attempt], Finding | None]:
    """The first rule that knows what is wrong with one of the schedules."""

    def diagnose(attempt: Attempt) -> Finding | None:
        for _, output in finished(attempt):
            for sizes, plan in zip(attempt.case.params["asked"], output["plans"], strict=True):
                call = f"{answer}({', '.join(map(str, sizes))})"
                if not is_schedule(plan):
                    form = "should return a list for each device, of (kind, stage, micro_batch)"
                    return Finding(call, form, str(plan), anyone=answer)
                look = Look(facts_of(plan), sizes)
                for rule in rules:
                    if mistake := rule(look):
                        seen = str(look.facts.illegal or evidence(look))
                        return Finding(call, mistake, seen, anyone=answer)
        return None

    return diagnose


def wrong_devices(look: Look) -> str | None:
    if len(look.plan) != look.devices:
        return "should return one list for each device"
    if look.plan and all(plan == look.plan[0] for plan in look.plan[1:]) and look.devices > 1:
        return "gives every device the same list: device i runs stage i alone"
    return None


def splits(look: Look) -> str | None:
    if any(kind in ("I", "W") for actions in look.plan for kind, *_ in actions):
        return "splits the backward: here it is whole, B"
    return None


def unknown_kinds(look: Look) -> str | None:
    if any(kind not in ("F", "B", "I", "W") for actions in look.plan for kind, *_ in actions):
        return "uses kinds that are none: F forward, B backward"
    return None


def wrong_actions(look: Look) -> str | None:
    """What stands there too often, too seldom, or on another device."""
    backward = "IW" if any(k[0] in "IW" for actions in look.plan for k in actions) else "B"
    wanted = all_actions(look.sizes, backward)
    there = Counter(tuple(action) for actions in look.plan for action in actions)
    right = Counter(tuple(action) for actions in wanted for action in actions)
    if any(k >= look.micro_batches for _, _, k in there):
        return "counts past the last micro-batch: there may be fewer than a long warm-up takes"
    if missing := right - there:
        kinds = {kind for kind, _, _ in missing}
        if kinds <= {"F"}:
            return "leaves out forwards: each stage runs each micro-batch"
        if kinds <= {"W"}:
            return "leaves out backwards for the weights: each I has its W"
        return "leaves out backwards: each forward has its backward, those of the warm-up too"
    if there - right:
        return "does some of it twice, or of stages that there are not"
    if [sorted(actions) for actions in look.plan] != wanted:
        return "puts stages on the wrong devices: stage s belongs on device s % devices"
    return None


def cannot_run(look: Look) -> str | None:
    illegal = look.facts.illegal
    if illegal is None:
        return None
    if illegal.rule == "order":
        return "cannot run: a device has an action before one of its own that it needs"
    if illegal.rule == "waits":
        return "cannot run: devices wait for one another for ever"
    return "cannot run"
