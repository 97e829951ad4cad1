"""Checks on the text of every chapter, before it runs."""

import ast
import json
import re
from functools import cache
from pathlib import Path
from statistics import median

import pytest
from nbformat import NotebookNode

from autograder.build.text import notebook_from_text
from shardlab.widgets.units import format_bytes
from tests.chapters.running_chapter import CHAPTERS, PREDICTION, ROOT, code_cells
from tools.openers import live

NAMES = sorted(path.name.removesuffix(".nb.py") for path in CHAPTERS.glob("*.nb.py"))
LABS = sorted(ROOT.glob("solutions/*/*.nb.py"))
SOURCES = [*sorted(CHAPTERS.glob("*.nb.py")), *LABS]
DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


@cache
def read(source: Path) -> NotebookNode:
    return notebook_from_text(source)


def chapter(name: str) -> NotebookNode:
    return read(CHAPTERS / f"{name}.nb.py")


def relative_path(source: Path) -> str:
    return source.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_short(name):
    shown = [
        cell
        for cell in code_cells(chapter(name))
        if not cell.metadata.get("jupyter", {}).get("source_hidden")  # collapsed, as imports are
    ]
    lines = [len(cell.source.splitlines()) for cell in shown]
    assert 3 <= median(lines) <= 8
    assert max(lines) <= 16


@pytest.mark.parametrize("name", NAMES)
def test_imports_are_one_collapsed_cell(name):
    first, *others = code_cells(chapter(name))
    assert first.metadata.jupyter == {"source_hidden": True}
    lines = [filter(None, cell.source.splitlines()) for cell in others]
    assert not any(all(re.match(r"import |from ", line) for line in cell) for cell in lines)


@pytest.mark.parametrize("name", [name for name in NAMES if name < "05"])
def test_at_most_three_code_cells_come_before_a_picture_or_prediction(name):
    first = [cell for cell in code_cells(chapter(name)) if cell.metadata.get("jupyter") is None][:4]
    shows = re.compile(r"\b(predict|subplots|timeline|traffic_map|memory_timeline|ring_player)\(")
    assert any(shows.search(cell.source) for cell in first)


@pytest.mark.parametrize("name", NAMES)
def test_code_cells_contain_no_markdown(name):
    lines = [line for cell in code_cells(chapter(name)) for line in cell.source.splitlines()]
    assert [line for line in lines if re.match(r"#$|# (#|[-*] |>|\|)", line)] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_prediction_has_its_own_cell_and_is_compared_later(name):
    asked, answered = predictions_of(chapter(name))
    assert answered == asked != []


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.parent.name)
def test_predictions_of_labs_are_compared_too(lab):
    asked, answered = predictions_of(read(lab))
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


@pytest.mark.parametrize("source", SOURCES, ids=relative_path)
def test_tables_use_show_table_and_claims_use_holds(source):
    """`show_table` aligns columns, and `holds` prints what it compares: see CONTRIBUTING.md.

    In a lab, a spec and a helper may assert what they state or need.
    """
    cells = code_cells(read(source))
    padded = re.compile(r"\bprint\(.*\{[^{}]*:[<>^]?[1-9][^{}]*\}")
    lines = [line for cell in cells for line in cell.source.splitlines()]
    assert [line for line in lines if padded.search(line)] == []
    in_functions = source in LABS
    asserted = [
        ast.unparse(node)
        for cell in cells
        for top in parsed(cell.source)
        for node in ast.walk(top)
        if isinstance(node, ast.Assert) and not (in_functions and isinstance(top, DEFINITIONS))
    ]
    assert asserted == []


@pytest.mark.parametrize("source", SOURCES, ids=relative_path)
def test_formulas_in_prose_are_latex(source):
    """Finds what is hard to read inline: a fraction with a sum, the root of a product."""
    prose = [cell.source for cell in read(source).cells if cell.cell_type != "code"]
    code_or_latex = r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$\n]*\$|\]\([^)]*\)"
    plain = [re.sub(code_or_latex, "", text, flags=re.DOTALL) for text in prose]
    assert [found for text in plain for found in re.findall(r".*\)/[^\W\d].*|.*√\(.*", text)] == []


@pytest.mark.parametrize("source", SOURCES, ids=relative_path)
def test_no_output_gives_an_answer_away_before_the_guess_is_compared(source):
    """Between a question and its `compare`, only pictures that include the guess are shown."""
    cells = [parsed(cell.source) for cell in code_cells(read(source))]
    shows = {"print", "show_table", "holds", "display", "subplots"}
    functions = [top for cell in cells for top in cell if isinstance(top, ast.FunctionDef)]
    shows |= {function.name for function in functions if shows & called_in(function)}
    unanswered: set[str] = set()
    given_away = []
    for cell in cells:
        for statement in cell:
            called = called_in(statement)
            if "compare" in called:
                unanswered -= {name for name in unanswered if name in ast.unparse(statement)}
            elif "predict" in called:
                unanswered |= set(re.findall(r"^predicted_\w+", ast.unparse(statement)))
            elif unanswered and not isinstance(statement, DEFINITIONS):
                is_value = statement is cell[-1] and isinstance(statement, ast.Expr)
                if shows & called or (
                    is_value and not shows_guess_or_question(statement, unanswered)
                ):
                    given_away.append(ast.unparse(statement))
    assert given_away == []


def parsed(source: str) -> list[ast.stmt]:
    """A cell's statements, without magics."""
    return ast.parse(re.sub(r"^%.*", "", source, flags=re.MULTILINE)).body


def called_in(statement: ast.AST) -> set[str]:
    """The names of the functions and methods that it calls, except a print of constants."""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    names = [(ast.unparse(call.func).rpartition(".")[2], call) for call in calls]
    return {
        name
        for name, call in names
        if name != "print" or not all(isinstance(each, ast.Constant) for each in call.args)
    }


def shows_guess_or_question(value: ast.Expr, unanswered: set[str]) -> bool:
    """Whether it is the question, or a picture that shows the guess next to the measurement."""
    if isinstance(value.value, ast.Call):
        return any(argument.arg == "predicted" for argument in value.value.keywords)
    return ast.unparse(value) in unanswered


@pytest.mark.parametrize("name", NAMES)
def test_local_links_exist(name):
    prose = [cell.source for cell in chapter(name).cells if cell.cell_type == "markdown"]
    links = [link for text in prose for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    local = [link for link in links if not link.startswith("https://")]
    assert [link for link in local if not (CHAPTERS / link).exists()] == []


@pytest.mark.parametrize("name", NAMES)
def test_plots_are_readable_in_a_small_window(name):
    """A cell of 648 pixels scales wider plots down: text must stay at 11 pixels or more."""
    for cell in code_cells(chapter(name)):
        for width in map(float, re.findall(r"figsize=\(([\d.]+),", cell.source)):
            points = re.findall(r"(?:fontsize|labelsize|\bsize)=([\d.]+)\b", cell.source)
            smallest_px = min(map(float, [*points, 10])) * (96 / 72) * min(1, 648 / (96 * width))
            assert smallest_px >= 11, f"{smallest_px:.1f} px in: {cell.source}"


@pytest.mark.parametrize("source", SOURCES, ids=relative_path)
def test_plots_follow_the_theme(source):
    """Without this style, a plot is a white box in a dark theme."""
    code = "\n".join(cell.source for cell in code_cells(read(source)))
    if "plt.subplots(" in code:
        assert "plt.style.use(palette.PLOT_STYLE)" in code
        assert '%config InlineBackend.figure_formats = ["svg"]' in code


def test_the_front_page_quotes_the_recorded_run_of_its_animation():
    front_page = (ROOT / "course/front_page.nb.py").read_text(encoding="utf-8")
    (opener,) = (
        cell.source
        for cell in chapter("03_ring_all_reduce").cells
        if cell.source.startswith("<details open>")
    )
    sent, tensor = re.search(r"Rank 0 sent (.+ MiB) for a tensor of (.+ MiB)\.", opener).groups()
    assert f"a tensor of {tensor}," in front_page
    measured = json.loads(live.MEASURED.read_text())["sent_bytes"]
    assert {format_bytes(each) for each in measured} == {sent}
