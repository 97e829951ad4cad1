"""Converts TeX to MathML, which a browser renders without scripts or fonts from the web.

latex2mathml parses the TeX, but its output is not trusted: it has commands for links, styles and
macros, and leaves markup in text unchanged.  Its tree is serialized again here, with only those
elements that lay out formulas, and attributes that cannot move them out of their line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape, unescape
from xml.etree.ElementTree import Element

import nh3
from latex2mathml.converter import Converter

MAX_TEX = 2_000  # characters of one formula
MAX_DEPTH = 20  # of nested groups
MAX_ELEMENTS = 2_000  # of one formula's MathML
MAX_LENGTH_EM = 3.0  # of a space or a bracket

# Definitions, which can expand to any length, and commands for URLs and styles.
_REFUSED = re.compile(
    r"\\(def|let|edef|gdef|xdef|(re|provide)?newcommand|renewcommand|providecommand|newenvironment"
    r"|DeclareMathOperator|href|url|html[A-Za-z]*|class|style|cssId|require|input|include)(?![a-zA-Z])"
)
ELEMENTS = {
    "math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "ms", "mfrac", "msqrt", "mroot", "mstyle",
    "msub", "msup", "msubsup", "munder", "mover", "munderover", "mtable", "mtr", "mtd", "mphantom",
    "mpadded",
}  # fmt: skip
_ROWS = {"mrow", "mstyle", "mtd"}
_SCRIPTS = {"msub", "msup", "msubsup", "munder", "mover", "munderover"}
_WORD = re.compile(r"true|false|prefix|infix|postfix|block|inline|normal|left|right|center|0|1")
_WORDS = {
    "display", "displaystyle", "mathvariant", "stretchy", "fence", "form", "separator", "accent",
    "accentunder", "largeop", "movablelimits", "symmetric", "columnalign", "scriptlevel",
}  # fmt: skip
_LENGTHS = {"width", "minsize", "maxsize", "linethickness"}
_LENGTH = re.compile(r"(\d*\.?\d+)(em|ex|px|pt|mu)?")
_EM = {"em": 1.0, "ex": 0.5, "px": 1 / 16, "pt": 1 / 12, "mu": 1 / 18, None: 1 / 16}
ATTRIBUTES = _WORDS | _LENGTHS | {"alttext"}

# latex2mathml supports none of these; an array with alternating alignment looks the same.
_ENVIRONMENT = re.compile(r"\\begin\s*\{(?!(?:[pbBvV]?matrix|smallmatrix|array|cases)\})")
_ALIGNED = re.compile(r"\\(begin|end)\s*\{(?:aligned|align|split|eqnarray)\*?\}")
_COLUMNS = "{" + "rl" * 4 + "}"

_cleaner = nh3.Cleaner(
    tags=ELEMENTS, clean_content_tags=set(), attributes=dict.fromkeys(ELEMENTS, ATTRIBUTES)
)


class NotConvertible(ValueError):
    """The TeX cannot be converted and is shown as it was written."""


def mathml(tex: str, *, display: bool = False) -> str:
    """A ``<math>`` element. Raises NotConvertible."""
    if len(tex) > MAX_TEX or _REFUSED.search(tex) or not _is_balanced(tex):
        raise NotConvertible
    rewritten = _ALIGNED.sub(lambda of: f"\\{of[1]}{{array}}{_COLUMNS * (of[1] == 'begin')}", tex)
    if _ENVIRONMENT.search(rewritten):
        raise NotConvertible
    try:
        root = Converter(display="block" if display else "inline").convert_to_element(rewritten)
    except Exception as error:  # any failure of its parser
        raise NotConvertible from error
    elements = list(root.iter())
    for element in elements:
        element.text = unescape(element.text or "")  # "&#x0003D;" in latex2mathml's tree
    if len(elements) > MAX_ELEMENTS or not all(map(_is_known, elements)):
        raise NotConvertible
    if not set('<>"') & set(tex):  # no markup in an attribute, not even escaped
        root.set("alttext", tex.strip())
    return _cleaner.clean("".join(_serialized(root)))


def _is_balanced(tex: str) -> bool:
    depth = 0
    for found in re.findall(r"\\.|[{}]", tex):
        depth += {"{": 1, "}": -1}.get(found, 0)
        if not 0 <= depth <= MAX_DEPTH:
            return False
    return depth == 0


def _is_known(element: Element) -> bool:
    """False for an unknown command or "&" outside a table, which latex2mathml leaves unchanged."""
    text = element.text or ""
    if element.tag not in ELEMENTS or element.get("linebreak"):
        return False
    return element.tag == "mtext" or (text not in ("&", "~") and "\\" not in text)


def _serialized(element: Element) -> Iterator[str]:
    attributes = "".join(
        f' {name}="{escape(value)}"' for name, value in element.items() if _is_allowed(name, value)
    )
    yield f"<{element.tag}{attributes}>{escape(element.text or '')}"
    before = None
    for child in element:
        if before is not None and element.tag in _ROWS and _needs_space(before, child):
            yield '<mspace width="0.167em"></mspace>'
        yield from _serialized(child)
        before = child
    yield f"</{element.tag}>"


def _needs_space(left: Element, right: Element) -> bool:
    """Whether TeX sets a space here: between a function's name and its argument, as in "log n"."""
    pairs = ((left, right), (right, left))
    return any(_is_name(one) and other.tag not in ("mo", "mspace") for one, other in pairs)


def _is_name(element: Element) -> bool:
    while element.tag in _SCRIPTS and len(element):
        element = element[0]
    name = element.text or ""
    return element.tag in ("mi", "mo") and len(name) > 1 and name.isalpha()


def _is_allowed(name: str, value: str) -> bool:
    if name == "alttext":
        return True
    if name in _WORDS:
        return _WORD.fullmatch(value) is not None
    length = _LENGTH.fullmatch(value) if name in _LENGTHS else None
    return length is not None and float(length[1]) * _EM[length[2]] <= MAX_LENGTH_EM
