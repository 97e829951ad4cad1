"""A self-contained page: its template with the course's style in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

HERE = Path(__file__).parent


def prose(sentence: str) -> Markup:
    """A sentence from the grader: `names` become code, everything else is plain text."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(sentence))))


def points(value: float) -> str:
    """Two decimals at most: "3", "2.5", "1.67"."""
    return f"{round(value, 2):g}"


def render(template: str, **values: Any) -> str:
    """``template``: a path below autograder/pages."""
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
