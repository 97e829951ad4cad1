"""Published thresholds are where a work's intensity reaches the ridge of a published device."""

from __future__ import annotations

import pytest

from shardlab.estimate import roofline, work
from shardlab.estimate.devices import DEVICES

H100 = DEVICES["H100"]


@pytest.mark.parametrize(
    ("device", "link", "tokens"),
    [
        # How to Scale Your Model, parts 12 and 5
        ("H100", "node", 2475),
        ("H100", "NVLink", 2200),
        ("TPU v5p", "one axis", 2550),
        ("TPU v5p", "3 axes", 850),
        # Ring Attention, table 2, in thousands: 1.0 for TPU v4, 1.1 for TPU v5e
        ("A100", "NVLink", 1.04e3),
        ("TPU v4", "3 axes", 1.02e3),
        ("TPU v5e", "2 axes", 1.09e3),
    ],
)
def test_ridges_of_links_are_the_published_tokens_per_device(device, link, tokens) -> None:
    assert DEVICES[device].over(link).ridge == pytest.approx(tokens, rel=0.005)


@pytest.mark.parametrize(
    ("device", "ridge"), [("H100", 295), ("A100", 153), ("V100", 139), ("TPU v5e", 243)]
)
def test_ridges_of_memory(device, ridge) -> None:
    """How to Scale Your Model, part 1, rounds TPU v5e's to 240."""
    assert DEVICES[device].ridge == pytest.approx(ridge, abs=0.6)


def test_a_device_has_only_its_links() -> None:
    with pytest.raises(KeyError, match="NVLink"):
        DEVICES["TPU v4"].over("NVLink")


@pytest.mark.parametrize("ranks", [0, 2, 8])
def test_data_parallel_traffic_hides_from_the_threshold_on(ranks) -> None:
    link = H100.over("node")
    tokens = roofline.data_parallel_tokens(989.4e12, 400e9, ranks)
    assert work.data_parallel(70e9, tokens, ranks).intensity == pytest.approx(link.ridge)
    for factor, hides in ((0.99, False), (1.01, True)):
        some = work.data_parallel(70e9, factor * tokens, ranks)
        computing_s = some.flops / link.flops_per_s
        assert (link.seconds(some.flops, some.moved_bytes) == computing_s) is hides


def test_other_layouts_have_the_thresholds_of_roofline() -> None:
    ranks = roofline.tensor_parallel_ranks(28_672, 989.4e12, 450e9)
    assert work.tensor_parallel(8192, 28_672, 13).intensity > H100.over("NVLink").ridge
    assert work.tensor_parallel(8192, 28_672, 14).intensity < H100.over("NVLink").ridge
    assert 13 < ranks < 14
    tokens = roofline.ring_attention_tokens(989.4e12, 450e9)
    assert work.ring_attention(round(tokens), 4096).intensity == round(tokens)
    assert work.fully_sharded(8e9, 2475).intensity == 2475


def test_pipeline_traffic_is_small() -> None:
    """24h² operations and 2h bytes for each token and layer: 12h."""
    stage = work.pipeline_parallel(layers=4, width=4096, tokens=7)
    assert stage.intensity == 12 * 4096 * 4


def test_a_product_knows_what_it_attained() -> None:
    product = work.product(512, 4096, 4096)
    assert product.name == "[512, 4096] @ [4096, 4096]"
    assert product.intensity == roofline.product_intensity(512, 4096, 4096)
    assert product.flops_per_s is None
    assert product.measured(2.0).flops_per_s == product.flops / 2
    assert product.measured(2.0).name == product.name


def test_impossible_work_raises() -> None:
    for wrong in ((0, 1), (1, 0), (1, 1, 0)):
        with pytest.raises(ValueError, match="nothing: flops, moved_bytes and seconds"):
            work.Work("nothing", *wrong)
