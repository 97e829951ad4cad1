"""Where DeepSpeed places parameters and optimizer state, read from live engines."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shardlab import launch, placement

PARAMETERS = 2 * 64 * 64
NOT_PINNED = {"device": "cpu", "pin_memory": False}


def start_engines(zero_configs):
    import deepspeed

    found = []
    for zero in zero_configs:
        model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
        config = {
            "train_micro_batch_size_per_gpu": 3,
            "gradient_accumulation_steps": 2,
            "bf16": {"enabled": True},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": zero,
        }
        optimizer = torch.optim.AdamW(model.parameters())
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        found.append(placement.of_deepspeed(engine))
    return found


@pytest.mark.ranks
def test_stages_and_offload_are_read_from_live_engines():
    """(stage, parameters' place and elements, optimizer's place and elements, pinned)"""
    whole, half = PARAMETERS, PARAMETERS // 2
    expected = {
        (0, "device", whole, "device", whole, False): {"stage": 0},
        (1, "device", whole, "host", half, False): {"stage": 1, "offload_optimizer": NOT_PINNED},
        (2, "device", whole, "device", half, False): {"stage": 2},
        # pinned is DeepSpeed's default; cpu_offload is an old name
        (2, "device", whole, "host", half, True): {"stage": 2, "cpu_offload": True},
        (3, "device", half, "host", half, False): {"stage": 3, "offload_optimizer": NOT_PINNED},
        (3, "host", half, "host", half, True): {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "offload_param": {"device": "cpu"},
        },
    }
    # only stage 3 reads this; DeepSpeed does not warn
    silent = {"stage": 2, "offload_param": {"device": "cpu"}}
    zero_configs = [*expected.values(), silent]
    run = launch(start_engines, zero_configs, world_size=2, device="cpu", timeout_s=60)
    for found in run.outputs:
        assert [flat(engine) for engine in found[:-1]] == list(expected)
        assert flat(found[-1]) == (2, "device", whole, "device", half, False)
        assert {engine["global_batch"] for engine in found} == {3 * 2 * 2}
        assert {engine["precision"] for engine in found} == {"bfloat16"}


def flat(engine):
    parameters, optimizer = engine["parameters"], engine["optimizer"]
    return (
        engine["stage"],
        parameters["place"],
        parameters["elements"],
        optimizer["place"],
        optimizer["elements"],
        engine["pinned"],
    )
