"""Predictions and comparisons in Chromium, by keyboard, on a bare page in place of JupyterLab."""

import json
import re

import pytest
from playwright.sync_api import Locator, Page, expect

from shardlab.widgets import guess_line, predict, shard_map, traffic_map
from shardlab.widgets.comparison import marks_of
from shardlab.widgets.picture import asset
from shardlab.widgets.scene import as_json
from shardlab.widgets.verdict import format_amount, on_numbers, on_options
from tests.shardlab.widgets.interaction import Show
from tests.shardlab.widgets.synthetic import ring_all_reduce

pytestmark = pytest.mark.browser

MIB = 2**20
READABLE = {
    "B": {
        "1048576": MIB, "262,144": 262144, "1,048,576": MIB, "1_048_576": MIB, "1 048 576": MIB,
        "3 MB": 3e6, "3 mb": 3e6, "1,5 MiB": 1.5 * MIB, "1e9": 1e9, "2 * 3/4 * 4 MiB": 6 * MIB,
        "(1 + 2) KiB": 3072, "2×512": 1024, "16 bytes": 16, ".5 kB": 500,
    },
    "s": {"20 ms": 0.02, "1.5": 1.5, "2 min": 120},
    "Ψ": {"3/4": 0.75, "1,5": 1.5, "2 Ψ": 2, "0,375": 0.375},
    "bytes": {"3 B": 3, "3.5 bytes": 3.5, "1 kB": 1000},
    "": {"12 %": 0.12, "2x": 2, "1_000": 1000, "−1 + 2": 1},
}  # fmt: skip
UNREADABLE = {
    "B": {"": "Type a number first", "many": "“many” is not a number", "3 apples": "not a unit",
          "-5": "negative", "1/0": "finite", "(1": "parenthesis", "2 *": "missing",
          "1 2": "Unexpected", "1.2.3": "not a number", "1,2,3": "not a number"},
    "Ψ": {"1,375": "can mean 1375 or 1.375"},
}  # fmt: skip


def commit(root: Locator, *texts: str) -> None:
    """Types into the fields, one after another, and presses Enter in the last."""
    for field, text in zip(root.get_by_role("textbox").all(), texts, strict=True):
        field.fill(text)
        field.focus()
    root.page.keyboard.press("Enter")


def script(page: Page, body: str) -> object:
    return page.evaluate(
        f"() => {{ {asset('units.js')} {asset('verdict.js')} {asset('amount.js')} {body} }}"
    )


def test_amounts_are_parsed_as_people_write_them(show: Show) -> None:
    page = show(predict("amounts")).page
    read = script(
        page,
        f"""const readable = {json.dumps(READABLE)}, unreadable = {json.dumps(UNREADABLE)};
        const each = (all, what) => Object.fromEntries(Object.entries(all).map(([unit, texts]) =>
          [unit, Object.fromEntries(Object.keys(texts).map((text) => [text, what(text, unit)]))]));
        const message = (text, unit) => {{
          try {{ readAmount(text, unit); }} catch (error) {{ return error.message; }}
        }};
        return {{ readable: each(readable, (text, unit) => readAmount(text, unit)),
                  unreadable: each(unreadable, message) }};""",
    )
    assert isinstance(read, dict)
    assert read["readable"] == {unit: pytest.approx(texts) for unit, texts in READABLE.items()}
    for unit, texts in UNREADABLE.items():
        for text, words in texts.items():
            assert words in read["unreadable"][unit][text], text


NAMED = {"all of them": [400.0, 12.0], "half": [50.0, 1.5]}
NUMBERS = [
    [100, 3], [101, 3], [108, 3.1], [400, 12], [50, 1.5],
    [300, 9], [110, 2], [0, 0], [0, 3], [137, 4.1], [340, 11], [55, 1.7], [330, 10], [85, 2.2],
]  # fmt: skip
CHOSEN = [["a"], ["b"], ["a", "b"], [], ["a", "b", "c"]]


def test_python_and_javascript_give_the_same_verdicts_and_marks(show: Show) -> None:
    guess = predict("verdicts", unit="B", labels=["first", "second"])
    comparison = guess.compare([100, 3], NAMED)
    page = show(comparison).page
    over = predict("verdicts", labels=["1", "2"], over="segments", top=10).compare([2, 7])
    scenes = json.dumps([comparison.scene, over.scene])
    found = script(
        page,
        f"""const [named, scenes] = [{json.dumps(NAMED)}, {scenes}];
        {asset("guess_line.js")}
        {asset("comparison.js").split("function build")[0]}
        const [numbers, chosen] = [{json.dumps(NUMBERS)}, {json.dumps(CHOSEN)}];
        const judge = (...all) => Object.values(judgeNumbers(...all));
        const choose = (guess) => judgeOptions(guess, ["a"], {{ both: ["b", "a"] }});
        return {{
          both: numbers.map((guess) => judge(guess, [100, 3], named, ["x", "y"], "measured")),
          one: numbers.map(([guess]) => judge([guess], [100], {{}}, [], "counted")),
          zero: judge([2], [0], {{}}, [], "counted"),
          options: chosen.map((guess) => Object.values(choose(guess))),
          amounts: [0.5, 1 / 3, 16, 999.96, 1234.5, 4e6].map((x) => formatAmount(x, "Ψ")),
          marks: scenes.map((scene) => marksOf(scene, [150, 2])),
        }};""",
    )
    assert isinstance(found, dict)
    labels = ["x", "y"]
    assert found["both"] == [
        list(on_numbers(g, [100, 3], NAMED, labels, "measured")) for g in NUMBERS
    ]
    assert found["one"] == [list(on_numbers(g[:1], [100], {}, [], "counted")) for g in NUMBERS]
    assert found["zero"] == list(on_numbers([2], [0], {}, [], "counted"))
    both = {"both": ["b", "a"]}
    assert found["options"] == [list(on_options(g, ["a"], both)) for g in CHOSEN]
    amounts = (0.5, 1 / 3, 16, 999.96, 1234.5, 4e6)
    assert found["amounts"] == [format_amount(x, "Ψ") for x in amounts]
    for in_browser, each in zip(found["marks"], (comparison, over), strict=True):
        marks = as_json(marks_of(each.scene, [150, 2]))
        assert [_rounded(mark) for mark in in_browser] == [_rounded(mark) for mark in marks]


def _rounded(mark: dict[str, object]) -> dict[str, object]:
    """Without the numbers' formatting: a line's "14.00" is "14" in the browser."""
    path = [round(float(number), 1) for number in re.findall(r"-?[\d.]+", str(mark.get("d", "")))]
    numbers = {k: round(v, 1) for k, v in mark.items() if isinstance(v, int | float)}
    return {**mark, **numbers, "d": path}


def test_a_guess_is_committed_by_keyboard_and_may_be_changed_before_the_run(show: Show) -> None:
    root = show(predict("Bytes that each rank sends (keyboard)", unit="B", ranks=2))
    field = root.get_by_role("textbox", name="rank 1, B")
    commit(root, "3 MB", "some")
    expect(root.get_by_role("status")).to_have_text("rank 1: “some” is not a number.")
    expect(field).to_be_focused()
    expect(field).to_have_attribute("aria-invalid", "true")
    assert [box.input_value() for box in root.get_by_role("textbox").all()] == ["3 MB", "some"]
    commit(root, "3 MB", "1 MiB")
    assert root.page.evaluate("model.get('value')") == [3_000_000, MIB]
    expect(root.get_by_role("status")).to_contain_text("Now run the next cells.")
    expect(field).not_to_be_editable()
    root.get_by_role("button", name="Change").press("Enter")
    assert root.get_attribute("data-state") == "open"
    expect(field).to_be_editable()
    expect(field).to_have_value("1 MiB")
    commit(root, "3 MB", "2 MiB")
    root.page.evaluate("model.set('answered', true)")
    expect(root.get_by_role("button")).to_have_count(0)  # the run has answered it


def test_options_are_chosen_by_keyboard(show: Show) -> None:
    root = show(predict("One of three", options=["forward", "backward", "step"]))
    root.get_by_role("button", name="Commit").press("Enter")
    expect(root.get_by_role("status")).to_have_text("Choose one of them first.")
    root.page.keyboard.press("ArrowRight")
    root.page.keyboard.press("Enter")
    assert root.page.evaluate("model.get('value')") == "backward"

    root = show(predict("Some of three", options=["a", "b", "c"], several=True))
    for name in ("a", "c"):
        root.get_by_role("checkbox", name=name).press(" ")
    root.page.keyboard.press("Enter")
    assert root.page.evaluate("model.get('value')") == ["a", "c"]


def test_the_answer_is_hidden_until_the_reader_guesses_or_declines(show: Show) -> None:
    guess = predict("Bytes that each rank sends (hidden)", unit="B")
    root = show(guess.compare(MIB, {"what all ranks send together": 4 * MIB}))
    expect(root).to_contain_text("Commit a guess above to see how it compares.")
    expect(root.locator("canvas")).to_have_count(0)
    assert "1.0 MiB" not in root.inner_text()

    def guessed(amount: float | None) -> None:
        root.page.evaluate("amount => models.prediction.set('value', amount)", amount)

    guessed(4 * MIB)  # after the run
    verdict = root.get_by_role("status")
    expect(verdict).to_have_text(
        "4 times the measured value: that is what all ranks send together."
    )
    expect(root.locator("canvas")).to_be_visible()
    label = root.locator("canvas").get_attribute("aria-label") or ""
    assert "your guess 4.0 MiB; measured 1.0 MiB" in label
    guessed(3 * MIB)
    expect(verdict).to_have_text("3 times the measured value.")
    guessed(MIB)
    assert root.get_attribute("data-outcome") == "right"
    guessed(None)
    expect(root.locator("canvas")).to_have_count(0)
    root.get_by_role("button", name="Show it without a guess").press("Enter")
    expect(root.locator("canvas")).to_be_visible()


def test_a_map_that_takes_the_guess_is_hidden_until_then(show: Show) -> None:
    guess = predict("Bytes that each rank sends (map)", unit="B")
    root = show(traffic_map(ring_all_reduce(4), predicted=guess))
    expect(root).to_contain_text("Commit a guess above")
    assert "MiB" not in root.inner_text()
    expect(root.locator("canvas")).to_have_count(0)
    root.page.evaluate("models.prediction.set('value', 1e6)")
    expect(root.locator("canvas")).to_be_visible()
    root.page.evaluate("models.prediction.set('value', null)")
    expect(root.locator("canvas")).to_have_count(0)
    root.get_by_role("button", name="Show it without a guess").press("Enter")
    expect(root.locator("canvas")).to_be_visible()
    assert root.page.evaluate("models.prediction.get('revealed')")  # for its other pictures, too


def test_a_map_of_shards_is_hidden_until_the_guess_that_it_answers(show: Show) -> None:
    guess = predict("Ranks that hold a part of it", options=["rank 0", "rank 1"], several=True)
    root = show(shard_map({"w": 8, "b": 3}, world_size=2, stage=1, predicted=guess))
    expect(root).to_contain_text("Commit a guess above")
    expect(root.locator("canvas")).to_have_count(0)
    root.page.evaluate("models.prediction.set('value', ['rank 0'])")
    expect(root.locator("canvas")).to_be_visible()


def test_a_choice_is_answered_in_words(show: Show) -> None:
    guess = predict("The phase with the highest memory", options=["forward", "backward"])
    root = show(guess.compare("backward"))
    root.page.evaluate("models.prediction.set('value', 'forward')")
    expect(root).to_contain_text("Not “forward” but “backward”.")
    expect(root).to_contain_text("Your guess: forward. Measured: backward.")


def test_a_line_is_drawn_by_mouse_or_typed(show: Show) -> None:
    question = predict("Tensors at the peak", labels=[1, 2, 3], over="segments", top=40)
    root = show(question)
    box = root.locator("canvas").bounding_box()
    assert box
    scale = box["width"] / 640
    mouse = root.page.mouse
    for index, value in ((0, 40), (1, 20)):
        x, y = guess_line.x_of(index, 3), guess_line.y_of(value, 40)
        mouse.move(box["x"] + x * scale, box["y"] + y * scale)
        mouse.down()
    mouse.up()
    fields = root.get_by_role("textbox")
    assert [field.input_value() for field in fields.all()] == ["40", "20", ""]
    root.get_by_role("textbox", name="segments, 3").fill("1e2")
    root.page.keyboard.press("Enter")
    assert root.page.evaluate("model.get('value')") == [40, 20, 100]
    root.locator("canvas").click()  # it is locked
    assert [field.input_value() for field in fields.all()] == ["40", "20", "1e2"]
