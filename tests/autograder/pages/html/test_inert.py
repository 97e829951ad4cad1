"""Students' work is inert on a page, and still readable."""

from __future__ import annotations

import base64
import io
import time
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import pytest
from PIL import Image

from autograder.pages.html import inert, mathematics
from autograder.pages.html.images import MAX_PASTED_BYTES, MAX_PIXELS
from tests.autograder.pages.feedback.graded_course import ring_pictures
from tests.autograder.pages.html import hostile

HARMLESS = {"alt", "title", "href", "src", "rel", "target", "colspan", "rowspan", "open", "start"}


class Reader(HTMLParser):
    """What a browser would act upon, and whether every element is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.unsafe: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("img", "br", "hr", "col"):
            self.open.append(tag)
        if tag in ("script", "style", "svg", "iframe", "object", "form", "base", "meta"):
            self.unsafe.append(tag)
        for name, value in attrs:
            known = tag in mathematics.ELEMENTS and name in mathematics.ATTRIBUTES
            known = known or name in HARMLESS or (name == "class" and is_ours(tag, value or ""))
            if not known:
                self.unsafe.append(f"{tag} {name}={value}")
            if name == "href" and not (value or "").startswith(("http:", "https:", "mailto:")):
                self.unsafe.append(f"{tag} href={value}")
            if name == "src" and not (value or "").startswith("data:image/"):
                self.unsafe.append(f"{tag} src={value}")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unsafe.append(f"</{tag}> without a start tag")


def is_ours(tag: str, classes: str) -> bool:
    """Classes that ``inert`` writes itself: its outputs', a terminal's and Pygments' colors."""
    if tag == "span":
        return len(classes) <= 3 or all(name.startswith("ansi-") for name in classes.split())
    return classes in ("", "highlight", "left-out") or classes.startswith("output ")


def unsafe_parts(html: str) -> list[str]:
    reader = Reader(html)
    return reader.unsafe + [f"<{tag}> left open" for tag in reader.open]


@pytest.mark.parametrize("name", hostile.FRAGMENTS)
def test_html_is_inert(name: str) -> None:
    fragment = hostile.FRAGMENTS[name]
    assert unsafe_parts(inert.html(fragment)) == []
    assert "<math" not in inert.html(fragment)
    assert unsafe_parts(inert.markdown(f"before\n\n{fragment}\n\nafter *{fragment}*")) == []


@pytest.mark.parametrize("name", hostile.MARKDOWN)
def test_markdown_is_inert(name: str) -> None:
    assert unsafe_parts(inert.markdown(hostile.MARKDOWN[name])) == []


@pytest.mark.parametrize(("name", "outputs"), hostile.outputs().items())
def test_outputs_are_inert(name: str, outputs: list[Any]) -> None:
    for output in outputs:
        assert unsafe_parts(inert.output(output)) == []


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
def test_an_output_of_any_type_can_be_shown(output: dict[str, Any]) -> None:
    assert unsafe_parts(inert.output(output)) == []


def test_formatting_is_kept() -> None:
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
    assert 'rel="noopener noreferrer nofollow"' in html  # formgrader's URL stays private


def test_a_pandas_table_keeps_its_cells() -> None:
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
def test_drawings_with_more_than_shapes_and_text_are_left_out(inside: str) -> None:
    assert (
        shown(**{"image/svg+xml": f"<svg xmlns='http://www.w3.org/2000/svg'>{inside}</svg>"}) == ""
    )


def test_a_drawing_of_deep_groups_is_left_out() -> None:
    groups = "<g>" * 5_000 + "</g>" * 5_000
    svg = f"<svg xmlns='http://www.w3.org/2000/svg'>{groups}</svg>"
    assert shown(**{"image/svg+xml": svg}) == ""


def test_a_decompression_bomb_is_left_out() -> None:
    side = int(MAX_PIXELS**0.5) + 1
    bomb = io.BytesIO()
    Image.new("1", (side, side)).save(bomb, "PNG")
    assert len(bomb.getvalue()) < 20_000
    data = base64.b64encode(bomb.getvalue()).decode()
    assert shown(**{"image/png": data}) == ""
    assert "src" not in inert.html(f"<img src='data:image/png;base64,{data}'>")


def png(side: int = 4) -> str:
    dot = io.BytesIO()
    Image.new("RGB", (side, side)).save(dot, "PNG")
    return base64.b64encode(dot.getvalue()).decode()


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("sketch.png", "![a *plan*](attachment:sketch.png)"),
        ("sketch.png", "![a plan][1]\n\n[1]: attachment:sketch.png"),
        ("my sketch (1) ä.png", "![a plan](attachment:my%20sketch%20(1)%20ä.png)"),
        ("my sketch (1) ä.png", "<img width=300 src='attachment:my sketch (1) ä.png'>"),
        ('a"b&c.png', "![a plan](attachment:a%22b&amp;c.png)"),
        ("sketch.png", 'text <img src="attachment:sketch.png"/> text'),
        ("sketch.png", "> | a |\n> |---|\n> | ![](attachment:sketch.png) |"),
    ],
)
def test_a_pasted_picture_is_shown(name: str, source: str) -> None:
    html = inert.markdown(source, {name: {"image/png": png()}})
    assert html.count(f'<img src="data:image/png;base64,{png()}" alt="') == 1
    assert unsafe_parts(html) == []


def test_a_pasted_drawing_is_shown_or_rejected() -> None:
    def markdown(svg: str) -> str:
        data = base64.b64encode(svg.encode()).decode()
        return inert.markdown("![](attachment:a.svg)", {"a.svg": {"image/svg+xml": data}})

    head = "<svg xmlns='http://www.w3.org/2000/svg'>"
    assert 'src="data:image/svg+xml;base64,' in markdown(f"{head}<rect/></svg>")
    assert "it contains more than shapes" in markdown(f"{head}<script>alert(1)</script></svg>")
    assert "src=" not in markdown(f"{head}<image href='{hostile.EVIL}'/></svg>")


REJECTED: dict[str, Any] = {
    "there is none": None,
    "not a dict": {"a.png": "x"},
    "empty": {"a.png": {}},
    "not text": {"a.png": {"image/png": {"a": 1}}},
    "not base64": {"a.png": {"image/png": '"><script>alert(1)</script>'}},
    "base64 of HTML": {"a.png": {"image/png": base64.b64encode(b"<script>").decode()}},
    "of another type": {"a.png": {"text/html": png()}},
    "a type that breaks out": {"a.png": {'image/png" onerror="x': png()}},
    "GIF by name": {"a.png": {"image/gif": png()}},
    "SVG by name": {"a.png": {"image/svg+xml": png()}},
    "huge": {"a.png": {"image/png": "A" * (MAX_PASTED_BYTES + 4)}},
}


@pytest.mark.parametrize("kind", REJECTED)
def test_a_picture_that_is_not_shown_is_named(kind: str) -> None:
    for source in ("before ![words](attachment:a.png) after", "<img src=attachment:a.png>"):
        html = inert.markdown(source, REJECTED[kind])
        assert "a.png" in html
        assert "img" not in html
        assert unsafe_parts(html) == []


def test_a_large_picture_is_shown_only_once() -> None:
    html = inert.markdown("![](attachment:a.png) " * 500, {"a.png": {"image/png": png(400)}})
    assert html.count("<img") == 1
    assert html.count("The picture a.png is shown above.") == 499


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ('"><script>x</script>', "w"),
        ("a.png", '" onerror="x'),
        ("a.png", '<b title="attachment:a.png">'),
        ("a.png", "![b](attachment:a.png)"),
        ("a.png", "$x^2$"),
    ],
)
def test_names_and_words_of_a_picture_are_text(name: str, words: str) -> None:
    for source in (f"![{words}](attachment:{quote(name)})", f'<p title="<img src={name}>">'):
        assert unsafe_parts(inert.markdown(source, {name: {"image/png": png()}})) == []
        assert unsafe_parts(inert.markdown(source)) == []


def shown(**data: str) -> str:
    """The URI of the image that shows this output; "" if none does."""
    html = inert.output({"output_type": "display_data", "data": data})
    return html.partition('src="')[2].partition('"')[0]


def test_a_plain_result_is_shown() -> None:
    assert "<pre>42</pre>" in inert.output(
        {"output_type": "execute_result", "data": {"text/plain": "42"}}
    )


def test_long_text_is_cut_in_the_middle() -> None:
    html = inert.text("a" * 30_000 + "z")
    assert len(html) < 21_000
    assert "characters left out" in html
    assert html.endswith("z</pre>")


@pytest.mark.parametrize(
    "piece", ["<div>", "<svg></b>", "\\begin{a}", "$$", "[a](", "<table><tr><td>"]
)
def test_no_input_takes_long(piece: str) -> None:
    start_s = time.process_time()
    inert.markdown(piece * (inert.MAX_TEXT // len(piece)))
    inert.html(piece * (inert.MAX_HTML // len(piece)))
    assert time.process_time() - start_s < 20  # without limits the worst takes minutes
