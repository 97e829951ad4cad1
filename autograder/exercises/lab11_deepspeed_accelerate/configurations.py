"""The configurations in the visible cases of `config_lint`, and helpers to write one."""

from __future__ import annotations

import json
from typing import Any

from shardlab.recorded_runs.config_runs import Asked

AUTO = "auto"
MICRO = "train_micro_batch_size_per_gpu"
ACCUMULATION = "gradient_accumulation_steps"
ON_HOST = {"offload_optimizer": {"device": "cpu", "pin_memory": False}}


def text_of(*pairs: tuple[str, Any]) -> str:
    """The text of a JSON file that may contain a key twice."""
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in pairs)
    return f"{{\n{lines}\n}}"


def asked_of(
    config: str | dict[str, Any],
    processes: int,
    machines: int = 1,
    loaders: tuple[int, ...] = (8,),
    accumulation: int = 1,
    mixed_precision: str = "no",
    optimizer: str = "AdamW",
) -> Asked:
    """``loaders``: batch sizes of the training loader and of the evaluation loader."""
    zero3_init = {"zero3_init_flag": False}
    many = {"deepspeed_multinode_launcher": "standard"} if machines > 1 else {}
    return {
        "json_text": config if isinstance(config, str) else json.dumps(config, indent=1),
        "yaml": {
            "compute_environment": "LOCAL_MACHINE",
            "distributed_type": "DEEPSPEED",
            "deepspeed_config": {"deepspeed_config_file": "ds.json", **zero3_init, **many},
            "num_machines": machines,
            "num_processes": processes,
            "machine_rank": 0 if machines == 1 else 1,
            "same_network": True,
        },
        "script": {
            "mixed_precision": mixed_precision,
            "accumulation": accumulation,
            "optimizer": optimizer,
            "loaders": dict(zip(("train", "evaluation"), loaders, strict=False)),
        },
    }


VISIBLE = {
    "A": asked_of(
        {
            "train_batch_size": AUTO,
            MICRO: AUTO,
            ACCUMULATION: AUTO,
            "gradient_clipping": AUTO,
            "bf16": {"enabled": AUTO},
            "zero_optimization": {"stage": 2},
        },
        processes=4,
        machines=2,
        loaders=(8, 2),
        accumulation=4,
        mixed_precision="bf16",
    ),
    "B": asked_of(
        {
            MICRO: 4,
            "gradient_clipping": 0.5,
            "bf16": {"enabled": False},
            "zero_optimization": {"stage": 3},
        },
        processes=2,
        accumulation=4,
        mixed_precision="bf16",
        optimizer="SGD",
    ),
    "C": asked_of(
        {
            "train_batch_size": 48,
            ACCUMULATION: AUTO,
            "zero_optimization": {"stage": 1},
        },
        processes=2,
        loaders=(8, 4),
        accumulation=3,
        mixed_precision="bf16",
    ),
    "D": asked_of(
        text_of(
            (MICRO, AUTO),
            (ACCUMULATION, 2),
            ("gradient_clipping", 0.5),
            ("zero_optimization", {"stage": 3}),
            ("bf16", {"enabled": True}),
            ("gradient_clipping", 2.0),
            ("zero_optimization", {"stage": 1}),
        ),
        processes=2,
        loaders=(6, 16),
        accumulation=2,
    ),
    "E": asked_of(
        {
            MICRO: AUTO,
            ACCUMULATION: 2,
            "stage": 3,
            **ON_HOST,
            "bf16": {},
            "zero_optimization": {"reduce_bucket_size": 1000},
        },
        processes=4,
        accumulation=4,
        mixed_precision="bf16",
    ),
    "F": asked_of(
        {
            MICRO: AUTO,
            ACCUMULATION: AUTO,
            "gradient_clipping": 0.0,
            "zero_optimization": {"stage": 2, **ON_HOST},
        },
        processes=2,
        accumulation=2,
        loaders=(8, 8),
        optimizer="SGD",
    ),
    "G": asked_of(
        {
            MICRO: AUTO,
            ACCUMULATION: AUTO,
            "optimizer": {"type": "SGD", "params": {"lr": AUTO}},
            "fp16": {"enabled": AUTO},
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "none"}},
        },
        processes=1,
        mixed_precision="bf16",
        optimizer="DummyOptim",
    ),
    "H": asked_of(
        {
            MICRO: 4,
            "optimizer": {"type": "AdamW", "params": {"lr": AUTO}},
            "zero_optimization": {"stage": 3, **ON_HOST},
        },
        processes=2,
        loaders=(4,),
        optimizer="DummyOptim",
    ),
}
