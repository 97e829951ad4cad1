"""What goes into the grading of one submission, and what comes out of it: plain data both.

A Task travels to whichever process or machine grades; a Record comes back and is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, get_args

from pydantic import ConfigDict, TypeAdapter

# How a submission ends: exactly one of these, the first that applies.
INFRASTRUCTURE_ERROR: Final = "infrastructure error"  # the machine's: no grade, tried again
TAMPERING: Final = "tampering"  # what cannot be an accident
RESOURCE_LIMIT: Final = "resource limit"  # time, memory, processes, disk or output
STUDENT_ERROR: Final = "student error"  # an answer never reached its check
GRADED: Final = "graded"
State = Literal["infrastructure error", "tampering", "resource limit", "student error", "graded"]
STATES = get_args(State)


class BrokenRecord(ValueError):
    """What was read is no record, or half of one."""


@dataclass(frozen=True)
class Task:
    """One submission of one lab, with all that its grade depends on."""

    __pydantic_config__ = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    lab: str
    student: str
    submitted: bytes | None  # the notebook as handed in; None: there is none that can be read
    unreadable: str  # why there is none, as the end of a sentence: "it is a link"
    template: Mapping[str, Any]  # the released notebook
    seed: int  # of the inputs that answers are tried on
    limits: Mapping[str, Any]  # autograder.sandbox.Limits
    code: str  # version.code_version() of whoever made the task
    notes: tuple[str, ...] = ()  # what was mended before the notebook was read, for the student
    patience_s: float = 7200.0  # for a worker that may hang: far above what the limits come to

    @property
    def engine(self) -> str:
        """Of the rank server that its cells find: as for `launch`, by what the lab's code names."""
        cells = self.template.get("cells", ())
        code = "".join(cell["source"] for cell in cells if cell["cell_type"] == "code")
        return "deepspeed" if "deepspeed" in code else "torch"

    @property
    def submission_hash(self) -> str:
        return _hash([self.unreadable, list(self.notes)], self.submitted or b"")

    @property
    def key(self) -> str:
        """The same for two gradings that must end alike."""
        facts = [self.lab, self.seed, self.code, dict(self.limits), self.template]
        return _hash([*facts, self.submission_hash])


@dataclass(frozen=True)
class Record:
    """How one submission was decided.

    Of one key everything is the same each time but ``timing`` and what the student's cells and
    pictures show of the clock; see ``decided``.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    lab: str
    student: str
    key: str  # of the task
    submission_hash: str  # of the task: the same submission, whatever else has changed
    state: State
    reason: str  # of a state other than graded: a sentence for the student
    notes: tuple[str, ...] = ()  # what was mended in the notebook, a sentence each
    flags: tuple[str, ...] = ()  # for the instructor alone: what the source shows, a sentence each
    notebook: dict[str, Any] | None = None  # rebuilt, run, with verdicts; None: nothing was decided
    points: dict[str, float] = field(default_factory=dict)  # {grade id of the check: earned}
    verdicts: dict[str, dict[str, Any]] = field(default_factory=dict)  # {grade id: plain Verdict}
    pictures: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # pictures.Picture
    timing: dict[str, float] = field(default_factory=dict)  # ran_s, decided_s, ...

    @property
    def is_final(self) -> bool:
        """False where the machine failed: the submission waits for the next run."""
        return self.state != INFRASTRUCTURE_ERROR

    def decided(self) -> str:
        """What must not differ between two gradings of the same key, as canonical text."""
        parts = asdict(replace(self, notebook=None, pictures={}, timing={}))
        return json.dumps(parts, sort_keys=True)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """Raises BrokenRecord."""
        try:
            return _RECORDS.validate_json(text, strict=True)
        except ValueError as error:
            raise BrokenRecord(f"not a record ({str(error).splitlines()[0]})") from error


TASKS = TypeAdapter(Task)
_RECORDS = TypeAdapter(Record)


def failed(task: Task, why: str) -> Record:
    """The record of a submission that could not be graded, through no fault of the student."""
    facts = task.lab, task.student, task.key, task.submission_hash
    return Record(*facts, INFRASTRUCTURE_ERROR, reason=why)


def _hash(facts: list[Any], content: bytes = b"") -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode() + content).hexdigest()
