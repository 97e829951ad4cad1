"""The tokens of Python code, without what is easily changed. The code is parsed, never run."""

from __future__ import annotations

import builtins
import io
import keyword
import re
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

KEPT_NAMES = {*keyword.kwlist, *dir(builtins)}
LAYOUT = {
    tokenize.ENCODING, tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT,
    tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ERRORTOKEN,
}  # fmt: skip
# Python 3.12 and later split an f-string into tokens.
F_STRING_START = getattr(tokenize, "FSTRING_START", -1)
F_STRING_END = getattr(tokenize, "FSTRING_END", -1)
TEXT_TOKEN = re.compile(
    r"(?P<skip>\#.*|\s+)"
    r"|(?P<string>[rbfuRBFU]{0,2}(?:\"\"\"[\s\S]*?\"\"\"|'''[\s\S]*?'''|\"[^\"\n]*\"|'[^'\n]*'))"
    r"|(?P<name>[^\W\d]\w*)|(?P<number>\d[\w.]*)"
    r"|(?P<operator>\*\*=?|//=?|<<=?|>>=?|[-+*/%&|^@<>=!:]=|->|\.\.\.|[^\w\s])"
)


class Token(NamedTuple):
    """``start`` and ``end``: offsets in the text, in characters."""

    text: str
    is_own_name: bool  # chosen by the student, so it may differ between copies
    start: int
    end: int


def tokens(source: str) -> list[Token]:
    """The code's tokens, without comments, layout, docstrings and the contents of strings.

    Text that Python cannot tokenize is split by a regular expression, which gives the same tokens
    for valid code.
    """
    try:
        found = list(_python_tokens(source))
    except (tokenize.TokenError, SyntaxError, ValueError):
        found = list(_text_tokens(source))
    return [_token(found, index) for index in range(len(found))]


def _token(found: list[tuple[str, int, int]], index: int) -> Token:
    text, start, end = found[index]
    is_name = text.isidentifier() and text not in KEPT_NAMES
    if is_name and index and found[index - 1][0] == ".":
        # Most attributes belong to libraries; those of self are the student's own.
        is_name = index > 1 and found[index - 2][0] == "self"
    return Token(text, is_name, start, end)


def _python_tokens(source: str) -> Iterator[tuple[str, int, int]]:
    line_starts = [0]
    for line in io.StringIO(source):
        line_starts.append(line_starts[-1] + len(line))
    line_starts.append(line_starts[-1])  # of the empty line at the end
    depth, begin = 0, 0  # of f-strings, which may be nested
    statement: list[tuple[str, int, int]] = []
    for kind, text, (row, column), (end_row, end_column), _ in tokenize.generate_tokens(
        io.StringIO(source).readline
    ):
        start, end = line_starts[row - 1] + column, line_starts[end_row - 1] + end_column
        if kind == F_STRING_START:
            begin, depth = begin if depth else start, depth + 1
        elif kind == F_STRING_END:
            depth -= 1
            if not depth:
                statement.append(('""', begin, end))
        elif depth:
            continue
        elif kind == tokenize.STRING:
            statement.append(('""', start, end))
        elif kind in (tokenize.NEWLINE, tokenize.ENDMARKER):
            if any(each != '""' for each, _, _ in statement):  # else it is a docstring
                yield from statement
            statement = []
        elif kind not in LAYOUT:
            statement.append((text, start, end))


def _text_tokens(source: str) -> Iterator[tuple[str, int, int]]:
    for match in TEXT_TOKEN.finditer(source):
        if match.lastgroup != "skip":
            text = '""' if match.lastgroup == "string" else match[0]
            yield text, match.start(), match.end()
