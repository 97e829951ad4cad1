"""Layouts read from real FSDP2 and DeepSpeed ranks."""

import pytest

from shardlab import launch, shards
from shardlab.shards import BUFFERS

pytestmark = pytest.mark.ranks


def make_model():
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 7))


SHAPES = {"0.weight": (5, 3), "0.bias": (5,), "2.weight": (7, 5), "2.bias": (7,)}


@pytest.fixture(scope="module")
def fsdp2():
    """Layouts: "backward" (before the step), "step" (after it), "hybrid" (2 replicas, 2 shards)."""

    def fn():
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model = make_model()
        for part in (model[0], model[2], model):
            fully_shard(part)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 3)).sum().backward()
        before = shards.of_fsdp2(model, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        after = shards.of_fsdp2(model, optimizer)
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        hybrid = fully_shard(make_model(), mesh=mesh)
        return before, after, shards.of_fsdp2(hybrid)

    outputs = launch(fn, world_size=4, device="cpu").outputs
    return {
        phase: shards.gather([reports[i] for reports in outputs])
        for i, phase in enumerate(("backward", "step", "hybrid"))
    }


def test_fsdp2_shards_by_rows_and_pads(fsdp2) -> None:
    formula = shards.flat(SHAPES, 4, stage=3, precision="fp32", cut="rows")
    live = fsdp2["backward"]
    assert live.tensors == formula.tensors
    assert live.length == formula.length
    for buffer in ("parameters", "gradients"):
        assert live.segments[buffer] == formula.segments[buffer]
    assert live.segments["optimizer"] == ()


def test_fsdp2_does_not_pad_optimizer_state(fsdp2) -> None:
    live = fsdp2["step"]
    formula = shards.flat(SHAPES, 4, stage=3, precision="fp32", cut="rows")
    assert live.segments["optimizer"] == tuple(
        part for part in formula.segments["optimizer"] if part.tensor >= 0
    )
    assert live.segments["gradients"] == ()


def test_hybrid_sharding_puts_each_half_on_two_ranks(fsdp2) -> None:
    live = fsdp2["hybrid"]
    halves = shards.flat(SHAPES, 2, stage=3, precision="fp32", cut="rows")
    for rank in range(4):
        assert [(p.tensor, p.start, p.stop, p.at) for p in live.pieces("parameters", rank)] == [
            (p.tensor, p.start, p.stop, p.at) for p in halves.pieces("parameters", rank % 2)
        ]


@pytest.fixture(scope="module")
def deepspeed():
    """Layouts by stage and phase, and the bytes of the gradients' storages on each rank."""

    def fn():
        import deepspeed
        import torch

        def of_groups(stage):
            """fp32, two parameter groups, one frozen parameter, small persistent parameters."""
            model = make_model()
            model[0].bias.requires_grad_(False)
            trained = [p for p in model.parameters() if p.requires_grad]
            groups = [{"params": [p for p in trained if p.dim() == dim]} for dim in (2, 1)]
            engine, *_ = deepspeed.initialize(
                model=model,
                optimizer=torch.optim.AdamW(groups),
                config={
                    "train_micro_batch_size_per_gpu": 2,
                    "steps_per_print": 10**9,
                    "zero_allow_untested_optimizer": True,
                    "zero_optimization": {
                        "stage": stage,
                        "stage3_param_persistence_threshold": 10,
                        "reduce_bucket_size": 1000,
                    },
                },
            )
            engine.backward(engine(torch.ones(2, 3)).sum())
            kept = engine.optimizer.averaged_gradients
            storages = {
                gradient.untyped_storage().data_ptr(): gradient.untyped_storage().nbytes()
                for group in kept.values()
                for gradient in group
            }
            return shards.of_deepspeed(engine), sum(storages.values())

        reports = {"groups": of_groups(2)}
        for stage in (0, 1, 2, 3):
            model = make_model()
            engine, *_ = deepspeed.initialize(
                model=model,
                optimizer=torch.optim.AdamW(model.parameters()),
                config={
                    "train_micro_batch_size_per_gpu": 2,
                    "gradient_clipping": 0.0,
                    "steps_per_print": 10**9,
                    "zero_allow_untested_optimizer": True,
                    "bf16": {"enabled": True},
                    "zero_optimization": {
                        "stage": stage,
                        "stage3_param_persistence_threshold": 0,
                        "reduce_bucket_size": 1000,
                    },
                },
            )
            loss = engine(torch.ones(2, 3, dtype=torch.bfloat16)).sum()
            engine.backward(loss)
            reports[stage, "backward"] = shards.of_deepspeed(engine)
            engine.step()
            reports[stage, "step"] = shards.of_deepspeed(engine)
        return reports | {"persistent": of_groups(3)}

    outputs = launch(fn, world_size=2, device="cpu", timeout_s=120).outputs
    storages = {key: [reports[key][1] for reports in outputs] for key in ("groups", "persistent")}
    for key in storages:
        for reports in outputs:
            reports[key] = reports[key][0]
    layouts = {key: shards.gather([reports[key] for reports in outputs]) for key in outputs[0]}
    return layouts | {"storages": storages}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_shards_match_the_formula(deepspeed, stage: int) -> None:
    formula = shards.flat(SHAPES, 2, stage=stage, alignment=2)
    live = deepspeed[stage, "step"]
    assert live.tensors == formula.tensors
    assert live.length == formula.length
    assert live.segments["parameters"] == formula.segments["parameters"]
    assert live.segments["optimizer"] == formula.segments["optimizer"]


def test_gradients_of_tensors_that_span_shards_stay_whole(deepspeed) -> None:
    for stage in (1, 2):
        live = deepspeed[stage, "backward"]
        held = [
            [f"{piece.tensor}[{piece.start}:{piece.stop}]" for piece in live.pieces("gradients", r)]
            for r in range(2)
        ]
        assert held[0] == ["0.weight[0:15]", "0.bias[0:5]", "2.weight[0:35]"]
        assert held[1][:2] == ["2.weight[0:35]", "2.bias[0:7]"]
        assert deepspeed[stage, "step"].pieces("gradients") == []


def test_stage_3_keeps_its_gradient_buffer(deepspeed) -> None:
    formula = shards.flat(SHAPES, 2, stage=3)
    for phase in ("backward", "step"):
        live = deepspeed[3, phase]
        assert live.segments["gradients"] == formula.segments["gradients"]
    assert deepspeed[0, "backward"].bytes_by_rank("gradients") == [62 * 2] * 2


def test_groups_are_sharded_separately_and_frozen_tensors_replicated(deepspeed) -> None:
    live = deepspeed["groups"]
    assert [(piece.tensor, piece.at) for piece in live.pieces("parameters", 1)] == [
        *(("0.weight", 0), ("2.weight", 15), ("", 50)),
        *(("2.bias", 52), ("", 59)),
        ("0.bias", 60),
    ]
    # Both groups' gradients are in one storage, and tensors that span two shards stay whole.
    assert live.bytes_by_rank("gradients") == deepspeed["storages"]["groups"]
    slices = [(p.tensor, p.start, p.stop) for p in live.pieces("optimizer", 1) if not p.is_padding]
    assert slices == [("2.weight", 11, 35), ("2.bias", 4, 7)]


def test_small_persistent_parameters_are_whole_in_addition_to_their_shards(deepspeed) -> None:
    live = deepspeed["persistent"]
    slices = [(p.tensor, p.start, p.stop) for p in live.pieces("parameters", 0)]
    assert ("0.weight", 0, 8) in slices
    assert ("0.weight", 0, 15) not in slices
    assert {("0.bias", 0, 3), ("0.bias", 0, 5)} <= set(slices)
    held = {(p.tensor, p.stop - p.start) for p in live.pieces("gradients") if not p.is_padding}
    cut = {name for name, _ in held} - {name for name, _ in held & {*live.tensors}}
    assert cut == {"0.weight", "2.weight", "2.bias"}
    assert live.bytes_by_rank("gradients") == deepspeed["storages"]["persistent"]


def test_live_layouts_name_their_source(deepspeed, fsdp2) -> None:
    assert deepspeed[2, "step"].source == "DeepSpeed, stage 2, 2 ranks"
    assert deepspeed[2, "step"].stage == 2
    assert fsdp2["step"].source == "FSDP2 on 4 ranks"
    assert set(fsdp2["step"].segments) == set(BUFFERS)


def test_layout_bytes_match_run_memory() -> None:
    """Two independent measurements: DeepSpeed's data structures and storages."""

    def fn():
        import deepspeed
        import torch

        engine, *_ = deepspeed.initialize(
            model=make_model(),
            config={
                "train_micro_batch_size_per_gpu": 2,
                "bf16": {"enabled": True},
                "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
                "zero_optimization": {"stage": 2, "reduce_bucket_size": 1000},
            },
        )
        for _ in range(2):
            engine.backward(engine(torch.ones(2, 3, dtype=torch.bfloat16)).sum())
            engine.step()
        return shards.of_deepspeed(engine)

    run = launch(fn, world_size=2, device="cpu", timeout_s=120, memory=True)
    layout = shards.gather(run.outputs)
    counted = run.memory.at("step")
    assert layout.bytes_by_rank("parameters") == counted["parameters"].tolist()
    step_counter = 4  # Adam's step, a scalar, which a layout does not include
    assert layout.bytes_by_rank("optimizer") == (counted["optimizer"] - step_counter).tolist()
