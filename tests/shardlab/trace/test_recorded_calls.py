"""Recorded calls of torch.distributed, from user code and from libraries."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist

from shardlab import RankError, Run, launch, measure

pytestmark = pytest.mark.ranks
HERE = os.path.basename(__file__)


@pytest.fixture(scope="module")
def run() -> Run:
    """Three ranks call the functions of torch.distributed, one after another."""

    def work() -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        x = torch.ones(6)
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.reduce(x, 1)
        dist.all_gather([torch.empty(6) for _ in range(size)], x)
        dist.all_gather_single(torch.empty(6 * size), x)
        dist.reduce_scatter(torch.empty(2), list(x.chunk(size)))
        dist.reduce_scatter_single(torch.empty(2), x)
        dist.all_to_all_single(torch.empty(6), x)
        dist.gather(x, [torch.empty(6) for _ in range(size)] if rank == 0 else None)
        dist.scatter(x, [torch.empty(6) for _ in range(size)] if rank == 0 else None)
        dist.barrier()
        dist.all_gather_object([None] * size, {"rank": rank})
        pair = dist.new_group([0, 2])
        if rank != 1:
            dist.all_reduce(x, group=pair)
        buffer = torch.zeros(12, dtype=torch.float64)
        if rank == 0:
            dist.send(buffer[4:8], 2, tag=5)
            dist.send(buffer[8:12], 2, tag=5)
        if rank == 2:
            dist.recv(buffer[4:8], 0, tag=5)
            pending = dist.irecv(buffer[8:12], 0, tag=5)
            assert pending is not None
            pending.wait()
        if rank == 1:
            dist.send(buffer[:1], 0)
        if rank == 0:
            assert dist.recv(buffer[:1]) == 1  # from any rank

    return launch(work, world_size=3, quiet=True)


def ops(run: Run, rank: int) -> list[str]:
    return [call.op for call in run.calls if call.rank == rank]


def test_collectives_are_recorded_by_name_in_order(run: Run) -> None:
    for rank in range(3):
        assert ops(run, rank)[:11] == [
            "all_reduce",
            "broadcast",
            "reduce",
            "all_gather",
            "all_gather_single",
            "reduce_scatter",
            "reduce_scatter_single",
            "all_to_all_single",
            "gather",
            "scatter",
            "barrier",
        ]
    assert {"all_gather_object"}.isdisjoint(
        ops(run, 0)
    )  # recorded as the all_gathers it consists of
    assert ops(run, 1)[11:].count("all_gather") == 2


def test_bytes_match_the_tensors_passed_in(run: Run) -> None:
    first = {call.op: call for call in reversed(run.calls) if call.rank == 1}
    for op in ("broadcast", "all_gather", "all_gather_single", "reduce_scatter_single", "gather"):
        assert first[op].bytes == 24, op
        assert first[op].dtype == "float32"
    assert first["reduce_scatter"].bytes == 24
    assert first["barrier"].bytes == 0


def test_every_call_has_an_end_on_the_clock_that_ranks_share(run: Run) -> None:
    for call in run.calls:
        assert call.end_s is not None
        assert 0 <= call.start_s <= call.end_s <= run.wall_s
    reduces = [call for call in run.calls if call.op == "all_reduce" and len(call.group) == 3]
    assert max(c.start_s for c in reduces) <= min(c.end_s for c in reduces if c.end_s is not None)


def test_groups_are_recorded_as_global_ranks(run: Run) -> None:
    subgroup = [call for call in run.calls if call.op == "all_reduce" and len(call.group) == 2]
    assert [(call.group, call.seq) for call in subgroup] == [((0, 2), 1)] * 2
    assert {call.rank for call in subgroup} == {0, 2}


def test_sends_and_receives_have_their_offset_in_the_buffer(run: Run) -> None:
    sends = [c for c in run.calls if c.op == "send" and c.rank == 0]
    receives = [c for c in run.calls if c.op == "recv" and c.rank == 2]
    for calls, peer in ((sends, 2), (receives, 0)):
        assert [(c.peer, c.tag, c.seq, c.offset, c.storage_numel) for c in calls] == [
            (peer, 5, 1, 4, 12),
            (peer, 5, 2, 8, 12),
        ]
        assert {(c.dtype, c.shape, c.bytes) for c in calls} == {("float64", (4,), 32)}


def test_a_receive_from_any_rank_records_the_sender(run: Run) -> None:
    (call,) = [c for c in run.calls if c.op == "recv" and c.rank == 0]
    assert call.peer == 1
    assert call.end_s is not None


def test_the_source_line_is_user_code(run: Run) -> None:
    assert all(HERE in call.source for call in run.calls)
    first = run.calls[0]
    assert first.code == "dist.all_reduce(x)"


def test_calls_that_are_never_waited_for() -> None:
    """`wait`, polling, a future, and the blocking function itself all count as waiting."""

    def work() -> None:
        x, y, other = torch.ones(4), torch.ones(4), 1 - dist.get_rank()
        pair = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, y, other)]
        for batched in dist.batch_isend_irecv(pair):
            batched.wait()
        dist.all_reduce(x)
        late, polled, in_future, forgotten = (dist.all_reduce(x, async_op=True) for _ in range(4))
        while not polled.is_completed():
            pass
        in_future.get_future().wait()
        late.wait()
        late.wait()  # allowed for a collective
        unsent = dist.isend(x, other)
        dist.recv(y, other)
        del unsent, forgotten

    run = launch(work, world_size=2, quiet=True)
    for rank in range(2):
        unwaited = [call.op for call in run.calls if call.rank == rank and not call.waited]
        assert unwaited == ["all_reduce", "send"]


def test_when_a_rank_stops_for_a_call() -> None:
    def work() -> None:
        x, other = torch.ones(4), 1 - dist.get_rank()
        receiving = dist.irecv(x, other)
        with measure("meanwhile"):
            dist.send(torch.ones(4), other)
        receiving.wait()

    run = launch(work, world_size=2, quiet=True)
    for rank in range(2):
        receive, send = run.calls_of(rank)
        [block] = [block for block in run.traffic.blocks if block.rank == rank]
        assert send.start_s <= send.wait_start_s <= send.end_s
        assert receive.start_s < block.end_s <= receive.wait_start_s <= receive.end_s


def test_a_second_wait_for_a_send_is_an_error_and_not_a_hang() -> None:
    def work() -> None:
        sending = dist.isend(torch.ones(1), 1 - dist.get_rank())
        dist.recv(torch.ones(1), 1 - dist.get_rank())
        assert sending is not None
        sending.wait()
        sending.wait()

    with pytest.raises(RankError, match=r"wait\(\) was already called"):
        launch(work, world_size=2, quiet=True)


def one_step(wrap: Any) -> Run:
    def work() -> None:
        torch.manual_seed(0)
        model = wrap(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)))
        loss = model(torch.ones(4, 64)).sum()
        loss.backward()

    run = launch(work, world_size=2, quiet=True)
    assert all(call.end_s is not None for call in run.calls)
    return run


def test_ddps_cpp_reducer() -> None:
    def wrap(model: torch.nn.Module) -> torch.nn.Module:
        return torch.nn.parallel.DistributedDataParallel(model)

    run = one_step(wrap)
    gradients = [c for c in run.calls if c.op == "all_reduce" and c.code == "loss.backward()"]
    parameter_bytes = 2 * (64 * 64 + 64) * 4
    assert sum(call.bytes for call in gradients if call.rank == 0) == parameter_bytes


def test_a_run_waits_for_a_late_callback_of_ddp() -> None:
    """On a busy machine the thread that reports the end of a collective may run much later."""

    def work() -> None:
        import time

        from shardlab.trace.recorder import Recorder

        done = Recorder._done

        def late(*args: Any) -> None:
            time.sleep(0.5)
            done(*args)

        Recorder._done = late  # type: ignore[method-assign]
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
        model(torch.ones(4, 64)).sum().backward()

    run = launch(work, world_size=2, quiet=True)
    assert all(call.end_s is not None for call in run.calls)


def test_fsdp2() -> None:
    def wrap(model: torch.nn.Sequential) -> torch.nn.Module:
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            fully_shard(layer)
        return fully_shard(model)

    run = one_step(wrap)
    forward = [c for c in run.calls if c.op == "all_gather_single" and "model(" in c.code]
    scattered = [c for c in run.calls if c.op == "reduce_scatter_single"]
    assert [c.rank for c in forward].count(0) == 2
    assert [c.rank for c in scattered].count(0) == 2
    assert sum(c.bytes for c in scattered if c.rank == 0) == 2 * (64 * 64 + 64) * 4


def test_dtensor() -> None:
    def work() -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (2,))
        sharded = distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)])
        sharded.redistribute(mesh, [Replicate()]).to_local()
        sharded.sum().full_tensor()

    run = launch(work, world_size=2, quiet=True)
    made = [call.op for call in run.calls if call.rank == 0]
    assert "all_gather_single" in made
    assert "all_reduce" in made
    assert all(call.end_s is not None for call in run.calls)


class NestedBackward(torch.autograd.Function):
    """Its backward runs another backward; autograd runs those nested deeper than 60 in a thread."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, depth: int, last: Any) -> torch.Tensor:
        ctx.depth, ctx.last = depth, last
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        with torch.enable_grad():
            backward_at(ctx.depth - 1, ctx.last)
        return grad, None, None


def backward_at(depth: int, last: Any) -> None:
    if depth:
        NestedBackward.apply(torch.ones(1, requires_grad=True), depth, last).sum().backward()
    else:
        last()


def test_a_call_from_a_thread_without_python_is_recorded() -> None:
    """As on a GPU, where DDP's hooks run in a thread of autograd, in C++ alone."""

    def work() -> float | None:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
        loss = model(torch.full((1, 1), 1.0 + dist.get_rank())).sum()
        backward_at(61, loss.backward)
        grad = model.module.weight.grad
        return None if grad is None else grad.item()

    run = launch(work, world_size=2)
    assert run.outputs == [1.5, 1.5]
    for rank in range(2):
        *_, last = [call for call in run.calls if call.rank == rank]
        assert last.op == "all_reduce"
        assert last.end_s is not None
        assert HERE in last.source
