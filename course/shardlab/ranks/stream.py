"""Shows the ranks' output while they run: one output area in a notebook, lines in a terminal."""

from __future__ import annotations

import codecs
import html
import sys
import time
from collections import deque
from typing import Any

from shardlab.display.palette import rank_color

PRINTED_BYTES = 64 << 20  # per rank and stream
MAX_LINE_CHARS = 1 << 20  # endless output without a newline must not fill memory
HEAD_LINES, TAIL_LINES, LINE_CHARS = 60, 60, 400
REDRAW_S = 0.1
PROGRESS_AFTER_S = 1.0  # a second of silence seems broken


class CapturedOutput:
    """One output stream of one rank: its text, and its lines as they become complete.

    Beyond ``max_bytes``, it keeps the first half and the last half of that.
    """

    def __init__(self, max_bytes: int = PRINTED_BYTES) -> None:
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.max_bytes = max_bytes // 2  # of the beginning, and of the end
        self.head, self.tail = bytearray(), bytearray()
        self.all_bytes = 0
        self.partial = ""

    def feed(self, data: bytes, final: bool = False) -> list[str]:
        """The lines that ``data`` completes, ready to show; very long lines come in parts."""
        self._keep(data)
        text = self.partial + self.decoder.decode(data, final)
        *lines, self.partial = text.split("\n")
        if self.partial and (final or len(self.partial) > MAX_LINE_CHARS):
            lines.append(self.partial)
            self.partial = ""
        return lines

    def _keep(self, data: bytes) -> None:
        self.all_bytes += len(data)
        room = self.max_bytes - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > 2 * self.max_bytes:  # occasionally, not on every call
            del self.tail[: -self.max_bytes]

    @property
    def text(self) -> str:
        cut_bytes = self.all_bytes - len(self.head) - self.max_bytes
        if cut_bytes <= 0:
            return (self.head + self.tail).decode(errors="replace")
        end = self.tail[-self.max_bytes :].decode(errors="replace")
        return f"{self.head.decode(errors='replace')}\n… {cut_bytes:,} bytes omitted …\n{end}"


class Screen:
    """Displays lines; this base class shows nothing (`quiet=True`)."""

    def line(self, rank: int, text: str, is_stderr: bool) -> None: ...

    def note(self, text: str) -> None:
        """About the run itself, after what the ranks printed."""

    def progress(self, text: str) -> None: ...

    def step(self, text: str) -> None:
        """Like `progress`, where a line cannot be redrawn: in output that goes to a file."""

    def close(self, ran_s: float) -> None: ...


class Terminal(Screen):
    def __init__(self) -> None:
        self.progress_shown = False
        self.lines = 0
        self.cut = 0

    def line(self, rank: int, text: str, is_stderr: bool) -> None:
        self.lines += 1
        if self.lines > 20 * (HEAD_LINES + TAIL_LINES):
            self.cut += 1
            return
        self._clear()
        print(f"[rank {rank}] {text}", file=sys.stderr if is_stderr else sys.stdout, flush=True)

    def note(self, text: str) -> None:
        self._clear()
        print(text, file=sys.stderr, flush=True)

    def progress(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self.progress_shown = True

    def step(self, text: str) -> None:
        if not sys.stderr.isatty():
            print(text, file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self.progress_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self.progress_shown = False

    def close(self, ran_s: float) -> None:
        self._clear()
        if self.cut:
            print(f"… {self.cut:,} more lines; all are in run.stdout")


class Notebook(Screen):
    """One output area, created with the first output and redrawn at most ten times a second.

    ``shows_lines``: False if it only says that the ranks still run.
    """

    def __init__(self, shows_lines: bool = True) -> None:
        self.shows_lines = shows_lines
        self.head: list[tuple[int, str, bool]] = []
        self.notes: list[str] = []
        self.tail: deque[tuple[int, str, bool]] = deque(maxlen=TAIL_LINES)
        self.lines = 0
        self.status = ""
        self.handle: Any = None
        self.drawn_s = 0.0
        self.is_stale = False

    def line(self, rank: int, text: str, is_stderr: bool) -> None:
        if not self.shows_lines:
            return
        self.lines += 1
        (self.head if len(self.head) < HEAD_LINES else self.tail).append((rank, text, is_stderr))
        self._redraw()

    def note(self, text: str) -> None:
        if self.shows_lines:
            self.notes.append(text)

    def progress(self, text: str) -> None:
        if text != self.status:
            self.status = text
            self._redraw()
        elif self.is_stale:
            self._redraw()

    def close(self, ran_s: float) -> None:
        # An area that only showed progress would remain as an empty line.
        self.status = "" if self.lines else f"ran for {ran_s:.1f} s"
        if self.handle is not None or self.lines or self.notes:
            self._redraw(now=True)

    def _redraw(self, now: bool = False) -> None:
        self.is_stale = True
        if not now and time.monotonic() - self.drawn_s < REDRAW_S:
            return
        from IPython.display import display

        bundle = {"text/html": self._html(), "text/plain": self._plain()}
        if self.handle is None:
            self.handle = display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)
        self.drawn_s = time.monotonic()
        self.is_stale = False

    def _rows(self) -> list[tuple[int | None, str, bool]]:
        rows: list[tuple[int | None, str, bool]] = list(self.head)
        cut = self.lines - len(self.head) - len(self.tail)
        if cut:
            rows.append((None, f"… {cut:,} lines are not shown; all are in run.stdout …", False))
        return rows + list(self.tail) + [(None, text, False) for text in self.notes]

    def _plain(self) -> str:
        rows = [
            shorten(text) if rank is None else f"rank {rank} │ {shorten(text)}"
            for rank, text, _ in self._rows()
        ]
        return "\n".join(rows + ([self.status] if self.status else []))

    def _html(self) -> str:
        rows = []
        for rank, text, is_stderr in self._rows():
            shown = html.escape(shorten(text)) or " "
            if rank is None:
                rows.append(f'<div style="opacity:.6">{shown}</div>')
                continue
            color = rank_color(rank)
            weak = ";opacity:.65" if is_stderr else ""
            rows.append(
                f'<div style="padding-left:6px;border-left:3px solid {color}{weak}">'
                f'<span style="opacity:.6">rank {rank} │ </span>{shown}</div>'
            )
        if self.status:
            rows.append(f'<div style="opacity:.7">{html.escape(self.status)}</div>')
        style = (
            "max-height:24em;overflow:auto;white-space:pre-wrap;"
            "font-family:var(--jp-code-font-family,monospace);"
            "font-size:var(--jp-code-font-size,13px);line-height:1.45"
        )
        return f'<div class="shardlab-output" style="{style}">{"".join(rows)}</div>'


def shorten(line: str) -> str:
    extra = len(line) - LINE_CHARS
    return line if extra <= 0 else f"{line[:LINE_CHARS]} … ({extra:,} more characters)"


def screen(quiet: bool, progress: bool = True) -> Screen:
    """Where a run shows itself. ``quiet``: without what ranks print, and without a sign of
    ``progress`` as well if that is False."""
    if quiet and not progress:
        return Screen()
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None and hasattr(shell, "kernel"):
        return Notebook(shows_lines=not quiet)
    return Screen() if quiet else Terminal()
