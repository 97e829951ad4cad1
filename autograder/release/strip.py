"""Exercises as students get them: no oracle, no hidden case, nothing that only those need.

From each lab's ``EXERCISES`` on, what an exercise needs to run is followed from name to name.  Its
``expect`` and the functions that are kept back are looked up in a table from then on
(autograder/recorded.py), its visible cases are written out, and what nothing needs any more, the
text of oracles and the making of hidden cases, is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from autograder.exercise import Case, Exercise
from autograder.release.record import expected_name
from autograder.release.refusal import ReleaseError

PACKAGE = "autograder.exercises"
Name = tuple[str, str]  # a module of the package, and what it defines


@dataclass
class Module:
    """One file of autograder/exercises/."""

    stem: str
    text: str
    defined: dict[str, ast.stmt] = field(default_factory=dict)
    imported: dict[str, Name] = field(default_factory=dict)  # from the package
    modules: dict[str, str] = field(default_factory=dict)  # {name here: stem}
    imports: list[ast.Import | ast.ImportFrom] = field(default_factory=list)

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines(keepends=True)

    def __post_init__(self) -> None:
        tree = ast.parse(self.text)
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._take_import(node)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.defined[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    for name in ast.walk(target):
                        if isinstance(name, ast.Name):
                            self.defined[name.id] = node
            elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                raise ReleaseError(
                    f"{PACKAGE}.{self.stem}, line {node.lineno}: a module of exercises holds "
                    "imports, functions, classes and assignments, for a release takes it apart"
                )
        self.docstring = ast.get_docstring(tree) or ""

    def _take_import(self, node: ast.Import | ast.ImportFrom) -> None:
        self.imports.append(node)
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(PACKAGE):
            return
        for alias in node.names:
            here = alias.asname or alias.name
            if node.module == PACKAGE:
                self.modules[here] = alias.name
            else:
                self.imported[here] = ((node.module or "").rpartition(".")[2], alias.name)


class Stripped:
    """``texts``: {stem: source} for students; ``kept_back``: {exercise: names} it looks up."""

    def __init__(self, texts: dict[str, str], exercises: Iterable[Exercise]) -> None:
        self.modules = {stem: Module(stem, text) for stem, text in texts.items()}
        self.exercises = {exercise.name: exercise for exercise in exercises}
        self.kept_back: dict[str, set[str]] = {}
        labs = [stem for stem in self.modules if stem[:1].isdigit()]
        self.needed = set(self._reach((lab, "EXERCISES") for lab in labs))
        for module, name in sorted(self.needed):
            call = _exercise_call(self.modules[module].defined[name])
            if call is not None:
                needs = self._reach([(module, name)])
                self.kept_back[_name_in(call)] = {
                    ".".join(each) for each in needs if self._is_kept_back(each)
                }
        if missing := sorted(self.exercises.keys() - self.kept_back):
            raise ReleaseError(
                f"{', '.join(missing)}: declare it as NAME = Exercise(name=...) in a module of its "
                "own level, for a release rewrites that call"
            )
        self.texts = {
            stem: self._text_of(module)
            for stem, module in self.modules.items()
            if any(each == stem for each, _ in self.needed)
        }

    # ---- what is needed

    def _reach(self, start: Iterable[Name]) -> Iterator[Name]:
        seen: set[Name] = set()
        ahead = list(start)
        while ahead:
            here = ahead.pop()
            if here not in seen:
                seen.add(here)
                yield here
                ahead += self._needs(here)

    def _needs(self, name: Name) -> Iterator[Name]:
        if self._is_kept_back(name):
            return
        module = self.modules[name[0]]
        for node in _walk(module.defined[name[1]]):
            if isinstance(node, ast.Name) and node.id in module.defined:
                yield module.stem, node.id
            elif isinstance(node, ast.Name) and node.id in module.imported:
                yield module.imported[node.id]
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in module.modules:
                yield module.modules[ast.unparse(node.value)], node.attr

    def _is_kept_back(self, name: Name) -> bool:
        node = self.modules[name[0]].defined[name[1]]
        return isinstance(node, ast.FunctionDef) and any(
            isinstance(mark, ast.Call) and ast.unparse(mark.func) == "kept_back"
            for mark in node.decorator_list
        )

    # ---- what is written

    def _text_of(self, module: Module) -> str:
        statements = {
            id(node): (node, name)
            for name, node in module.defined.items()
            if (module.stem, name) in self.needed
        }
        body = [self._statement(module, node, name) for node, name in statements.values()]
        used = {
            node.id
            for text in body
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Name)
        }
        quotes = '"""'
        end = "\n" if "\n" in module.docstring else ""
        imports = [text for node in module.imports if (text := _import(node, used))]
        if "Recorded" in used:
            imports.append("from autograder.recorded import Recorded")
        return "\n".join(
            [f"{quotes}{module.docstring}{end}{quotes}\n", *imports, "\n", "\n\n".join(body)]
        )

    def _statement(self, module: Module, node: ast.stmt, name: str) -> str:
        if self._is_kept_back((module.stem, name)):
            return f'{name} = Recorded("{module.stem}.{name}")\n'
        first = min([node.lineno, *(mark.lineno for mark in getattr(node, "decorator_list", []))])
        text = "".join(module.lines[first - 1 : node.end_lineno])
        call = _exercise_call(node)
        if call is None:
            return text
        exercise = self.exercises[_name_in(call)]
        written = {
            "cases": _cases(exercise),
            "expect": f'Recorded("{expected_name(exercise.name)}")',
        }
        lines = [line.encode() for line in text.splitlines(keepends=True)]
        for keyword in reversed(call.keywords):  # from the end on: places before it stay
            if keyword.arg in written:
                value = keyword.value
                start, stop = value.lineno - first, (value.end_lineno or 0) - first
                rest = lines[stop][value.end_col_offset :]
                new = lines[start][: value.col_offset] + written[keyword.arg].encode() + rest
                lines[start : stop + 1] = [new]
        return b"".join(lines).decode()


def _walk(node: ast.stmt) -> Iterator[ast.AST]:
    """All of a statement, but of an exercise neither its cases nor its oracle."""
    call = _exercise_call(node)
    if call is None:
        yield from ast.walk(node)
        return
    for keyword in call.keywords:
        if keyword.arg not in ("cases", "expect"):
            yield from ast.walk(keyword.value)


def _exercise_call(node: ast.stmt) -> ast.Call | None:
    call = node.value if isinstance(node, ast.Assign) else None
    if isinstance(call, ast.Call) and ast.unparse(call.func) == "Exercise":
        return call
    return None


def _name_in(call: ast.Call) -> str:
    for keyword in call.keywords:
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    raise ReleaseError(f"an Exercise on line {call.lineno} needs its name as plain text")


def _cases(exercise: Exercise) -> str:
    cases = "".join(f"        {_case(case)},\n" for case in exercise.cases if not case.hidden)
    return f"(\n{cases}    )"


def _case(case: Case) -> str:
    params = dict(case.params)
    weight = "" if case.weight == 1 else f", weight={case.weight!r}"
    return f"Case({case.name!r}, {case.world_size}, {params!r}{weight})"


def _import(node: ast.Import | ast.ImportFrom, used: set[str]) -> str:
    """The same import of what is used; "" where nothing is."""
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return ast.unparse(node) + "\n"
    kept = [alias for alias in node.names if (alias.asname or alias.name).split(".")[0] in used]
    if not kept:
        return ""
    if isinstance(node, ast.Import):
        return ast.unparse(ast.Import(kept))
    return ast.unparse(ast.ImportFrom(node.module, kept, node.level))
