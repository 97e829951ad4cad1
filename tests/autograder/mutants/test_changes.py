"""Mutants of small programs: what is changed, and how."""

from __future__ import annotations

import pytest

from autograder.mutants.changes import mutants, normalized

BODIES = [
    ("a < b", "a <= b"),
    ("a == b", "a != b"),
    ("a and b", "b"),
    ("not a", "a"),
    ("a + b", "a - b"),
    ("a + b", "a"),
    ("a // b", "a * b"),
    ("-a", "a"),
    ("min(a, b)", "a"),
    ("f(a, key=b)", "f(a)"),
    ("a[1:b]", "a[:b]"),
    ("a[1]", "a[2]"),
    ("f(True)", "f(False)"),
    ("a if b else c", "c"),
]


@pytest.mark.parametrize(("old", "new"), BODIES)
def test_an_expression_is_changed(old: str, new: str) -> None:
    sources = {mutant.source for mutant in mutants(f"x = {old}")}
    assert normalized(f"x = {new}") in sources


STATEMENTS = [
    ("for h in handles:\n    h.wait()", "for h in handles:\n    pass"),
    ("dist.barrier()", "pass"),
    ("x += y", "x -= y"),
    ("x += y", "x = y"),
    ("if a:\n    f()", "if not a:\n    f()"),
    ("if a:\n    f()", "if True:\n    f()"),
    ("x[0] = y", "pass"),
]


@pytest.mark.parametrize(("old", "new"), STATEMENTS)
def test_a_statement_is_changed(old: str, new: str) -> None:
    assert normalized(new) in {mutant.source for mutant in mutants(old)}


def test_each_mutant_differs_in_one_place_and_names_it() -> None:
    source = 'def f(x):\n    """Its docstring, 1."""\n    return x + 1  # why\n'
    found = mutants(source)
    assert {str(mutant) for mutant in found} == {
        "line 3: return x + 1  →  removed",
        "line 3: x + 1  →  x - 1",
        "line 3: x + 1  →  x",
        "line 3: x + 1  →  1",
        "line 3: 1  →  2",
    }
    assert len({mutant.source for mutant in found}) == len(found)


@pytest.mark.parametrize(
    "source",
    [
        "x = 'text' % y",
        "raise ValueError(f'{x + 1} is wrong')",
        "import os",
        "x: int",
        "def f(x: 1 + 1) -> 2: ...",
    ],
)
def test_strings_messages_annotations_and_imports_are_unchanged(source: str) -> None:
    assert {mutant.old for mutant in mutants(source)} <= {source}


def test_invalid_source_is_rejected() -> None:
    with pytest.raises(SyntaxError):
        mutants("def f(:")
