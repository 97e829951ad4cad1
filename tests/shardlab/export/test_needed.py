"""What an exported script takes from a notebook, and what is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from shardlab.export import launched, script
from shardlab.export.needed import CannotExport, used
from shardlab.notebook_code import cells

IMPORTS = "import os, torch\nimport torch.distributed as dist\nfrom shardlab import launch, measure"


@pytest.fixture
def chapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a chapter of these cells and returns what `export` makes of it."""
    monkeypatch.setattr(cells, "CHAPTERS", tmp_path)

    def export(*sources: str, function: str = "f", number: int | None = None) -> str:
        made = [new_markdown_cell("text"), *map(new_code_cell, (IMPORTS, *sources))]
        nbformat.write(new_notebook(cells=made), tmp_path / "90_tiny.ipynb")
        text = script.script_of("90_tiny", function, number, "script.py")
        return text.partition("# ---- from chapter 90_tiny")[2]

    return export


def test_only_what_the_function_needs_is_taken_in_its_order(chapter) -> None:
    text = chapter(
        "%config something\nlength = 4\nunused = 5",
        "def helper(n):\n    return later + n",
        "later = length * 2",
        "def f(n):\n    local = helper(n)\n    return local",
        "run = launch(f, length, world_size=2, device='cpu')\nprint(run)",
        "later = 'after the launch'",
    )
    assert "unused" not in text
    assert "after the launch" not in text
    order = ["length = 4", "def helper(n)", "later = length * 2", "def f(n)"]
    assert [text.index(each) for each in order] == sorted(text.index(each) for each in order)
    assert "run_on_this_rank(f, length)\n" in text


def test_the_definition_before_the_launch_counts_and_changes_are_kept(chapter) -> None:
    text = chapter(
        "def f():\n    return 'old', sizes",
        "def f():\n    return 'new', sizes",
        "sizes = {}\nsizes['a'] = 1\nnames = []\nnames.append(2)",
        "launch(f)",
        "def f():\n    return 'later', sizes",
    )
    assert "'new'" in text
    assert "'old'" not in text
    assert "'later'" not in text
    assert "sizes['a'] = 1" in text
    assert "names" not in text


def test_loops_are_kept_only_if_the_arguments_use_their_variables(chapter) -> None:
    cell = "runs = {n: launch(f, c, world_size=n) for n in (2, 4) for c in (1, 2) if c}"
    text = chapter("def f(c):\n    return c", cell)
    assert "    for c in (1, 2):\n        if c:\n            run_on_this_rank(f, c)\n" in text
    assert "for n in" not in text


def test_options_in_a_dict_are_passed_on(chapter) -> None:
    text = chapter(
        "def f(own):\n    return own",
        "options = {'inputs': [1, 2], 'world_size': 2, 'device': 'cpu'}",
        "launch(f, **options)",
    )
    assert "options = {'inputs': [1, 2]" in text
    assert "run_on_this_rank(f, **options)" in text


@pytest.mark.parametrize(
    ("sources", "why"),
    [
        (["def f(): pass", "def g():\n    launch(f)"], "this launch is in g (cell 3)"),
        (["def f(x): pass", "run = launch(f)\nlaunch(f, run)"], "more than once"),
        (
            ["def f(x): pass", "def g(): pass", "run = launch(g)\nlaunch(f, run)"],
            "it needs 'run', the result of another launch (cell 4)",
        ),
        (["def f(): return missing", "launch(f)"], "needs 'missing', which no cell before it"),
        (
            ["def f(x): pass", "for n in (1, 2):\n    x = n + 1\n    launch(f, x)"],
            "cell 3 sets x in the same block",
        ),
        (["def g(): pass", "launch(g)"], "launches no 'f'; it launches g"),
    ],
)
def test_what_cannot_run_alone_is_refused_with_a_reason(chapter, sources, why) -> None:
    with pytest.raises(CannotExport) as refused:
        chapter(*sources)
    assert why in str(refused.value)


def test_of_several_launches_one_is_chosen_by_number(chapter) -> None:
    sources = ["def f(n): pass", "launch(f, 1)\nlaunch(f, 2, world_size=3)"]
    with pytest.raises(CannotExport, match=r"--launch 2: cell 3: launch\(f, 2, world_size=3\)"):
        chapter(*sources)
    assert "run_on_this_rank(f, 2)" in chapter(*sources, number=2)
    with pytest.raises(CannotExport, match="there are 2 of f"):
        chapter(*sources, number=3)


def test_names_used_at_once_and_later() -> None:
    assert used("x = [a for b in c]") == ({"a", "c"}, set())
    now, later = used("@d\ndef f(p=q):\n    return g(p)")
    assert {"d", "q"} <= now
    assert later == {"g"}


def test_a_chapter_is_found_by_its_number_or_name() -> None:
    assert script.chapter_of("03") == script.chapter_of("03_ring_all_reduce")
    with pytest.raises(CannotExport, match="03_ring_all_reduce"):
        script.chapter_of("ring_all_reduce")


def test_nearly_all_launches_of_the_chapters_can_be_exported() -> None:
    """The others are in functions or in blocks that set their arguments."""
    refused = set()
    for name in cells.chapters():
        statements = cells.statements(cells.CHAPTERS / f"{name}.ipynb")
        known = [each.function for each in launched.all_launches(statements)]
        for place, function in enumerate(known):
            number = known[: place + 1].count(function)
            try:
                script.script_of(name, function, number, "script.py")
            except CannotExport:
                refused.add((name[:2], function.partition(":")[0]))
    assert refused == {
        ("01", "without_result"),
        ("01", "lambda"),
        ("03", "time_all_sizes"),
        ("04", "first_backward"),
        ("09", "train"),  # one of its launches
        ("11", "save"),
        ("11", "recorded"),
        ("12", "fn"),
        ("12", "train_repaired"),
        ("12", "command_for"),
    }
