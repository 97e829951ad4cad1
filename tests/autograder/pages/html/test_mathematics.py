"""TeX is converted to MathML that a browser can render, and to nothing else."""

from __future__ import annotations

import json
import re
import time
from html import escape
from pathlib import Path

import pytest

from autograder.pages.html import inert
from autograder.pages.html.mathematics import MAX_TEX, NotConvertible, mathml
from tests.autograder.pages.html.test_inert import unsafe_parts

REPO = Path(__file__).parents[4]
NOTEBOOKS = sorted([*REPO.glob("labs/*/*.ipynb"), *REPO.glob("course/chapters/*.ipynb")])


def prose_of(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]


def test_all_formulas_of_the_course_are_converted() -> None:
    found = 0
    for notebook in NOTEBOOKS:
        for source in prose_of(notebook):
            for display, inline in re.findall(r"\$\$(.+?)\$\$|\$([^$]+)\$", source, re.DOTALL):
                assert mathml(display or inline, display=bool(display)).startswith("<math")
                found += 1
            html = inert.markdown(source)
            assert html.count("<math") == len(
                re.findall(r"\$\$.+?\$\$|\$[^$]+\$", source, re.DOTALL)
            )
    assert found


@pytest.mark.parametrize(
    ("tex", "parts"),
    [
        (r"\frac{2(N-1)}{N}", ["<mfrac>", "<mi>N</mi>"]),
        (r"x_i^2", ["<msubsup>"]),
        (r"\sum_{i=0}^{N-1} x_i", ["<mo>∑</mo>"]),
        (r"n\log n", ['<mspace width="0.167em"></mspace><mi>log</mi><mspace width="0.167em">']),
        (r"\log(n)", ["<mi>log</mi><mo"]),
        (r"\begin{aligned} a &= b \\ c &= d \end{aligned}", ["<mtable>", 'columnalign="right"']),
        (r"\begin{cases} 1 & x>0 \\ 0 & \text{else} \end{cases}", ["<mtable>", "else"]),
        (r"\text{a < b \& c}", ["a&nbsp;&lt;&nbsp;b"]),
        (r"\mathbb{R}", ["ℝ"]),
        (r"\left( a \right)", ['stretchy="true"']),
    ],
)  # fmt: skip
def test_common_tex_is_converted(tex: str, parts: list[str]) -> None:
    converted = mathml(tex, display=True)
    for part in parts:
        assert part in converted
    if "<" not in tex and ">" not in tex:
        assert f'alttext="{escape(tex, quote=False)}"' in converted


@pytest.mark.parametrize(
    "tex",
    [
        r"\href{javascript:alert(1)}{x}", r"\url{http://evil.example}", r"\htmlData{a=b}{x}",
        r"\class{shardlab-check}{x}", r"\style{position:fixed}{x}", r"\cssId{x}{y}",
        r"\newcommand{\a}{\b\b\b}\a", r"\def\a{aa}\a", r"\DeclareMathOperator{\a}{a}\a",
        r"\renewcommand{\frac}{x}", r"\input{/etc/passwd}", r"\unknown{x}", r"\begin{aligned} x",
        "x^{2", "x}", "{" * 30 + "}" * 30, "x" * (MAX_TEX + 1), r"a & b", r"a \\ b", r"\frac", "",
        r"\begin{x}a\end{x}", r"\left(", r"x^", "_", "x_1_2", r"\end{a}",
    ],
)  # fmt: skip
def test_unsupported_tex_stays_as_written(tex: str) -> None:
    with pytest.raises(NotConvertible):
        mathml(tex)
    if tex.strip():
        html = inert.markdown(f"before ${tex}$ after")
        assert "<math" not in html
        assert escape(tex, quote=False)[:1000] in html.replace("&quot;", '"').replace("&#x27;", "'")


@pytest.mark.parametrize(
    "inside",
    [
        "<script>window.pwned=1</script>", '<img src=x onerror="window.pwned=1">',
        '" onclick="window.pwned=1', "&lt;script&gt;", "&#60;script&#62;", "]]><script>",
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["text", "mbox", "mathrm", "operatorname", "color", "tag"])
def test_markup_in_a_formula_is_text(command: str, inside: str) -> None:
    for source in (f"$\\{command}{{{inside}}} x$", f"$${inside}$$", f"$\\{command} {inside}$"):
        without_ours = re.sub(r"</?m[a-z]+[^<>]*>", "", inert.markdown(source))
        assert unsafe_parts(without_ours) == []


def test_a_formula_stays_within_its_line() -> None:
    for tex in (
        r"\hspace{-999px}x",
        r"\hspace{9999em}x",
        r"\rule{900em}{900em}",
        r"\raise{99em}{x}",
    ):
        try:
            converted = mathml(tex)
        except NotConvertible:
            continue
        assert not re.search(r"\d{2,}(\.\d+)?(em|px)|-\d|voffset", converted.replace(tex, ""))


def test_mathml_written_by_a_student_is_removed() -> None:
    html = inert.markdown("<math><mi>x</mi></math> $x$ ![words $y^2$](data:image/png;base64,AA==)")
    assert html.count("<math") == 1
    assert 'alt="words y^2"' in html


@pytest.mark.parametrize(
    "piece",
    ["{", "x^{", "\\sqrt", "\\left(", "\\begin{array}{c}", "a&", "\\\\", "'", "\\not", "&#x",
     "\\over ", "\\mathchoice", "\\xrightarrow[", "\\frac{a}{b}", "$", "$x$ "],
)  # fmt: skip
def test_no_formula_takes_long(piece: str) -> None:
    start_s = time.process_time()
    inert.markdown(f"${piece * (MAX_TEX // len(piece))}$" * 8)
    assert time.process_time() - start_s < 10


def test_formulas_past_the_limit_are_shown_as_written() -> None:
    html = inert.markdown(" ".join(f"$x_{{{number}}}$" for number in range(300)))
    assert html.count("<math") == inert.MAX_FORMULAS
    assert "<code>x_{299}</code>" in html
