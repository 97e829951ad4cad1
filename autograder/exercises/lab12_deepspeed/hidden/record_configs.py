"""Records the answers of `config_lint`: engines that Accelerate prepares from each configuration.

python -m autograder.exercises.lab12_deepspeed.hidden.record_configs

reads what each configuration in the two JSON files asks for ("asked"), and writes what ran ("ran").
NVMe does not run with stage 3 here, which would need libaio.
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

from autograder.exercises.lab12_deepspeed.hidden.config_lint import HIDDEN
from shardlab import launch
from shardlab.recorded_runs.config_runs import RECORDED, Asked, Ran, dump, load

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


def main() -> None:
    for path in (RECORDED, HIDDEN):
        dump({name: (asked, record(asked)) for name, (asked, _) in load(path).items()}, path)


if __name__ == "__main__":
    main()
