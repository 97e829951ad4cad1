"""`make check` reports defects of the JavaScript, with the file and line of a widget's part."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import shardlab.widgets  # defines all widgets
from shardlab.widgets.picture import Picture
from tests.running_lab import ROOT
from tools.javascript import WIDGETS, findings, widget_modules

PYTHON = 'SHARED = ("common.js",)\n    _esm: ClassVar[str] = module("marks.js", "one.js")\n'
SHARED = "const one = 1;\nfunction two() {\n  return 2;\n}\n"
MARKS = "const marks = [one];\n"
WIDGET = "export default marks;\n"


def found_in(folder: Path, **files: str) -> list[str]:
    """The findings in two widgets: one of three files, one of the shared file and its own."""
    second = '    _esm: ClassVar[str] = module("other.js")\n'
    other = "export default two();\n"
    texts = {"common": SHARED, "marks": MARKS, "one": WIDGET, "other": other} | files
    for name, text in texts.items():
        (folder / f"{name}.js").write_text(text)
    (folder / "one.py").write_text(PYTHON)
    (folder / "other.py").write_text(second)
    return [
        f"{path.name}:{line}: {words}" for path, line, words in findings(widget_modules(folder))
    ]


def test_a_shared_name_that_one_widget_does_not_use_is_no_defect(tmp_path: Path) -> None:
    assert found_in(tmp_path) == []


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"one": f"{WIDGET}missing();\n"}, "one.js:2: 'missing' is not defined"),
        ({"one": "export default marks + top;\n"}, "one.js:1: 'top' is not defined"),
        (
            {"marks": f"\n{MARKS}function forgotten() {{}}\n"},
            "marks.js:3: Function 'forgotten' is declared but never used",
        ),
        (
            {"other": "export default 0;\n"},
            "common.js:2: Function 'two' is declared but never used",
        ),
        (
            {"marks": f"{MARKS}\nfunction two() {{}}\n"},
            "common.js:2: Identifier `two` has already been declared, see marks.js:3",
        ),
        (
            {"one": "function shown(one) {\n  return one;\n}\nexport default marks.map(shown);\n"},
            "one.js:1: 'one' is already declared in the upper scope, see common.js:1",
        ),
        (
            {"common": SHARED.replace("return 2;", "return 2;\n  one();")},
            "common.js:4: Unreachable code",
        ),
    ],
)
def test_a_defect_is_reported_once_with_its_file_and_line(
    tmp_path: Path, files: dict[str, str], found: str
) -> None:
    (reported,) = found_in(tmp_path, **files)
    assert reported.startswith(found)


def test_the_checked_modules_are_what_browsers_load() -> None:
    joined = {"\n".join(path.read_text() for path in module) for module in widget_modules(WIDGETS)}
    classes = {kind for kind in vars(shardlab.widgets).values() if isinstance(kind, type)}
    assert joined >= {kind._esm for kind in classes if issubclass(kind, Picture)} - {""}


def test_make_check_checks_the_javascript() -> None:
    commands = subprocess.run(
        ["make", "--dry-run", "check"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "-m tools.javascript" in commands.stdout
