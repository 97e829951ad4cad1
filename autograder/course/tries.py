"""How often a student ran an exercise's check.

The count is kept with the last result (checks.py) and stored in the metadata of the check's output,
so it is submitted with the notebook, for the instructor's report. It never affects a grade: a
student can edit both files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

KEY = "shardlab"  # in the metadata of an output
MAX_TRIES = 10_000
MAX_MISTAKES = 20
MAX_NAME = 500  # characters
Count = Annotated[int, Field(ge=0, le=MAX_TRIES)]
Name = Annotated[str, Field(max_length=MAX_NAME)]


@dataclass(frozen=True)
class Tries:
    """A try is a run of the check that reached a verdict; an unwritten answer has none."""

    total: Count = 0
    to_pass: Count = 0  # until the check passed for the first time; 0: it has not yet
    # {name: tries that showed this mistake, before the check first passed}
    mistakes: Annotated[dict[Name, Count], Field(max_length=MAX_MISTAKES)] = field(
        default_factory=dict
    )

    def and_one(self, *, passed: bool, mistakes: Iterable[str] = ()) -> Tries:
        """After another try, with the names of its mistakes. Counts end at MAX_TRIES."""
        if self.total >= MAX_TRIES:
            return self
        total, counts = self.total + 1, dict(self.mistakes)
        if self.to_pass:
            return Tries(total, self.to_pass, counts)
        for name in {mistake[:MAX_NAME] for mistake in mistakes}:
            if name in counts or len(counts) < MAX_MISTAKES:
                counts[name] = counts.get(name, 0) + 1
        return Tries(total, total if passed else 0, counts)

    def as_metadata(self, exercise: str) -> dict[str, Any]:
        """Of the output of the exercise's check; `from_metadata` reads it back."""
        return {KEY: {"exercise": exercise, "tries": asdict(self)}}


def from_metadata(metadata: Any) -> tuple[str, Tries] | None:
    """(exercise, its tries) from an output's metadata, which may be anything."""
    try:
        found = metadata[KEY]
        text = json.dumps(found["tries"])
        return str(found["exercise"]), _TRIES.validate_json(text, strict=True)
    except (KeyError, TypeError, ValueError):
        return None


_TRIES = TypeAdapter(Tries)
