"""Renders self-contained pages from templates, including the course's style."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

HERE = Path(__file__).parent


def prose(sentence: str) -> Markup:
    """A sentence from the grader: `names` become code, everything else is plain text."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(sentence))))


def points(value: float) -> str:
    """Points with at most two decimals: "3", "2.5", "1.67"."""
    return f"{round(value, 2):g}"


def render(template: str, **values: Any) -> str:
    """``template``: a path relative to autograder/pages."""
    environment = Environment(
        loader=FileSystemLoader(HERE.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"prose": prose, "points": points}
    style = Markup("".join((HERE / name).read_text() for name in ("page.css", "output.css")))
    return environment.get_template(template).render(values, style=style)


def write_page(path: Path, page: str) -> None:
    """Write a file, creating its folder; it is replaced only once complete. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        # A lone surrogate in a student's text is written as "?".
        with open(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(page)
        os.chmod(part, 0o644)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
