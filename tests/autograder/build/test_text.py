"""One .nb.py becomes one notebook, and errors in it are reported."""

from pathlib import Path

import pytest

from autograder.build.text import SourceError, notebook_bytes, notebook_from_text

VALID = """\
# %% [markdown]
# # Double

# %%
%matplotlib inline
from autograder import check

# %% nbgrader={"grade_id": "double", "solution": true}
def double(x):
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION

# %% nbgrader={"grade_id": "double_check", "grade": true}
check("lab.double", double)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "00_lab.nb.py"


def test_cell_ids_are_grade_ids_or_positions(source: Path) -> None:
    source.write_text(VALID)
    notebook = notebook_from_text(source)
    assert [cell.id for cell in notebook.cells] == [
        "cell-001", "cell-002", "double", "double_check",
    ]  # fmt: skip


def test_the_bytes_are_deterministic(source: Path) -> None:
    source.write_text(VALID)
    assert notebook_bytes(notebook_from_text(source)) == notebook_bytes(notebook_from_text(source))


def test_nbgrader_metadata_is_completed(source: Path) -> None:
    source.write_text(VALID)
    answer, check = notebook_from_text(source).cells[2:]
    assert not answer.metadata.nbgrader.locked
    assert check.metadata.nbgrader.locked
    assert check.metadata.nbgrader.schema_version == 3


def test_there_are_no_outputs_and_no_jupytext_metadata(source: Path) -> None:
    source.write_text(VALID)
    notebook = notebook_from_text(source)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.cells[1].outputs == []
    assert notebook.cells[1].metadata == {}


BREAKAGES = {
    "syntax error": ("return 2 * x", "return 2 *", "cell 3 (line 11): SyntaxError"),
    "metadata that is not JSON": ('"solution": true', '"solution": tru', "cell 3 (line 8): cannot"),
    "an id used twice": ('"double_check"', '"double"', "cell 4 (line 14): grade_id 'double' is"),
    "an invalid id": ('"double_check"', '"double check"', "cell 4 (line 14): grade_id"),
    "no END SOLUTION": ("    ### END SOLUTION\n", "", "cell 3 (line 8): BEGIN SOLUTION without"),
    "a solution in an open cell": (', "solution": true', "", "cell 3 (line 10): a solution in a"),
    "a check with points": (
        '"grade": true',
        '"grade": true, "points": 2',
        "cell 4 (line 14): 'double_check' must not set points",
    ),
    "a question without points": (
        '"solution": true',
        '"solution": true, "grade": true',
        "cell 3 (line 8): 'double' is graded but has no points",
    ),
    "a graded cell without check": ("check(", "print(", "cell 4 (line 14): 'double_check' must"),
    "a computed exercise name": (
        '"lab.double"',
        "name",
        "cell 4 (line 14): 'double_check' must",
    ),
    "a check that students may edit": (
        '"grade": true',
        '"grade": true, "locked": false',
        "it must be locked",
    ),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_an_error_names_its_file_cell_and_line(source: Path, breakage: str) -> None:
    old, new, message = BREAKAGES[breakage]
    assert VALID.count(old) == 1
    source.write_text(VALID.replace(old, new))
    with pytest.raises(SourceError) as raised:
        notebook_from_text(source)
    assert str(source) in str(raised.value)
    assert message in str(raised.value)


def test_an_empty_file_is_an_error(source: Path) -> None:
    source.write_text("")
    with pytest.raises(SourceError, match="no cells"):
        notebook_from_text(source)
