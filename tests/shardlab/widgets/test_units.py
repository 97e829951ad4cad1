import numpy as np
import pytest

from shardlab.display.palette import RANKS, ink_on, op_color, rank_color
from shardlab.widgets.units import exact_bytes, format_bytes, format_seconds


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (6 * 2**20, "6.0 MiB"),
        (2**20 - 1, "1.0 MiB"),  # not 1024.0 KiB
        (1018.5 * 1024, "1.0 MiB"),
        (3 * 2**40, "3.0 TiB"),
        (2**60, "1024.0 PiB"),
        (np.int64(48), "48 B"),  # an entry of run.traffic
    ],
)
def test_bytes_are_formatted_in_binary_units(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_exact_bytes_include_the_rounded_number() -> None:
    assert exact_bytes(6_291_456) == "6,291,456 bytes (6.0 MiB)"
    assert exact_bytes(1) == "1 byte"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1.5e-6, "1.50 µs"),
        (0.00023, "230 µs"),
        (0.9996e-3, "1.00 ms"),
        (0.0153, "15.3 ms"),
        (1.25, "1.25 s"),
        (1234.0, "1234 s"),
    ],
)
def test_times_have_three_digits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_ranks_cycle_through_the_colors() -> None:
    assert rank_color(0) == RANKS[0]
    assert rank_color(8) == RANKS[0]


def test_variants_of_an_op_share_its_color() -> None:
    assert op_color("all_gather_single") == op_color("all_gather")
    assert op_color("scatter") != op_color("gather")
    assert op_color("something new").startswith("#")


def test_text_on_a_color_is_black_or_white_whichever_is_more_legible() -> None:
    assert ink_on("#0072B2") == "#ffffff"
    assert ink_on("#F0E442") == "#000000"
