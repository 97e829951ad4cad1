"""Simulated pools on a CPU: where tensors are, what moves, and which operations raise."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shardlab import RankError, launch
from shardlab.placement import PoolError, Pools

BF16 = torch.bfloat16


@pytest.fixture
def pools():
    return Pools("cpu")


def test_bytes_are_counted_in_each_direction_and_dtypes_kept(pools):
    with pools:
        down = pools.to_host(torch.ones(6, dtype=BF16))
        up = pools.to_device(down.float())
    assert (pools.to_host_bytes, pools.to_device_bytes) == (12, 24)
    assert (down.dtype, up.dtype) == (BF16, torch.float32)
    assert [(move.to, move.bytes, move.dtype) for move in pools.moves] == [
        ("host", 12, "bfloat16"),
        ("device", 24, "float32"),
    ]
    assert all(move.end_s >= move.start_s >= 0 for move in pools.moves)


def test_a_move_is_a_copy(pools):
    with pools:
        tensor = torch.ones(3)
        copy = pools.to_host(tensor)
        copy += 1
    assert tensor.tolist() == [1, 1, 1]


def test_an_operation_runs_where_its_tensors_are(pools):
    with pools:
        on_device = torch.ones(4)
        on_host = pools.to_host(on_device)
        with pools.host():
            still_on_device = on_device * 2
        made_on_host = on_host * 2 + torch.tensor(1.0)
    assert pools.place_of(still_on_device) == "device"
    assert pools.place_of(made_on_host) == "host"
    assert pools.place_of(made_on_host[1:].view(3, 1)) == "host"


def test_new_tensors_go_to_the_pool_of_the_block(pools):
    with pools:
        assert pools.place_of(torch.zeros(3)) == "device"
        with pools.host():
            for tensor in (
                torch.zeros(3),
                torch.tensor([1.0, 2.0]),
                torch.arange(3),
                torch.rand(2),
            ):
                assert pools.place_of(tensor) == "host"
        assert pools.place_of(torch.tensor([1, 2])) == "device"
    with pools.host():
        assert pools.place_of(torch.empty(3)) == "host"


@pytest.mark.parametrize(
    "mix",
    [
        lambda device, host: device + host,
        lambda device, host: host.add_(device),
        lambda device, host: device.copy_(host),
        lambda device, host: torch.cat([host, device]),
        lambda device, host: torch._foreach_add([host], [device]),
        lambda device, host: torch.add(host, host, out=device),
    ],
)
def test_an_operation_on_tensors_of_both_pools_raises(pools, mix):
    with pools:
        device = torch.ones(4, dtype=BF16)
        host = pools.to_host(device)
        with pytest.raises(PoolError, match="move one with") as caught:
            mix(device, host)
    message = str(caught.value)
    assert "bfloat16 tensor of shape (4,) on the device" in message
    assert "test_pools.py, line" in message


def test_a_move_to_the_same_pool_raises(pools):
    with pools:
        tensor = torch.ones(2)
        with pytest.raises(TypeError, match="to_host moves a tensor, not NoneType"):
            pools.to_host(None)
        with pytest.raises(PoolError, match="is already on the device"):
            pools.to_device(tensor)
        with pytest.raises(PoolError, match="is already on the host"):
            pools.to_host(pools.to_host(tensor))


def test_an_existing_model_is_on_the_device_even_in_backward(pools):
    model = nn.Linear(8, 8, bias=False, dtype=BF16)
    with pools:
        model(torch.ones(2, 8, dtype=BF16)).sum().backward()
        model.zero_grad(set_to_none=False)
        live = pools.live_bytes("device")
        with pytest.raises(PoolError):
            model(pools.to_host(torch.ones(2, 8, dtype=BF16)))
    assert pools.place_of(model.weight.grad) == "device"
    assert live["bfloat16"] == 2 * 2 * 64  # weight and gradient
    assert pools.live_bytes("host") == {}


def test_live_and_peak_bytes_by_storage_and_dtype(pools):
    with pools.host():
        whole = torch.zeros(100)
        view = whole[:10]
        half = whole.to(BF16)
        del whole
        assert pools.live_bytes("host") == {"bfloat16": 200, "float32": 400}
        del view, half
    assert pools.live_bytes("host") == {}
    assert pools.peak_bytes("host") == {"bfloat16": 200, "float32": 400}
    assert pools.peak_bytes("device") == {}


def test_reused_memory_is_not_mistaken_for_the_old_tensor(pools):
    for _ in range(50):
        with pools.host():
            assert pools.place_of(torch.zeros(1000)) == "host"
        with pools:
            assert pools.place_of(torch.zeros(1000)) == "device"
    assert pools.live_bytes("host") == pools.live_bytes("device") == {}


def test_an_error_exits_the_blocks(pools):
    with pytest.raises(ZeroDivisionError), pools, pools.host():
        raise ZeroDivisionError
    with pools:
        assert pools.place_of(torch.zeros(1)) == "device"


def test_an_unknown_device_raises():
    with pytest.raises(ValueError, match='"auto", "cpu" or "cuda"'):
        Pools("tpu")


def test_real_pools_use_the_device_of_the_tensor():
    """PyTorch's meta device stands in for the GPU: it has sizes, but no data to copy."""
    pools = Pools("cuda")
    pools._device = "meta"
    with pools:
        made = torch.ones(4)
        with pools.host():
            master = torch.zeros(4)
        up = pools.to_device(master.to(BF16))
        assert [tensor.device.type for tensor in (made, master, up)] == ["meta", "cpu", "meta"]
        assert pools.to_device_bytes == 8
        assert pools.place_of(made * 2) == "device"
        with pytest.raises(PoolError, match="move one with"):
            made + master
        with pytest.raises(PoolError, match="to the device without counting it"):
            master.to("meta")
    assert pools.live_bytes("device") == {"bfloat16": 8, "float32": 16}
    assert pools.live_bytes("host") == {"float32": 16}


def mix_pools():
    pools = Pools()
    with pools:
        on_device = torch.ones(4)
        on_host = pools.to_host(on_device)
        return on_device + on_host


@pytest.mark.ranks
def test_on_a_rank_the_error_names_the_line_once():
    with pytest.raises(RankError, match="PoolError: add of a float32 tensor") as caught:
        launch(mix_pools, world_size=1, device="cpu")
    assert caught.value.headline.count("return on_device + on_host") == 1
