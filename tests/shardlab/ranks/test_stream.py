"""Output of ranks: complete in `run.stdout`, limited on the screen."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.ranks import stream
from shardlab.ranks.stream import HEAD_LINES, TAIL_LINES, CapturedOutput, Notebook, Terminal


class TestCapturedOutput:
    def test_lines_are_returned_once_complete(self) -> None:
        captured = CapturedOutput()
        assert captured.feed(b"one\ntw") == ["one"]
        assert captured.feed(b"o\n\nthree") == ["two", ""]
        assert captured.feed(b"", final=True) == ["three"]
        assert captured.text == "one\ntwo\n\nthree"

    def test_a_character_may_be_split_between_two_reads(self) -> None:
        captured = CapturedOutput()
        lines = [line for byte in "é→𝄞\n".encode() for line in captured.feed(bytes([byte]))]
        assert lines == ["é→𝄞"]
        assert captured.text == "é→𝄞\n"

    def test_bytes_that_are_not_utf8(self) -> None:
        captured = CapturedOutput()
        assert captured.feed(b"a\xffb\n") == ["a\ufffdb"]
        captured.feed(b"\xc3", final=False)
        assert captured.feed(b"", final=True) == ["\ufffd"]

    def test_beginning_and_end_of_endless_output_are_kept(self) -> None:
        captured = CapturedOutput(max_bytes=10)
        for number in range(1000):
            captured.feed(b"%03d\n" % number)
        assert captured.text == "000\n0\n… 3,990 bytes omitted …\n\n999\n"
        assert len(captured.tail) <= 10

    def test_output_up_to_the_limit_is_not_truncated(self) -> None:
        captured = CapturedOutput(max_bytes=10)
        captured.feed(b"12345678")
        captured.feed(b"90")
        assert captured.text == "1234567890"

    def test_a_line_without_an_end_is_returned_in_parts(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stream, "MAX_LINE_CHARS", 10)
        captured = CapturedOutput()
        assert captured.feed(b"x" * 8) == []
        assert captured.feed(b"y" * 8) == ["x" * 8 + "y" * 8]


class TestTerminal:
    def test_each_line_has_its_rank(self, capsys: pytest.CaptureFixture[str]) -> None:
        screen = Terminal()
        screen.line(3, "hello", is_stderr=False)
        screen.line(0, "careful", is_stderr=True)
        screen.close(ran_s=3.0)
        shown = capsys.readouterr()
        assert shown.out == "[rank 3] hello\n"
        assert shown.err == "[rank 0] careful\n"

    def test_a_flood_is_truncated_with_a_note(self, capsys: pytest.CaptureFixture[str]) -> None:
        screen = Terminal()
        for number in range(10_000):
            screen.line(0, str(number), is_stderr=False)
        screen.close(ran_s=3.0)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) < 5_000
        assert lines[-1] == f"… {10_000 - (len(lines) - 1):,} more lines; all are in run.stdout"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The bundles that a notebook's output area has shown, in order."""
    bundles: list[dict[str, str]] = []

    class Handle:
        def update(self, bundle: dict[str, str], **_: Any) -> None:
            bundles.append(bundle)

    def display(bundle: dict[str, str], **_: Any) -> Handle:
        assert not bundles, "a second output area"
        bundles.append(bundle)
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    return bundles


class TestNotebook:
    def test_no_output_shows_nothing(self, shown: list[dict[str, str]]) -> None:
        Notebook().close(ran_s=3.0)
        assert shown == []

    def test_lines_with_their_ranks(self, shown: list[dict[str, str]]) -> None:
        screen = Notebook()
        screen.line(0, "hello", is_stderr=False)
        screen.line(1, "there", is_stderr=True)
        screen.close(ran_s=3.0)
        assert shown[-1]["text/plain"] == "rank 0 │ hello\nrank 1 │ there"

    def test_text_is_escaped(self, shown: list[dict[str, str]]) -> None:
        screen = Notebook()
        screen.line(0, '<script>alert("x")</script>&', is_stderr=False)
        screen.close(ran_s=3.0)
        html = shown[-1]["text/html"]
        assert "<script" not in html
        assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;" in html

    def test_progress_is_escaped_and_disappears_when_the_run_ends(
        self, shown: list[dict[str, str]]
    ) -> None:
        screen = Notebook()
        screen.progress("3 s of at most <30>")
        assert "&lt;30&gt;" in shown[-1]["text/html"]
        screen.close(ran_s=3.0)
        assert "at most" not in shown[-1]["text/html"]
        assert shown[-1]["text/plain"] == "ran for 3.0 s"  # rather than an empty line

    def test_a_quiet_run_shows_only_its_progress(self, shown: list[dict[str, str]]) -> None:
        screen = Notebook(shows_lines=False)
        screen.line(0, "a warning", is_stderr=True)
        assert shown == []
        screen.progress("running for 3 s")
        assert shown[-1]["text/plain"] == "running for 3 s"

    def test_long_output_is_truncated_with_a_note(self, shown: list[dict[str, str]]) -> None:
        screen = Notebook()
        for number in range(10_000):
            screen.line(0, f"line {number}", is_stderr=False)
        screen.close(ran_s=3.0)
        lines = shown[-1]["text/plain"].splitlines()
        assert len(lines) == HEAD_LINES + 1 + TAIL_LINES
        hidden = 10_000 - HEAD_LINES - TAIL_LINES
        assert lines[HEAD_LINES] == f"… {hidden:,} lines are not shown; all are in run.stdout …"
        assert lines[-1] == "rank 0 │ line 9999"
        assert len(shown[-1]["text/html"]) < 50_000

    def test_a_flood_is_not_redrawn_line_by_line(
        self, shown: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = iter(n * stream.REDRAW_S / 100 for n in range(1_000_000))
        monkeypatch.setattr(stream.time, "monotonic", lambda: 100.0 + next(now))
        screen = Notebook()
        for number in range(1_000):
            screen.line(0, str(number), is_stderr=False)
        assert 1 < len(shown) < 50

    def test_one_very_long_line_is_shortened(self, shown: list[dict[str, str]]) -> None:
        screen = Notebook()
        screen.line(0, "x" * 1_000_000, is_stderr=False)
        screen.close(ran_s=3.0)
        assert "999,600 more characters" in shown[-1]["text/plain"]
        assert len(shown[-1]["text/html"]) < 2_000
