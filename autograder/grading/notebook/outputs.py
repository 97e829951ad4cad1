"""What cells put out, as a notebook keeps it: from an untrusted process, and never too much."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nbformat import NotebookNode, from_dict
from nbformat.v4 import new_output

TOO_MUCH = "... this cell printed more than is kept ..."
NOT_KEPT = "... an output that a notebook cannot hold ..."
MAX_DEPTH = 30  # of JSON inside JSON
MAX_ERRORS = 5  # of one cell, kept even where its output is full
MAX_NAME = 200  # characters of an error's name, a MIME type, a display's id
MAX_SAID = 4_000  # characters of an error's sentence
MAX_TRACEBACK = 20_000
# How an error speaks of a container's limits (autograder.sandbox.Limits), and which one it was.
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
_WIDGET = "application/vnd.jupyter.widget-view+json"  # dead without the process that made it


class NotPlainOutput(ValueError):
    """No output that a notebook can hold."""


@dataclass
class _Cell:
    """What one cell has put out since it was last cleared."""

    outputs: list[NotebookNode] = field(default_factory=list)
    # What was shown with an id, and its bytes.
    by_id: dict[str | None, list[tuple[NotebookNode, int]]] = field(default_factory=dict)
    kept_bytes: int = 0
    errors: int = 0
    is_overfull: bool = False  # it put out more than is kept
    out_of: str = ""  # what an error says there was too little of
    to_clear: bool = False  # with the next output: nothing flickers

    def add(self, output: NotebookNode, size: int) -> None:
        self.kept_bytes += size + 100  # an empty one takes room, too
        self.outputs.append(output)


class Outputs:
    """The outputs of a notebook's cells, below ``cell_bytes`` each and ``all_bytes`` together."""

    def __init__(self, cell_bytes: int, all_bytes: int) -> None:
        self.cell_bytes = cell_bytes
        self.all_bytes = all_bytes
        self._cells: defaultdict[int, _Cell] = defaultdict(_Cell)  # by position

    def of(self, cell: int) -> list[NotebookNode]:
        """Finished: lines that were written over are gone."""
        outputs = self._cells[cell].outputs
        for output in outputs:
            if output.output_type == "stream":
                output.text = _settled(output.text)
        return outputs

    def limits_hit(self) -> Iterator[tuple[int, str]]:
        """(cell, a sentence for the student)."""
        cells = sorted(self._cells.items())
        overfull = [at for at, has in cells if has.is_overfull]
        yield from ((at, "It printed more than is kept.") for at in overfull)
        out_of = [(at, has.out_of) for at, has in cells if has.out_of]
        yield from ((at, f"It was to use more {what} than it may.") for at, what in out_of)

    def room(self, cell: int) -> int:
        """Bytes that this cell may still put out."""
        has = self._open(cell)
        if has.is_overfull:
            return 0
        kept_bytes = sum(each.kept_bytes for each in self._cells.values())
        return max(0, min(self.cell_bytes - has.kept_bytes, self.all_bytes - kept_bytes))

    def clear(self, cell: int, wait: bool) -> None:
        if wait:
            self._cells[cell].to_clear = True
        else:
            self._cells[cell] = _Cell()

    def _open(self, cell: int) -> _Cell:
        """For another output."""
        if self._cells[cell].to_clear:
            self._cells[cell] = _Cell()
        return self._cells[cell]

    def write(self, cell: int, name: str, text: bytes) -> None:
        """To the stream of that name."""
        if not text:
            return
        room = self.room(cell)
        has = self._cells[cell]
        if room > 0:
            said = text[:room].decode(errors="replace")
            has.kept_bytes += len(text[:room])
            last = has.outputs[-1] if has.outputs else NotebookNode()
            if last.get("output_type") == "stream" and last.name == name:
                last.text += said
            else:
                has.outputs.append(new_output("stream", name=name, text=said))
        if len(text) > room:
            self.overflow(cell)

    def show(self, cell: int, kind: str, body: bytes, count: int) -> None:
        """A "display", "update", "result" or "error", as kernel.py sends it."""
        if kind == "error":
            self._add_error(cell, body)
            return
        if len(body) > self.room(cell):
            self.overflow(cell)
            return
        try:
            content = read_json(body)
            data, metadata = mime_bundle(content.get("data")), content.get("metadata", {})
            if not isinstance(metadata, dict):
                raise NotPlainOutput("metadata is a dict")
        except NotPlainOutput:
            data, metadata, content = {"text/plain": NOT_KEPT}, {}, {}
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
        has = self._cells[cell]
        if display_id is not None:
            has.by_id.setdefault(display_id, []).append((output, len(body)))
        has.add(output, len(body))

    def add_error(self, cell: int, name: str, sentence: str) -> None:
        """Our own word on how a cell ended; there is always room for it."""
        line = f"{name}: {sentence}"
        error = new_output("error", ename=name, evalue=sentence, traceback=[line])
        self._cells[cell].outputs.append(error)

    def overflow(self, cell: int) -> None:
        has = self._cells[cell]
        if not has.is_overfull:
            has.is_overfull = True
            has.outputs.append(new_output("display_data", {"text/plain": TOO_MUCH}))

    def _add_error(self, cell: int, body: bytes) -> None:
        has = self._open(cell)
        has.errors += 1
        if has.errors > MAX_ERRORS or len(body) > 2 * self.cell_bytes:
            return
        try:
            content = read_json(body)
            name, said, lines = (content.get(key) for key in ("ename", "evalue", "traceback"))
            if not (isinstance(name, str) and isinstance(said, str) and isinstance(lines, list)):
                raise NotPlainOutput("an error has a name, a sentence and a traceback")
            text = "\n".join(line for line in lines if isinstance(line, str))
        except NotPlainOutput:
            name, said, text = "Error", NOT_KEPT, NOT_KEPT
        for words, what in _LIMITS.items():
            if words in f"{name}: {said[:MAX_SAID]}":
                has.out_of = what
        if "Resource temporarily unavailable" in said and "fork" in text:
            has.out_of = "processes and threads"
        if len(text) > MAX_TRACEBACK:
            text = text[: MAX_TRACEBACK // 2] + "\n...\n" + text[-MAX_TRACEBACK // 2 :]
        error = new_output("error", ename=name[:MAX_NAME], evalue=said[:MAX_SAID])
        error.traceback = text.split("\n")
        has.add(error, len(text))

    def _update(
        self, display_id: str | None, data: dict[str, Any], metadata: dict[str, Any], size: int
    ) -> None:
        """Of every output with that id, in whichever cell."""
        for cell in [at for at, has in self._cells.items() if display_id in has.by_id]:
            has = self._open(cell)
            for at, (output, before) in enumerate(has.by_id.get(display_id, ())):
                if size - before > self.room(cell):
                    self.overflow(cell)
                    continue
                has.kept_bytes += size - before
                output.data, output.metadata = from_dict(data), from_dict(metadata)
                has.by_id[display_id][at] = output, size


def mime_bundle(data: Any) -> dict[str, Any]:
    """{MIME type: text, or JSON where the type says so}; raises NotPlainOutput."""
    if not isinstance(data, dict):
        raise NotPlainOutput("an output is a dict")
    for mime, value in data.items():
        if len(mime) > MAX_NAME or not _MIME.fullmatch(mime):
            raise NotPlainOutput("no MIME type")
        is_json = mime == "application/json" or mime.endswith("+json")
        if not is_json and not isinstance(value, str):
            raise NotPlainOutput(f"{mime} is text")
    return {mime: value for mime, value in data.items() if mime != _WIDGET}


def read_json(body: bytes) -> dict[str, Any]:
    """A dict of plain JSON that any reader takes back; raises NotPlainOutput."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NotPlainOutput("no JSON") from error
    if not isinstance(content, dict):
        raise NotPlainOutput("no JSON object")
    return plain_json(content)


def plain_json(value: Any, depth: int = 0) -> Any:
    """Its copy with text that UTF-8 can hold; raises NotPlainOutput for deep nesting and nan."""
    if depth > MAX_DEPTH:
        raise NotPlainOutput("too deep")
    match value:
        case dict():
            return {_text(key): plain_json(item, depth + 1) for key, item in value.items()}
        case list():
            return [plain_json(item, depth + 1) for item in value]
        case str():
            return _text(value)
        case float() if not math.isfinite(value):
            raise NotPlainOutput("not a number")
        case int() if abs(value) >= 1 << 63:
            raise NotPlainOutput("too large a number")
        case _:
            return value


def _text(value: str) -> str:
    """Half a surrogate pair would make the notebook unwritable."""
    return value.encode(errors="replace").decode()


def _settled(text: str) -> str:
    """As a terminal shows it: a progress bar's last state, not each of them."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join(lines)
