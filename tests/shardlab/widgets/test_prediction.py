"""A guess, its answer and the verdict, without a browser."""

from xml.etree import ElementTree

import pytest
import traitlets

from shardlab.display.palette import MEASURED, PREDICTED
from shardlab.widgets import predict, traffic_map
from shardlab.widgets.verdict import on_numbers, on_options, plain
from tests.shardlab.widgets.synthetic import ring_all_reduce

MIB = 2**20
RANKS = [f"rank {rank}" for rank in range(4)]


@pytest.mark.parametrize(
    ("guess", "outcome", "text"),
    [
        ([100.0], "right", "Right."),
        ([101.0], "right", "Right, within 2 %."),
        ([95.0], "close", "Within 10 %: 5 % too low."),
        ([400.0], "named", "4 times the measured value: that is what all ranks send."),
        ([300.0], "off", "3 times the measured value."),
        ([25.0], "off", "0.25 times the measured value."),
        ([137.0], "off", "37 % too high."),
        ([0.0], "off", "0 instead of the measured value."),
    ],
)
def test_verdicts_on_a_number(guess, outcome, text) -> None:
    named = {"what all ranks send": [400.0]}
    assert on_numbers(guess, [100.0], named, [], "measured") == (outcome, text)


def test_a_measured_value_of_zero_has_no_factor() -> None:
    assert on_numbers([0.0], [0.0], {}, [], "counted").outcome == "right"
    assert on_numbers([3.0], [0.0], {}, [], "counted").text == "The counted value is 0."


@pytest.mark.parametrize(
    ("guess", "outcome", "text"),
    [
        ([3.0, 1.0, 1.0, 0.0], "right", "Right, within 2 %."),  # rank 3 sends only replies
        ([6.0, 2.0, 2.0, 0.0], "off", "1 of 4 within 10 %; furthest off: rank 0, 2 times"),
        ([3.0, 0.0, 0.0, 0.0], "named", "2 of 4 right: that is rank 0's part."),
        ([3.2, 1.0, 1.0, 0.0], "close", "Each within 10 %."),
    ],
)
def test_several_numbers_get_one_verdict(guess, outcome, text) -> None:
    named = {"rank 0's part": [3.0, 0.0, 0.0, 0.0]}
    verdict = on_numbers(guess, [3.0, 1.0, 1.0, 0.0001], named, RANKS, "measured")
    assert verdict.outcome == outcome
    assert verdict.text.startswith(text)


def test_each_of_several_numbers_may_equal_another_named_wrong_answer() -> None:
    named = {"before zero_grad": [16.0, 4.0], "all of it": [12.0, 12.0]}
    verdict = on_numbers([16.0, 12.0], [12.0, 3.0], named, ["DDP", "FSDP"], "measured")
    assert verdict == (
        "off",
        "0 of 2 within 10 %; furthest off: FSDP, 4 times the measured value; "
        "DDP: that is before zero_grad; FSDP: that is all of it.",
    )
    verdict = on_numbers([12.0, 4.0], [12.0, 3.0], named, ["DDP", "FSDP"], "measured")
    assert verdict.text.endswith("33 % too high; FSDP: that is before zero_grad.")


@pytest.mark.parametrize(
    ("guess", "text"),
    [
        ([3.0, 1.0, 1.0, 1.0], "Each 24 % too low: that is, within 20 %, without the outputs."),
        ([3.0, 0.9, 1.0, 0.0], "0 of 4 right: that is, within 20 %, without rank 3."),
        ([4.4, 1.3, 1.3, 1.3], "3 of 4 within 10 %; furthest off: rank 0, 12 % too high."),
        ([8.0, 4.0, 4.0, 4.0], "0 of 4 within 10 %; furthest off: rank 1, 3.1 times"),
    ],
)
def test_several_round_numbers_match_a_named_wrong_answer(guess, text) -> None:
    named = {"without rank 3": [3.5, 1.1, 1.1, 0.0], "without the outputs": [3.54, *[1.18] * 3]}
    verdict = on_numbers(guess, [3.93, 1.31, 1.31, 1.31], named, RANKS, "measured")
    assert verdict.text.startswith(text)
    assert on_numbers(guess[:1], [3.93], {"it": [3.54]}, [], "measured").outcome != "named"


def test_a_common_factor_is_named_once() -> None:
    verdict = on_numbers([2.0, 6.0], [1.0, 3.0], {}, RANKS[:2], "measured")
    assert verdict.text == "Each 2 times the measured value."


def test_options_that_are_missing_or_wrong_are_named() -> None:
    named = {"every piece": ["a", "b", "c"]}
    assert on_options(["a", "b"], ["a", "b"], named).outcome == "right"
    assert on_options(["c"], ["a"], {}).text == "Not “c” but “a”."
    text = on_options(["a", "c"], ["a", "b"], named).text
    assert text == "1 of 2 found; missing: b; wrong: c."
    assert on_options(["a", "b", "c"], ["a"], named).outcome == "named"


def test_numbers_keep_all_digits_before_the_decimal_point() -> None:
    assert [plain(x) for x in (1.375, 0.333333, 16, 999.96, 1234.5, 262144)] == [
        *("1.375", "0.3333", "16", "1,000", "1,235", "262,144"),
    ]


# ---- the widget ----


def test_without_a_guess_only_the_question_and_the_answer_are_printed() -> None:
    guess = predict("Bytes that each rank sends (no guess)", unit="B")
    comparison = guess.compare(MIB)
    assert guess.value is None
    assert comparison.verdict is None
    assert repr(guess) == "<Prediction: Bytes that each rank sends (no guess)>"
    assert repr(comparison).endswith("(no guess): measured 1.0 MiB>")
    for picture in (guess, comparison):
        svg = picture.static_svg()
        ElementTree.fromstring(svg)
        assert "None" not in svg + repr(picture)
    assert PREDICTED not in comparison.static_svg()


def test_the_static_picture_has_guess_answer_and_verdict() -> None:
    guess = predict("Bytes that each rank sends (static)", unit="B", ranks=4)
    guess.value = 2 * MIB  # the same for each
    assert guess.value == [2 * MIB] * 4
    svg = guess.compare([MIB] * 4).static_svg()
    assert svg.count(PREDICTED) == svg.count(MEASURED) == 5  # a mark for each rank, and a legend
    assert "Each 2 times the measured value." in svg
    assert "2.0 MiB" in guess.static_svg()


@pytest.mark.parametrize("value", ["many", -1, float("nan"), [1, 2]])
def test_a_guess_of_the_wrong_form_raises(value) -> None:
    with pytest.raises(traitlets.TraitError):
        predict("a number").value = value


def test_an_answer_of_the_wrong_form_raises() -> None:
    with pytest.raises(ValueError, match="3 numbers, but 4"):
        predict("four numbers", ranks=4).compare([1, 2, 3])
    with pytest.raises(ValueError, match="among the options"):
        predict("a choice", options=["yes", "no"]).compare("maybe")
    assert predict("a choice", options=["yes", "no"]).compare(True).scene["answer"] == ["yes"]


def test_a_cell_that_is_rerun_keeps_its_guess() -> None:
    predict("asked twice", options=["a", "b"]).value = "b"
    again = predict("asked twice", options=["a", "b"])
    assert again.value == "b"
    assert not again.answered  # so it may be changed until it is compared
    again.value = None
    assert predict("asked twice", options=["a", "b"]).value is None


def test_a_picture_follows_a_guess_that_is_made_after_the_run() -> None:
    guess = predict("Bytes that each rank sends (traffic map)", unit="B")
    picture = traffic_map(ring_all_reduce(4), predicted=guess)
    assert picture.scene["views"][0]["predicted"] is None
    assert picture.prediction is guess  # the browser hides it until then
    assert "shardlab-answer" in picture._repr_mimebundle_()[0]["text/html"].partition("<style>")[0]
    guess.value = 6 * MIB
    assert picture.scene["views"][0]["predicted"] == [6 * MIB] * 4
    assert "predicted" in picture.static_svg()
    html = picture._repr_mimebundle_()[0]["text/html"]
    assert "shardlab-answer" not in html.partition("<style>")[0]
