"""A prediction: a question and a field for the reader's guess, later compared with the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import traitlets
from numpy.typing import ArrayLike

from shardlab.display.palette import PREDICTED
from shardlab.widgets.comparison import Comparison
from shardlab.widgets.guess import Guess, checked, text_of
from shardlab.widgets.picture import Picture, asset, module
from shardlab.widgets.scene import Mark, Text, to_svg, wrap

WIDTH = 640.0

# The reader's guesses in this kernel: a cell that is rerun keeps its guess.
_guesses: dict[str, Guess] = {}


class Prediction(Picture):
    """A question and the reader's guess. Made by `predict`.

    ``value`` is the guess: a number, one number for each label, an option, or a list of options;
    None until the reader commits one. Code may set it too. ``answered``: whether it has been
    compared with a measurement; from then on the reader cannot change it. ``revealed``: the reader
    asked for the answer without a guess.
    """

    _esm: ClassVar[str] = module("amount.js", "verdict.js", "guess_line.js", "prediction.js")
    _css: ClassVar[str] = asset("widgets.css") + asset("prediction.css")
    value = traitlets.Any(None, allow_none=True).tag(sync=True)
    answered = traitlets.Bool(False).tag(sync=True)
    revealed = traitlets.Bool(False).tag(sync=True)

    def __init__(self, scene: dict[str, Any]) -> None:
        self._key = repr(sorted(scene.items()))
        super().__init__(scene={**scene, "color": PREDICTED}, value=_guesses.get(self._key))
        self.observe(self._remember, "value")
        self.observe(self.refresh, "value")

    def compare(
        self,
        answer: ArrayLike | str | Iterable[str] | bool,
        named: Mapping[str, Any] | None = None,
        source: str = "measured",
    ) -> Comparison:
        """The guess next to the answer, with a verdict; it appears once there is a guess.

        answer: of the same form as the guess, in the same unit; True and False are "yes" and "no".
        named: wrong answers that readers may have in mind, each with the words that follow
            "that is". The verdict quotes one only if the guess equals it, or for a wrong number
            of several that equals the same one of its numbers, or if several numbers are all
            within 20 % of it and nearer to it than to the answer. Compute them, from the run or
            a formula.
        source: what the answer is: "measured", "calculated", "counted", "simulated".

        Raises ValueError if ``answer`` or a value of ``named`` does not have the form of a guess.
        """
        wrong = {name: checked(value, self.scene) for name, value in (named or {}).items()}
        comparison = Comparison(self, checked(answer, self.scene), wrong, source)
        self.answered = True
        return comparison

    def static_svg(self) -> str:
        lines = wrap(self.scene["question"], 13, WIDTH)
        marks: list[Mark] = [
            Text(x=0, y=14 + 18 * row, text=words, size=13) for row, words in enumerate(lines)
        ]
        guess = text_of(self.value, self.scene) or "no guess"
        marks.append(Text(x=0, y=18 + 18 * len(lines), text=guess, size=13, weight=600))
        return to_svg(marks, WIDTH, 28.0 + 18 * len(lines), title="Your prediction")

    def summary(self) -> str:
        guess = text_of(self.value, self.scene)
        return f"{self.scene['question']}{f': {guess}' if guess else ''}"

    @traitlets.validate("value")
    def _validate(self, proposal: dict[str, Any]) -> Guess | None:
        if proposal["value"] is None:
            return None
        try:
            return checked(proposal["value"], self.scene)
        except ValueError as error:
            raise traitlets.TraitError(str(error)) from error

    def _remember(self, change: dict[str, Any]) -> None:
        if change["new"] is None:
            _guesses.pop(self._key, None)
        else:
            _guesses[self._key] = change["new"]


def predict(
    question: str,
    *,
    unit: str = "",
    labels: Sequence[object] = (),
    ranks: int = 0,
    options: Sequence[str] = (),
    several: bool = False,
    maximum: float | None = None,
    over: str = "",
    top: float = 0,
) -> Prediction:
    """Ask the reader for a guess before a run; `Prediction.compare` answers it afterwards.

    The guess is one number in ``unit``; with ``labels`` (or ``ranks``, the number of ranks) one
    number for each; with ``options`` one of them, or any of them if ``several``. With ``over``, the
    name of an axis whose places are the labels, it is a line, drawn by mouse or typed; the other
    axis goes from 0 to ``top``.

    unit: "B" and "s" also accept prefixes (MiB, MB, ms) and are shown with them; "bytes" accepts
        them too, but is shown with decimals and no prefix.
    maximum: the largest number that makes sense, such as 1 for a share.
    """
    texts = [f"rank {rank}" for rank in range(ranks)] if ranks else [str(each) for each in labels]
    if options and (unit or texts or maximum is not None):
        raise ValueError("a choice among options has no unit, labels or limit")
    if over and not (texts and top > 0):
        raise ValueError("a line over an axis needs labels and a top")
    return Prediction(
        {
            "question": question,
            "unit": unit,
            "labels": texts,
            "options": [str(option) for option in options],
            "several": several,
            "maximum": maximum,
            "line": {"axis": over, "top": top} if over else None,
        }
    )


def guess_in(predicted: Any) -> Any:
    """The guess in ``predicted=`` of a picture, which may be a `Prediction`."""
    return predicted.value if isinstance(predicted, Prediction) else predicted
