"""Extracts the cells from a Python script: a notebook that was exported or copied as code.

Cells begin at `# %%` (VS Code, PyCharm, Jupytext), nbconvert's `# In[1]:` or Jupytext's `# +`. Text
is in comments or strings. Colab marks nothing: text is a string between the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

PERCENT = re.compile(r"^#[ \t]?%%(?![a-z])(.*)$", re.MULTILINE)  # %%time is a magic
UNTITLED = re.compile(r"^# (?:In\s?\[[ \d*]*\]:|\+( (?:\[|\{|\w+=).*)?|-)[ \t]*$", re.MULTILINE)
TEXT = re.compile(r"\[(?:md|markdown|raw)\]|^\s*(?:md|markdown|raw)\b", re.IGNORECASE)
GRADE_ID = re.compile(r'"grade_id": "([\w-]+)"')  # Jupytext keeps metadata
HEADER = re.compile(
    r"(?:#!.*\n)?(?:#.*coding[:=].*\n)?\s*(?:# ---\n(?:#.*\n)*?# ---\n)?"  # shebang, Jupytext's own
)
# Whatever may contain quotes or #. An unterminated string extends to the last character, so that no
# file makes this slow.
TOKEN = re.compile(
    r'(?:(?<!\w)[rRuU])?"""(?:[^"\\]|\\.|"(?!""))*+(?:"""|\Z)'
    r"|(?:(?<!\w)[rRuU])?'''(?:[^'\\]|\\.|'(?!''))*+(?:'''|\Z)"
    r"|\"(?:[^\"\\\n]|\\.)*+\"?|'(?:[^'\\\n]|\\.)*+'?|#[^\n]*",
    re.DOTALL,
)
COMMENTS = re.compile(r"(?:^#.*(?:\n|\Z))+", re.MULTILINE)
# After comments that are not between two statements.
INSIDE = re.compile(r"(?:[ \t]*\n)*+(?:[ \t)\]}]|(?:else|elif|except|finally)\b)")
QUOTES = ('"""', "'''")

Cells = list[Any]


def is_script(text: str) -> bool:
    """Whether it is Python instead of JSON."""
    first = text.lstrip("\ufeff \t\r\n")[:1]
    is_code = re.search(r"(?m)^(def|class|import|from|@\w+) ?", text) or PERCENT.search(text)
    return first not in ("{", "[", "<") and bool(is_code)


def cells_of_script(text: str) -> tuple[Cells, list[str]]:
    text = text.lstrip("\ufeff").replace("\r\n", "\n")
    header = HEADER.match(text)
    text = text[header.end() :] if header else text
    mark = PERCENT if PERCENT.search(text) else UNTITLED
    # [title, source, title, source, ...]
    parts = ["", *mark.split(text)]
    cells: Cells = []
    for title, source in zip(parts[::2], parts[1::2], strict=True):
        if TEXT.search(title or "") or (mark is PERCENT and _is_commented(source)):
            pieces = [("markdown", _as_text(source))]
        else:
            # Below `# %%` a comment belongs to the code.
            pieces = list(_pieces(source, mark is UNTITLED))
        found = GRADE_ID.search(title or "")
        metadata = {"nbgrader": {"grade_id": found[1]}} if found and len(pieces) == 1 else {}
        for kind, piece in pieces:
            if piece.strip():
                cell = {"cell_type": kind, "source": piece.strip("\n"), "metadata": metadata}
                cells.append(cell)
    return cells, ["You submitted a Python script: its code was graded in the lab's notebook."]


def _pieces(source: str, split_comments: bool) -> Iterator[tuple[str, str]]:
    """(type, text) of code and of the text between it: strings that are statements and, if
    ``split_comments``, paragraphs of comments."""
    done = at = 0  # everything before ``done`` was yielded, everything before ``at`` was seen
    for token in TOKEN.finditer(source):
        start, end = token.span()
        if start < at or source[start - 1 : start] not in ("", "\n"):
            continue
        if token[0].startswith("#"):
            comments = COMMENTS.match(source, start)
            at = end = comments.end() if comments else end
            if not (split_comments and _is_paragraph(source, start, end)):
                continue
        elif token[0].lstrip("rRuU")[:3] not in QUOTES or source[end : end + 1] not in ("", "\n"):
            continue
        yield "code", source[done:start]
        yield "markdown", _as_text(source[start:end])
        done = at = end
    yield "code", source[done:]


def _is_paragraph(source: str, start: int, end: int) -> bool:
    """Whether these comments are between two statements, with empty lines around them."""
    begins = source[max(start - 2, 0) : start] in ("", "\n", "\n\n")
    return begins and source[end : end + 1] in ("", "\n") and not INSIDE.match(source, end)


def _is_commented(source: str) -> bool:
    return all(line.startswith("#") or not line.strip() for line in source.splitlines())


def _as_text(source: str) -> str:
    """Without the comment signs or quotes; PyCharm writes neither."""
    source = source.strip()
    body = source.lstrip("rRuU")
    if body[:3] in QUOTES and len(body) >= 6 and body.endswith(body[:3]):
        text = body[3:-3].strip("\n")
        single = re.search(r"(?<!\\)\\(?:\\\\)*(?!\\)", text)
        # Colab doubles each \ of a formula.
        return text if single or source[0] in "rR" else text.replace("\\\\", "\\")
    if _is_commented(source):
        return re.sub(r"^# ?", "", source, flags=re.MULTILINE)
    return source
