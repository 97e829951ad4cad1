"""Check the JavaScript with oxlint: undeclared, repeated, shadowed and unused names, dead code.

    python -m tools.javascript

A widget's files are joined into one module, in which their top-level names share one scope, so the
joined text is checked; a finding names the file and line that it came from. Other files are checked
on their own. Exits with status 1 if there are findings.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WIDGETS = ROOT / "course/shardlab/widgets"
PAGE = ROOT / "tools/openers/page"  # joined by tools/openers/live.py
UNUSED = "eslint(no-unused-vars)"
# What the code uses of the browser. All of `window` would also declare `top`, `name`, `event` and
# other likely names of a variable that someone forgot to declare.
BROWSER = (
    "AbortController", "DOMParser", "IntersectionObserver", "MutationObserver", "Node",
    "OffscreenCanvas", "Path2D", "ResizeObserver", "URL", "cancelAnimationFrame", "clearTimeout",
    "console", "document", "fetch", "getComputedStyle", "performance", "requestAnimationFrame",
    "setTimeout", "window",
)  # fmt: skip
# What formgrader's page declares, for the script that is added to it.
FORMGRADER = (
    "$",
    "assignment_id",
    "base_url",
    "class_report",
    "has_written_answers",
    "roundToPrecision",
)
RULES = ("eqeqeq", "no-undef", "no-useless-assignment", "no-useless-return", "prefer-const")
CONFIG = {
    "plugins": ["eslint", "oxc"],
    "categories": {"correctness": "error", "suspicious": "error"},
    "rules": dict.fromkeys(RULES, "error"),
    "env": {"es2024": True},
    "globals": dict.fromkeys(BROWSER + FORMGRADER, "readonly"),
}

Module = tuple[Path, ...]  # its files, in the order in which they are joined


def main() -> int:
    joined = [*widget_modules(WIDGETS), page_module()]
    written = (WIDGETS, PAGE, ROOT / "autograder")
    files = {path for folder in written for path in folder.rglob("*.js")}
    files.add(ROOT / "jupyter/labextensions/shardlab/static/remoteEntry.js")
    alone = files.difference(*joined)
    found = findings([*joined, *((path,) for path in alone)])
    for path, line, words in found:
        print(f"{path.relative_to(ROOT)}:{line}: {words}")
    return 1 if found else 0


def widget_modules(folder: Path) -> list[Module]:
    """The files of each widget: those of `picture.SHARED`, then those that its class names.

    Read from the text, since importing the widgets takes longer than all the rest.
    """
    text = "".join(path.read_text() for path in folder.glob("*.py"))
    named = re.findall(r"^(SHARED|    _esm: .*?) = \w*\(([^)]*)\)", text, re.MULTILINE)
    parts = [(what, re.findall(r'"(.*?)"', names)) for what, names in named]
    shared = dict(parts)["SHARED"]
    return [
        tuple(folder / name for name in shared + own) for what, own in parts if what != "SHARED"
    ]


def page_module() -> Module:
    """The files of what JupyterLab adds to its page."""
    text = (WIDGETS / "picture.py").read_text() + (PAGE.parent / "live.py").read_text()
    named = re.findall(r"^(SHARED|SCRIPTS) = \(([^)]*)\)", text, re.MULTILINE)
    names = {what: re.findall(r'"(.*?)"', files) for what, files in named}
    shared = [WIDGETS / name for name in (*names["SHARED"], "player.js")]
    return *shared, *(PAGE / name for name in names["SCRIPTS"])


def findings(modules: Iterable[Module]) -> list[tuple[Path, int, str]]:
    """(file, line, message) of each finding, sorted."""
    modules = list(modules)
    with tempfile.TemporaryDirectory(prefix="shardlab-oxlint-") as scratch:
        for index, module in enumerate(modules):
            text = "\n".join(path.read_text() for path in module)
            Path(scratch, f"{index}.mjs").write_text(text)
        reported = _oxlint(Path(scratch))
    places = [_places(module) for module in modules]
    counts: Counter[tuple[Path, int, str, bool]] = Counter()
    for each in reported:
        index = int(Path(each["filename"]).stem)
        (path, line), *others = (
            places[index][label["span"]["line"] - 1] for label in each["labels"]
        )
        words = each["message"].rstrip(".") + "".join(
            f", see {path.name}:{line}" for path, line in others
        )
        counts[path, line, words, each.get("code") == UNUSED] += 1
    # A name of a shared file is unused if no widget uses it.
    holders = Counter(path for module in modules for path in module)
    return sorted(
        (path, line, words)
        for (path, line, words, is_unused), count in counts.items()
        if not is_unused or count == holders[path]
    )


def _places(module: Module) -> list[tuple[Path, int]]:
    """The file and line of each line of the joined module."""
    lines = [(path, path.read_text().count("\n") + 1) for path in module]
    return [(path, number + 1) for path, count in lines for number in range(count)]


def _oxlint(folder: Path) -> list[dict[str, Any]]:
    config = folder / "oxlint.json"
    config.write_text(json.dumps(CONFIG))
    oxlint = f"{sysconfig.get_path('scripts')}/oxlint"
    command = [oxlint, "--config", str(config), "--format", "json", str(folder)]
    diagnostics: list[dict[str, Any]]
    diagnostics = json.loads(subprocess.run(command, stdout=subprocess.PIPE).stdout)["diagnostics"]
    return diagnostics


if __name__ == "__main__":
    sys.exit(main())
