"""What students may do to a notebook, and what is then graded."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import nbformat
import pytest
from nbformat import NotebookNode, from_dict, validate
from nbformat.corpus.words import generate_corpus_id
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from autograder.build.cells import END_LINKS
from autograder.grading.submission.reader import read_notebook
from autograder.grading.submission.rebuild import rebuild

STUB = "def double(x):\n    # YOUR CODE HERE\n    raise NotImplementedError()"
ANSWER = "def double(x):\n    y = 2 * x\n    return y"


def marks(grade_id: str, solution: bool = False, points: float = 0) -> dict[str, object]:
    return {
        "nbgrader": {
            "grade_id": grade_id, "solution": solution, "locked": not solution,
            "grade": points > 0, "points": points, "schema_version": 3, "task": False,
        }
    }  # fmt: skip


@pytest.fixture
def template() -> NotebookNode:
    return new_notebook(
        cells=[
            new_code_cell("import math", id="cell-001"),
            new_code_cell(STUB, id="double", metadata=marks("double", solution=True)),
            new_code_cell('check("x.double", double)', id="test", metadata=marks("test", points=2)),
            new_markdown_cell("YOUR ANSWER", id="why", metadata=marks("why", True, points=1)),
        ]
    )


@pytest.fixture
def solved(template: NotebookNode) -> NotebookNode:
    notebook = from_dict(template)
    notebook.cells[1].source = ANSWER
    notebook.cells[3].source = "Because."
    return notebook


def sources(notebook: NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells]


def copy_of(cell: NotebookNode, source: str | None = None) -> NotebookNode:
    copied = from_dict(cell)
    copied.id = generate_corpus_id()
    copied.source = cell.source if source is None else source
    return copied


def test_an_intact_submission_needs_no_note(template: NotebookNode, solved: NotebookNode) -> None:
    rebuilt, notes = rebuild(template, solved)
    assert notes == []
    assert sources(rebuilt) == sources(solved)


def test_an_answer_below_the_links_at_the_end_is_found(
    template: NotebookNode, solved: NotebookNode
) -> None:
    links = new_markdown_cell("[next](../next.ipynb)", id=END_LINKS)
    template.cells.append(links)
    solved.cells[3].source = template.cells[3].source
    solved.cells += [from_dict(links), new_markdown_cell("Because.")]
    rebuilt, notes = rebuild(template, solved)
    assert [cell.source for cell in rebuilt.cells[3:]] == ["Because.", links.source]
    assert notes == ["The answer to `why` was in another cell: it was taken from there."]


def test_only_text_is_taken_over(template: NotebookNode, solved: NotebookNode) -> None:
    solved.cells[1].metadata["tags"] = ["skip-execution"]
    solved.cells[2].metadata["tags"] = ["raises-exception"]
    solved.cells[2].metadata["nbgrader"]["points"] = 1000
    solved.cells[2].metadata["nbgrader"]["grade"] = False
    solved.cells[2].outputs = [{"output_type": "stream", "name": "stdout", "text": "2"}]
    rebuilt, _ = rebuild(template, solved)
    for cell, original in zip(rebuilt.cells, template.cells, strict=True):
        assert cell.metadata == original.metadata
        assert cell.get("outputs", []) == []


def drop(*positions: int) -> Callable[[list[NotebookNode]], list[NotebookNode]]:
    return lambda cells: [cell for i, cell in enumerate(cells) if i not in positions]


DAMAGES: dict[str, tuple[Callable[[list[NotebookNode]], list[NotebookNode]], str]] = {
    "check deleted": (drop(2), "`test` was missing: it was restored"),
    "check copied": (lambda c: [*c, copy_of(c[2])], "`test` appeared 2 times: it was graded once"),
    "check changed": (
        lambda c: [*c[:2], copy_of(c[2], "pass"), c[3]],
        "`test` had been changed",
    ),
    "answer copied": (lambda c: [*c, copy_of(c[1])], "`double` appeared 2 times: one was kept"),
    "stub copied after": (lambda c: [*c, copy_of(c[1], STUB)], "`double` appeared 2 times: one"),
    "stub copied before": (lambda c: [copy_of(c[1], STUB), *c], "`double` appeared 2 times: one"),
    "answer split": (
        lambda c: [
            c[0],
            copy_of(c[1], "def double(x):\n    y = 2 * x"),
            copy_of(c[1], "    return y"),
            *c[2:],
        ],
        "the copies were joined",
    ),
    "a broken copy": (
        lambda c: [c[0], copy_of(c[1], "def double(x:"), *c[1:]],
        "the last one that Python can parse was kept",
    ),
    "moved": (lambda c: [c[3], c[2], c[1], c[0]], "graded in the lab's own order"),
    "cell type changed": (
        lambda c: [c[0], new_markdown_cell(c[1].source, metadata=c[1].metadata), *c[2:]],
        "had another cell type",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_repaired_and_reported(
    template: NotebookNode, solved: NotebookNode, damage: str
) -> None:
    apply, note = DAMAGES[damage]
    submitted = new_notebook(cells=apply([from_dict(cell) for cell in solved.cells]))
    rebuilt, notes = rebuild(template, submitted)
    assert sources(rebuilt) == sources(solved)
    assert note in " ".join(notes)


def test_a_deleted_answer_is_the_stub(template: NotebookNode, solved: NotebookNode) -> None:
    rebuilt, notes = rebuild(template, new_notebook(cells=drop(1)(solved.cells)))
    assert rebuilt.cells[1].source == STUB
    assert "`double` was missing: it counts as not answered" in notes[0]


def test_lost_metadata_costs_nothing(template: NotebookNode, solved: NotebookNode) -> None:
    for cell in solved.cells:
        cell.metadata = from_dict({})
    rebuilt, notes = rebuild(template, solved)
    assert (sources(rebuilt), notes) == (sources(solved), [])


def test_a_students_own_cells_keep_their_place(
    template: NotebookNode, solved: NotebookNode
) -> None:
    solved.cells.insert(1, new_code_cell("two = 2", metadata={"tags": ["skip-execution"]}))
    rebuilt, notes = rebuild(template, solved)
    assert sources(rebuilt) == sources(solved)
    assert rebuilt.cells[1].metadata == {}
    assert notes == []


def test_malformed_cells_are_tolerated(template: NotebookNode) -> None:
    malformed = [
        from_dict({"cell_type": "code", "metadata": {"nbgrader": 5}, "source": 7}),
        from_dict({"cell_type": "code", "metadata": {"nbgrader": {"grade_id": ["double"]}}}),
        from_dict({"cell_type": "heading", "metadata": {}, "source": "x", "id": {}}),
        from_dict({"cell_type": "code", "id": "double", "metadata": {}, "source": "\ud800"}),
    ]
    rebuilt, _ = rebuild(template, from_dict({"cells": malformed}))
    assert rebuilt.cells[1].source == "?"


HOSTILE = {
    "magics": "x = !ls\n" * 2000,
    "deep brackets": "(" * 100_000,
    "a long chain": "x" + ".a" * 90_000,
    "an annotation of spaces": "double: " + " " * 150_000,
    "minus signs": "-" * 190_000 + "1",
    "null bytes": "double = '\0'",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_is_rebuilt_quickly(template: NotebookNode, kind: str) -> None:
    first, second = (
        copy_of(template.cells[1], text) for text in (HOSTILE[kind], f"{HOSTILE[kind]}\n1")
    )
    own = new_code_cell(HOSTILE[kind])
    start_s = time.process_time()
    rebuild(template, new_notebook(cells=[first, second, own]))
    assert time.process_time() - start_s < 10  # magics took three minutes


def with_picture(cell: NotebookNode, data: str) -> NotebookNode:
    cell.source = f"{cell.source} ![](attachment:image.png)"
    cell.attachments = from_dict({"image.png": {"image/png": data}})
    return cell


def test_pictures_stay_with_the_text_that_shows_them(
    template: NotebookNode, solved: NotebookNode
) -> None:
    own = with_picture(new_markdown_cell("My plan"), "OWN")  # editors reuse this name in each cell
    with_picture(solved.cells[3], "ANSWER")
    solved.cells.insert(1, own)
    rebuilt, _ = rebuild(template, solved)
    found = [c.attachments["image.png"]["image/png"] for c in rebuilt.cells if "attachments" in c]
    assert found == ["OWN", "ANSWER"]
    validate(rebuilt)


def test_an_answer_from_another_cell_keeps_its_picture(
    template: NotebookNode, solved: NotebookNode
) -> None:
    solved.cells[3] = with_picture(new_markdown_cell("Because."), "ANSWER")
    solved.cells.insert(0, with_picture(new_markdown_cell("My plan"), "OWN"))
    rebuilt, notes = rebuild(template, solved)
    assert "The answer to `why` was in another cell: it was taken from there." in notes
    answer = next(cell for cell in rebuilt.cells if cell.id == "why")
    assert answer.attachments["image.png"]["image/png"] == "ANSWER"


def test_a_split_answer_keeps_the_pictures_of_its_parts(
    template: NotebookNode, solved: NotebookNode
) -> None:
    why = solved.cells.pop()
    for name in ("a.png", "b.png"):
        part = copy_of(why, f"![](attachment:{name})")
        part.attachments = from_dict({name: {"image/png": name}})
        solved.cells.append(part)
    rebuilt, _ = rebuild(template, solved)
    assert rebuilt.cells[-1].attachments == {
        "a.png": {"image/png": "a.png"},
        "b.png": {"image/png": "b.png"},
    }


def test_outputs_of_the_labs_own_cells_stay_if_a_notebook_can_store_them(
    template: NotebookNode, solved: NotebookNode
) -> None:
    good = {"output_type": "stream", "name": "stdout", "text": ["1\n", "2\n"]}
    picture = {"output_type": "display_data", "data": {"image/png": ["iV", "BO"]}, "metadata": {}}
    deep: list[object] = []
    for _ in range(500):
        deep = [deep]
    odd = [{"output_type": "display_data", "data": {"application/json": deep}}, 3, {"data": None}]
    submitted = json.loads(nbformat.writes(solved))
    for cell in submitted["cells"]:
        cell["outputs"] = [good, *odd, picture]
    rebuilt, _ = rebuild(template, read_notebook(json.dumps(submitted).encode())[0])
    validate(rebuilt)
    first, *others = (cell for cell in rebuilt.cells if cell.cell_type == "code")
    assert first.outputs[0].text == "1\n2\n"
    assert first.outputs[-1].data == {"image/png": "iVBO"}
    assert not any(cell.outputs for cell in others)


def test_a_written_answer_that_is_not_found_in_a_script_is_graded_by_hand(
    template: NotebookNode,
) -> None:
    """nbgrader would give 0 points to the released text without asking anybody."""
    answers = set()
    for comment in ("# 2 x is twice x.", "# another text"):
        submitted, _ = read_notebook(f"{ANSWER}\n    {comment}\n".encode())
        rebuilt, notes = rebuild(template, submitted)
        assert notes[-1] == "No answer to `why` was found in the file: a person will look."
        answers.add(rebuilt.cells[-1].source)
    assert len(answers) == 2  # a mark for the first file does not count for the second
    assert template.cells[-1].source not in answers


SCRIPTS = {
    "comments": "#%% [md]\n# YOUR ANSWER\n\n# %% md\n# Because\n#\n# of x.",
    "a title": "#%% [markdown] my answer\n# Because\n#\n# of x.",
    "a string": '# %% md\n"""\nBecause\n\nof x.\n"""',
    "comments without a mark": "#%% Answer\n# Because\n#\n# of x.",
    "a raw string": "#%% md\nr'''Because\n\nof x.'''",
    "no signs": "#%% md\nBecause\n\nof x.",
    "a string without a mark": '#%%\n"""Because\n\nof x."""',
    "metadata": '# %% [markdown] nbgrader={"grade_id": "why"}\n# Because\n#\n# of x.',
    "nbconvert": "# Because\n# \n# of x.",
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_text_in_scripts(template: NotebookNode, kind: str) -> None:
    mark = "# In[2]:" if kind == "nbconvert" else "#%%"
    check = 'check("x.double", double)'
    script = f"{mark}\nimport math\n\n{mark}\n{ANSWER}\n\n{mark}\n{check}\n\n\n{SCRIPTS[kind]}\n"
    submitted, _ = read_notebook(script.encode())
    rebuilt, _ = rebuild(template, submitted)
    assert [cell.source for cell in rebuilt.cells[-2:]] == [check, "Because\n\nof x."]
    assert ANSWER in sources(rebuilt)


def test_strings_and_comments_inside_of_code_stay_there() -> None:
    code = '''x = """
# no text
"""  # """

if x:
    pass

# between

else:
    y = f("""
""")

def f():
    """Returns 1."""

# no text either

    return 1'''
    submitted, _ = read_notebook(code.encode())
    assert [cell.source for cell in submitted.cells] == [code]
