"""Cell outputs as a notebook stores them: from an untrusted process, and limited in size."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nbformat import NotebookNode, from_dict
from nbformat.v4 import new_output

TRUNCATED = "... the output was too long and is cut here ..."
INVALID = "... an output that a notebook cannot store ..."
MAX_DEPTH = 30  # of JSON inside JSON
MAX_ERRORS = 5  # of one cell, kept even beyond its output limit
MAX_NAME = 200  # characters of an error's name, a MIME type, a display id
MAX_MESSAGE = 4_000  # characters of an error's message
MAX_TRACEBACK = 20_000
# Error texts that show that a container hit a limit (autograder.sandbox.Limits), and which one.
_LIMITS = {
    "MemoryError": "memory",
    "can't allocate memory": "memory",  # torch
    "Cannot allocate memory": "memory",
    "can't start new thread": "processes and threads",
    "No space left on device": "disk",
    "File too large": "disk",
    "Too many open files": "open files",
}
_MIME = re.compile(r"[\w.+-]+/[\w.+-]+(;[\w.+= -]+)?")
_WIDGET = "application/vnd.jupyter.widget-view+json"  # useless without the process that made it


class InvalidOutput(ValueError):
    """Not an output that a notebook can store."""


@dataclass
class _Cell:
    """The outputs of one cell since they were last cleared."""

    outputs: list[NotebookNode] = field(default_factory=list)
    # Outputs that were displayed with an id, and their bytes.
    by_id: dict[str | None, list[tuple[NotebookNode, int]]] = field(default_factory=dict)
    kept_bytes: int = 0
    errors: int = 0
    is_truncated: bool = False  # its output was over the limit
    exhausted: str = ""  # the resource that ran out, according to an error
    clears_on_next: bool = False  # clear_output(wait=True)

    def add(self, output: NotebookNode, size: int) -> None:
        self.kept_bytes += size + 100  # an empty one takes space, too
        self.outputs.append(output)


class Outputs:
    """The outputs of a notebook's cells, up to ``cell_bytes`` each and ``all_bytes`` together."""

    def __init__(self, cell_bytes: int, all_bytes: int) -> None:
        self.cell_bytes = cell_bytes
        self.all_bytes = all_bytes
        self._cells: defaultdict[int, _Cell] = defaultdict(_Cell)  # by position

    def of(self, cell: int) -> list[NotebookNode]:
        """The final outputs, without overwritten lines."""
        outputs = self._cells[cell].outputs
        for output in outputs:
            if output.output_type == "stream":
                output.text = _without_overwritten(output.text)
        return outputs

    def limits_hit(self) -> Iterator[tuple[int, str]]:
        """(cell, a sentence for the student)."""
        cells = sorted(self._cells.items())
        truncated = [at for at, state in cells if state.is_truncated]
        yield from ((at, "Its output was too long and was cut.") for at in truncated)
        exhausted = [(at, state.exhausted) for at, state in cells if state.exhausted]
        yield from ((at, f"It needed more {what} than the limit.") for at, what in exhausted)

    def room(self, cell: int) -> int:
        """Bytes that this cell may still output."""
        state = self._ready(cell)
        if state.is_truncated:
            return 0
        kept_bytes = sum(each.kept_bytes for each in self._cells.values())
        return max(0, min(self.cell_bytes - state.kept_bytes, self.all_bytes - kept_bytes))

    def clear(self, cell: int, wait: bool) -> None:
        if wait:
            self._cells[cell].clears_on_next = True
        else:
            self._cells[cell] = _Cell()

    def _ready(self, cell: int) -> _Cell:
        """The cell's state, ready for another output."""
        if self._cells[cell].clears_on_next:
            self._cells[cell] = _Cell()
        return self._cells[cell]

    def write(self, cell: int, name: str, text: bytes) -> None:
        """Append to the stream ``name``."""
        if not text:
            return
        room = self.room(cell)
        state = self._cells[cell]
        if room > 0:
            kept = text[:room].decode(errors="replace")
            state.kept_bytes += len(text[:room])
            last = state.outputs[-1] if state.outputs else NotebookNode()
            if last.get("output_type") == "stream" and last.name == name:
                last.text += kept
            else:
                state.outputs.append(new_output("stream", name=name, text=kept))
        if len(text) > room:
            self.truncate(cell)

    def show(self, cell: int, kind: str, body: bytes, count: int) -> None:
        """A "display", "update", "result" or "error", as kernel.py sends it."""
        if kind == "error":
            self._add_error(cell, body)
            return
        if len(body) > self.room(cell):
            self.truncate(cell)
            return
        try:
            content = read_json(body)
            data, metadata = mime_bundle(content.get("data")), content.get("metadata", {})
            if not isinstance(metadata, dict):
                raise InvalidOutput("metadata must be a dict")
        except InvalidOutput:
            data, metadata, content = {"text/plain": INVALID}, {}, {}
        display_id = content.get("display_id")
        if not isinstance(display_id, str) or len(display_id) > MAX_NAME:
            display_id = None
        if kind == "update":
            self._update(display_id, data, metadata, len(body))
            return
        if kind == "result":
            output = new_output("execute_result", data, execution_count=count, metadata=metadata)
        else:
            output = new_output("display_data", data, metadata=metadata)
        state = self._cells[cell]
        if display_id is not None:
            state.by_id.setdefault(display_id, []).append((output, len(body)))
        state.add(output, len(body))

    def add_error(self, cell: int, name: str, sentence: str) -> None:
        """The grader's own error about how a cell ended; no limit applies to it."""
        line = f"{name}: {sentence}"
        error = new_output("error", ename=name, evalue=sentence, traceback=[line])
        self._cells[cell].outputs.append(error)

    def truncate(self, cell: int) -> None:
        state = self._cells[cell]
        if not state.is_truncated:
            state.is_truncated = True
            state.outputs.append(new_output("display_data", {"text/plain": TRUNCATED}))

    def _add_error(self, cell: int, body: bytes) -> None:
        state = self._ready(cell)
        state.errors += 1
        if state.errors > MAX_ERRORS or len(body) > 2 * self.cell_bytes:
            return
        try:
            content = read_json(body)
            name, message, lines = (content.get(key) for key in ("ename", "evalue", "traceback"))
            if not (isinstance(name, str) and isinstance(message, str) and isinstance(lines, list)):
                raise InvalidOutput("an error needs a name, a message and a traceback")
            text = "\n".join(line for line in lines if isinstance(line, str))
        except InvalidOutput:
            name, message, text = "Error", INVALID, INVALID
        for words, what in _LIMITS.items():
            if words in f"{name}: {message[:MAX_MESSAGE]}":
                state.exhausted = what
        if "Resource temporarily unavailable" in message and "fork" in text:
            state.exhausted = "processes and threads"
        if len(text) > MAX_TRACEBACK:
            text = text[: MAX_TRACEBACK // 2] + "\n...\n" + text[-MAX_TRACEBACK // 2 :]
        error = new_output("error", ename=name[:MAX_NAME], evalue=message[:MAX_MESSAGE])
        error.traceback = text.split("\n")
        state.add(error, len(text))

    def _update(
        self, display_id: str | None, data: dict[str, Any], metadata: dict[str, Any], size: int
    ) -> None:
        """Update every output with that id, in any cell."""
        for cell in [at for at, state in self._cells.items() if display_id in state.by_id]:
            state = self._ready(cell)
            for at, (output, before) in enumerate(state.by_id.get(display_id, ())):
                if size - before > self.room(cell):
                    self.truncate(cell)
                    continue
                state.kept_bytes += size - before
                output.data, output.metadata = from_dict(data), from_dict(metadata)
                state.by_id[display_id][at] = output, size


def stored_outputs(raw: Any, most_bytes: int) -> list[NotebookNode]:
    """A cell's outputs in a file, which may contain anything, up to ``most_bytes``."""
    outputs = Outputs(most_bytes, most_bytes)
    for each in raw if isinstance(raw, list) else []:
        with contextlib.suppress(RecursionError):  # nested too deeply
            match each:
                case {"output_type": "stream", "text": text}:
                    name = "stderr" if each.get("name") == "stderr" else "stdout"
                    outputs.write(0, name, str(_joined(text)).encode(errors="replace"))
                case {"output_type": "display_data" | "execute_result", "data": dict(data)}:
                    joined = {mime: _joined(value) for mime, value in data.items()}
                    content = {"data": joined, "metadata": each.get("metadata") or {}}
                    outputs.show(0, "display", json.dumps(content).encode(), 0)
                case {"output_type": "error"}:
                    outputs.show(0, "error", json.dumps(each).encode(), 0)
    return outputs.of(0)


def _joined(value: Any) -> Any:
    """A file may have a list of lines for a text."""
    is_lines = isinstance(value, list) and all(isinstance(line, str) for line in value)
    return "".join(value) if is_lines else value


def mime_bundle(data: Any) -> dict[str, Any]:
    """{MIME type: text, or JSON where the type says so}; raises InvalidOutput."""
    if not isinstance(data, dict):
        raise InvalidOutput("an output must be a dict")
    for mime, value in data.items():
        if len(mime) > MAX_NAME or not _MIME.fullmatch(mime):
            raise InvalidOutput("not a MIME type")
        is_json = mime == "application/json" or mime.endswith("+json")
        if not is_json and not isinstance(value, str):
            raise InvalidOutput(f"{mime} must be text")
    return {mime: value for mime, value in data.items() if mime != _WIDGET}


def read_json(body: bytes) -> dict[str, Any]:
    """A dict of plain JSON that any parser accepts; raises InvalidOutput."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidOutput("not JSON") from error
    if not isinstance(content, dict):
        raise InvalidOutput("not a JSON object")
    return plain_json(content)


def plain_json(value: Any, depth: int = 0) -> Any:
    """A copy with valid UTF-8 text; raises InvalidOutput for deep nesting, nan and inf."""
    if depth > MAX_DEPTH:
        raise InvalidOutput("nested too deeply")
    match value:
        case dict():
            return {_text(key): plain_json(item, depth + 1) for key, item in value.items()}
        case list():
            return [plain_json(item, depth + 1) for item in value]
        case str():
            return _text(value)
        case float() if not math.isfinite(value):
            raise InvalidOutput("not a number")
        case int() if abs(value) >= 1 << 63:
            raise InvalidOutput("a number is too large")
        case _:
            return value


def _text(value: str) -> str:
    """Replace lone surrogates: they cannot be written to a file."""
    return value.encode(errors="replace").decode()


def _without_overwritten(text: str) -> str:
    """The text as a terminal shows it: only the last state of a progress bar."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join(lines)
