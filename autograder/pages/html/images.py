"""Images from student code, as ``data:`` URIs that a browser can only draw."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from defusedxml.ElementTree import fromstring
from PIL import Image

MAX_IMAGE_BYTES = 1_500_000
MAX_PASTED_BYTES = 6_000_000  # base64 of a photograph of a sheet of paper
MAX_PIXELS = 40_000_000  # four bytes each once decoded
MAX_SVG_ELEMENTS = 20_000
RASTER = {"image/png": "PNG", "image/jpeg": "JPEG", "image/gif": "GIF"}
SVG = "image/svg+xml"
KINDS = (SVG, *RASTER)
TOO_BIG = "An image was left out here because it is too large."
UNREADABLE = "An image was left out here because it cannot be read."
OTHER_KIND = "An image was left out here because it is not a PNG, JPEG, GIF or SVG."
UNUSUAL = "A drawing was left out here because it contains more than shapes and text."

_SHAPES = """
    svg g defs title desc style path rect circle ellipse line polyline polygon text tspan
    linearGradient radialGradient stop pattern clipPath marker symbol use"""
_IGNORED = "metadata"  # which plotting libraries add
_PAINT = re.compile(r"url\(\s*[\"']?#?([^\"')]*)", re.IGNORECASE)
_XLINK = "{http://www.w3.org/1999/xlink}href"


class NotShown(Exception):
    """Why an image is left out, as a sentence for the page."""


def image_uri(mime: str, data: str, max_bytes: int = MAX_IMAGE_BYTES) -> str:
    """``data`` is base64, or an SVG's text. Raises NotShown."""
    if mime not in KINDS:
        raise NotShown(OTHER_KIND)
    if len(data) > max_bytes:
        raise NotShown(TOO_BIG)
    try:
        if mime == SVG and "<" in data:  # in every SVG, but never in base64
            content = _checked_svg(data)
        else:
            raw = base64.b64decode("".join(data.split()), validate=True)
            content = _checked_svg(raw.decode()) if mime == SVG else _checked_raster(mime, raw)
    except Image.DecompressionBombError as error:
        raise NotShown(TOO_BIG) from error
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        # From Pillow, from decoding, and from deeply nested elements.
        raise NotShown(UNREADABLE) from error
    return f"data:{mime};base64,{base64.b64encode(content).decode('ascii')}"


def pasted_uri(formats: Any) -> str:
    """``formats``: a cell's attachment, {MIME type: base64}. Raises NotShown."""
    found = formats if isinstance(formats, Mapping) else {}
    mime = next((mime for mime in KINDS if mime in found), "")
    data = found.get(mime, "")
    if not isinstance(data, str):
        raise NotShown(UNREADABLE)
    return image_uri(mime, data, MAX_PASTED_BYTES)


def checked_uri(uri: str) -> str | None:
    """The ``data:`` URI for one that a student wrote; None if its content may not be shown."""
    match = re.fullmatch(r"data:(image/[a-z+]+);base64,([A-Za-z0-9+/=\s]*)", uri.strip())
    try:
        return image_uri(match[1], match[2]) if match else None
    except NotShown:
        return None


def _checked_raster(mime: str, content: bytes) -> bytes:
    """Reads only the header: a small file may decode to any number of pixels."""
    with Image.open(io.BytesIO(content), formats=[RASTER[mime]]) as image:
        if image.width * image.height > MAX_PIXELS:
            raise NotShown(TOO_BIG)
    return content


def _checked_svg(text: str) -> bytes:
    """The SVG, parsed and serialized again, if it contains only shapes and text.

    In an ``<img>``, an SVG cannot run or fetch anything, but nested references and filters can keep
    a browser busy forever.
    """
    if len(text) > MAX_IMAGE_BYTES:
        raise NotShown(TOO_BIG)
    try:
        root = fromstring(text, forbid_dtd=False, forbid_entities=True, forbid_external=True)
    except Exception as error:  # from expat, from defusedxml, or from odd bytes
        raise NotShown(UNREADABLE) from error
    for parent in list(root.iter()):
        for child in list(parent):
            if _name(child) == _IGNORED:
                parent.remove(child)
    names = [_name(element) for element in root.iter()]
    if (
        names[0] != "svg"
        or not set(names).issubset(_SHAPES.split())
        or len(names) > MAX_SVG_ELEMENTS
    ):
        raise NotShown(UNUSUAL)
    _require_flat(root)
    ElementTree.register_namespace("", "http://www.w3.org/2000/svg")
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    return ElementTree.tostring(root, encoding="utf-8")


def _require_flat(root: ElementTree.Element) -> None:
    """A referenced element must not contain references: eight levels of 10 make 10**8 shapes."""
    referred: set[str] = set()
    referring: set[ElementTree.Element] = set()
    for element in root.iter():
        values = list(element.attrib.values())
        if _name(element) == "style":
            values.append(element.text or "")
        targets = [target for text in values for target in _PAINT.findall(text)]
        # With a backslash, CSS can encode any character.
        if any("\\" in text for text in values) or (targets and _name(element) == "style"):
            raise NotShown(UNUSUAL)
        if _name(element) == "use":
            targets.append((element.get("href") or element.get(_XLINK) or "").lstrip("#"))
        if targets:
            referring.add(element)
            referred.update(targets)
    for element in root.iter():
        if element.get("id") in referred and not referring.isdisjoint(element.iter()):
            raise NotShown(UNUSUAL)


def _name(element: ElementTree.Element) -> str:
    """The tag without its namespace; "" for a comment or an instruction."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""
