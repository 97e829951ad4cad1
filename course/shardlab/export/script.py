"""The text of an exported script."""

from __future__ import annotations

import ast
import difflib
import inspect
import sys

from shardlab.export import launched, on_this_rank
from shardlab.export.needed import CannotExport, Needed
from shardlab.notebook_code import cells

DEFAULT_RANKS = 4  # as launch's; the chapter's text gives it otherwise
HEAD = '''"""{function}, from chapter {chapter}, on the ranks of a job.

On one node, then on each of two nodes, with the first one's name for HEAD:

    torchrun --nproc-per-node {ranks} {name}
    torchrun --nnodes 2 --nproc-per-node {per_node} {rendezvous} {name}

Cell {cell} of the chapter: {call}
Written by `python -m shardlab export {chapter} {function}`.
"""
'''
RENDEZVOUS = "--rdzv-id 1 --rdzv-backend c10d --rdzv-endpoint HEAD:29400"


def script_of(chapter: str, function: str, number: int | None, name: str) -> str:
    """``name``: of the script's file. Raises CannotExport."""
    statements = cells.statements(cells.CHAPTERS / f"{chapter}.ipynb")
    found = launched.find(statements, chapter, function, number)
    statement = statements[found.index]
    needed = Needed(statements, found.index)
    needed.add(launched.free_names(found, statement), f"launch({function}, …)")
    start_imports, start = _on_this_rank()
    ranks = launched.world_size_of(found, statements) or DEFAULT_RANKS
    head = HEAD.format(
        function=function,
        chapter=chapter,
        ranks=ranks,
        per_node=max(1, ranks // 2),
        name=name,
        rendezvous=RENDEZVOUS,
        cell=statement.cell,
        call=" ".join(ast.unparse(found.call).split()),
    )
    imports = sorted({*start_imports, *needed.imports()}, key=_import_order)
    main = "\n".join(
        ["def main():", "    start()", *_body(found), "    dist.destroy_process_group()"]
    )
    parts = [
        head + "\n" + "\n".join(imports),
        start,
        f"# ---- from chapter {chapter}",
        *needed.definitions(),
        main,
        'if __name__ == "__main__":\n    main()',
    ]
    text = "\n\n\n".join(parts) + "\n"
    compile(text, name, "exec")
    return text


def _import_order(line: str) -> tuple[bool, bool, str]:
    module = line.split()[1].partition(".")[0]
    return module == "shardlab", module not in sys.stdlib_module_names, line


def _on_this_rank() -> tuple[list[str], str]:
    """Its imports, and the rest of its text."""
    source = inspect.getsource(on_this_rank)
    tree = ast.parse(source)
    is_import = (ast.Import, ast.ImportFrom)
    imports = [ast.unparse(each) for each in tree.body if isinstance(each, is_import)]
    first = next(each for each in tree.body if isinstance(each, ast.Assign))
    rest = source.splitlines()[first.lineno - 1 :]
    return [line for line in imports if "__future__" not in line], "\n".join(rest)


def _body(found: launched.Launched) -> list[str]:
    lines, indent = [], "    "
    for loop in found.loops:
        lines.append(f"{indent}for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}:")
        indent += "    "
        conditions = loop.ifs if isinstance(loop, ast.comprehension) else []
        for condition in conditions:
            lines.append(f"{indent}if {ast.unparse(condition)}:")
            indent += "    "
    return [*lines, indent + ast.unparse(found.arguments())]


def chapter_of(name: str) -> str:
    """The chapter with this name or number: ``03`` or ``03_ring_all_reduce``.

    Raises CannotExport with near matches.
    """
    known = cells.chapters()
    found = [each for each in known if name in (each, each.partition("_")[0])]
    if not found:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known
        raise CannotExport(f"no chapter {name!r}; there are {', '.join(near)}")
    return found[0]
