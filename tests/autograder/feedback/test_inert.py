"""What students made does nothing on a page, and what they meant is still there to read."""

from __future__ import annotations

import base64
import io
import time
from html.parser import HTMLParser
from typing import Any

import pytest
from PIL import Image

from autograder.pages.html import inert, mathematics
from autograder.pages.html.images import MAX_PIXELS
from tests.autograder.feedback import hostile
from tests.autograder.feedback.made import ring_pictures

HARMLESS = {"alt", "title", "href", "src", "rel", "target", "colspan", "rowspan", "open", "start"}


class Reader(HTMLParser):
    """What a page would act upon, and whether every element is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.harm: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("img", "br", "hr", "col"):
            self.open.append(tag)
        if tag in ("script", "style", "svg", "iframe", "object", "form", "base", "meta"):
            self.harm.append(tag)
        for name, value in attrs:
            known = tag in mathematics.ELEMENTS and name in mathematics.ATTRIBUTES
            known = known or name in HARMLESS or (name == "class" and is_ours(tag, value or ""))
            if not known:
                self.harm.append(f"{tag} {name}={value}")
            if name == "href" and not (value or "").startswith(("http:", "https:", "mailto:")):
                self.harm.append(f"{tag} href={value}")
            if name == "src" and not (value or "").startswith("data:image/"):
                self.harm.append(f"{tag} src={value}")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.harm.append(f"</{tag}> that nothing opened")


def is_ours(tag: str, classes: str) -> bool:
    """Classes that ``inert`` writes itself: its outputs', a terminal's and Pygments' colours."""
    if tag == "span":
        return len(classes) <= 3 or all(name.startswith("ansi-") for name in classes.split())
    return classes in ("", "highlight", "left-out") or classes.startswith("output ")


def harm_of(html: str) -> list[str]:
    reader = Reader(html)
    return reader.harm + [f"<{tag}> left open" for tag in reader.open]


@pytest.mark.parametrize("name", hostile.FRAGMENTS)
def test_html_does_nothing(name: str) -> None:
    fragment = hostile.FRAGMENTS[name]
    assert harm_of(inert.html(fragment)) == []
    assert "<math" not in inert.html(fragment)
    assert harm_of(inert.markdown(f"before\n\n{fragment}\n\nafter *{fragment}*")) == []


@pytest.mark.parametrize("name", hostile.MARKDOWN)
def test_markdown_does_nothing(name: str) -> None:
    assert harm_of(inert.markdown(hostile.MARKDOWN[name])) == []


@pytest.mark.parametrize(("name", "outputs"), hostile.outputs().items())
def test_outputs_do_nothing(name: str, outputs: list[Any]) -> None:
    for output in outputs:
        assert harm_of(inert.output(output)) == []


@pytest.mark.parametrize(
    "output",
    [
        {},
        {"output_type": 7},
        {"output_type": "stream", "name": "'><b>", "text": ["a", None, 3]},
        {"output_type": "display_data", "data": "none"},
        {"output_type": "display_data", "data": {"text/html": {"a": 1}}},
        {"output_type": "error", "traceback": "<b>"},
        {"output_type": "error", "traceback": [["<b>"], 4], "ename": None},
    ],
)
def test_an_output_of_any_shape_can_be_shown(output: dict[str, Any]) -> None:
    assert harm_of(inert.output(output)) == []


def test_what_was_meant_is_still_there() -> None:
    html = inert.markdown(
        "# A plan\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n**bold** `x<y` [web](https://a.example)\n\n"
        "```python\nfor x in y: pass\n```\n\n<details><summary>Hint</summary>\n\n*this*\n</details>"
    )
    for part in (
        "<h1>A plan</h1>", "<td>1</td>", "<strong>bold</strong>", "<code>x&lt;y</code>",
        'href="https://a.example"', '<span class="k">for</span>', "<summary>Hint</summary>",
        "<em>this</em>",
    ):  # fmt: skip
        assert part in html
    assert 'rel="noopener noreferrer nofollow"' in html  # an address of formgrader's stays there


def test_a_table_of_pandas_keeps_its_cells() -> None:
    html = inert.html(
        "<style scoped>.x{}</style><table class=dataframe><tr><td colspan=2>3</table>"
    )
    assert html == '<table><tbody><tr><td colspan="2">3</td></tr></tbody></table>'


def test_pictures_of_the_course_and_of_matplotlib_are_shown() -> None:
    for picture in ring_pictures():
        assert shown(**{"image/svg+xml": picture["svg"]}).startswith("data:image/svg+xml;base64,")
    plot = (
        '<?xml version="1.0"?><!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://x/svg11.dtd">'
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
        '<metadata><rdf:RDF xmlns:rdf="r"/></metadata><defs><path id="m" d="M0 0"/>'
        '<clipPath id="c"><rect width="9"/></clipPath></defs>'
        '<g clip-path="url(#c)"><use xlink:href="#m" x="3"/></g></svg>'
    )
    assert shown(**{"image/svg+xml": plot})
    dot = io.BytesIO()
    Image.new("RGB", (4, 4)).save(dot, "PNG")
    assert shown(**{"image/png": base64.encodebytes(dot.getvalue()).decode()})


@pytest.mark.parametrize(
    "inside",
    [
        "<script/>", "<foreignObject/>", "<image href='http://x/y'/>", "<a href='http://x'/>",
        "<animate/>", "<filter/>", "<style>g{fill:url(#x)}</style>",
        r"<g style='fill:\75 rl(#x)'/>",
        "<g id='a'><use href='#b'/></g><g id='b'><use href='#a'/></g>",
        "<g id='a'><rect/></g><g id='b'><use href='#a'/><use href='#a'/></g><use href='#b'/>",
        "<pattern id='p'><rect fill='url(#q)'/></pattern><rect fill=\"url( '#p' )\"/>",
    ],
)  # fmt: skip
def test_drawings_of_more_than_shapes_and_text_are_left_out(inside: str) -> None:
    assert (
        shown(**{"image/svg+xml": f"<svg xmlns='http://www.w3.org/2000/svg'>{inside}</svg>"}) == ""
    )


def test_an_image_that_unpacks_to_too_much_is_left_out() -> None:
    side = int(MAX_PIXELS**0.5) + 1
    bomb = io.BytesIO()
    Image.new("1", (side, side)).save(bomb, "PNG")
    assert len(bomb.getvalue()) < 20_000
    data = base64.b64encode(bomb.getvalue()).decode()
    assert shown(**{"image/png": data}) == ""
    assert "src" not in inert.html(f"<img src='data:image/png;base64,{data}'>")


def shown(**data: str) -> str:
    """The address of the image that stands for this output; "" where none does."""
    html = inert.output({"output_type": "display_data", "data": data})
    return html.partition('src="')[2].partition('"')[0]


def test_long_text_is_cut_in_the_middle() -> None:
    html = inert.text("a" * 30_000 + "z")
    assert len(html) < 21_000
    assert "characters left out" in html
    assert html.endswith("z</pre>")


@pytest.mark.parametrize(
    "piece", ["<div>", "<svg></b>", "\\begin{a}", "$$", "[a](", "<table><tr><td>"]
)
def test_nothing_takes_long(piece: str) -> None:
    begun_s = time.process_time()
    inert.markdown(piece * (inert.MAX_TEXT // len(piece)))
    inert.html(piece * (inert.MAX_HTML // len(piece)))
    assert time.process_time() - begun_s < 20  # without its bounds the worst takes minutes
