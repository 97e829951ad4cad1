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

from autograder.exercise import Attempt, Finding
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


def reject_nvme(config: Mapping[str, Any]) -> None:
    """DeepSpeed would compile an extension that needs more than the lab has. Raises ValueError."""
    zero = section(config, "zero_optimization")
    for key in ("offload_optimizer", "offload_param"):
        if section(zero, key).get("device") == "nvme":
            raise ValueError(f'{key} is on "nvme": the host\'s memory is "cpu"')


def on_rank_0(of_output: Callable[[Mapping[str, Any], Attempt], MistakeText]) -> Sign:
    """Applies ``of_output`` to rank 0, if no rank failed: all have the same configuration."""

    @functools.wraps(of_output)
    def sign(attempt: Attempt) -> Finding | None:
        said = None if attempt.error else of_output(attempt.outputs[0], attempt)
        return finding("the configuration", said, who_if_hidden="the configuration")

    return sign


# DeepSpeed's own words, that fp16 is not supported on this device, lead astray: on a GPU it is.
asks_for_fp16 = raises(
    "fp16 is not supported", "asks for fp16, not for bf16 as the task does", who="the configuration"
)


def refused(mistake: str) -> Sign:
    """DeepSpeed or `drive` stops with an error; no line of the answer was running."""
    of_error = raises("", mistake, who="the configuration", quoted=True)

    def sign(attempt: Attempt) -> Finding | None:
        is_ours = isinstance(attempt.error, RankError) and not attempt.error.source
        return of_error(attempt) if is_ours else None

    return sign
