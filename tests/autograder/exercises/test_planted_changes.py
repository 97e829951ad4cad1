"""Planted mistakes as changes of the solution, without ranks."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

import pytest

from autograder import exercises
from tests.submissions import __main__ as command
from tests.submissions import planted
from tests.submissions.diff import changed

SOLUTION = """def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)"""


def test_hunks_replace_what_they_name() -> None:
    diff = """-    total = 0
+    total = 1
@@
         total += value
+        print(total)
-    return total / len(values)
+    return total
"""
    assert (
        changed(SOLUTION, diff)
        == """def mean(values):
    total = 1
    for value in values:
        total += value
        print(total)
    return total"""
    )


@pytest.mark.parametrize(
    ("diff", "why"),
    [
        ("-    total = 2\n+    total = 1", "occurs nowhere, not once:\n    total = 2"),
        ("+    total = 1", "only adds lines"),
        ("    total = 0\n+    total = 1", "occurs nowhere"),  # its first space is missing
        ("total = 0", "starts with ' ', '-' or '+': 'total = 0'"),
        ("-    total = 0\n@@\n     total = 0\n+    total = 1", "two hunks change line 2"),
    ],
)
def test_a_hunk_that_does_not_apply_says_why(diff: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        changed(SOLUTION, diff)


def test_a_line_that_occurs_twice_needs_its_neighbors() -> None:
    twice = "x = f()\nx = g()\nx = f()"
    with pytest.raises(ValueError, match="occurs 2 times, not once"):
        changed(twice, "-x = f()\n+x = h()")
    assert changed(twice, " x = g()\n-x = f()\n+x = h()") == "x = f()\nx = g()\nx = h()"


def broken(mistakes: Sequence[planted.Submission]) -> list[str]:
    """What is wrong with the changes: every mistake applies to its solution and is a program."""
    found = []
    for mistake in mistakes:
        try:
            for source in mistake.answers.values():
                ast.parse(source)
        except (ValueError, SyntaxError) as error:
            found.append(f"{mistake.name}: {error}")
    return found


@pytest.mark.parametrize("lab", exercises.labs())
def test_every_change_applies_to_the_solution(lab: str) -> None:
    assert broken(planted.of_lab(lab)) == []


def test_an_edit_of_a_solution_names_the_mistakes_that_it_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab = "06_fsdp_in_practice"
    edited = planted.solution(lab)["hsdp_bytes"].replace("tensors = ", "exchanges = ")
    monkeypatch.setattr(planted, "solution", lambda lab: {"hsdp_bytes": edited})
    mistakes = [each for each in planted.of_lab(lab) if "hsdp_bytes" in each.loses]
    found = " ".join(broken(mistakes))
    assert "06_fsdp_in_practice/hsdp_bytes.toml, gathers_parameters_that_stay_whole" in found


def test_a_mistake_is_printed_as_the_whole_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["submissions", *arguments])
        command.main()
        return capsys.readouterr().out

    assert "gathers_over_all_ranks  (hsdp_bytes)\n" in printed("06_fsdp_in_practice")
    cell = printed("06_fsdp_in_practice", "gathers_over_all_ranks")
    namespace: dict = {}
    exec(cell, namespace)
    assert namespace["hsdp_bytes"](8, 2, 2)["within"] != 24
    assert "SOLUTION" not in cell
    assert "no mistake 'another'" in printed("06_fsdp_in_practice", "another")
