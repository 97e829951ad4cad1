"""Lab 07: cross-entropy where each rank has the logits of its part of the vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from autograder.exercise import Attempt, Budget, Case, Exercise, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercises.outputs import finished
from autograder.exercises.tensor_parallel import (
    FLOAT_BYTES,
    NEAR,
    Slips,
    as_if,
    handed_over,
    normal,
    number_of_ranks,
    one_over_ranks,
    scaled,
    share,
    value_of_all,
)
from autograder.guest.on_rank import standing_in
from shardlab.errors import RankError

WIRE_FROM_BYTES = 2**16  # below, gloo's own messages are as large as logits


def loss_case(
    world_size: int,
    tokens: int,
    vocabulary: int,
    scale: float = 1.0,
    name: str = "",
    hidden: bool = False,
) -> Case:
    name = name or f"{world_size} ranks, {tokens} tokens, {vocabulary} words"
    params = {"tokens": tokens, "vocabulary": vocabulary, "scale": scale}
    return Case(name, world_size, params, hidden)


def draw_logits(case: Case, rng: np.random.Generator) -> list[Plain]:
    """To each rank its columns of the logits, and all targets. Some target is in each part."""
    tokens, vocabulary = case.params["tokens"], case.params["vocabulary"]
    logits = normal(rng, tokens, vocabulary, scale=case.params["scale"])
    part = vocabulary // case.world_size
    targets = (np.arange(tokens) % case.world_size) * part + rng.integers(0, part, tokens)
    targets = torch.from_numpy(rng.permutation(targets))
    return [
        {"logits": share(logits, rank, case, dim=1).clone(), "targets": targets}
        for rank in range(case.world_size)
    ]


class StandInForSum:
    @staticmethod
    def apply(tensor: Tensor) -> Tensor:
        return value_of_all(tensor)


def drive_loss(subject: Any, given: Any, case: Case) -> Plain:
    subject = standing_in(subject, SumOverRanks=StandInForSum)
    logits = given.pop("logits").requires_grad_()
    loss = subject(logits, given["targets"])
    if isinstance(loss, Tensor) and loss.ndim == 0 and loss.requires_grad:
        loss.backward()
    value = loss.detach() if isinstance(loss, Tensor) else loss
    return {"loss": value, "logits.grad": logits.grad}


def expect_loss(case: Case, inputs: Any) -> list[Plain]:
    logits = torch.cat([given["logits"] for given in inputs], dim=1).requires_grad_()
    loss = torch.nn.functional.cross_entropy(logits, inputs[0]["targets"])
    (gradient,) = torch.autograd.grad(loss, [logits])
    return [
        {"loss": loss.detach(), "logits.grad": share(gradient, rank, case, dim=1)}
        for rank in range(case.world_size)
    ]


# ---- budgets ------------------------------------------------------------------------------------


def three_numbers_bytes(case: Case) -> int:
    """For each token its largest logit, its sum of exponentials, its target's logit."""
    return 3 * FLOAT_BYTES * case.params["tokens"]


def part_bytes(case: Case) -> int:
    """A rank's logits."""
    return FLOAT_BYTES * case.params["tokens"] * case.params["vocabulary"] // case.world_size


def half_of_its_logits(case: Case) -> list[float] | None:
    """What the kernel counts may come to, gloo's own messages and all."""
    size = part_bytes(case)
    return [size / 2] * case.world_size if size >= WIRE_FROM_BYTES else None


SENDS_NO_LOGITS = Budget(
    "sends less than half of its logits' bytes",
    limit=half_of_its_logits,
    used=lambda run: run.traffic.sent_by_rank.tolist(),
)


# ---- mistakes by their names --------------------------------------------------------------------


def parts(attempt: Attempt) -> tuple[list[Tensor], Tensor]:
    """All ranks' logits, and all targets' logits."""
    logits = [given["logits"] for given in attempt.inputs]
    whole, targets = torch.cat(logits, dim=1), attempt.inputs[0]["targets"]
    return logits, whole[torch.arange(len(targets)), targets]


def local_softmax(attempt: Attempt) -> list[dict[str, Plain]]:
    logits, right = parts(attempt)
    return [{"loss": (part.logsumexp(dim=1) - right).mean()} for part in logits]


def local_softmax_and_target(attempt: Attempt) -> list[dict[str, Plain]]:
    """And of the target's logit only what the rank itself has."""
    logits, right = parts(attempt)
    return [
        {"loss": (part.logsumexp(dim=1) - own * right).mean()}
        for part, own in zip(logits, owned(attempt), strict=True)
    ]


def mean_of_local_losses(attempt: Attempt) -> list[dict[str, Plain]]:
    logits, right = parts(attempt)
    losses = [(part.logsumexp(dim=1) - right).mean() for part in logits]
    return [{"loss": torch.stack(losses).mean()}] * len(logits)


def owned(attempt: Attempt) -> list[Tensor]:
    """By rank, 1 for each token whose target is in its part, else 0."""
    part = attempt.inputs[0]["logits"].shape[1]
    owner = attempt.inputs[0]["targets"] // part
    return [(owner == rank).float() for rank in range(attempt.case.world_size)]


def target_not_summed(attempt: Attempt) -> list[dict[str, Plain]]:
    logits, right = parts(attempt)
    total = torch.cat(logits, dim=1).logsumexp(dim=1)
    return [{"loss": (total - own * right).mean()} for own in owned(attempt)]


def clamped_targets(attempt: Attempt) -> list[dict[str, Plain]]:
    """Every rank adds a logit, that of the nearest word it has, less the largest of all."""
    logits, _ = parts(attempt)
    whole = torch.cat(logits, dim=1)
    return [{"loss": less_nearest(attempt, whole.amax(dim=1))}] * len(logits)


def clamped_targets_as_they_are(attempt: Attempt) -> list[dict[str, Plain]]:
    logits, _ = parts(attempt)
    return [{"loss": less_nearest(attempt, torch.zeros(()))}] * len(logits)


def less_nearest(attempt: Attempt, top: Tensor) -> Tensor:
    logits, _ = parts(attempt)
    targets, length = attempt.inputs[0]["targets"], logits[0].shape[1]
    total = torch.cat(logits, dim=1).logsumexp(dim=1) - top
    for rank, part in enumerate(logits):
        nearest = (targets - rank * length).clamp(0, length - 1)
        total = total - (part[torch.arange(len(targets)), nearest] - top)
    return total.mean()


def less_own_maximum(attempt: Attempt) -> tuple[list[Tensor], Tensor]:
    """By rank, each token's largest logit; and all exponentials of what is left, added up."""
    logits, _ = parts(attempt)
    tops = [part.amax(dim=1) for part in logits]
    exponentials = [(part - top[:, None]).exp() for part, top in zip(logits, tops, strict=True)]
    return tops, torch.cat(exponentials, dim=1).sum(dim=1)


def own_maxima(attempt: Attempt) -> list[dict[str, Plain]]:
    """And the target's logit is less its owner's maximum."""
    (tops, total), (_, right) = less_own_maximum(attempt), parts(attempt)
    of_owner = sum(own * top for own, top in zip(owned(attempt), tops, strict=True))
    return [{"loss": (total.log() - (right - of_owner)).mean()}] * len(tops)


def own_maxima_added_back(attempt: Attempt) -> list[dict[str, Plain]]:
    (tops, total), (_, right) = less_own_maximum(attempt), parts(attempt)
    return [{"loss": (total.log() + top - right).mean()} for top in tops]


def sum_over_tokens(case: Case) -> float:
    return float(case.params["tokens"])


def overflows(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        loss = output["loss"]
        if isinstance(loss, Tensor) and not bool(loss.isfinite().all()):
            return Finding(
                f"rank {rank}",
                "overflows: exp of a large logit is inf, so subtract each token's largest logit "
                "first, over all ranks",
                f"its loss is {loss.item():g}" if loss.ndim == 0 else "",
            )
    return None


def other_words(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if isinstance(error, RankError) and (
        error.kind == "IndexError" or "out of bounds" in error.message
    ):
        return Finding(
            f"rank {error.rank}",
            "looks for words in its part that another rank has: its first word is number "
            "rank · V/N, and of targets outside of its part it takes none",
        )
    return None


def one_for_each_token(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        loss = output["loss"]
        if not isinstance(loss, Tensor):
            return Finding(f"rank {rank}", "should return the loss as a tensor, for backward")
        if loss.shape == attempt.inputs[rank]["targets"].shape:
            return Finding(f"rank {rank}", "returns a loss for each token: return their mean")
    return None


def no_gradient(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        if output["logits.grad"] is None and equal(attempt.expected[rank]["loss"], output["loss"]):
            return Finding(
                f"rank {rank}",
                "leaves no gradient in its logits: backward has to reach them",
            )
    return None


def whole_logits(attempt: Attempt) -> Finding | None:
    """Handed over as many bytes as a rank has logits."""
    run = attempt.run
    if attempt.error or run is None:
        return None
    part = part_bytes(attempt.case)
    for call in run.calls:
        if call.bytes >= part > three_numbers_bytes(attempt.case):
            mistake = (
                "exchanges logits: a few numbers for each token are enough, and no rank ever needs "
                "the others' logits"
            )
            return Finding(f"rank {call.rank}", mistake, f"{call.op}, {call.source}")
    return None


def gradient_of_the_local_softmax(attempt: Attempt) -> list[dict[str, Plain]]:
    outputs = []
    length = attempt.inputs[0]["logits"].shape[1]
    for rank, given in enumerate(attempt.inputs):
        targets = given["targets"] - rank * length
        inside = (targets >= 0) & (targets < length)
        gradient = given["logits"].softmax(dim=1)
        gradient[inside, targets[inside]] -= 1
        right = attempt.expected[rank]["loss"]
        outputs.append({"loss": right, "logits.grad": gradient / len(targets)})
    return outputs


LOCAL = (
    "takes the softmax over its own part of the vocabulary: the sum of exponentials runs over the "
    "words of all ranks"
)
CLAMPED = "adds a logit for targets that are not in its part: put 0 there before the sum"
OWN_MAXIMUM = (
    "subtracts its own largest logit and adds up the exponentials: all ranks have to subtract the "
    "same, the largest of all"
)
LOSS_SLIPS: Slips = (
    (local_softmax, LOCAL),
    (local_softmax_and_target, LOCAL),
    (mean_of_local_losses, LOCAL),
    (gradient_of_the_local_softmax, f"in backward {LOCAL}"),
    (
        target_not_summed,
        "knows the target's logit only where it has the word: one rank has it, so sum it over the "
        "ranks, with 0 from the others",
    ),
    (clamped_targets, CLAMPED),
    (clamped_targets_as_they_are, CLAMPED),
    (own_maxima, OWN_MAXIMUM),
    (own_maxima_added_back, OWN_MAXIMUM),
    (
        scaled("loss", "logits.grad", by=sum_over_tokens),
        "returns the sum over tokens: return their mean",
    ),
    (
        scaled("loss", "logits.grad", by=one_over_ranks),
        "divides by N: the loss is the mean over tokens, and every rank has all tokens",
    ),
    (
        scaled("logits.grad", by=number_of_ranks),
        "adds gradients up over the ranks: every rank's loss is the same one loss, so each logit's "
        "gradient comes out N times too large",
    ),
)

VOCAB_PARALLEL_CROSS_ENTROPY = Exercise(
    name="tensor_parallel.vocab_parallel_cross_entropy",
    points=5,
    cases=(
        loss_case(2, 5, 8),
        loss_case(4, 6, 16, scale=200, name="4 ranks, logits of several hundred"),
        loss_case(4, 8, 512),
        loss_case(2, 7, 10, scale=3, hidden=True),
        loss_case(4, 9, 20, scale=500, name="other ranks, large logits", hidden=True),
        loss_case(4, 64, 1024, hidden=True),
    ),
    draw=draw_logits,
    drive=drive_loss,
    expect=expect_loss,
    tolerance=NEAR,
    budgets=(
        handed_over("hands over ≤ 12 bytes for each token", three_numbers_bytes),
        SENDS_NO_LOGITS,
    ),
    diagnoses=(
        other_words,
        whole_logits,
        one_for_each_token,
        overflows,
        no_gradient,
        as_if(*LOSS_SLIPS),
    ),
)
