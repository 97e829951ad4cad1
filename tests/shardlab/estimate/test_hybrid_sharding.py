"""Hybrid sharding: limits, cases worked by hand, and a real `fully_shard` step on a 2D mesh."""

import numpy as np
import pytest

from shardlab import data, launch, measure, models
from shardlab.estimate import hybrid_sharding, traffic

PSI = 1000


def test_one_group_is_fsdp_and_groups_of_one_are_ddp():
    for n in (1, 2, 3, 8):
        fsdp, ddp = (hybrid_sharding.sent_bytes(PSI, *shape) for shape in ((1, n), (n, 1)))
        assert fsdp == (pytest.approx(traffic.sent_bytes("zero3", PSI, n)[0]), 0)
        assert ddp == (0, pytest.approx(traffic.sent_bytes("ddp", PSI, n)[0]))


def test_two_groups_of_four_by_hand():
    # Within: 2 · 3/4 · 1000 elements of 2 bytes and 3/4 · 1000 of 4.  Across: 2 · 1/2 · 250 of 4.
    sent = hybrid_sharding.sent_bytes(PSI, 2, 4, parameter_bytes=2, gradient_bytes=4)
    assert sent == (3000 + 3000, 1000)
    assert hybrid_sharding.sent_bytes(PSI, 4, 2).across == pytest.approx(2 * 3 / 4 * 500 * 4)


def test_traffic_between_groups_is_two_thirds_of_fsdps():
    groups, shards = 64, 8
    between_groups = shards * hybrid_sharding.sent_bytes(PSI, groups, shards).across
    flat = traffic.sent_bytes("zero3", PSI, groups * shards)[0]  # each link of the ring
    assert between_groups / flat == pytest.approx(2 / 3, rel=0.02)


def test_micro_batches_gather_each_time_and_may_all_reduce_once():
    once = hybrid_sharding.sent_bytes(PSI, 2, 2)
    every = hybrid_sharding.sent_bytes(PSI, 2, 2, micro_batches=4)
    last = hybrid_sharding.sent_bytes(PSI, 2, 2, micro_batches=4, sync="step")
    assert every == (4 * once.within, 4 * once.across)
    assert last == (4 * once.within, once.across)


def test_one_gather_and_gloos_reduce_scatter():
    kept = hybrid_sharding.sent_bytes(PSI, 1, 2, gathers=1)
    gloo = hybrid_sharding.sent_bytes(PSI, 1, 2, reduce_scatter="gloo")
    assert (kept.within, gloo.within) == (2 * 2000, 4 * 2000)


def test_seconds_on_two_links():
    sent = hybrid_sharding.HybridBytes(within=600, across=50)
    assert sent.seconds(300, 25) == 4
    for speeds in ((0, 25), (300, 0), (-1, 25)):
        with pytest.raises(ValueError, match="above 0"):
            sent.seconds(*speeds)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((PSI, 0, 2), {}, "groups"),
        ((PSI, 2, 0), {}, "shards"),
        ((PSI, 2, 2), {"micro_batches": 0}, "micro_batches"),
        ((0, 2, 2), {}, "parameters"),
        ((PSI, 2, 2), {"parameter_bytes": 0}, "bytes of an element"),
        ((PSI, 2, 2), {"gradient_bytes": 0}, "bytes of an element"),
        ((PSI, 2, 2), {"gathers": 0}, "gathers"),
        ((PSI, 2, 2), {"sync": "never"}, "sync="),
        ((PSI, 2, 2), {"reduce_scatter": "tree"}, "reduce_scatter="),
    ],
)
def test_invalid_arguments_raise(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        hybrid_sharding.sent_bytes(*arguments, **options)


@pytest.mark.ranks
@pytest.mark.parametrize("sync", hybrid_sharding.SYNCS)
def test_fully_shard_on_a_mesh_sends_what_the_formula_says(sync):
    def step(micro_batches, sync):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model = models.gpt("0.1M")
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        for unit in (*model.blocks, model):
            fully_shard(unit, mesh=mesh, reshard_after_forward=True)
        with measure("step"):
            for i, batch in enumerate(micro_batches):
                model.set_requires_all_reduce(sync == "micro_batch" or i == 1)
                model(*batch).backward()

    batches = [[data.batch(i, 2, 32, rank, 4) for i in range(2)] for rank in range(4)]
    sent = launch(step, sync, inputs=batches, device="cpu", quiet=True).traffic["step"].sent_bytes
    psi = models.count_parameters(models.gpt("0.1M"))
    expected = hybrid_sharding.sent_bytes(
        psi, 2, 2, micro_batches=2, sync=sync, reduce_scatter="gloo"
    )
    matrix = np.kron(np.eye(2), 1 - np.eye(2)) * expected.within
    matrix += np.kron(1 - np.eye(2), np.eye(2)) * expected.across
    assert sent == pytest.approx(matrix, rel=0.02)
