"""Traffic formulas for split models match the papers and the bytes measured on real ranks."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from shardlab import launch, measure, models
from shardlab.estimate.model_traffic import (
    PassBytes,
    activation_bytes,
    pipeline_boundaries,
    tensor_parallel_layer,
    vocabulary_parallel_embedding_and_loss,
)

TOKENS, WIDTH = 2048, 12288  # a micro-batch of one sequence of the 175B model


@pytest.mark.parametrize("t", [1, 2, 8, 64])
def test_bytes_of_a_layer_match_narayanan_et_al(t):
    """arXiv 2104.04473, section 3.2: 8·bsh·(t−1)/t for each layer, device and micro-batch."""
    layer = tensor_parallel_layer(TOKENS, WIDTH, t, element_bytes=1)
    assert layer.total_bytes == pytest.approx(8 * TOKENS * WIDTH * (t - 1) / t)
    assert layer.forward_bytes == layer.backward_bytes


@pytest.mark.parametrize("t", [1, 2, 8])
def test_sequence_parallelism_sends_the_same_bytes(t):
    """arXiv 2205.05198, section 4.2; one more all-gather if inputs are gathered again."""
    plain = tensor_parallel_layer(TOKENS, WIDTH, t)
    assert tensor_parallel_layer(TOKENS, WIDTH, t, sequence_parallel=True) == plain
    again = tensor_parallel_layer(
        TOKENS, WIDTH, t, sequence_parallel=True, gather_inputs_again=True
    )
    more = again.backward_bytes - plain.backward_bytes
    assert more == pytest.approx(2 * activation_bytes(TOKENS, WIDTH) * (t - 1) / t)
    assert again.forward_bytes == plain.forward_bytes


def test_gloo_runs_reduce_scatter_as_an_all_reduce():
    """Measured in ground-truth.md: 2.00 times the ideal, so 1 + 2 halves instead of 1 + 1."""
    ring, gloo = (
        tensor_parallel_layer(64, 8, 4, sequence_parallel=True, reduce_scatter=how)
        for how in ("ring", "gloo")
    )
    assert gloo == ring * 1.5


def test_the_loss_sends_three_numbers_per_token_for_any_vocabulary():
    ends = vocabulary_parallel_embedding_and_loss(1000, 64, 4, element_bytes=2)
    assert ends.forward_bytes == pytest.approx(1.5 * (1000 * 64 * 2 + 3 * 1000 * 4))
    assert ends.backward_bytes == pytest.approx(1.5 * 1000 * 64 * 2)


@pytest.mark.parametrize(
    ("stage_devices", "expected"),
    [
        ([0], [[0]]),
        ([0, 1, 2], [[0, 1, 0], [1, 0, 1], [0, 1, 0]]),
        ([0, 1, 0, 1], [[0, 3], [3, 0]]),  # interleaved: two boundaries one way, one back
        ([0, 1, 2, 0, 1, 2], [[0, 2, 1], [2, 0, 2], [1, 2, 0]]),
        ([0, 1, 1, 0], [[0, 2], [2, 0]]),  # nothing is sent at the turn of a V
    ],
)
def test_each_boundary_carries_activations_forward_and_gradients_back(stage_devices, expected):
    """arXiv 2104.04473, section 3.2: bsh each, for every micro-batch and pair of stages."""
    sent = pipeline_boundaries(stage_devices, 5, activation_bytes(10, 4, 2))
    assert sent == [[5 * 80 * times for times in row] for row in expected]


def test_passes_add_up():
    assert PassBytes(1, 2) * 3 + PassBytes(10, 20) == PassBytes(13, 26)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tokens": 0}, "above 0"),
        ({"tp_size": 0}, "world_size=0"),
        ({"reduce_scatter": "nccl"}, "one of ring, gloo"),
        ({"gather_inputs_again": True}, "gather_inputs_again needs sequence_parallel"),
    ],
)
def test_invalid_arguments_raise(wrong, message):
    with pytest.raises(ValueError, match=message):
        tensor_parallel_layer(**{"tokens": 8, "width": 4, "tp_size": 2, **wrong})


@pytest.mark.parametrize(
    ("stage_devices", "micro_batches", "size", "message"),
    [
        ([], 1, 8, "each device from 0 to N - 1 needs a stage"),
        ([0, 2], 1, 8, "each device from 0 to N - 1 needs a stage"),
        ([0, 1], 0, 8, "1 or more"),
        ([0, 1], 1, -8, "must not be negative"),
    ],
)
def test_invalid_pipelines_raise(stage_devices, micro_batches, size, message):
    with pytest.raises(ValueError, match=message):
        pipeline_boundaries(stage_devices, micro_batches, size)


# ---- on real ranks ----

B, T, D = 4, 256, 96


def one_layer(sequence_parallel):
    """A forward and backward of one GPT block, sharded with DTensor."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    block = models.separate_projections(models.gpt("0.3M")).blocks[0]
    x = torch.randn(B, T, D)
    outside = Shard(1) if sequence_parallel else Replicate()
    enter = PrepareModuleInput(input_layouts=outside, desired_input_layouts=Replicate())
    plan = {"attention": enter, "mlp": enter}
    for columns in ("attention.query", "attention.key", "attention.value", "mlp.up"):
        plan[columns] = ColwiseParallel()
    for rows in ("attention.out", "mlp.down"):
        plan[rows] = RowwiseParallel(output_layouts=outside)
    if sequence_parallel:
        plan |= {"norm_1": SequenceParallel(), "norm_2": SequenceParallel()}
        x = x.chunk(world_size, dim=1)[rank]
    parallelize_module(block, init_device_mesh("cpu", (world_size,)), plan)
    x = x.clone().requires_grad_()
    with measure("forward"):
        loss = block(x).sum()
    with measure("backward"):
        loss.backward()


@pytest.mark.ranks
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_layer_on_real_ranks_sends_the_predicted_bytes(sequence_parallel):
    run = launch(one_layer, sequence_parallel, world_size=4, device="cpu", quiet=True)
    predicted = tensor_parallel_layer(
        B * T, D, 4, element_bytes=4, sequence_parallel=sequence_parallel, reduce_scatter="gloo"
    )
    for part, expected in (
        ("forward", predicted.forward_bytes),
        ("backward", predicted.backward_bytes),
    ):
        assert run.traffic[part].sent_by_rank == pytest.approx([expected] * 4, rel=0.01)


def pipeline(micro_batches, stage_devices):
    """GPipe or interleaved 1F1B with torch's own stages, each one matrix."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, ScheduleInterleaved1F1B

    rank, stages = dist.get_rank(), len(stage_devices)
    x = torch.randn(micro_batches * B, T, D)
    mine = [
        PipelineStage(torch.nn.Linear(D, D), index, stages, torch.device("cpu"))
        for index, device in enumerate(stage_devices)
        if device == rank
    ]
    if len(mine) == 1:
        schedule = ScheduleGPipe(mine[0], micro_batches, loss_fn=lambda y, _: y.sum())
    else:
        schedule = ScheduleInterleaved1F1B(mine, micro_batches, loss_fn=lambda y, _: y.sum())
    given = (x,) if rank == stage_devices[0] else ()
    target = {"target": x} if rank == stage_devices[-1] else {}
    with measure("step"):
        schedule.step(*given, **target)


@pytest.mark.ranks
@pytest.mark.parametrize("stage_devices", [[0, 1, 2, 3], [0, 1, 0, 1]])
def test_boundaries_on_real_ranks_carry_the_predicted_bytes(stage_devices):
    world_size = max(stage_devices) + 1
    run = launch(pipeline, 4, stage_devices, world_size=world_size, device="cpu", quiet=True)
    predicted = pipeline_boundaries(stage_devices, 4, activation_bytes(B * T, D, 4))
    np.testing.assert_allclose(run.traffic["step"].sent_bytes, predicted, rtol=0.01)
