"""hub_step: data parallelism through rank 0, and what goes wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Attempt, Budget, Case, Exercise, Finding, Plain
from autograder.exercise.kept_back import by_case, kept_back
from autograder.exercises.data_parallel import (
    LR,
    STEPS,
    FirstStep,
    build_with,
    bytes_by_name,
    draw_unequal,
    flat_parameters,
    handed_in_bytes,
    known_mistake,
    one_process,
    parameter_bytes,
    step_cases,
    wrong_from_the_second_step,
)
from shardlab.errors import DeadlockError, RankError

HUB = "the hub"
WORKERS = "a rank other than the hub"


def draw_hub(case: Case, rng: Any) -> list[Plain]:
    """Weights differ from rank to rank; buffers do not, for they do not travel here."""
    given = draw_unequal(case, rng)
    buffers = {name: value for name, value in given[0]["state"].items() if name == "shift"}
    for one in given:
        one["state"] |= buffers
    return given


def drive_hub_step(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    model = build_with(case, given["state"])
    after = []
    for inputs, targets in given["batches"]:
        subject(model, inputs, targets, LR)
        after.append(flat_parameters(model).clone())
    return {"parameters": after}


def expect_hub_step(case: Case, inputs: Any) -> list[Plain]:
    """Of rank 0 alone: the others' replicas are thrown away."""
    trained = one_process(case, inputs)
    return [{"parameters": trained.parameters}] + [{}] * (case.world_size - 1)


@kept_back(by_case)
def ideal_bytes(case: Case) -> list[float]:
    """(N-1)Ψ from the hub, Ψ from each of the others, in each step."""
    one_way = float(STEPS * parameter_bytes(case))
    return [(case.world_size - 1) * one_way] + [one_way] * (case.world_size - 1)


BUDGET = Budget(
    "sends ≤ 1.01 × ideal bytes per rank",
    limit=lambda case: [1.01 * ideal for ideal in ideal_bytes(case)],
    used=lambda run: run.traffic.sent_by_rank.tolist(),
    least=lambda case: [0.99 * ideal for ideal in ideal_bytes(case)],
)


# ---- mistakes by their names --------------------------------------------------------------------


def talks_to_itself(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if isinstance(error, RankError) and "should not be the same as the rank" in error.message:
        return Finding(
            f"rank {error.rank}",
            "sends to itself or receives from itself: its partners are the N - 1 others",
        )
    return None


def hangs(attempt: Attempt) -> Finding | None:
    if not isinstance(attempt.error, DeadlockError):
        return None
    rows = {row.rank: row for row in attempt.error.table}
    waiting = {rank: row.call.split(" ")[0] for rank, row in rows.items() if row.state == "waiting"}
    if any(" of " in row.call for row in rows.values()):
        return Finding(
            "the ranks",
            "send tensors in one order and receive them in another: go through model.parameters() "
            "the same way on both sides",
            anyone="the ranks",
            evidence=attempt.error.headline,
        )
    mistake = name_hang(attempt, waiting, rows[0].waits_for)
    if not mistake:
        return None
    row = rows[0] if 0 in waiting else rows[min(waiting)]
    return Finding("rank 0", mistake, row.source, anyone=HUB)


def name_hang(attempt: Attempt, waiting: dict[int, str], hub_waits_for: tuple[int, ...]) -> str:
    """``waiting`` is the op that each blocked rank is in: "send" or "recv"."""
    hub, peer = waiting.get(0), ""
    if hub:
        peer = waiting.get(hub_waits_for[0], "") if hub_waits_for else ""
    others = {op for rank, op in waiting.items() if rank}
    # A send that is still pending counts: the hub is at its first step's last weights, or beyond.
    once = (attempt.case.world_size - 1) * parameter_bytes(attempt.case)
    sent = handed_in_bytes(attempt, "send", 0)
    if hub == "send" and peer == "send":
        if sent > once:
            return "goes on to the next step while gradients still come: receive N - 1 of each"
        return (
            "sends weights while the others send gradients, and nobody receives: the others have "
            "to receive the weights first"
        )
    if hub == "recv" and peer == "recv" and sent < once:
        return "waits for gradients of ranks that wait for weights: those go out first, to all"
    if hub == "recv" and peer != "send":
        return "waits for a gradient that nobody sends"
    if not hub and others == {"recv"}:
        return "has finished, and others still wait for weights: send them to each of the N - 1"
    if not hub and others == {"send"}:
        return "has finished, and others still send gradients: receive N - 1 of each"
    return ""


def hub_mistakes(first: FirstStep, rank: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """What rank 0's parameters are after a first step that went wrong in a known way."""
    n, own, total = first.world_size, first.own[0], first.sum
    others = total - own
    yield (
        "never takes the step: the parameters have to change in place",
        {"parameters": first.weights},
    )
    for name, gradient in (
        ("takes the step with the sum of the gradients, not their mean: divide by N", total),
        ("averages twice: the sum is divided by N once", total / n / n),
        ("takes the step uphill: a step subtracts lr * gradient", -total / n),
        ("takes the step with its own gradient alone: add those that it receives", own),
        ("divides its own gradient by N and adds no other: add those it receives", own / n),
        ("leaves out its own gradient: the mean is over all N ranks", others / n),
        ("leaves out its own gradient: the mean is over all N ranks", others / (n - 1)),
        ("divides by N - 1: its own gradient counts, too, so it is a mean over N", total / (n - 1)),
    ):
        yield name, {"parameters": first.stepped(gradient)}
    apart = [first.gradient(r, weights_of=r) for r in range(n)]
    yield (
        "adds up gradients of different weights: it has to send its weights to every other rank "
        "before they compute",
        {"parameters": first.stepped(torch.stack(apart).mean(dim=0))},
    )


def wrong_step(attempt: Attempt) -> Finding | None:
    return known_mistake(attempt, hub_mistakes, who=HUB)


def later_step(attempt: Attempt) -> Finding | None:
    return wrong_from_the_second_step(attempt, who=HUB)


def sends_too_much(attempt: Attempt) -> Finding | None:
    if attempt.error is not None:
        return None
    one_way = STEPS * parameter_bytes(attempt.case)
    others = attempt.case.world_size - 1
    sent = handed_in_bytes(attempt, "send", 0)
    evidence = f"{sent:,} bytes from rank 0, {others * one_way:,} are enough"
    by_name = STEPS * bytes_by_name(attempt.case)
    if by_name > one_way and sent == others * by_name:
        mistake = (
            "sends a tied parameter under each of its names: state_dict() lists it twice, "
            "parameters() once"
        )
        return Finding("rank 0", mistake, evidence, anyone=HUB)
    if sent >= 2 * others * one_way:
        mistake = (
            "sends the weights twice in a step: after the step they may stay where they are, for "
            "the next one begins by sending them"
        )
        return Finding("rank 0", mistake, evidence, anyone=HUB)
    return None


def others_send_too_much(attempt: Attempt) -> Finding | None:
    most = STEPS * parameter_bytes(attempt.case)
    for rank in range(1, attempt.case.world_size):
        sent = handed_in_bytes(attempt, "send", rank)
        if attempt.error is None and sent > most:
            return Finding(
                f"rank {rank}",
                "sends more than its gradient: the hub needs nothing else of it",
                f"{sent:,} bytes, its gradients have {most:,}",
                anyone=WORKERS,
            )
    return None


HUB_STEP = Exercise(
    name="dp_vs_ddp.hub_step",
    points=5,
    cases=step_cases(),
    draw=draw_hub,
    drive=drive_hub_step,
    expect=expect_hub_step,
    budgets=(BUDGET,),
    allows=frozenset({"send", "recv"}),
    diagnoses=(
        talks_to_itself,
        hangs,
        wrong_step,
        later_step,
        sends_too_much,
        others_send_too_much,
    ),
)
