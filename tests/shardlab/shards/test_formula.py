"""How buffers are sharded: cases worked by hand, and random sizes."""

import random

import pytest
from torch import nn

from shardlab import shards
from shardlab.estimate import memory
from shardlab.shards import BUFFERS

SMALL = {"w": 8, "b": 3, "v": 8}


def pieces_of(layout, buffer, rank):
    """A rank's pieces as text: "w[0:5]" or "1 padding"."""
    return [
        f"{piece.stop - piece.start} padding"
        if piece.is_padding
        else f"{piece.tensor}[{piece.start}:{piece.stop}]"
        for piece in layout.pieces(buffer, rank)
    ]


def test_a_flat_buffer_is_cut_through_tensors() -> None:
    layout = shards.flat(SMALL, 4, stage=1)
    assert [pieces_of(layout, "optimizer", rank) for rank in range(4)] == [
        ["w[0:5]"],
        ["w[5:8]", "b[0:2]"],
        ["b[2:3]", "v[0:4]"],
        ["v[4:8]", "1 padding"],
    ]
    assert layout.ranks_of("b", "optimizer") == [1, 2]
    assert layout.ranks_of("b", "gradients") == [0, 1, 2, 3]
    assert pieces_of(layout, "gradients", 2) == ["w[0:8]", "b[0:3]", "v[0:8]"]
    assert layout.bytes_by_rank("optimizer") == [5 * 12] * 4


def test_stage_3_shards_and_pads_each_tensor() -> None:
    layout = shards.flat(SMALL, 2, stage=3)
    assert [pieces_of(layout, "parameters", rank) for rank in range(2)] == [
        ["w[0:4]", "b[0:2]", "v[0:4]"],
        ["w[4:8]", "b[2:3]", "1 padding", "v[4:8]"],
    ]
    assert layout.length == 8 + 4 + 8


def test_rows_are_not_cut() -> None:
    layout = shards.flat({"w": (5, 3), "b": (1,)}, 4, stage=3, cut="rows")
    assert [pieces_of(layout, "parameters", rank) for rank in range(4)] == [
        ["w[0:6]", "b[0:1]"],
        ["w[6:12]", "1 padding"],
        ["w[12:15]", "3 padding", "1 padding"],
        ["6 padding", "1 padding"],
    ]


@pytest.mark.parametrize(
    ("stage", "cut_buffers"),
    [(0, ()), (1, ("optimizer",)), (2, ("optimizer", "gradients")), (3, BUFFERS)],
)
def test_each_stage_shards_one_more_buffer(stage: int, cut_buffers: tuple[str, ...]) -> None:
    layout = shards.flat({"w": 64, "v": 64}, 4, stage=stage)
    for buffer, each in zip(BUFFERS, (2, 2, 12), strict=True):
        share = 128 // (4 if buffer in cut_buffers else 1)
        assert layout.bytes_by_rank(buffer) == [share * each] * 4


@pytest.mark.parametrize("seed", range(20))
def test_every_element_is_on_exactly_one_rank_or_on_all(seed: int) -> None:
    draw = random.Random(seed)
    shapes = {
        f"t{index}": tuple(draw.randint(1, 9) for _ in range(draw.randint(1, 3)))
        for index in range(draw.randint(1, 6))
    }
    world_size, stage = draw.randint(1, 9), draw.randint(0, 3)
    alignment = draw.choice([1, 2, 8])
    layout = shards.flat(
        shapes,
        world_size,
        stage=stage,
        cut=draw.choice(["flat", "tensor", "rows"]),
        alignment=alignment,
        precision=draw.choice(list(memory.PRECISION_BYTES)),
        optimizer=draw.choice(["momentum", "adam", "adam8bit"]),
    )
    total = sum(numel for _, numel in layout.tensors)
    for buffer in BUFFERS:
        sharded = stage >= {"optimizer": 1, "gradients": 2, "parameters": 3}[buffer]
        holders: dict[tuple[str, int], list[int]] = {}
        for piece in layout.pieces(buffer):
            if not piece.is_padding:
                for element in range(piece.start, piece.stop):
                    holders.setdefault((piece.tensor, element), []).append(piece.rank)
        assert len(holders) == total
        all_ranks = list(range(world_size))
        assert all(len(h) == 1 if sharded else sorted(h) == all_ranks for h in holders.values())
        if sharded:  # padding makes all shards equal
            assert len(set(layout.bytes_by_rank(buffer))) == 1
    for buffer in BUFFERS:  # nothing overlaps or is out of bounds
        ends = dict.fromkeys(range(world_size), 0)
        for piece in layout.pieces(buffer):
            assert piece.at >= ends[piece.rank]
            ends[piece.rank] = piece.at + piece.stop - piece.start
        assert max(ends.values()) <= layout.length


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bytes_match_the_paper(stage: int) -> None:
    """16Ψ, 4Ψ + 12Ψ/N, 2Ψ + 14Ψ/N, 16Ψ/N (arXiv 1910.02054, section 5), without padding."""
    sizes = {f"t{index}": 1024 for index in range(10)}
    layout = shards.flat(sizes, 16, stage=stage)
    states = memory.model_states(10_240, stage=stage, world_size=16)
    assert layout.bytes_by_rank() == [states.device_bytes] * 16


def test_tied_parameters_of_a_module_count_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3))
    model[0].weight = model[1].weight
    assert shards.flat(model, 2).tensors == (("0.weight", 9), ("1.bias", 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stage": 4}, "stage=4"),
        ({"world_size": 0}, "at least 1"),
        ({"cut": "layer"}, "flat, tensor, rows"),
        ({"precision": "fp8"}, "precision='fp8'"),
        ({"tensors": {}}, "at least one tensor"),
    ],
)
def test_invalid_arguments_raise(change, message) -> None:
    arguments = {"tensors": SMALL, "world_size": 2} | change
    with pytest.raises(ValueError, match=message):
        shards.flat(arguments.pop("tensors"), **arguments)


def report(rank: int, **change):
    header = {"rank": rank, "world_size": 2, "stage": 1, "source": "", "tensors": [["w", 4]]}
    held = {"parameters": [(0, 4, 0, 0, 16)], "gradients": [], "optimizer": []}
    held["optimizer"] = [(2 * rank, 2, 0, 2 * rank, 16)]
    return header | {"length": 4, "held": held} | change


def test_gather_merges_the_reports_of_ranks() -> None:
    layout = shards.gather([report(1), report(0)])
    assert layout.segments["parameters"] == ((0, 4, 0, 0, -1, 16),)
    assert pieces_of(layout, "optimizer", 1) == ["w[2:4]"]
    assert layout.pieces("gradients") == []
    with pytest.raises(ValueError, match=r"reports are from \[0\]"):
        shards.gather([report(0)])
    with pytest.raises(ValueError, match="ranks 0 and 1 differ in length"):
        shards.gather([report(0), report(1, length=5)])
    with pytest.raises(ValueError, match="return shards"):
        shards.gather([None, None])
