"""What students wrote and printed, as inert HTML.

It has no script, no style, no form, no class or id that the surrounding page uses, and no URL that
a browser fetches automatically. Links lead only to the web, in a new tab, and only when clicked.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from html import escape, unescape
from typing import Any

import nh3
from mistune.util import striptags
from nbconvert.filters import ansi2html
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments.token import STANDARD_TYPES

from autograder.grading.submission.attachments import decode
from autograder.pages.html.images import KINDS, NotShown, checked_uri, image_uri, pasted_uri
from autograder.pages.html.mathematics import NotConvertible, mathml

MAX_TEXT = 20_000  # characters of one output or one cell's prose; more is cut in the middle
MAX_HTML = 200_000
MAX_ELEMENTS = 10_000
MAX_DEPTH = 200  # of nested elements: cleaning time grows with its square
MAX_ENVIRONMENTS = 50  # of LaTeX: the time to find their ends grows with its square
MAX_FORMULAS = 200  # in one cell; later ones are shown as TeX
MAX_MATHEMATICS = 6_000  # total characters of TeX in them

_TAGS = """
    a abbr b blockquote br caption code col colgroup dd del details div dl dt em figcaption figure
    h1 h2 h3 h4 h5 h6 hr i img ins kbd li mark ol p pre q s samp small span strong sub summary sup
    table tbody td tfoot th thead tr u ul var"""
_ELEMENT = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9-]*)")
# Elements whose end tag is optional or does not exist.
_OPEN_ENDED = {"p", "li", "br", "hr", "img", "td", "th", "tr", "dt", "dd", "col", "tbody", "thead"}
_SPANS = {"colspan", "rowspan"}
ATTACHMENT = "attachment:"
_PASTED_IMG = re.compile(
    rf"<img\b[^<>]*?\ssrc\s*=\s*(?:\"{ATTACHMENT}([^\"<>]*)\"|'{ATTACHMENT}([^'<>]*)'|"
    rf"{ATTACHMENT}([^\s\"'<>]+))[^<>]*>",
    re.IGNORECASE,
)
_CODE_CLASSES = {name for name in STANDARD_TYPES.values() if name}  # Pygments': "k", "s2"


def _attribute(tag: str, name: str, value: str) -> str | None:
    if name == "href":
        return value if value.lower().startswith(("https://", "http://", "mailto:")) else None
    if name == "src":
        return checked_uri(value)
    if name in _SPANS:
        return value if value.isdecimal() and int(value) <= 100 else None
    return value


_cleaner = nh3.Cleaner(
    tags=set(_TAGS.split()),
    clean_content_tags={"script", "style", "title", "textarea", "iframe", "noscript", "template"},
    attributes={
        "*": {"title"},
        "a": {"href"},
        "img": {"src", "alt"},
        "td": set(_SPANS),
        "th": set(_SPANS),
        "details": {"open"},
        "ol": {"start"},
    },
    attribute_filter=_attribute,
    allowed_classes={"span": _CODE_CLASSES, "div": {"highlight"}},
    set_tag_attribute_values={"a": {"target": "_blank"}},
    link_rel="noopener noreferrer nofollow",
    url_schemes={"http", "https", "mailto", "data"},
)


def html(fragment: str) -> str:
    """HTML that a student's code displayed."""
    if len(fragment) > MAX_HTML:
        return _note(f"HTML of {len(fragment):,} characters was left out here.")
    if fragment.count("<") > MAX_ELEMENTS or _depth(fragment) > MAX_DEPTH:
        return text(fragment)
    return _cleaner.clean(fragment)


def markdown(source: str, attachments: Mapping[str, Any] | None = None) -> str:
    """Markdown, with any HTML in it, and the pictures that were pasted into its cell."""
    if len(source) > MAX_TEXT or source.count("\\begin") > MAX_ENVIRONMENTS:
        return text(source)
    renderer = _Renderer(attachments or {})
    try:
        return renderer.complete(html(str(MarkdownWithMath(renderer=renderer).render(source))))
    except RecursionError:
        return text(source)


class _Renderer(IPythonRenderer):
    """Formulas become MathML, or stay as they were written; attachments become images.

    While the surrounding HTML is sanitized, each is replaced by a placeholder that cannot be
    guessed, so the only MathML and the only large URIs on the page are those made here.
    """

    def __init__(self, attachments: Mapping[str, Any]) -> None:
        super().__init__(escape=False, exclude_anchor_links=True)
        self._placeholder = secrets.token_hex(16)
        self._pieces: list[tuple[str, str]] = []  # HTML, and the same as plain text
        self._formulas = 0
        self._room = MAX_MATHEMATICS
        self._pasted = {decode(name): forms for name, forms in attachments.items()}
        self._shown: set[str] = set()

    def inline_math(self, body: str) -> str:
        return self._formula(body, f"<code>{escape(body)}</code>", display=False)

    def block_math(self, body: str) -> str:
        return self._formula(body, f"<pre>{escape(body.strip())}</pre>", display=True)

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(f"\\begin{{{name}}}{body}\\end{{{name}}}")

    def _formula(self, tex: str, as_written: str, display: bool) -> str:
        self._room -= len(tex)
        if self._room < 0 or self._formulas >= MAX_FORMULAS:
            return as_written
        try:
            made = mathml(tex, display=display)
        except NotConvertible:
            return as_written
        self._formulas += 1
        return self._piece(made, tex)

    def image(self, text: str, url: str, title: str | None = None) -> str:
        if url.startswith(ATTACHMENT):
            return self._picture(url.removeprefix(ATTACHMENT), text)
        return super().image(text, url, title)

    def block_html(self, html: str) -> str:
        return super().block_html(self._with_pictures(html))

    def inline_html(self, html: str) -> str:
        return super().inline_html(self._with_pictures(html))

    def _with_pictures(self, html: str) -> str:
        return _PASTED_IMG.sub(lambda found: self._picture("".join(found.groups(""))), html)

    def _picture(self, name: str, words: str = "") -> str:
        """Shows each picture once: a short text may refer to a large picture a thousand times."""
        name = decode(name)
        shown_name = shorten(name, 80)
        words = unescape(striptags(words))
        words = shown_name if not words or self._placeholder in words else words
        if name not in self._pasted:
            shown = _aside(f"The picture {shown_name} is not in the notebook that was graded.")
        elif name in self._shown:
            shown = _aside(f"The picture {shown_name} is shown above.")
        else:
            self._shown.add(name)
            try:
                shown = f'<img src="{pasted_uri(self._pasted[name])}" alt="{escape(words)}">'
            except NotShown as why:
                shown = _aside(f"{shown_name}: {why}")
        return self._piece(shown, shown_name)

    def _piece(self, html: str, as_text: str) -> str:
        self._pieces.append((html, as_text))
        return f"<var>{self._placeholder}{len(self._pieces) - 1}</var>"

    def complete(self, cleaned: str) -> str:
        """Replace the placeholders; in attributes, such as alt text, where "<" is escaped, insert
        plain text."""

        def insert(found: re.Match[str]) -> str:
            html, as_text = self._pieces[int(found[2])]
            return html if found[1] else escape(as_text)

        return re.sub(rf"(<var>)?{self._placeholder}(\d+)(?(1)</var>)", insert, cleaned)

    def block_mermaidjs(self, code: str) -> str:
        return f"<pre>{escape(code)}</pre>"


def text(plain: str) -> str:
    """Plain text with terminal colors."""
    return f"<pre>{ansi2html(shorten(plain))}</pre>"


def output(out: Mapping[str, Any]) -> str:
    """One output of a code cell, whatever it contains."""
    kind = out.get("output_type")
    if kind == "stream":
        look = "stderr" if out.get("name") == "stderr" else "stdout"
        return f'<div class="output {look}">{text(_joined(out.get("text")))}</div>'
    if kind == "error":
        lines = out.get("traceback")
        trace = "\n".join(map(_joined, lines)) if isinstance(lines, list) else ""
        trace = trace or f"{_joined(out.get('ename'))}: {_joined(out.get('evalue'))}"
        return f'<div class="output error">{text(trace)}</div>'
    data = out.get("data")
    return f'<div class="output data">{_richest(data if isinstance(data, Mapping) else {})}</div>'


def _richest(data: Mapping[str, Any]) -> str:
    """The richest of an output's formats that can be shown."""
    if "text/html" in data:
        return html(_joined(data["text/html"]))
    if "text/markdown" in data:
        return markdown(_joined(data["text/markdown"]))
    for mime in KINDS:
        if mime in data:
            try:
                uri = image_uri(mime, _joined(data[mime]))
            except NotShown as why:
                return _note(str(why)) + _plain(data)
            words = shorten(_joined(data.get("text/plain")), 200)
            return f'<img src="{uri}" alt="{escape(words)}">'
    if "text/latex" in data:
        return markdown(_joined(data["text/latex"]))
    return _plain(data) or _note("An output of a type that is not shown here.")


def _plain(data: Mapping[str, Any]) -> str:
    return text(_joined(data["text/plain"])) if "text/plain" in data else ""


def shorten(text: str, most: int = MAX_TEXT) -> str:
    if len(text) <= most:
        return text
    cut = len(text) - most
    return f"{text[: most // 2]}\n… {cut:,} characters left out …\n{text[-(most - most // 2) :]}"


def _joined(value: Any) -> str:
    """nbformat stores text as one string or as a list of lines."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return ""


def _note(sentence: str) -> str:
    return f'<p class="left-out">{escape(sentence)}</p>'


def _aside(sentence: str) -> str:
    """A note within a line of text."""
    return f"<em>({escape(sentence)})</em>"


def _depth(fragment: str) -> int:
    """An upper bound on the nesting depth: elements without an end tag count as open."""
    depth = deepest = 0
    for closes, name in _ELEMENT.findall(fragment):
        if name not in _OPEN_ENDED:
            depth = max(depth - 1, 0) if closes else depth + 1
            deepest = max(depth, deepest)
    return deepest
