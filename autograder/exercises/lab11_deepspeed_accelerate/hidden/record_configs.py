"""Records the answers of `config_lint`: engines that Accelerate prepares from each configuration.

python -m autograder.exercises.lab11_deepspeed_accelerate.hidden.record_configs
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autograder.exercises.lab11_deepspeed_accelerate.configurations import (
    ACCUMULATION,
    AUTO,
    MICRO,
    ON_HOST,
    VISIBLE,
    asked_of,
    text_of,
)
from shardlab import launch
from shardlab.recorded_runs.config_runs import RECORDED, Asked, Ran, dump

HIDDEN = Path(__file__).with_name("configs.json")
WIDTH, SAMPLES = 4, 512


def launched(folder: Path, asked: Asked) -> dict[str, str]:
    """The ranks' environment and WORLD_SIZE, as `accelerate launch` sets them."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    (folder / "ds.json").write_text(asked["json_text"])
    section = {**asked["yaml"]["deepspeed_config"], "deepspeed_config_file": f"{folder}/ds.json"}
    # Without a port, the launcher of the first machine would look for a free one.
    elsewhere = {"main_process_port": 0, "main_process_ip": "127.0.0.1"}
    file = {**asked["yaml"], **elsewhere, "deepspeed_config": section}
    (folder / "accelerate.yaml").write_text(json.dumps(file))  # JSON is YAML
    command = ["--config_file", f"{folder}/accelerate.yaml", "train.py"]
    args, defaults, from_config = _validate_launch_command(
        launch_command_parser().parse_args(command)
    )
    fields = [*defaults.deepspeed_config, *(["mixed_precision"] if from_config else [])]
    args.deepspeed_fields_from_accelerate_config = ",".join(fields)
    _, env = prepare_deepspeed_cmd_env(args)
    found = {key: value for key, value in env.items() if key.startswith("ACCELERATE_")}
    nodes = int(getattr(args, "nnodes", None) or 1)
    return found | {"WORLD_SIZE": str(nodes * int(args.nproc_per_node))}


def train(asked: Asked, env: Mapping[str, str]) -> Ran:
    """The training script on a rank, up to its first optimizer step."""
    import accelerate
    from accelerate.utils import DummyOptim, InitProcessGroupKwargs

    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()
    script = asked["script"]
    with mock.patch.dict(os.environ, env):
        accelerator = accelerate.Accelerator(
            mixed_precision=script["mixed_precision"],
            gradient_accumulation_steps=script["accumulation"],
            kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")],
        )
    model = nn.Linear(WIDTH, WIDTH)
    optimizers = {"AdamW": torch.optim.AdamW, "SGD": torch.optim.SGD, "DummyOptim": DummyOptim}
    optimizer = optimizers[script["optimizer"]](model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(SAMPLES, WIDTH))
    loaders = [DataLoader(data, batch_size=size) for size in script["loaders"].values()]
    engine, optimizer, batches, *_ = accelerator.prepare(model, optimizer, *loaders)
    dtype, used = next(engine.parameters()).dtype, 0
    for (batch,) in batches:
        with accelerator.accumulate(engine):
            accelerator.backward(engine(batch.to(dtype)).float().square().mean())
            optimizer.step()
            optimizer.zero_grad()
        used += len(batch)
        if engine.global_steps:
            break
    return {
        "stage": engine.zero_optimization_stage(),
        "dtype": str(dtype).removeprefix("torch."),
        "accumulation": engine.gradient_accumulation_steps(),
        "micro_batch": engine.train_micro_batch_size_per_gpu(),
        "global_batch": engine.train_batch_size(),
        "samples": int(accelerator.reduce(torch.tensor(used), "sum")),
        "clipping": engine.gradient_clipping(),
        "optimizer": type(engine.basic_optimizer).__name__,
    }


def record(asked: Asked) -> Ran:
    with TemporaryDirectory() as folder:
        env = launched(Path(folder), asked)
        ranks = int(env.pop("WORLD_SIZE"))
        run = launch(train, asked, env, world_size=ranks, device="cpu", engine="deepspeed")
    first, *others = run.outputs
    assert all(each == first for each in others), run.outputs
    return dict(first)


# {case: {name: what was asked}}
OF_CASES = {
    "configurations with other numbers": {
        "auto": asked_of(
            {
                "train_batch_size": AUTO,
                MICRO: AUTO,
                ACCUMULATION: AUTO,
                "bf16": {"enabled": AUTO},
                "zero_optimization": {
                    "stage": 3,
                    "offload_param": {"device": "cpu", "pin_memory": False},
                },
            },
            processes=4,
            machines=4,
            loaders=(6, 3),
            accumulation=5,
        ),
        "numbers": asked_of(
            {
                MICRO: 2,
                ACCUMULATION: 3,
                "gradient_clipping": 5.0,
                "bf16": {"enabled": True},
                "zero_optimization": {"stage": 0},
            },
            processes=3,
            loaders=(4, 1),
            accumulation=2,
            optimizer="SGD",
        ),
        "one process": asked_of(
            {"train_batch_size": 20, ACCUMULATION: 5, "zero_optimization": {"stage": 2}},
            processes=1,
            loaders=(2, 1),
            accumulation=4,
            mixed_precision="bf16",
        ),
    },
    "other keys that are repeated, misplaced or left out": {
        "repeated": asked_of(
            text_of(
                (MICRO, 2),
                (ACCUMULATION, AUTO),
                ("zero_optimization", {"stage": 2}),
                (ACCUMULATION, 3),
                ("bf16", {"enabled": False}),
                (MICRO, 4),
                ("bf16", {"enabled": AUTO}),
            ),
            processes=2,
            loaders=(4,),
            accumulation=4,
            mixed_precision="bf16",
        ),
        "misplaced": asked_of(
            {
                MICRO: AUTO,
                "stage": 2,
                **ON_HOST,
                "enabled": True,
                "bf16": {},
                "optimizer_type": "SGD",
                "zero_optimization": {"stage": 1},
            },
            processes=2,
            loaders=(4, 12),
            accumulation=3,
            mixed_precision="bf16",
        ),
        "all left out": asked_of(
            {"train_batch_size": 12, "zero_optimization": {}},
            processes=2,
            loaders=(3, 5),
            accumulation=2,
        ),
    },
    "other owners of the optimizer": {
        "on the host": asked_of(
            {MICRO: AUTO, "gradient_clipping": AUTO, "zero_optimization": {"stage": 3, **ON_HOST}},
            processes=2,
            loaders=(4, 2),
            mixed_precision="bf16",
        ),
        "on the host, no AdamW": asked_of(
            {MICRO: AUTO, "zero_optimization": {"stage": 1, **ON_HOST}},
            processes=3,
            loaders=(2,),
            optimizer="SGD",
        ),
        "on NVMe": asked_of(  # not stage 3, which would need libaio
            {
                MICRO: AUTO,
                "zero_optimization": {
                    "stage": 1,
                    "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"},
                },
            },
            processes=2,
            loaders=(4, 2),
        ),
        "on the device": asked_of(
            {
                MICRO: 8,
                "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}},
            },
            processes=2,
        ),
        "from the file": asked_of(
            {
                MICRO: 8,
                "optimizer": {"type": "AdamW", "params": {"lr": AUTO}},
                "zero_optimization": {"stage": 1, **ON_HOST},
            },
            processes=2,
            optimizer="DummyOptim",
        ),
        "from the file, no AdamW": asked_of(
            {
                MICRO: 8,
                "optimizer": {"type": "SGD", "params": {"lr": AUTO}},
                "zero_allow_untested_optimizer": True,
                "zero_optimization": {"stage": 1, **ON_HOST},
            },
            processes=2,
            optimizer="DummyOptim",
        ),
    },
}
HIDDEN_CONFIGURATIONS = {
    f"{case}: {name}": asked for case, named in OF_CASES.items() for name, asked in named.items()
}


def main() -> None:
    for recipes, path in ((VISIBLE, RECORDED), (HIDDEN_CONFIGURATIONS, HIDDEN)):
        dump({name: (asked, record(asked)) for name, asked in recipes.items()}, path)


if __name__ == "__main__":
    main()
