"""Turns a rank that failed or ended into an error whose first line names it and its line."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from shardlab.display.source import is_user_code, locate, quoted
from shardlab.errors import RankError
from shardlab.ranks.hints import hint_for
from shardlab.ranks.process import RankProcess
from shardlab.ranks.stacks import line_of_stack
from shardlab.ranks.wording import at, call_text, line_text
from shardlab.trace.calls import CallLog, OpenCall

SIGNAL_HINTS = {
    "SIGKILL": "usually by the out-of-memory killer",
    "SIGSEGV": "a crash in compiled code",
    "SIGABRT": "compiled code aborted; in gloo usually because of tensors of different shapes",
    "SIGBUS": "usually because /dev/shm is full",
}
HEADLINE_CHARS = 240  # of an exception's message; the traceback has all of it
# Raised by gloo and NCCL on ranks whose peer went away: a consequence, never the cause
_CONSEQUENCE = re.compile(r"Connection (closed|reset)|reset by peer|Broken pipe|remote process")


def is_consequence(failure: Mapping[str, Any] | None) -> bool:
    """Whether this exception only reports that another rank went away."""
    if failure is None:
        return False
    return any(_CONSEQUENCE.search(str(cause["message"])) for cause in failure["chain"])


class Failed(Protocol):
    """A rank with the description of its exception (rank.describe)."""

    @property
    def rank(self) -> int: ...

    @property
    def failure(self) -> Mapping[str, Any] | None: ...


def exception_error(process: Failed) -> RankError:
    assert process.failure is not None
    stage, chain = process.failure["stage"], process.failure["chain"]
    kind, message = str(chain[0]["kind"]), str(chain[0]["message"])
    text = _headline_text(kind, message)
    if stage == "unpickle":
        text = f"the function or its inputs could not be unpickled on the rank ({text})"
    elif stage == "output":
        text = f"its output can't be sent back ({text})"
    elif kind == "SystemExit":
        text = f"it called sys.exit({message})"
    frames = chain[0]["frames"]
    source = _innermost_line(frames)
    return RankError(
        f"rank {process.rank} failed: {text}{at(source)}",
        hint_for(kind, message) + _traceback_text(process.rank, chain),
        rank=process.rank,
        kind=kind,
        message=message,
        source=source,
        in_user_code=bool(frames) and is_user_code(str(frames[-1][0])),
    )


def _headline_text(kind: str, message: str) -> str:
    """The message's first line that says something, cut to a length that fits a headline."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    said = lines[0] if lines else ""
    if said.endswith(":") and len(lines) > 1:  # "Error(s) in loading state_dict for Linear:"
        said = f"{said} {lines[1]}"
    text = f"{kind}: {said}".removesuffix(": ")
    return text if len(text) <= HEADLINE_CHARS else f"{text[:HEADLINE_CHARS]} …"


def exit_error(process: RankProcess, last: OpenCall | None, log: CallLog) -> RankError:
    """For a rank that ended without an exception: by a signal or os._exit."""
    rank, code = process.rank, process.exit_code or 0
    where = line_of_stack(process.stack())
    if not where and last is not None:
        where = f"in {call_text(last, log)}, {line_text(last)}"
    if code < 0:
        kind = _signal_name(-code)
        hint = f" ({SIGNAL_HINTS[kind]})" if kind in SIGNAL_HINTS else ""
        headline = f"rank {rank} was killed by {kind}{hint}{at(where)}"
    else:
        kind = "exit"
        headline = f"rank {rank} exited with code {code} before its function returned{at(where)}"
    detail = f"Peak memory of the rank: {process.max_rss_bytes / 2**20:,.0f} MiB."
    return RankError(headline, detail, rank=rank, kind=kind)


def log_limit_error(process: RankProcess) -> RankError:
    """For a rank whose log is longer than the limit."""
    message = "it made more calls than can be recorded"
    headline = f"rank {process.rank} failed: {message}"
    return RankError(headline, rank=process.rank, kind="TooLarge", message=message)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _innermost_line(frames: Sequence[Sequence[Any]]) -> str:
    """The innermost of the student's own lines."""
    own = [frame for frame in frames if is_user_code(str(frame[0]))]
    return quoted(str(own[-1][0]), int(own[-1][1])) if own else ""


def _traceback_text(rank: int, chain: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for cause in reversed(chain):
        lines = [f"Traceback on rank {rank} (most recent call last):"]
        for filename, line, name in cause["frames"]:
            where, text = locate(str(filename), int(line))
            lines.append(f"  {where}, in {name}")
            if text:
                lines.append(f"    {text}")
        lines.append(f"{cause['kind']}: {cause['message']}")
        parts.append("\n".join(lines))
    return "\n\nDuring handling of the above exception, another exception occurred:\n\n".join(parts)
