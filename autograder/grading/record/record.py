"""The input and the result of grading one submission, both plain data.

A Task is sent to the process or machine that grades; a Record comes back and is saved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, get_args

from pydantic import ConfigDict, TypeAdapter

# The states of a submission: exactly one of these, the first that applies.
INFRASTRUCTURE_ERROR: Final = "infrastructure error"  # the machine failed: no grade, retried
TAMPERING: Final = "tampering"  # something that cannot have been an accident
RESOURCE_LIMIT: Final = "resource limit"  # time, memory, processes, disk or output
UNREADABLE: Final = "unreadable file"  # 0 points: what was submitted is not a notebook
STUDENT_ERROR: Final = "student error"  # an answer never reached its check
GRADED: Final = "graded"
State = Literal[
    "infrastructure error",
    "tampering",
    "resource limit",
    "unreadable file",
    "student error",
    "graded",
]
STATES = get_args(State)


class BrokenRecord(ValueError):
    """The text is not a record, or only part of one."""


@dataclass(frozen=True)
class Task:
    """One submission for one lab, with everything that its grade depends on."""

    __pydantic_config__ = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    lab: str
    student: str
    submitted: bytes | None  # the notebook as submitted; None: none can be read
    unreadable: str  # why there is none, as a sentence for the student
    template: Mapping[str, Any]  # the released notebook
    seed: int  # of the inputs that answers are tried on
    limits: Mapping[str, Any]  # autograder.sandbox.Limits
    code: str  # version.code_version() where the task was made
    notes: tuple[str, ...] = ()  # repairs before the notebook was read, for the student
    timeout_s: float = 7200.0  # for a worker that hangs: far above the sum of the limits

    @property
    def engine(self) -> str:
        """The rank server's engine for its cells: chosen as by `launch`, from the lab's code."""
        cells = self.template.get("cells", ())
        code = "".join(cell["source"] for cell in cells if cell["cell_type"] == "code")
        return "deepspeed" if "deepspeed" in code else "torch"

    @property
    def submission_hash(self) -> str:
        return hash_of_submission(self.submitted, self.unreadable, self.notes)

    @property
    def key(self) -> str:
        """Equal for two gradings that must give the same result."""
        facts = [self.lab, self.seed, self.code, dict(self.limits), self.template]
        return _hash([*facts, self.submission_hash])


@dataclass(frozen=True)
class Record:
    """How one submission was graded.

    For one key, only ``timing`` and the times shown in the student's cells and pictures may
    differ; see ``decided``.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    lab: str
    student: str
    key: str  # of the task
    submission_hash: str  # of the task: equal for the same submission, whatever else changed
    state: State
    reason: str  # for a state other than graded: a sentence for the student
    notes: tuple[str, ...] = ()  # repairs to the notebook, a sentence each
    flags: tuple[str, ...] = ()  # for the instructor only: what looks suspicious in the source
    notebook: dict[str, Any] | None = None  # rebuilt, run, with verdicts; None: nothing was decided
    points: dict[str, float] = field(default_factory=dict)  # {grade id of the check: earned}
    verdicts: dict[str, dict[str, Any]] = field(default_factory=dict)  # {grade id: plain Verdict}
    pictures: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # pictures.Picture
    timing: dict[str, float] = field(default_factory=dict)  # ran_s, decided_s, ...

    @property
    def is_final(self) -> bool:
        """False if the machine failed: the next run retries the submission."""
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


def hash_of_submission(content: bytes | None, unreadable: str, notes: tuple[str, ...]) -> str:
    """Of what `folders.read_submission` returns; in a record: of what was graded."""
    return _hash([unreadable, list(notes)], content or b"")


def _hash(facts: list[Any], content: bytes = b"") -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode() + content).hexdigest()
