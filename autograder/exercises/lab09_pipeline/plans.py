"""Exercises that return schedules: ranks without student code compute their costs and run them."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch.distributed as dist
from torch.nn.functional import mse_loss

from autograder.exercise import Attempt, Budget, Case, Finding, Limit, OnRanks, Plain
from autograder.exercise.form import Sign
from autograder.exercise.signs import MistakeText, finding
from autograder.exercises.lab09_pipeline import shared
from autograder.exercises.lab09_pipeline.shared import Plan, Stage, gradients_of, shape_of
from shardlab.pipeline import run_schedule
from shardlab.run import Run
from shardlab.simulate.pipeline import Costs, IllegalSchedule, simulate

# Of one schedule; a larger one is rejected unread.
MOST_DEVICES, MOST_ACTIONS = 64, 20_000
# Of all ranks together: each rank that runs them receives what all of them returned.
MOST_OUTPUT_BYTES = 32_000_000
F_AND_B = 3  # slots: a forward takes 1, a backward 2
NOT_A_SCHEDULE = -1  # slots or activations of a schedule that cannot run


@dataclass(frozen=True)
class Submitted:
    """One returned schedule, and the sizes it was requested for."""

    plan: Plan
    devices: int
    micro_batches: int
    chunks: int = 1
    idle: Sequence[int] = ()  # by device, as cost_of says; [] if it cannot run, like in_flight
    in_flight: Sequence[int] = ()  # the most micro-batches' activations, by device
    rule: str = ""  # see shardlab's IllegalSchedule
    illegal: str = ""


Rule = Callable[[Submitted], MistakeText]  # the mistake in a schedule, if the rule finds one
ByDevice = Callable[..., Sequence[int]]  # of (devices, micro_batches[, chunks])


def plan_case(name: str, *asked: tuple[int, ...], runs: bool = True, **params: Any) -> Case:
    """``asked``: (devices, micro_batches[, chunks]) of each schedule that the case requests.

    With ``runs`` the first schedule runs on one rank for each device; without, there is one rank,
    and all schedules are only simulated.
    """
    devices, micro_batches, *chunks = asked[0]
    sizes = {
        "asked": [list(sizes) for sizes in asked],
        "micro_batches": micro_batches,
        "chunks": chunks[0] if chunks else 1,
        "runs": runs,
        "shape": [2, 3],
    }
    return Case(name, devices if runs else 1, sizes | params)


# For both GPipe and 1F1B.
UNEVEN = plan_case("4 devices, 2 micro-batches; 3, 5; 1, 3", (4, 2), (3, 5), (1, 3))
CASES = (plan_case("4 devices, 8 micro-batches", (4, 8)), UNEVEN)


def schedule_exercise(
    answer: str,
    points: float,
    cases: tuple[Case, ...],
    budgets: tuple[Budget, ...],
    rules: tuple[Rule, ...],
    evidence: Callable[[Submitted], str] = lambda submitted: "",
) -> OnRanks:
    """``rules``: the first one that finds a mistake in a schedule names it."""
    return OnRanks(
        points=points,
        cases=cases,
        inputs=lambda case, rng: shared.draw_model(case, rng) if case.params["runs"] else None,
        drive=drive,
        execute=execute,
        tolerance=shared.TOLERANCE,
        output_bytes=MOST_OUTPUT_BYTES,
        budgets=budgets,
        allows=shared.P2P_ONLY,
        signs=(named(answer, rules, evidence),),
    )


# ---- next to student code -----------------------------------------------------------------------


def drive(subject: Any, given: Any, case: Case) -> Plain:
    return {"plans": [as_schedule(subject(*sizes)) for sizes in case.params["asked"]]}


def as_schedule(returned: Any) -> Plan | str:
    """Normalized (tuples and numpy integers are accepted), or why it is not a schedule."""
    if returned is None:
        return "it is None: is a return missing?"
    if not isinstance(returned, list | tuple):
        return f"it is a {type(returned).__name__}"
    if not all(isinstance(actions, list | tuple) for actions in returned):
        return "some device has no list"
    if len(returned) > MOST_DEVICES or sum(map(len, returned)) > MOST_ACTIONS:
        return f"it has more than {MOST_DEVICES} devices or {MOST_ACTIONS:,} actions"
    plan: Plan = []
    for actions in returned:
        plan.append([])
        for action in actions:
            try:
                kind, *numbers = action
                stage, micro_batch = map(operator.index, numbers)
            except (TypeError, ValueError):
                shown = repr(action)
                shown = shown if len(shown) <= 40 else f"{shown[:40]}…"
                return f"{shown} is not (kind, stage, micro_batch)"
            if max(abs(stage), abs(micro_batch)) >= MOST_ACTIONS:
                return f"it has a stage or micro-batch number of {MOST_ACTIONS:,} or more"
            plan[-1].append([str(kind), stage, micro_batch])
    return plan


# ---- on ranks without student code --------------------------------------------------------------


def execute(returned: Sequence[Any], given: Any, case: Case) -> Plain:
    """The costs of rank 0's schedules; and the gradients of the first, if the case runs it."""
    plans, may_split = returned[0]["plans"], case.params.get("may_split", False)
    asked, message = case.params["asked"], case.params.get("message", 0.0)
    costs = [cost_of(plan, message) for plan in plans]
    pairs = zip(plans, asked, strict=True)
    whole = all(is_complete(plan, sizes, may_split) for plan, sizes in pairs)
    runs = case.params["runs"] and whole and not costs[0]["illegal"]
    gradients = run_on_ranks(plans[0], given, case) if runs else None
    outcome = {"is_complete": whole, "gradients": gradients}
    return {"plans": plans, "asked": asked, "costs": costs, **outcome}


def cost_of(plan: Plain, message: float = 0.0) -> dict[str, Any]:
    """By device: idle time, micro-batches in flight. F takes 1 slot, B 2, each of its halves 1.

    ``message``: slots from the end of an action to the start of the one on another device that
    needs it.  Idle time is counted in such messages; in slots if they take no time.
    """
    try:
        time = simulate(plan, Costs(send=message))
    except IllegalSchedule as error:
        return {"idle": [], "in_flight": [], "rule": error.rule, "illegal": str(error)}
    idle = [round(slots / (message or 1.0)) for slots in time.idle]
    return {"idle": idle, "in_flight": list(time.peak_in_flight), "rule": "", "illegal": ""}


def is_complete(plan: Plain, sizes: Sequence[int], may_split: bool) -> bool:
    if not isinstance(plan, list) or (splits_backward(plan) and not may_split):
        return False
    return in_halves(plan) == all_actions(*sizes)


def splits_backward(plan: Plan) -> bool:
    return any(kind in ("I", "W") for actions in plan for kind, *_ in actions)


def in_halves(plan: Plan) -> Plan:
    """By device, sorted; a whole backward counts as its two halves."""
    halves = {"B": ["I", "W"]}
    return [
        sorted([half, stage, k] for kind, stage, k in actions for half in halves.get(kind, [kind]))
        for actions in plan
    ]


def all_actions(devices: int, micro_batches: int, chunks: int = 1) -> Plan:
    """All required actions, in the form of ``in_halves``: stage s is on device s % devices."""
    return [
        sorted(
            [kind, stage, micro_batch]
            for kind in "FIW"
            for stage in range(device, devices * chunks, devices)
            for micro_batch in range(micro_batches)
        )
        for device in range(devices)
    ]


def run_on_ranks(plan: Plan, given: Any, case: Case) -> Plain:
    """Runs this rank's part of the plan; returns [weight.grad, bias.grad] of each of its stages."""
    rank, ranks = dist.get_rank(), case.world_size
    stages = {rank + chunk * ranks: Stage(*each) for chunk, each in enumerate(given["weights"])}
    nothing = [None] * case.params["micro_batches"]  # for the ranks between first and last
    ends = ("inputs", "targets")
    inputs, targets = (nothing if given[end] is None else given[end] for end in ends)
    shape = shape_of(case)
    run_schedule(plan, stages, inputs, targets, mse_loss, activation_shape=shape)
    return [gradients_of(stage) for stage in stages.values()]


# ---- budgets ------------------------------------------------------------------------------------


def measured(
    cost: str,
    fold: Callable[[list[int]], int] = sum,
    allowed: ByDevice = lambda devices, *_: [0] * devices,
) -> Callable[[Run], list[int]]:
    """The cost of each rank's device; if schedules are only simulated, the total of all devices.

    In a total every device counts as at least what it is ``allowed``: a device that needs less
    does not make up for another.
    """

    def of_rank(rank: int, output: Any, ranks: int) -> int:
        costs = output.get("costs", ()) if isinstance(output, dict) else ()  # none after an error
        by_device = [each[cost] for each in costs]
        if not by_device or not all(by_device):
            return NOT_A_SCHEDULE
        if ranks > 1:
            return by_device[0][rank] if rank < len(by_device[0]) else NOT_A_SCHEDULE
        pairs = zip(by_device, output["asked"], strict=True)
        return sum(
            fold([max(pair) for pair in zip(used, allowed(*sizes), strict=False)])
            for used, sizes in pairs
        )

    return lambda run: [of_rank(*each, run.world_size) for each in enumerate(run.outputs)]


def budget(
    label: str, cost: str, rule: ByDevice, heading: str, unit: str, *, exactly: bool = False
) -> Budget:
    """On each device at most ``rule(*sizes)`` of a cost, or exactly that."""

    def limit(case: Case) -> Limit:
        rows = [rule(*sizes) for sizes in case.params["asked"]]
        most = rows[0] if case.params["runs"] else sum(map(sum, rows))
        return Limit(most, most if exactly else 0)

    used = measured(cost) if exactly else measured(cost, allowed=rule)
    return Budget(label, used, limit, heading, unit)


def fills_and_drains() -> Budget:
    label = "idles ≤ (p - 1)(F + B) on each device"
    return budget(label, "idle", lambda p, *_: [(p - 1) * F_AND_B] * p, "idle", "slots")


def holds(
    label: str, rule: ByDevice, *, exactly: bool = False, unit: str = "micro-batches"
) -> Budget:
    return budget(label, "in_flight", rule, "in flight", unit, exactly=exactly)


# ---- signs --------------------------------------------------------------------------------------


def named(answer: str, rules: tuple[Rule, ...], evidence: Callable[[Submitted], str]) -> Sign:
    def sign(attempt: Attempt) -> Finding | None:
        if attempt.error is not None:
            return None
        asked, output = attempt.case.params["asked"], attempt.outputs[0]  # as on every rank
        for sizes, plan, cost in zip(asked, output["plans"], output["costs"], strict=True):
            call = f"{answer}({', '.join(map(str, sizes))})"
            if not isinstance(plan, list) or len(plan) != sizes[0]:
                form = "should return a list for each device, of (kind, stage, micro_batch)"
                why = f"{len(plan)} lists" if isinstance(plan, list) else str(plan)
                return Finding(call, form, why, who_if_hidden=answer)
            submitted = Submitted(plan, *sizes, **cost)
            for rule in rules:
                if mistake := rule(submitted):
                    shown = submitted.illegal or evidence(submitted)
                    found = (mistake, shown) if isinstance(mistake, str) else mistake
                    return finding(call, found, who_if_hidden=answer)
        return None

    return sign


def splits(submitted: Submitted) -> str | None:
    if splits_backward(submitted.plan):
        return "splits the backward: here it is whole, B"
    return None


def wrong_actions(submitted: Submitted) -> MistakeText:
    """Actions that are missing, extra, or on the wrong device."""
    sizes = submitted.devices, submitted.micro_batches, submitted.chunks
    wanted, found = all_actions(*sizes), in_halves(submitted.plan)
    right, there = (Counter(map(tuple, chain.from_iterable(plan))) for plan in (wanted, found))
    evidence = []
    for actions, what in ((right - there, "missing"), (there - right, "extra")):
        if actions:
            kind, *numbers = min(actions)
            if kind in ("I", "W") and not splits_backward(submitted.plan):
                kind = "B"  # as the student writes it
            evidence.append(f"{(kind, *numbers)} is {what}")
    if splits_backward(submitted.plan):
        evidence.append("a B counts as an I and a W")
    if right - there:
        mistake = "leaves out actions: each stage runs a forward and a backward of each micro-batch"
        return f"{mistake}, and both are counted from 0", ", ".join(evidence)
    if there - right:
        mistake = "has an action twice, or one whose stage or micro-batch does not exist"
        return f"{mistake}: both are counted from 0", ", ".join(evidence)
    if found != wanted:
        return "puts stages on the wrong devices: stage s belongs on device s % devices"
    return None


def cannot_run(submitted: Submitted) -> str | None:
    reasons = {
        "": None,
        "order": "cannot run: a device has an action before one of its own that it depends on",
        "waits": "cannot run: devices wait for each other forever",
    }
    return reasons.get(submitted.rule, "cannot run")


UsualSchedule = Callable[..., Sequence[Sequence[Sequence[Any]]]]  # of the sizes, as ``ByDevice``


def usual_plan(usual: UsualSchedule, submitted: Submitted) -> Plan:
    chunks = [submitted.chunks] if submitted.chunks > 1 else []
    schedule = usual(submitted.devices, submitted.micro_batches, *chunks)
    return [[list(action) for action in actions] for actions in schedule]


def wrong_warm_up(usual: UsualSchedule, length: str) -> Rule:
    """The usual order of forwards, and that of backwards, merged too early or too late."""

    def rule(submitted: Submitted) -> MistakeText:
        pairs = [*zip(submitted.plan, usual_plan(usual, submitted), strict=True)]
        if any(sorted(one, key=kind_of) != sorted(other, key=kind_of) for one, other in pairs):
            return None
        for device, pair in enumerate(pairs):
            before, wanted = ([*map(kind_of, plan)].index("B") for plan in pair)
            if before != wanted:
                mistake = f"has a warm-up of the wrong length: {length} forwards come first, then "
                evidence = f"device {device}: first backward after {before} forwards, not {wanted}"
                return f"{mistake}pairs, each a forward and then a backward", evidence
        return None

    return rule


def kind_of(action: list[Any]) -> str:
    return str(action[0])


def differs_from(name: str, usual: UsualSchedule) -> Rule:
    """Shows the first action that differs from the usual schedule, called ``name``."""

    def rule(submitted: Submitted) -> MistakeText:
        for device, pair in enumerate(
            zip(submitted.plan, usual_plan(usual, submitted), strict=True)
        ):
            for number, (action, wanted) in enumerate(zip(*pair, strict=False)):
                if action != wanted:
                    where = f"device {device}, action {number}"
                    return f"differs from {name}", f"{where}: {(*action,)}, not {(*wanted,)}"
        return None

    return rule


WRONG_CONTENT: tuple[Rule, ...] = (splits, wrong_actions)
