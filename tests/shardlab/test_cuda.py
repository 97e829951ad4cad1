"""One rank on a real GPU: NCCL's group, the records, the pools, and the kernel of chapter 15.

Skipped without a GPU. NCCL allows one rank per GPU, so several ranks need several GPUs.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from shardlab import RankError, launch, measure, models, placement
from shardlab.pipeline import run_schedule
from shardlab.placement import PoolError, Pools
from shardlab.simulate.pipeline import gpipe

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
CHAPTER = Path(__file__).parents[2] / "course/chapters/15_quantization.nb.py"
BF16 = torch.bfloat16


def train(wrap, device, steps=3):
    """Losses of a small GPT on the rank's device."""
    torch.manual_seed(0)
    made = models.gpt("0.1M")
    model = wrap(made.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.randint(256, (4, 65), generator=torch.Generator().manual_seed(1)).to(device)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        with measure("backward"):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def ddp(model):
    return nn.parallel.DistributedDataParallel(model)


def fsdp(model, **options):
    mesh = init_device_mesh("cuda", (1,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def in_bf16(model):
    return fsdp(model, mp_policy=MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=torch.float32))


@pytest.fixture(scope="module")
def on_cpu():
    return launch(train, lambda model: model, "cpu", world_size=1, device="cpu").outputs[0]


@pytest.mark.parametrize(("wrap", "tolerance"), [(ddp, 1e-3), (fsdp, 1e-3), (in_bf16, 0.03)])
def test_training_losses_on_a_gpu_match_those_on_a_cpu(on_cpu, wrap, tolerance):
    run = launch(train, wrap, "cuda", world_size=1, timeout_s=120)
    assert (run.device, run.outputs[0]) == ("cuda", pytest.approx(on_cpu, rel=tolerance))
    if wrap is ddp:  # on one rank, FSDP2 skips its collectives
        assert {call.op for call in run.calls_in("backward")} == {"all_reduce"}


def deepspeed_steps(stage, offload, device):
    """Losses, where the master weights are, and where `placement` says that they are."""
    import deepspeed

    torch.manual_seed(0)
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    engine, *_ = deepspeed.initialize(
        model=models.gpt("0.1M"),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
            "zero_optimization": zero,
        },
    )
    tokens = torch.randint(256, (4, 65), generator=torch.Generator().manual_seed(1)).to(device)
    losses = []
    for _ in range(3):
        logits = engine(tokens[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(logits.float(), tokens[:, 1:].flatten())
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    masters = placement._masters(engine.optimizer)
    devices = {master.device.type for master in masters}
    return losses, devices, placement.of_deepspeed(engine)["optimizer"]["place"]


@pytest.fixture(scope="module")
def deepspeed_on_cpu():
    run = launch(deepspeed_steps, 0, False, "cpu", world_size=1, device="cpu", timeout_s=120)
    return run.outputs[0][0]


@pytest.mark.parametrize(("stage", "offload"), [(1, False), (2, True), (3, False), (3, True)])
def test_deepspeed_trains_on_a_gpu(deepspeed_on_cpu, stage, offload):
    run = launch(deepspeed_steps, stage, offload, "cuda", world_size=1, timeout_s=240)
    assert run.device == "cuda"
    losses, *where = run.outputs[0]
    assert losses == pytest.approx(deepspeed_on_cpu, rel=1e-2)
    assert where == ([{"cpu"}, "host"] if offload else [{"cuda"}, "device"])


def collectives():
    on_gpu = torch.arange(6.0, device="cuda")
    dist.all_reduce(on_gpu)
    work = dist.all_reduce(on_gpu, async_op=True)
    work.wait()
    on_cpu = torch.ones(3)
    dist.all_reduce(on_cpu)  # with gloo, in the same group
    return torch.cuda.current_device(), dist.get_backend_config(), on_gpu.tolist(), on_cpu.tolist()


def test_calls_on_both_devices_are_recorded():
    run = launch(collectives, world_size=1, device="cuda", timeout_s=120)
    device, backends, on_gpu, on_cpu = run.outputs[0]
    assert device == 0
    assert "cuda:nccl" in backends
    assert "cpu:gloo" in backends
    assert (on_gpu, on_cpu) == ([0, 1, 2, 3, 4, 5], [1, 1, 1])
    assert [(call.op, call.bytes) for call in run.calls] == [
        ("all_reduce", 24),
        ("all_reduce", 24),
        ("all_reduce", 12),
    ]
    assert all(call.end_s >= call.start_s for call in run.calls)


def allocate_one_mebibyte():
    before = torch.cuda.memory_allocated()
    kept = torch.zeros(1 << 18, device="cuda")
    return kept, torch.cuda.memory_allocated() - before


def test_live_memory_matches_the_allocator():
    def work():
        kept, allocated = allocate_one_mebibyte()
        with measure("held"):
            kept += 1
        return allocated

    run = launch(work, world_size=1, device="cuda", memory=True, timeout_s=120)
    (allocated,) = run.outputs
    assert allocated == run.memory[0].peak_bytes == 1 << 20


def draw():
    return torch.rand(3, device="cuda").tolist()


def test_a_seed_gives_the_same_numbers_on_a_gpu():
    first, second, other = (
        launch(draw, world_size=1, device="cuda", seed=seed, timeout_s=120).outputs
        for seed in (1, 1, 2)
    )
    assert first == second != other


def allocate_too_much():
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")


def test_running_out_of_gpu_memory_is_explained():
    with pytest.raises(RankError, match="out of memory"):
        launch(allocate_too_much, world_size=1, device="cuda", timeout_s=120)


def test_more_ranks_than_gpus_raise():
    ranks = torch.cuda.device_count() + 1
    with pytest.raises(ValueError, match=f"{ranks} ranks need {ranks} GPUs"):
        launch(draw, world_size=ranks, device="cuda")


def test_ranks_on_the_cpu_do_not_see_a_gpu():
    """FSDP2's default mesh would use visible GPUs, of which there may be fewer than ranks."""

    def work():
        model = fully_shard(nn.Linear(4, 4))
        model(torch.ones(1, 4)).sum().backward()
        return torch.cuda.is_available(), model.weight.device.type

    ranks = torch.cuda.device_count() + 1
    run = launch(work, world_size=ranks)  # "auto"
    assert (run.device, run.outputs) == ("cpu", [(False, "cpu")] * ranks)


def test_pools_move_tensors_between_gpu_and_host():
    pools = Pools()  # "auto"
    assert pools.is_real
    with pools:
        before = torch.cuda.memory_allocated()
        on_device = torch.ones(1 << 18)
        assert torch.cuda.memory_allocated() - before == 1 << 20
        on_host = pools.to_host(on_device)
        assert (on_device.device.type, on_host.device.type) == ("cuda", "cpu")
        assert pools.live_bytes("device") == pools.live_bytes("host") == {"float32": 1 << 20}
        with pytest.raises(PoolError, match="move one with"):
            on_device + on_host
        with pytest.raises(PoolError, match="without counting it"):
            on_host.cuda()
        del on_device
        assert torch.cuda.memory_allocated() == before
        back = pools.to_device(on_host.to(BF16))
        assert back.sum().item() == 1 << 18
    assert (pools.to_host_bytes, pools.to_device_bytes) == (1 << 20, 1 << 19)


def pipeline_step(size, repeats):
    """Milliseconds of the forward slot, and of the same forward pass timed with CUDA events."""
    stage = nn.Sequential(*(nn.Linear(size, size, bias=False) for _ in range(repeats))).cuda()
    inputs = [torch.randn(size, size, device="cuda") for _ in range(2)]
    arguments = (gpipe(1, 2), {0: stage}, inputs, inputs, F.mse_loss)
    for _ in range(2):  # the first run loads kernels
        result = run_schedule(*arguments, activation_shape=(size, size))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    with torch.no_grad():
        stage(inputs[0])
    end.record()
    torch.cuda.synchronize()
    forward = next(slot for slot in result.slots if slot.action.kind == "F")
    return result.loss, 1000 * (forward.end - forward.start), start.elapsed_time(end)


def test_a_pipeline_slot_includes_the_computation():
    ((loss, slot_ms, kernels_ms),) = launch(
        pipeline_step, 2048, 16, world_size=1, device="cuda", timeout_s=120
    ).outputs
    assert loss > 0
    assert slot_ms > 0.5 * kernels_ms  # kernel launches alone would take far less


def kernel_of_the_chapter(folder):
    """The Triton code that students read; Triton needs it in a file."""
    triton = pytest.importorskip("triton")
    source = re.search(r"^# @triton\.jit\n(#.*\n)+?(?=#\n# grid = )", CHAPTER.read_text(), re.M)
    assert source
    lines = ["import triton", "import triton.language as tl", ""]
    lines += [line[2:] for line in source.group().splitlines()]
    path = folder / "kernel.py"
    path.write_text("\n".join(lines))
    scope: dict[str, object] = {"__name__": "kernel"}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    return triton, scope["int8_matmul"]


@pytest.mark.parametrize(("m", "n", "k"), [(1, 96, 384), (16, 64, 64), (33, 100, 640)])
def test_the_kernel_that_students_read_runs(tmp_path, m, n, k):
    triton, int8_matmul = kernel_of_the_chapter(tmp_path)
    group = 64
    torch.manual_seed(0)
    x = torch.randn(m, k, device="cuda", dtype=torch.float16)
    codes = torch.randint(-127, 128, (k, n), device="cuda", dtype=torch.int8)
    scales = (torch.rand(k // group, n, device="cuda") / 127).half()
    y = torch.empty(m, n, device="cuda", dtype=torch.float16)
    grid = (triton.cdiv(m, 16), triton.cdiv(n, 64))
    int8_matmul[grid](x, codes, scales, y, m, n, k, BLOCK_M=16, BLOCK_N=64, GROUP=group)
    weight = (codes.half().view(-1, group, n) * scales[:, None]).view(k, n)
    expected = x.double() @ weight.double()
    torch.testing.assert_close(y.double(), expected, rtol=2e-3, atol=2e-3 * expected.abs().max())
