"""Checks on the text of every chapter, before it runs."""

import re
from statistics import median

import pytest

from autograder.build.text import notebook_from_text
from tests.chapters.running_chapter import CHAPTERS, PREDICTION, ROOT, code_cells, read

NAMES = sorted(path.name.removesuffix(".nb.py") for path in CHAPTERS.glob("*.nb.py"))
LABS = sorted(ROOT.glob("solutions/*/*.nb.py"))


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_short(name):
    lines = [len(cell.source.splitlines()) for cell in code_cells(read(name))]
    assert 3 <= median(lines) <= 8
    assert max(lines) <= 16


@pytest.mark.parametrize("name", NAMES)
def test_no_prose_has_slipped_into_a_code_cell(name):
    lines = [line for cell in code_cells(read(name)) for line in cell.source.splitlines()]
    assert [line for line in lines if re.match(r"#$|# (#|[-*] |>|\|)", line)] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_prediction_is_asked_in_a_cell_of_its_own_and_answered_later(name):
    asked, answered = predictions_of(read(name))
    assert answered == asked != []


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.parent.name)
def test_a_labs_predictions_are_asked_and_answered_too(lab):
    asked, answered = predictions_of(notebook_from_text(lab))
    assert answered == asked


def predictions_of(notebook):
    """The names of the predictions that are asked for, and of those that are answered."""
    sources = [cell.source for cell in code_cells(notebook)]
    asking = [
        source for source in sources if re.search(r"\bpredict\(|^predicted_\w+ = None", source)
    ]
    assert [source for source in asking if not PREDICTION.search(source)] == []
    assert [source for source in sources if re.search("your prediction", source, re.I)] == []
    answered = re.findall(r"^(predicted_\w+)\.compare\(", "\n".join(sources), re.MULTILINE)
    return [PREDICTION.search(source)[1] for source in asking], answered


@pytest.mark.parametrize("name", NAMES)
def test_tables_and_claims_are_shown_as_such(name):
    """`show_table` aligns columns, and `holds` prints what it compares: see CONTRIBUTING.md."""
    lines = [line for cell in code_cells(read(name)) for line in cell.source.splitlines()]
    padded = re.compile(r"\bprint\(.*\{[^{}]*:[<>^]?[1-9][^{}]*\}")
    assert [line for line in lines if padded.search(line) or line.startswith("assert ")] == []


@pytest.mark.parametrize("name", NAMES)
def test_local_links_exist(name):
    prose = [cell.source for cell in read(name).cells if cell.cell_type == "markdown"]
    links = [link for text in prose for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    local = [link for link in links if not link.startswith("https://")]
    assert [link for link in local if not (CHAPTERS / link).exists()] == []


@pytest.mark.parametrize("name", NAMES)
def test_plots_are_readable_in_a_small_window(name):
    """A cell of 648 pixels scales wider plots down: text must stay at 11 pixels or more."""
    for cell in code_cells(read(name)):
        for width in map(float, re.findall(r"figsize=\(([\d.]+),", cell.source)):
            points = re.findall(r"(?:fontsize|labelsize|\bsize)=([\d.]+)\b", cell.source)
            smallest_px = min(map(float, [*points, 10])) * (96 / 72) * min(1, 648 / (96 * width))
            assert smallest_px >= 11, f"{smallest_px:.1f} px in: {cell.source}"


@pytest.mark.parametrize("source", [*sorted(CHAPTERS.glob("*.nb.py")), *LABS], ids=lambda p: p.stem)
def test_plots_follow_the_theme(source):
    """Without this style, a plot is a white box in a dark theme."""
    code = "\n".join(cell.source for cell in code_cells(notebook_from_text(source)))
    if "plt.subplots(" in code:
        assert "plt.style.use(palette.PLOT_STYLE)" in code
        assert '%config InlineBackend.figure_formats = ["svg"]' in code
