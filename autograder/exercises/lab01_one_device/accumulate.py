"""One optimizer step from many micro-batches, equal to the step on the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from autograder.exercise import NAMED_MISTAKES, Budget, Case, Limit, OnRanks, Plain
from autograder.exercise.budget import from_outputs
from autograder.exercise.process_memory import OVERHEAD_BYTES, process_memory_budget
from autograder.exercise.signs import MistakeText, differs_in, on_each_rank, over_budget
from autograder.exercises.lab01_one_device.dynamic_loss_scaler import as_number
from autograder.guest.moments import START, mark
from shardlab.models import GPT, IGNORE, GPTConfig
from shardlab.models.paper_layer import saved_bytes

CONFIG = GPTConfig(layers=1, heads=2, width=16, context=32, vocabulary=40)
FORWARD = "near the end of a forward pass"
# A large last norm gives large gradients, which clipping would change; the rate is small for that.
NORM_WEIGHT = 32.0
LEARNING_RATE, MOMENTUM = 0.5 / NORM_WEIGHT, 0.9
DECAY = 0.1  # of the second parameter group: it moves a parameter that has a gradient of zeros
STEPS = 2  # calls of the answer
OLD_GRADIENT = 0.3  # in every `.grad` before the first call
TOLERANCE = 1e-6
NAMED_WITHIN = 1e-4  # mistakes may lead to weights of any size

Batch = tuple[Tensor, Tensor]


def batches_case(name: str, shapes: list[tuple[int, int]], counts: list[float]) -> Case:
    """shapes: [sequences, tokens] of each micro-batch; counts: the share of targets that count.
    Where some do not, none counts in the last sequence."""
    return Case(name, 1, {"shapes": shapes, "counts": counts})


def draw_batches(case: Case, rng: np.random.Generator) -> Plain:
    """Weights to start from, and micro-batches for two steps."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        weights = GPT(CONFIG).state_dict()
    weights["norm.weight"].fill_(NORM_WEIGHT)
    shares = list(zip(case.params["shapes"], case.params["counts"], strict=True))
    steps = [[draw_batch(rng, shape, share) for shape, share in shares] for _ in range(STEPS)]
    return {"weights": dict(weights), "steps": steps}


def draw_batch(rng: np.random.Generator, shape: tuple[int, int], share: float) -> Batch:
    tokens, targets = torch.from_numpy(rng.integers(CONFIG.vocabulary, size=(2, *shape)))
    sequences = targets if share == 1 else targets[:-1]
    counted = rng.permutation(sequences.numel())[: round(share * targets.numel())]
    ignored = torch.ones(targets.numel(), dtype=torch.bool)
    ignored[torch.from_numpy(counted)] = False
    return tokens, targets.masked_fill(ignored.view(shape), IGNORE)


def model_and_optimizer(given: Plain) -> tuple[GPT, torch.optim.Optimizer]:
    """With two parameter groups, and a parameter that the model does not use."""
    model = GPT(CONFIG)
    model.load_state_dict(given["weights"])
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, OLD_GRADIENT)
    matrices, vectors = parameter_groups(model)
    groups: list[dict[str, Any]] = [
        {"params": matrices},
        {"params": vectors, "weight_decay": DECAY},
    ]
    return model, torch.optim.SGD(groups, lr=LEARNING_RATE, momentum=MOMENTUM)


def parameter_groups(model: GPT) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    parameters = list(model.parameters())
    return [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim == 1]


def output_of(steps: int, model: GPT, losses: list[Plain]) -> Plain:
    weights = parameters_to_vector(model.parameters()).detach()
    return {f"optimizer steps in {STEPS} calls": steps, "weights": weights, "losses": losses}


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    model, optimizer = model_and_optimizer(given)
    steps: list[int] = []
    modes, forwards = [model.training], list[int]()
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    most = most_forward_passes(case)

    def after_norm(*_: Any) -> None:
        if len(forwards) <= most:  # each measurement takes time, and more passes are wrong anyway
            mark(FORWARD)

    narrow: list[bool] = []
    shapes: list[list[int]] = []
    mark(START)
    model.norm.register_forward_hook(after_norm)
    model.register_forward_hook(lambda _, __, logits: narrow.append(logits.dtype.itemsize < 4))
    model.register_forward_pre_hook(lambda *_: modes.append(model.training))
    model.token.register_forward_hook(lambda *_: forwards.append(1))
    model.token.register_forward_pre_hook(lambda _, given: shapes.append(list(given[0].shape)))
    returned, unchanged = [], True
    for batches in given["steps"]:
        copies = [(tokens.clone(), targets.clone()) for tokens, targets in batches]
        returned.append(subject(model, optimizer, copies))
        unchanged &= same_batches(batches, copies)
        modes.append(model.training)
    return {
        **output_of(len(steps), model, [as_number(loss) for loss in returned]),
        "loss is in the graph": any(
            isinstance(loss, Tensor) and loss.requires_grad for loss in returned
        ),
        "training mode": all(modes),
        "micro-batches unchanged": unchanged,
        "forward passes": len(forwards),
        "shapes": shapes[: most + 1],
        "16 bits": any(narrow),
    }


def most_forward_passes(case: Case) -> int:
    return STEPS * len(case.params["shapes"])


def same_batches(some: list[Batch], others: list[Batch]) -> bool:
    return len(some) == len(others) and all(
        torch.equal(a, b)
        for pair in zip(some, others, strict=True)
        for a, b in zip(*pair, strict=True)
    )


@cache
def autograd_bytes(sequences: int, tokens: int) -> int:
    """What autograd saves for one micro-batch."""
    return saved_bytes(GPT(CONFIG), *torch.zeros(2, sequences, tokens, dtype=torch.int64))


def activation_limit_bytes(case: Case) -> float:
    """50 % more than autograd saves: room for logits and for the operators' temporary tensors."""
    return 1.5 * max(autograd_bytes(*shape) for shape in case.params["shapes"])


ONE_AT_A_TIME = Budget(
    "keeps the activations of one micro-batch at a time",
    limit=lambda case: Limit(activation_limit_bytes(case)),
    used=lambda run: run.memory.peak_of("activations").tolist(),
    heading="activations",
)
# Measured only in cases where the activations of several micro-batches would be visible.
FROM_OUTSIDE = process_memory_budget(
    FORWARD, lambda case: most if (most := activation_limit_bytes(case)) > OVERHEAD_BYTES else None
)


ONCE = Budget(
    "at most one forward pass for each micro-batch",
    from_outputs("forward passes"),
    lambda case: Limit(most_forward_passes(case)),
    heading="forward passes",
    unit="passes",
)


keeps_all_activations = over_budget(
    ONE_AT_A_TIME.heading,
    "keeps more activations than one micro-batch needs: call backward for each, which frees them, "
    "before the forward pass of the next, and keep neither its logits nor its loss with the graph",
)


more_forward_passes = over_budget(
    ONCE.heading,
    "runs more forward passes than there are micro-batches (those without gradients count, too): "
    "one pass of a whole micro-batch gives the logits for the loss and for the backward pass",
    "passes",
)


@on_each_rank
def leaves_out_sequences(output: Any, case: Case) -> MistakeText:
    """A rule: their targets do not count, but other models have layers, such as routers or batch
    norms, in which all tokens of a batch meet."""
    whole = [list(shape) for shape in case.params["shapes"]]
    for shape in output["shapes"]:
        if shape not in whole and shape[0] < max(sequences for sequences, _ in whole):
            mistake = (
                "runs the model on part of a micro-batch: its sequences of padding belong to it"
            )
            return mistake, f"tokens of shape {shape}, and micro-batches of {whole}"
    return None


@on_each_rank
def computes_in_16_bits(output: Any) -> MistakeText:
    """A rule, because autocast also keeps copies of weights, which are not recorded."""
    if output["16 bits"]:
        return "runs the model in 16 bits: leave torch.autocast out, as the spec does"
    return None


side_effects = differs_in(
    {
        "training mode": "leaves training mode: the spec calls neither model.eval() nor train()",
        "micro-batches unchanged": "changes the micro-batches, which the next epoch needs, too",
        "loss is in the graph": "returns a loss with its graph, which keeps activations: detach it",
    }
)
EXERCISE = OnRanks(
    points=5,
    cases=(
        batches_case("12 equal micro-batches", [(2, 16)] * 12, [1.0] * 12),
        batches_case("lengths differ", [(4, 8), (4, 32), (4, 20)], [1.0] * 3),
        batches_case("some targets are -100, in one all", [(4, 16)] * 4, [1.0, 0.25, 0.0, 0.75]),
        batches_case("a micro-batch alone", [(6, 16)], [0.5]),
    ),
    inputs=draw_batches,
    drive=drive,
    tolerance=TOLERANCE,
    named_within=NAMED_WITHIN,
    budgets=(ONE_AT_A_TIME, ONCE, FROM_OUTSIDE),
    allows=frozenset(),
    # before the process memory is looked at
    rules=(more_forward_passes, leaves_out_sequences, computes_in_16_bits),
    signs=(side_effects, NAMED_MISTAKES, keeps_all_activations),
    memory=True,
)
