"""Chapter 00 runs from top to bottom, and what its prose says is what its cells show."""

import re

import pytest

from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    chapter = run("00_start_here", tmp_path_factory.mktemp("chapter"))
    print(f"\nchapter 00: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


def test_four_processes_say_hello(chapter):
    hellos = re.findall(r"I am rank (\d) of 4, process (\d+)", chapter.said("run = launch(hello"))
    assert sorted(rank for rank, _ in hellos) == ["0", "1", "2", "3"]
    assert len({process for _, process in hellos}) == 4


def test_each_rank_takes_its_share_of_the_numbers(chapter):
    assert chapter.said("def my_share") == "[[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]"


def test_the_operating_system_counts_the_tensor_and_little_more(chapter):
    printed = chapter.said("print(run.traffic.source)")
    assert printed.startswith("counted by the operating system")
    more = [int(n) for n in re.findall(r"the tensor's 1,048,576 and (\d+) more", printed)]
    assert len(more) == 4
    assert all(0 <= bytes_more < 10_000 for bytes_more in more)


def test_the_map_shows_the_ring_and_no_guess(chapter):
    picture = chapter.drew("traffic_map(run, predicted=predicted_bytes)")
    assert "1.0 MiB" in picture
    assert "predicted" not in picture


def test_the_tensor_comes_back_with_one_from_each_rank(chapter):
    assert "[4.0, 2.0, 3.0, 4.0]" in [
        output.data["text/plain"]
        for cell in chapter.notebook.cells
        if cell.cell_type == "code" and cell.source == "run.outputs"
        for output in cell.outputs
    ]


def test_each_call_names_its_line(chapter):
    printed = chapter.said("for call in run.calls:")
    assert (
        len(re.findall(r"rank \d  (send to|recv from) rank \d   cell \d+, line \d+", printed)) == 8
    )
    assert "8 calls on 4 ranks" in chapter.drew("timeline(run)")


def test_the_failed_rank_is_named(chapter):
    first_line = chapter.said("def fail_on_rank_2").splitlines()[0]
    assert re.match(
        r"rank 2 failed: ZeroDivisionError: .* \[cell \d+, line 2: return 10", first_line
    )


def test_the_deadlock_is_named_and_drawn(chapter):
    first_line = chapter.said("def both_receive_first").splitlines()[0]
    assert first_line.startswith("deadlock: ranks 0 → 1 → 0 all wait in recv")
    assert "never ended" in chapter.drew("timeline(hang)")


def test_the_machine_is_described(chapter):
    printed = chapter.said("most_ranks()")
    assert re.search(r"^cores +[1-9]", printed, re.MULTILINE)
    assert re.search(r"^most ranks +[1-9]", printed, re.MULTILINE)
    assert chapter.said('choose_device("auto", world_size)').count("world size") == 4
    assert "gloo" in chapter.said("launch(dist.get_backend")


def test_a_guess_is_shown_next_to_the_measurement(tmp_path):
    guessed = run(
        "00_start_here",
        tmp_path,
        predictions={"each rank sends": "4 * 262_144"},
        until="print(run.traffic.source)",
    )
    assert "predicted" in guessed.drew("traffic_map(run, predicted=predicted_bytes)")
