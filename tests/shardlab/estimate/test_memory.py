"""The formulas for model states match the published tables and DeepSpeed's own code."""

import os
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal

import numpy as np
import pytest

from shardlab.estimate import memory
from shardlab.estimate.memory import largest_model, model_states

# Table 1 of "ZeRO", arXiv 1910.02054: GB of 10⁹ bytes on one device, Adam in mixed precision.
# {N: {Ψ: (stage 1, stage 2, stage 3)}}, as printed.
ZERO_TABLE = {
    1: {7.5e9: ("120",) * 3, 128e9: ("2048",) * 3, 1e12: ("16000",) * 3},
    4: {
        7.5e9: ("52.5", "41.3", "30"),
        128e9: ("896", "704", "512"),
        1e12: ("7000", "5500", "4000"),
    },
    16: {
        7.5e9: ("35.6", "21.6", "7.5"),
        128e9: ("608", "368", "128"),
        1e12: ("4750", "2875", "1000"),
    },
    64: {
        7.5e9: ("31.4", "16.6", "1.88"),
        128e9: ("536", "284", "32"),
        1e12: ("4187", "2218", "250"),
    },
    256: {
        7.5e9: ("30.4", "15.4", "0.47"),
        128e9: ("518", "263", "8"),
        1e12: ("4046", "2054", "62.5"),
    },
    1024: {
        7.5e9: ("30.1", "15.1", "0.12"),
        128e9: ("513", "257", "2"),
        1e12: ("4011", "2013", "15.6"),
    },
}
CELLS = [
    (parameters, world_size, stage, printed)
    for world_size, columns in ZERO_TABLE.items()
    for parameters, column in columns.items()
    for stage, printed in enumerate(column, start=1)
]


def as_printed(n_bytes: float, printed: str) -> Decimal:
    """With the paper's digits. It rounds up to 100 GB and truncates beyond: 4187.5 is "4187"."""
    gigabytes = Decimal(n_bytes) / 10**9
    rounding = ROUND_DOWN if gigabytes >= 100 else ROUND_HALF_UP
    return gigabytes.quantize(Decimal(printed), rounding=rounding)


@pytest.mark.parametrize(("parameters", "world_size", "stage", "printed"), CELLS)
def test_the_table_of_zero(parameters, world_size, stage, printed):
    states = model_states(parameters, stage=stage, world_size=world_size, precision="fp16")
    assert as_printed(states.device_bytes, printed) == Decimal(printed)
    assert states.host_bytes == 0


def test_figure_1_of_zero():
    """arXiv 1910.02054, figure 1: 7.5B on 64 ranks: 120, 31.4, 16.6, 1.9 GB."""
    states = [model_states(7.5e9, stage=stage, world_size=64) for stage in range(4)]
    gigabytes = [round(each.device_bytes / 1e9, 1) for each in states]
    assert gigabytes == [120, 31.4, 16.6, 1.9]


def test_buffers_that_each_stage_shards():
    """P_os, P_os+g and P_os+g+p in the paper; 8 parameters on 4 ranks, worked by hand."""
    by_stage = [model_states(8, stage=stage, world_size=4).device for stage in range(4)]
    assert by_stage == [
        {"parameters": 16, "gradients": 16, "optimizer": 96},
        {"parameters": 16, "gradients": 16, "optimizer": 24},
        {"parameters": 16, "gradients": 4, "optimizer": 24},
        {"parameters": 4, "gradients": 4, "optimizer": 24},
    ]


@pytest.mark.parametrize(
    ("precision", "optimizer", "bytes_per_parameter"),
    [
        ("fp32", "sgd", 8),
        ("fp32", "momentum", 12),
        ("fp32", "adam", 16),
        ("fp32-master", "adam", 20),
        ("bf16", "sgd", 8),
        ("fp16", "adam", 16),  # arXiv 1910.02054, section 3.1
        # One byte for each of two states, an fp32 scale per block of 256 (bitsandbytes 0.50).
        ("bf16", "adam8bit", 2 + 2 + 4 + 2 + 2 * 4 / 256),
    ],
)
def test_bytes_per_parameter(precision, optimizer, bytes_per_parameter):
    states = model_states(2048, precision=precision, optimizer=optimizer)
    assert states.device_bytes == 2048 * bytes_per_parameter


def test_zero_offload_keeps_2_bytes_on_the_device_and_14_on_the_host():
    """arXiv 2101.06840, section 3: 2M of 16M bytes stay on the device, the rest moves."""
    states = model_states(10e9, stage=2, offload_optimizer=True)
    assert (states.device_bytes, states.host_bytes) == (20e9, 140e9)
    sharded = model_states(10e9, stage=2, world_size=4, offload_optimizer=True)
    assert (sharded.device_bytes, sharded.host_bytes) == (20e9, 35e9)


def test_13_billion_on_one_32_gb_v100():
    """arXiv 2101.06840, abstract: 13B on one GPU with ZeRO-Offload, and not without."""
    assert largest_model(32e9, stage=2, offload_optimizer=True) >= 13e9
    assert largest_model(32e9) == 2e9  # the paper trains 1.4B: activations need memory as well


def test_stage_1_offloads_a_shard_but_keeps_all_gradients():
    states = model_states(8, stage=1, world_size=4, offload_optimizer=True)
    assert states.device == {"parameters": 16, "gradients": 16, "optimizer": 0}
    assert states.host == {"parameters": 0, "gradients": 4, "optimizer": 24}


def test_with_parameters_offloaded_only_the_layer_in_use_is_on_the_device():
    states = model_states(
        1000,
        stage=3,
        world_size=4,
        offload_optimizer=True,
        offload_parameters=True,
        largest_layer=100,
    )
    assert states.device == {"parameters": 200, "gradients": 200, "optimizer": 0}
    assert states.host == {"parameters": 500, "gradients": 500, "optimizer": 3000}


# ---- DeepSpeed's conventions --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "convention", "gigabytes"),
    [
        # https://deepspeed.readthedocs.io/en/latest/memory.html: t5-3b, 8 GPUs of one node,
        # "2851M total params, 32M largest layer params".  Its "GB" are GiB.
        ({"stage": 2, "offload_optimizer": True}, "deepspeed-docs", 5.31),
        ({"stage": 2}, "deepspeed-docs", 15.93),
        ({"stage": 3}, "deepspeed-docs", 6.10),
        ({"stage": 2}, "deepspeed", 11.29),  # computed by the code of 0.19.8
        ({"stage": 2, "offload_optimizer": True}, "deepspeed", 5.31),
        ({"stage": 3}, "deepspeed", 6.10),
    ],
)
def test_t5_3b(options, convention, gigabytes):
    # Two decimals need the exact counts: the token embedding is 32,128 × 1,024.
    parameters, largest_layer = 2_851_598_336, 32_899_072
    states = model_states(
        parameters, world_size=8, convention=convention, largest_layer=largest_layer, **options
    )
    assert round(states.device_bytes / 2**30, 2) == gigabytes


@pytest.fixture(scope="module")
def deepspeed_estimators():
    """(stage 2's, stage 3's), both returning (bytes on a node's host, bytes on a GPU, …)."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    return estimate_zero2_model_states_mem_needs, estimate_zero3_model_states_mem_needs


def test_agreement_with_deepspeed_on_random_models(deepspeed_estimators):
    zero2, zero3 = deepspeed_estimators
    rng = np.random.default_rng(3)
    for _ in range(200):
        gpus, nodes = int(rng.integers(1, 17)), int(rng.integers(1, 65))
        parameters = int(rng.integers(10**3, 10**12))
        largest = parameters // int(rng.integers(1, 100))
        offload = bool(rng.integers(2))
        offload_parameters = offload and bool(rng.integers(2))
        common = {
            "world_size": gpus * nodes,
            "ranks_per_node": gpus,
            "convention": "deepspeed",
            "offload_optimizer": offload,
        }
        theirs = zero2(parameters, gpus, nodes, cpu_offload=offload)
        ours = model_states(parameters, stage=2, **common)
        check_agreement(ours, theirs, gpus)
        theirs = zero3(
            parameters,
            largest,
            gpus,
            nodes,
            cpu_offload=offload,
            cpu_offload_params=offload_parameters,
        )
        ours = model_states(
            parameters,
            stage=3,
            largest_layer=largest,
            offload_parameters=offload_parameters,
            **common,
        )
        check_agreement(ours, theirs, gpus)


def check_agreement(ours: memory.ModelStates, theirs: tuple[int, ...], gpus: int) -> None:
    """DeepSpeed truncates to whole bytes, in some places twice."""
    assert ours.host_bytes * gpus == pytest.approx(theirs[0], rel=1e-12, abs=2)
    assert ours.device_bytes == pytest.approx(theirs[1], rel=1e-12, abs=2)
    assert all(size >= 0 for size in ours.host.values())


# ---- the largest model --------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 4, 7, 1024])
@pytest.mark.parametrize(
    "options",
    [
        {"stage": 0},
        {"stage": 1, "optimizer": "adam8bit"},
        {"stage": 2, "precision": "fp32"},
        {"stage": 3, "largest_layer": 12_345_678},
        {"stage": 3, "convention": "deepspeed"},
        {"stage": 2, "offload_optimizer": True},
    ],
)
def test_the_largest_model_fits_and_one_parameter_more_does_not(options, world_size):
    capacity_bytes = 80 * 2**30 + 1
    most = largest_model(capacity_bytes, world_size=world_size, **options)
    for parameters, fits in ((most, True), (most + 1, False)):
        states = model_states(parameters, world_size=world_size, **options)
        assert (states.device_bytes <= capacity_bytes) == fits


def test_largest_models_of_zero():
    """arXiv 1910.02054, table 2, "maximum theoretical model size": 64 GPUs of 32 GB.

    Baseline 2B, P_os 7.6B, P_os+g 14.4B, P_os+g+p 128B.
    """
    largest = [largest_model(32e9, stage=stage, world_size=64) for stage in range(4)]
    assert [float(f"{most / 1e9:.1f}") for most in largest] == [2, 7.6, 14.4, 128]


def test_the_host_can_set_the_limit():
    offloaded = {"stage": 2, "offload_optimizer": True}
    assert largest_model(32e9, host_capacity_bytes=140e9, **offloaded) == 10e9
    everything = {"stage": 3, "offload_optimizer": True, "offload_parameters": True}
    assert largest_model(1e9, host_capacity_bytes=160e9, **everything) == 10e9
    with pytest.raises(ValueError, match="pass host_capacity_bytes"):
        largest_model(1e9, **everything)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stage": 4}, r"one of 0, 1, 2, 3"),
        ({"world_size": 0}, "1 or more"),
        ({"world_size": 1.5}, "a whole number of ranks"),
        ({"parameters": -1}, "0 or more"),
        ({"parameters": float("nan")}, "0 or more"),
        ({"precision": "fp8"}, "'fp32', 'fp32-master', 'fp16', 'bf16'"),
        ({"optimizer": "lion"}, "'adam8bit'"),
        ({"convention": "megatron"}, "'paper', 'deepspeed', 'deepspeed-docs'"),
        ({"stage": 0, "offload_optimizer": True}, "use stage 1, 2 or 3"),
        ({"stage": 2, "offload_parameters": True}, "needs stage=3"),
        ({"stage": 3, "largest_layer": 11}, "between 0 and parameters=10"),
        ({"stage": 1, "convention": "deepspeed"}, "stages 2 and 3"),
        ({"stage": 2, "convention": "deepspeed", "optimizer": "sgd"}, "convention='paper'"),
        ({"stage": 2, "convention": "deepspeed", "ranks_per_node": 3}, "does not divide"),
        (
            {"stage": 3, "convention": "deepspeed", "offload_parameters": True},
            "only together with offload_optimizer",
        ),
    ],
)
def test_invalid_arguments_raise(wrong, message):
    with pytest.raises(ValueError, match=message):
        model_states(**{"parameters": 10, "world_size": 4, **wrong})


def test_a_capacity_below_one_layer_raises():
    with pytest.raises(ValueError, match="is too small for one gathered layer, which needs"):
        largest_model(1000, stage=3, world_size=4, largest_layer=1000)
