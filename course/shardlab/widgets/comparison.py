"""The answer to a prediction: guess and measurement on one axis, with a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from shardlab.display.palette import MEASURED, PREDICTED
from shardlab.widgets import guess_line
from shardlab.widgets.guess import Guess, as_list, text_of
from shardlab.widgets.guess_line import circle, diamond
from shardlab.widgets.picture import Picture, asset, module
from shardlab.widgets.scene import Mark, Text, line, text_width, to_svg, wrap
from shardlab.widgets.verdict import Verdict, format_amount, on_numbers, on_options

WIDTH = 640.0
ROW = 26.0
TOP = 24.0
RIGHT = 410.0  # the end of the axis; it begins after the longest label
GUESS_X, ANSWER_X = 436.0, 546.0  # columns of numbers


class Comparison(Picture):
    """A guess next to the answer. Made by `Prediction.compare`.

    The verdict follows the prediction, which may be made after the run; ``verdict`` is None without
    a guess.
    """

    _esm: ClassVar[str] = module("verdict.js", "guess_line.js", "comparison.js")
    _css: ClassVar[str] = asset("widgets.css") + asset("prediction.css")

    def __init__(
        self, prediction: Picture, answer: Guess, named: Mapping[str, Guess], source: str
    ) -> None:
        asked = prediction.scene
        scene = {
            "question": asked["question"],
            "unit": asked["unit"],
            "labels": asked["labels"],
            "places": [
                f"{asked['line']['axis']} = {label}" if asked["line"] else label
                for label in asked["labels"]
            ],
            "is_choice": bool(asked["options"]),
            "line": asked["line"],
            "answer": as_list(answer),
            "answer_text": text_of(answer, asked),
            "named": {name: as_list(value) for name, value in named.items()},
            "source": source,
            "width": WIDTH,
            "axis": [
                22 + max((text_width(each, 12) for each in asked["labels"]), default=0),
                RIGHT,
            ],
            "columns": [GUESS_X, ANSWER_X],
            "top": TOP,
            "row": ROW,
            "roles": {"predicted": PREDICTED, "measured": MEASURED},
        }
        super().__init__(scene=scene, prediction=prediction)
        prediction.observe(self.refresh, "value")

    @property
    def verdict(self) -> Verdict | None:
        scene = self.scene
        if self.prediction.value is None:
            return None
        guess = as_list(self.prediction.value)
        if scene["is_choice"]:
            return on_options(guess, scene["answer"], scene["named"])
        return on_numbers(guess, scene["answer"], scene["named"], scene["places"], scene["source"])

    def summary(self) -> str:
        answer = f"{self.scene['question']}: {self.scene['source']} {self.scene['answer_text']}"
        verdict = self.verdict
        if verdict is None:
            return answer
        return f"{answer}; predicted {text_of(self.prediction.value, self.scene)}. {verdict.text}"

    def static_svg(self) -> str:
        scene, verdict = self.scene, self.verdict
        guess = None if verdict is None else as_list(self.prediction.value)
        if scene["is_choice"]:
            lines = wrap(f"{scene['source']}: {scene['answer_text']}", 13, WIDTH)
            if guess is not None:
                guessed = text_of(self.prediction.value, scene)
                lines = wrap(f"your guess: {guessed}", 13, WIDTH) + lines
            marks: list[Mark] = [
                Text(x=0, y=14 + 18 * row, text=words, size=13) for row, words in enumerate(lines)
            ]
            height = 10.0 + 18 * len(lines)
        else:
            marks, height = marks_of(scene, guess), height_of(scene)
        footer = "" if verdict is None else verdict.text
        return to_svg(marks, WIDTH, height, title=scene["question"], footer=footer)


def height_of(scene: Mapping[str, Any]) -> float:
    if scene["line"]:
        return guess_line.HEIGHT
    return float(scene["top"] + scene["row"] * len(scene["answer"]) + 24)


def marks_of(scene: Mapping[str, Any], guess: Sequence[float] | None) -> list[Mark]:
    """Guess and answer on an axis from 0, or as lines; comparison.js has the same functions."""
    if scene["line"]:
        return _lines(scene, guess)
    top, row, unit, roles = scene["top"], scene["row"], scene["unit"], scene["roles"]
    left, right = scene["axis"]
    guess_x, answer_x = scene["columns"]
    largest = max([*scene["answer"], *(guess or [])]) or 1.0
    bottom = top + row * len(scene["answer"])
    marks: list[Mark] = [
        Text(x=answer_x + 14, y=12, text=scene["source"], size=12, fill="muted"),
        circle(answer_x + 5, 8, roles["measured"]),
    ]
    if guess is not None:
        marks.append(Text(x=guess_x + 14, y=12, text="your guess", size=12, fill="muted"))
        marks.append(diamond(guess_x + 5, 8, roles["predicted"]))
    marks.append(line(left, top - 4, left, bottom))
    for at, anchor in ((0.0, "middle"), (largest, "middle")):
        x = left + (right - left) * at / largest
        text = format_amount(at, unit) if at else "0"
        marks.append(Text(x=x, y=bottom + 16, text=text, size=12, anchor=anchor, fill="muted"))
    for index, answer in enumerate(scene["answer"]):
        y = top + row * (index + 0.5)
        marks.append(line(left, y, right, y))
        if scene["labels"]:
            label = scene["labels"][index]
            marks.append(Text(x=left - 12, y=y + 4, text=label, size=12, anchor="end"))
        marks.append(circle(left + (right - left) * answer / largest, y, roles["measured"]))
        marks.append(Text(x=answer_x, y=y + 4, text=format_amount(answer, unit), size=12))
        if guess is not None:
            guessed = guess[index]
            marks.append(diamond(left + (right - left) * guessed / largest, y, roles["predicted"]))
            marks.append(Text(x=guess_x, y=y + 4, text=format_amount(guessed, unit), size=12))
    return marks


def _lines(scene: Mapping[str, Any], guess: Sequence[float] | None) -> list[Mark]:
    roles, answer = scene["roles"], scene["answer"]
    guess_x, answer_x = scene["columns"]
    top = max([scene["line"]["top"], *answer, *(guess or [])])
    marks = guess_line.axes_marks(scene["labels"], scene["line"]["axis"], top, scene["unit"])
    marks.append(Text(x=answer_x + 14, y=12, text=scene["source"], size=12, fill="muted"))
    marks.append(circle(answer_x + 5, 8, roles["measured"]))
    marks += guess_line.line_marks(answer, top, roles["measured"], is_guess=False)
    if guess is not None:
        marks.append(Text(x=guess_x + 14, y=12, text="your guess", size=12, fill="muted"))
        marks.append(diamond(guess_x + 5, 8, roles["predicted"]))
        marks += guess_line.line_marks(guess, top, roles["predicted"], is_guess=True)
    return marks
