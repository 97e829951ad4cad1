"""Chapter 10 runs from top to bottom, and its cells show what its prose says."""

import re

import pytest

from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    chapter = run("10_save_resume", tmp_path_factory.mktemp("chapter"))
    print(f"\nchapter 10: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


def floats(text):
    return [float(number) for number in re.findall(r"\d+\.\d*|\d+", text)]


def test_resuming_with_all_pieces_is_bit_equal_and_each_piece_is_needed(chapter):
    text = chapter.text_of("uninterrupted = curves.pop")
    effects = dict(re.findall(r"forgot ([\w ]+): +(.*)", text))
    assert effects.pop("nothing") == "bit-equal"
    in_first_loss = {name for name, found in effects.items() if found == "differs from loss 0 on"}
    assert in_first_loss == {"parameters", "position", "random state"}
    assert set(effects) - in_first_loss == {"optimizer", "schedule", "loss scale"}
    assert "bit-equal" not in effects.values()
    assert "measured parameters, position, random state>" in text


def test_the_optimizer_state_is_twice_as_large_as_the_parameters(chapter):
    sizes = dict(
        re.findall(r"([\w ]+?) +([\d.]+) KiB", chapter.text_of('path = disk / "piece.pt"'))
    )
    assert float(sizes["optimizer"]) / float(sizes["parameters"]) == pytest.approx(2, abs=0.1)
    assert "328 GiB of weights, 2,298 GiB" in chapter.text_of("bloom = 176")


def test_rank_0_holds_everything_plus_a_slice_or_only_a_slice(chapter):
    rank_0, sharded = chapter.text_of("in S: {held.round(2)}").splitlines()[:2]
    assert "[1.25 0.25 0.25 0.25]  sent: 0.75 S" in rank_0
    assert "[0.25 0.25 0.25 0.25]  sent: 0.00 S" in sharded
    answer = chapter.text_of("predicted_gather.compare(")
    assert "measured rank 0 holds: 1.25 S, all ranks send: 0.75" in answer
    assert "<svg" in chapter.svg_of("for row, (name, run) in enumerate(saves.items())")


def test_files_written_before_a_kill_remain(chapter):
    assert "rank 2 was killed by SIGKILL" in chapter.text_of("launch(train_and_die")
    printed = chapter.text_of('sorted(disk.glob("died_*"))')
    assert "died_2.txt says step 2" in printed
    assert "died_0.txt says step 3" in printed


def test_a_kill_during_a_save_mixes_two_steps(chapter):
    printed = chapter.text_of("launch(save_over_and_over")
    assert "in the files: [4, 4, 2, 4]" in printed
    assert "measured rank 0, rank 1, rank 3>" in printed


def test_renamed_files_are_complete(chapter):
    printed = chapter.text_of("launch(write_forever")
    assert "renamed: 8 of 8 files are complete" in printed
    complete, all_files = floats(re.search(r"in_place: (.*)", printed)[1])
    assert all_files <= 8
    assert complete <= all_files


def test_dcp_loads_four_ranks_files_on_two(chapter):
    printed = chapter.text_of("saved = launch(save_with_dcp")
    assert all(f"__{rank}_0.distcp" in printed for rank in range(4))
    assert "bit-equal on 2 ranks, where rank 0 has 128 of 256 rows" in printed


def test_deepspeed_refuses_two_ranks_until_its_tools_convert_the_checkpoint(chapter):
    printed = chapter.text_of("print(error.message)")
    assert "used a DP world size of 4" in printed
    assert "Two ranks can load it: measured no>" in printed
    assert "29 tensors, equal to the engine's" in chapter.text_of("merged = launch(merge")
    assert "on 2 ranks: bit-equal, position 2" in chapter.text_of("launch(make_universal")


def test_torchrun_restarts_and_the_script_continues(chapter):
    lines = chapter.text_of("torchrun = [").splitlines()
    assert lines[0].startswith("torchrun starts 2 ranks")
    assert lines[1:] == [
        "attempt 0, rank 0: continues at step 0",
        "attempt 0, rank 1: continues at step 0",
        "attempt 1, rank 0: continues at step 3",
        "attempt 1, rank 1: continues at step 3",
        "attempt 1, rank 0: done",
        "attempt 1, rank 1: done",
    ]


def test_the_best_interval_between_checkpoints(chapter):
    text = chapter.text_of("best_s = ")
    assert "every 3.1 h: save every 19 min, 10.4% of the time is lost" in text
    assert "calculated 19.27 minutes" in text
    assert "<svg" in chapter.svg_of("minutes = np.geomspace")
