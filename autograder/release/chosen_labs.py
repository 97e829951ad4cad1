"""Restricts a package to some of the labs: links to the others become plain text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping

NOT_RELEASED = "(not released yet)"
# The group `text` is a link's text, `lab` the name of the lab that it points to.
LINKS = (
    re.compile(r"\[(?P<text>[^\]\n]*)\]\([^()\s]*labs/(?P<lab>\w+)/\w+\.ipynb[^()\s]*\)"),
    re.compile(r'<a href="[^"]*labs/(?P<lab>\w+)/\w+\.ipynb[^"]*">(?P<text>[^<]*)</a>'),
    # From one lab to another: ../04_zero/04_zero.ipynb
    re.compile(r"\[(?P<text>[^\]\n]*)\]\(\.\./(?P<lab>\w+)/(?P=lab)\.ipynb[^()\s]*\)"),
)
IMPORT = re.compile(rb"^(?:from|import) autograder\.exercises\.(lab\d\w+)\.(\w+)", re.MULTILINE)
LAB_PATH = re.compile(r"(?:labs/|autograder/exercises/lab(?=\d))(\w+)/")


def of_labs(files: Mapping[str, bytes], labs: Collection[str]) -> dict[str, bytes]:
    """``files`` without the other labs, apart from modules that ``labs`` import."""
    kept = {
        path: content
        for path, content in files.items()
        if not (found := LAB_PATH.match(path)) or found[1] in labs
    }
    searched = set[str]()
    while new := kept.keys() - searched:
        searched |= new
        for path in new:
            for lab, module in IMPORT.findall(kept[path]) if path.endswith(".py") else ():
                folder = f"autograder/exercises/{lab.decode()}"
                needed = (f"{folder}/__init__.py", f"{folder}/{module.decode()}.py")
                kept |= {name: files[name] for name in needed if name in files}
    return kept


def without_links(notebook: bytes, labs: Collection[str]) -> bytes:
    """The notebook, with links to labs other than ``labs`` replaced by their text.

    The result has the same format as a notebook that the build writes.
    """
    content = json.loads(notebook)
    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            source = "".join(cell["source"])
            for pattern in LINKS:
                source = pattern.sub(_plain_text(labs), source)
            cell["source"] = source.splitlines(keepends=True)
    return json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n"


def _plain_text(labs: Collection[str]) -> Callable[[re.Match[str]], str]:
    return lambda found: found[0] if found["lab"] in labs else f"{found['text']} {NOT_RELEASED}"
