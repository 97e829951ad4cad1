"""DeepSpeed's configurations: each is given to a real engine, which reports what it made of it.

A configuration is right when an engine starts with it, takes a step, and then reports what was
asked for: stage, batch, precision, what lives where, and the sizes of its own buffers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from autograder.exercise import Attempt, Finding, equal
from autograder.exercise.form import Sign
from autograder.exercise.signs import Said, finding, raises
from shardlab import placement

WIDTH = 64  # of the square layers of the model that is trained
# Added to every configuration: they allow torch's own AdamW, which the driver passes in.
ALWAYS = {
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "gradient_clipping": 0.0,
    "steps_per_print": 10**9,
}
DEEPSPEED_TIMEOUT_S = 60.0  # the first start of DeepSpeed's server is among them


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
    sequences = torch.randn(engine.train_micro_batch_size_per_gpu(), WIDTH)
    for _ in range(engine.gradient_accumulation_steps()):
        output = engine(sequences.to(next(model.parameters()).dtype))
        engine.backward(output.float().pow(2).mean())
        engine.step()
    return {
        **placement.of_deepspeed(engine),
        "bucket_size": int(engine._config.zero_config.allgather_bucket_size),
        "steps": int(engine.global_steps),
    }


def about_the_config(of_output: Callable[[Mapping[str, Any], Attempt], Said]) -> Sign:
    """Asks ``of_output`` for rank 0, where none failed: all ranks get the same configuration."""

    @functools.wraps(of_output)
    def sign(attempt: Attempt) -> Finding | None:
        said = None if attempt.error else of_output(attempt.outputs[0], attempt)
        return finding("the configuration", said, anyone="the configuration")

    return sign


refused = functools.partial(raises, who="the configuration", quoted=True)


def other_than_wanted(**mistakes: str) -> Sign:
    """By what the engine reports: what is said where it is not as expected."""

    @about_the_config
    def is_other(output: Mapping[str, Any], attempt: Attempt) -> Said:
        expected = attempt.expected[0]
        for key, mistake in mistakes.items():
            if key in expected and key in output and not equal(expected[key], output[key]):
                return mistake, f"the engine reports {key} {output[key]}, not {expected[key]}"
        return None

    return is_other
