"""Chapter 11 runs from top to bottom, and its outputs match its text."""

import re

import pytest

from tests.chapters.reopened_notebook import try_the_pictures
from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    predictions = {"5 s for a checkpoint": "10"}
    chapter = run("11_save_resume", tmp_path_factory.mktemp("chapter"), predictions=predictions)
    print(f"\nchapter 10: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


def floats(text):
    return [float(number) for number in re.findall(r"\d+\.\d*|\d+", text)]


def test_resuming_is_bitwise_identical_only_with_all_pieces_of_state(chapter):
    rows = chapter.table_of('{"forgotten": ""')
    first = {row["forgotten"]: row["first loss that differs"] for row in rows}
    assert first.pop("nothing") == "–"
    in_first_loss = {name for name, loss in first.items() if loss == "0"}
    assert in_first_loss == {"parameters", "position", "random state"}
    assert set(first) - in_first_loss == {"optimizer", "schedule", "loss scale"}
    assert "–" not in first.values()
    assert "measured parameters, position, random state>" in chapter.text_of(
        "predicted_in_first_loss.compare("
    )


def test_the_optimizer_state_is_twice_as_large_as_the_parameters(chapter):
    rows = chapter.table_of("def size_on_disk")
    sizes = {row["piece"]: row["on disk"].removesuffix(" KiB") for row in rows}
    assert float(sizes["optimizer"]) / float(sizes["parameters"]) == pytest.approx(2, abs=0.1)
    assert "328 GiB of weights, 2,298 GiB" in chapter.text_of("bloom = 176")


def test_rank_0_holds_everything_plus_a_shard_or_only_a_shard(chapter):
    rank_0, sharded = (list(row.values())[1:6] for row in chapter.table_of("def cost_of(run)"))
    assert rank_0 == ["1.25", "0.25", "0.25", "0.25", "0.75"]
    assert sharded == ["0.25", "0.25", "0.25", "0.25", "0.00"]
    answer = chapter.text_of("predicted_gather.compare(")
    assert "measured rank 0 holds: 1.25 S, all ranks send: 0.75" in answer
    assert "<svg" in chapter.svg_of("for row, (name, run) in enumerate(saves.items())")


def test_files_written_before_a_kill_remain(chapter):
    assert "rank 2 was killed by SIGKILL" in chapter.text_of("launch(train_and_die")
    rows = chapter.table_of('sorted(disk.glob("died_*"))')
    steps = {row["file"]: row["step in it"] for row in rows}
    assert steps["died_2.txt"] == "2"
    assert steps["died_0.txt"] == "3"


def test_a_kill_during_a_save_mixes_two_steps(chapter):
    printed = chapter.text_of("print(killed.headline)")
    assert "rank 2 was killed by SIGKILL" in printed
    assert "in the files: [4, 4, 2, 4]" in printed
    assert "measured not at all>" in chapter.text_of("predicted_notice.compare(")


def test_renamed_files_are_complete(chapter):
    rows = chapter.table_of("launch(write_forever")
    found = {row["file"]: (int(row["there are"]), int(row["complete"])) for row in rows}
    assert found["renamed"] == (8, 8)
    assert 8 >= found["in_place"][0] >= found["in_place"][1]


def test_only_a_renamed_folder_is_always_a_checkpoint(chapter):
    # The cell checks what a restart would find at each moment.
    assert "a restart finds" in chapter.svg_of("disk_moments(saves, restart)")


def test_dcp_loads_four_ranks_files_on_two(chapter):
    printed = chapter.text_of("saved = launch(save_with_dcp")
    assert all(f"__{rank}_0.distcp" in printed for rank in range(4))
    assert "✓ bit-equal on 2 ranks" in printed
    assert "rank 0 of 2 has 128 of 256 rows" in printed


def test_dcp_saves_a_plain_tensor_of_one_rank_only_unless_each_has_its_own_key(chapter):
    rows = [list(row.values()) for row in chapter.table_of("def save_and_load_own")]
    assert len({shared for _, shared, _ in rows}) == 1
    assert [own for *_, own in rows] == ["0", "1", "2", "3"]


def test_deepspeed_loads_on_two_ranks_only_after_its_tools_convert_the_checkpoint(chapter):
    assert "used a DP world size of 4" in chapter.text_of("print(refused.message)")
    answer = chapter.text_of("predicted_two_load.compare(")
    assert "Two ranks can load it: measured no>" in answer
    assert "29 tensors, equal to the engine's" in chapter.text_of("merged = launch(merge")
    printed = chapter.text_of("launch(make_universal")
    assert "✓ bit-equal on 2 ranks" in printed
    assert "position: 2" in printed


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
    printed = chapter.text_of("best_min = best_interval_min(60)")
    assert re.search(r"every 3.1 h: save every 1[789] min, 10.\d % of the time is lost", printed)
    answer = chapter.text_of("predicted_lost.compare(")
    assert "5.0 %; to steps that a failure undoes: 5.0 %" in printed
    assert "that is as much as before" in answer
    assert "simulated 5.199 %" in answer
    assert "best interval for 5 s, 6 min: 3.0 % is lost" in chapter.text_of("lost_with_5_s =")
    assert chapter.text_of("for save_s, simulated in").count("✓") == 2
    assert "<svg" in chapter.svg_of("minutes = np.geomspace")


def test_a_full_state_dict_gathers_everything_and_shards_send_nothing(chapter):
    answer = chapter.text_of("predicted_state_dicts.compare(")
    assert "measured shards: 0 Ψ, full: 0.84" in answer
    rows = [tuple(row.values()) for row in chapter.table_of("full: elements sent")]
    assert rows == [(str(rank), "(64, 96)", "29", "0" if rank else "29") for rank in range(4)]


@pytest.mark.browser
def test_reopened_pictures_respond_to_keys_and_sliders(chapter, loaded_lab, artifacts):
    assert try_the_pictures(chapter, loaded_lab, artifacts) == {"disk-moments"}
