"""Model states of ZeRO by stage: the formula plus named extras, against the live bytes of
DeepSpeed's ranks."""

from __future__ import annotations

import pytest

from benchmarks import zero_memory
from shardlab import launch
from shardlab.estimate.zero_extras import zero_extras

# (precision, stage, N)
CASES = [
    ("bf16", 0, 2), ("bf16", 1, 2), ("bf16", 2, 2), ("bf16", 3, 2),
    ("bf16", 2, 4), ("fp32", 1, 4), ("fp32", 3, 4),
]  # fmt: skip


@pytest.mark.ranks
@pytest.mark.parametrize(("precision", "stage", "ranks"), CASES)
def test_predicted_against_measured(precision: str, stage: int, ranks: int) -> None:
    run = launch(
        zero_memory.train, stage, precision, world_size=ranks, memory=True, quiet=True,
        device="cpu", timeout_s=120,
    )  # fmt: skip
    row = zero_memory.row_of(run, precision, stage)
    assert abs(row.relative_error) < 0.02  # the required accuracy
    assert row.measured_bytes == pytest.approx(row.named_bytes, rel=1e-4)  # the accuracy reached
    if (precision, stage, ranks) != ("bf16", 0, 2):
        assert row.measured_bytes != pytest.approx(row.paper_bytes, rel=1e-4)
    if stage == 3:
        # DeepSpeed allocates its gradient bucket once and keeps it.
        element_bytes = 2 if precision == "bf16" else 4
        assert row.bucket_bytes >= element_bytes * zero_memory.BUCKET_ELEMENTS


def test_extras_by_hand() -> None:
    """w has 10 elements and v 9: two shards of 10 (a multiple of 2), one element is padding."""
    numels = {"w": 10, "v": 9}
    assert zero_extras(numels, stage=0, world_size=2) == {"step counters": [8, 8]}
    assert zero_extras(numels, stage=2, world_size=2) == {
        "step counters": [4, 4],
        "padding": [2 + 0.5 * 14, 2 + 0.5 * 14],
        "tensors across a boundary": [0, 0],
    }
    across_boundary = zero_extras({"w": 9, "v": 9, "u": 2}, stage=2, world_size=2)
    # Shards of 10. Rank 0 has w and the first element of v, but keeps v's other 8 gradients too;
    # rank 1 has those 8, but keeps the first one's gradient too.
    assert across_boundary["tensors across a boundary"] == [2 * 8, 2 * 1]
    assert across_boundary["padding"] == [0, 0]
    stage_1 = zero_extras({"w": 20}, stage=1, world_size=2)
    assert stage_1["freed gradients"] == [-20, -20]
    stage_3 = zero_extras(numels, stage=3, world_size=2, persistence_threshold=10)
    assert stage_3["padding"] == [0.5 * 16, 0.5 * 16]
    assert stage_3["persistent tensors"] == [2 * 10, 2 * 10]  # v, gathered with its padding


def test_fp32_keeps_masters_that_the_paper_does_not_count() -> None:
    found = zero_extras({"w": 8}, stage=1, world_size=4, precision="fp32", optimizer="momentum")
    assert found["fp32 masters"] == [8] * 4
    assert "step counters" not in found
    assert "fp32 masters" not in zero_extras({"w": 8}, stage=0, world_size=4, precision="fp32")
