"""Sentences of the grader's own."""

from __future__ import annotations

import re

from markupsafe import Markup, escape


def prose(sentence: str) -> Markup:
    """A sentence of the grader's: `names` in it are set as code, all else is plain text."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(sentence))))
