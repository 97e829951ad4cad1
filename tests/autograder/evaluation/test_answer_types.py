"""Exercises can ask for a function on ranks, a class, plain data or a number."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist

from autograder.evaluation.decide import decide
from autograder.exercise import Budget, Case, Finding, Limit, sent_bytes
from tests.autograder.exercise_halves import on_ranks

pytestmark = pytest.mark.ranks
ONE = Case("one process", 1)


def verdict_on(exercise, subject):
    return decide(exercise, cloudpickle.dumps(subject), seed=3)


def shift(tensor):
    """Sends its tensor to the right and returns the one from the left."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sending = dist.isend(tensor, (rank + 1) % world_size)
    received = torch.empty_like(tensor)
    dist.recv(received, (rank - 1) % world_size)
    sending.wait()
    return received


FUNCTION = on_ranks(
    name="kinds.shift",
    points=2,
    cases=(Case("2 ranks", 2), Case("3 ranks", 3, hidden=True)),
    inputs=lambda case, rng: list(torch.from_numpy(rng.integers(0, 99, (case.world_size, 2**15)))),
    drive=lambda subject, given, case: subject(given),
    reference=lambda case, inputs: [inputs[rank - 1] for rank in range(case.world_size)],
    budgets=(
        Budget(
            "sends ≤ 1.01 × ideal bytes per rank",
            sent_bytes,
            limit=lambda case: Limit(1.01 * 2**18, least=2**18),
        ),
    ),
    allows=frozenset({"send", "recv"}),
)


def test_function_on_ranks():
    assert verdict_on(FUNCTION, shift).points == 2.0
    verdict = verdict_on(FUNCTION, lambda tensor: tensor)
    assert verdict.points == 0.0
    assert verdict.cases[0].diagnosis.startswith("rank 0 has wrong values")


class Doubled(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width, bias=False)

    def forward(self, x):
        return 2 * self.linear(x)


def drive_module(subject, given, case):
    module = subject(case.params["width"])
    with torch.no_grad():
        next(module.parameters()).copy_(given["weight"])
    return {"y": module(given["x"]), "parameters": sum(p.numel() for p in module.parameters())}


MODULE = on_ranks(
    name="kinds.module",
    points=1,
    cases=(Case("width 4", 1, {"width": 4}),),
    inputs=lambda case, rng: [
        {"weight": torch.eye(4), "x": torch.from_numpy(rng.random((2, 4), dtype=np.float32))}
    ],
    drive=drive_module,
    reference=lambda case, inputs: [{"y": 2 * inputs[0]["x"], "parameters": 16}],
)


def test_module_class():
    assert verdict_on(MODULE, Doubled).passed
    wrong = type("Plain", (Doubled,), {"forward": lambda self, x: self.linear(x)})
    assert "wrong values in 'y'" in verdict_on(MODULE, wrong).cases[0].diagnosis


class SignDescent(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad.sign()


def drive_optimizer(subject, given, case):
    parameter = torch.nn.Parameter(given["start"].clone())
    parameter.grad = given["gradient"]
    subject([parameter], lr=0.5).step()
    return parameter


OPTIMIZER = on_ranks(
    name="kinds.optimizer",
    points=1,
    cases=(ONE,),
    inputs=lambda case, rng: [
        {"start": torch.zeros(3), "gradient": torch.from_numpy(rng.normal(size=3)).float()}
    ],
    drive=drive_optimizer,
    reference=lambda case, inputs: [-0.5 * inputs[0]["gradient"].sign()],
)


def test_optimizer_class():
    assert verdict_on(OPTIMIZER, SignDescent).passed
    assert not verdict_on(OPTIMIZER, torch.optim.SGD).passed


def wants_stage_2(attempt):
    stage = attempt.outputs[0]["stage"] if attempt.outputs[0] else None
    if stage == 2:
        return None
    return Finding("the configuration", "does not shard gradients: that is stage 2", f"{stage}")


CONFIGURATION = on_ranks(
    name="kinds.configuration",
    points=1,
    cases=(ONE,),
    inputs=lambda case, rng: [None],
    drive=lambda subject, given, case: subject,
    reference=lambda case, inputs: [{"stage": 2, "schedule": [["F0", "F1"], ["B0", "B1"]]}],
    signs=(wants_stage_2,),
)


def test_configuration_and_schedule():
    right = {"stage": 2, "schedule": [["F0", "F1"], ["B0", "B1"]], "note": "mine"}
    assert verdict_on(CONFIGURATION, right).passed
    verdict = verdict_on(CONFIGURATION, right | {"stage": 1})
    assert verdict.cases[0].diagnosis == (
        "the configuration does not shard gradients: that is stage 2 (1)"
    )


NUMBER = on_ranks(
    name="kinds.number",
    points=1,
    cases=(ONE,),
    inputs=lambda case, rng: [None],
    drive=lambda subject, given, case: subject,
    reference=lambda case, inputs: [31.4],
    tolerance=0.01,
)


def test_number():
    assert verdict_on(NUMBER, 31.5).passed
    assert not verdict_on(NUMBER, 120).passed
    assert not verdict_on(NUMBER, None).passed
    assert not verdict_on(NUMBER, float("nan")).passed
