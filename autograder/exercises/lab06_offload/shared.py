"""DeepSpeed configurations: a real engine starts with each one and reports its actual setup.

A configuration is right when an engine starts with it, takes a step, and then reports what was
asked for: stage, batch, precision, what is on which device, and the sizes of its buffers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from autograder.exercise import Attempt, Finding, equal
from autograder.exercise.form import Sign
from autograder.exercise.signs import MistakeText, finding, raises
from shardlab import placement
from shardlab.errors import RankError

WIDTH = 64  # of the square layers of the model that is trained
# Added to every configuration: they allow torch's own AdamW, which the driver passes in.
ALWAYS = {
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "gradient_clipping": 0.0,
    "steps_per_print": 10**9,
}
DEEPSPEED_TIMEOUT_S = 60.0  # includes the first start of DeepSpeed's fork server


def start_engine(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """Starts a real engine, takes one optimizer step, and returns what the engine reports.

    Runs on every rank.  The model has ``layers`` square matrices of WIDTH² parameters each.
    """
    import deepspeed

    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)])
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    config = {**config, **ALWAYS}
    engine = deepspeed.initialize(model=model, optimizer=adam, config=config)[0]
    # DeepSpeed accepts floats as batch sizes.
    sequences = torch.randn(int(engine.train_micro_batch_size_per_gpu()), WIDTH)
    for _ in range(int(engine.gradient_accumulation_steps())):
        output = engine(sequences.to(next(model.parameters()).dtype))
        engine.backward(output.float().pow(2).mean())
        engine.step()
    return {
        **placement.of_deepspeed(engine),
        "bucket_size": int(engine._config.zero_config.allgather_bucket_size),
        "steps": int(engine.global_steps),
    }


def section(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    return found if isinstance(found := config.get(key), dict) else {}


def asks_for_nvme(config: Mapping[str, Any]) -> list[str]:
    """The keys that do; DeepSpeed then compiles an extension that needs more than the lab has."""
    zero = section(config, "zero_optimization")
    keys = ("offload_optimizer", "offload_param")
    return [key for key in keys if section(zero, key).get("device") == "nvme"]


def on_rank_0(of_output: Callable[[Mapping[str, Any], Attempt], MistakeText]) -> Sign:
    """Applies ``of_output`` to rank 0, if no rank failed: all have the same configuration."""

    @functools.wraps(of_output)
    def sign(attempt: Attempt) -> Finding | None:
        said = None if attempt.error else of_output(attempt.outputs[0], attempt)
        return finding("the configuration", said, who_if_hidden="the configuration")

    return sign


@on_rank_0
def offloads_to_nvme(output: Mapping[str, Any], attempt: Attempt) -> MistakeText:
    if keys := output.get("nvme"):
        return 'asks for offload to "nvme": the host\'s memory is "cpu"', ", ".join(keys)
    return None


def refused(mistake: str, pattern: str = "") -> Sign:
    """DeepSpeed stops with an error that matches the pattern; no line of the answer was running."""
    of_error = raises(pattern, mistake, who="the configuration", quoted=True)

    def sign(attempt: Attempt) -> Finding | None:
        is_ours = isinstance(attempt.error, RankError) and not attempt.error.source
        return of_error(attempt) if is_ours else None

    return sign


def shown(value: Any) -> str:
    """A value of the engine's report, as a message has it."""
    if isinstance(value, dict):
        return str(value["place"])
    return f"{value:,}" if type(value) is int else str(value)


def engine_differs(**mistakes: str) -> Sign:
    """``mistakes``: {key of the engine's report: message if its value is not the expected one}."""

    @on_rank_0
    def differs(output: Mapping[str, Any], attempt: Attempt) -> MistakeText:
        expected = attempt.expected[0]
        for key, mistake in mistakes.items():
            if key in expected and key in output and not equal(expected[key], output[key]):
                made, wanted = shown(output[key]), shown(expected[key])
                return mistake, f"the engine reports {key} {made}, not {wanted}"
        return None

    return differs
