"""Chapter 07 runs from top to bottom, and its outputs match its text.

Times and bandwidths are printed, never asserted: they depend on the machine.
"""

import pytest

from tests.chapters.reopened_notebook import try_the_pictures
from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    predictions = {"after backward": "16", "cross the link": "[2, 2]"}
    chapter = run("07_offload", tmp_path_factory.mktemp("chapter"), predictions=predictions)
    print(f"\nchapter 06: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


def test_one_operation_cannot_mix_tensors_of_both_pools(chapter):
    printed = chapter.text_of("on_host + on_device")
    assert "moved to the host: 2000 bytes" in printed
    assert "PoolError: add of a bfloat16 tensor" in printed
    assert "line 8: on_host + on_device]" in printed


def test_after_backward_the_device_holds_4_bytes_per_parameter(chapter):
    printed = chapter.text_of("predicted_bytes_each.compare(")
    assert "measured 4 bytes; predicted 16 bytes. 4 times" in printed
    assert "that is what training with Adam takes" in printed
    rows = chapter.table_of('pools.peak_bytes("device").items()')
    sizes = {row.pop("on the device"): [*row.values()] for row in rows}
    after, peak = (int(size.replace(",", "")) for size in sizes["bfloat16"])
    assert after < peak


def test_swapping_moves_12_and_offload_2_bytes_each_way(chapter):
    answer = chapter.text_of("swap_moved = ")
    assert "measured up: 12 bytes, down: 12 bytes" in answer
    assert "that is what the 16-bit parameters and gradients would take." in answer
    assert "measured: 2 up, 2 down" in chapter.text_of("offload_moved = ")
    assert chapter.text_of("measured = {").count("(equal)") == 2
    assert "<svg" in chapter.svg_of("axes.barh")


def test_the_papers_four_placements_and_13b_on_32_gb(chapter):
    rows = chapter.table_of("PARAMETERS, GRADIENTS, UPDATE")
    assert [tuple(row.values())[1:] for row in rows] == [
        ("16", "1.00"),
        ("14", "1.14"),
        ("4", "4.00"),
        ("2", "8.00"),
    ]
    both = [tuple(row.values())[1:] for row in chapter.table_of('{"13B parameters": ""')]
    assert both == [("208", "0"), ("26", "182")]
    assert "13B leaves 6 GB" in chapter.text_of("most = memory.largest_model")
    assert "32" in chapter.svg_of("memory_bars(")


def test_the_share_of_offload_in_a_step_falls_with_tokens_but_not_with_parameters(chapter):
    assert "✓ how many times as long" in chapter.text_of('holds("how many times as long')
    times = [float(row["times as long"]) for row in chapter.table_of("for tokens in")]
    assert times == sorted(times, reverse=True)
    assert "<svg" in chapter.svg_of("offload_times(")


def test_only_changed_lines_are_marked(chapter):
    printed = chapter.text_of("show_change(plain_config")
    marked = [line for line in printed.splitlines() if line.startswith("▶")]
    assert len(marked) == 8
    assert sum("offload_" in line for line in marked) == 2
    assert "stage" not in "".join(marked)


def test_deepspeed_has_the_same_losses_with_states_on_the_host(chapter):
    rows = chapter.table_of('f"loss {step}": ".4f"')
    losses = [[row[f"loss {step}"] for step in range(3)] for row in rows]
    assert losses[0] == losses[1] != losses[2] == losses[3]
    engines = chapter.table_of("plain_losses, offload_losses")
    assert [row["optimizer on"] for row in engines] == ["device", "host"] * 2


def test_deepspeed_keeps_fp32_gradients_on_the_host(chapter):
    rows = chapter.table_of('gradients[name] = run.memory.at("backward")')
    assert [(row["rank 0"], row["rank 1"]) for row in rows] == [("2.00",) * 2, ("6.00",) * 2]
    sizes = [row["GB"] for row in chapter.table_of('convention="deepspeed"')]
    assert sizes == ["182", "208", "312"]


def test_misplaced_keys_offload_nothing(chapter):
    rows = chapter.table_of("run = launch(where_things_are")
    assert [tuple(row.values())[1:] for row in rows] == [("device", "device")] * 3


def test_fsdp_moves_shards_up_twice_and_gradients_down_once(chapter):
    printed = chapter.text_of("in_blocks = models.count_parameters")
    assert "moved in torch.float32\n" in printed
    assert "measured 745,152 bytes" in printed  # 260,736 up, 223,680 up again, 260,736 down


@pytest.mark.browser
def test_reopened_pictures_respond_to_keys_and_sliders(chapter, loaded_lab, artifacts):
    assert try_the_pictures(chapter, loaded_lab, artifacts) >= {"memory-bars", "offload-times"}
