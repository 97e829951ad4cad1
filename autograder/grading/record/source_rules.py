"""Finds calls that an exercise forbids, by static analysis; a run's recorded calls are checked too.

Static analysis can be fooled, and an honest program can look odd.  So findings are only reported
to the instructor; points depend only on runs.  The source is not executed.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from importlib import import_module

from autograder.evaluation.wording import forbidden_call
from autograder.guest.on_rank import COMMUNICATION_FUNCTIONS

CALL, SUSPICIOUS = "call", "suspicious"

# Names that every notebook defines or imports before its answers.
PREDEFINED = {name: name for name in ("torch", "math", "inspect")} | {
    "dist": "torch.distributed",
    "nn": "torch.nn",
    "F": "torch.nn.functional",
}
_BUILTINS = ("exec", "eval", "compile", "getattr", "setattr", "delattr", "vars", "__import__")
PREDEFINED |= {name: f"builtins.{name}" for name in _BUILTINS}
# The names under which torch.distributed's functions are recorded, where they differ.
RECORDED_AS = {
    **dict.fromkeys(("isend", "P2POp", "batch_isend_irecv", "send_object_list"), "send"),
    **dict.fromkeys(("irecv", "recv_object_list"), "recv"),
    "all_gather_into_tensor": "all_gather_single",
    "reduce_scatter_tensor": "reduce_scatter_single",
    "all_gather_object": "all_gather",
    "gather_object": "gather",
    "broadcast_object_list": "broadcast",
    "scatter_object_list": "scatter",
}
# Useless in an answer but useful in an attack.  A name includes everything below it.
TOOLS = (
    *("shardlab.trace", "shardlab.ranks", "shardlab.launch", "shardlab.linux"),
    *("autograder", "cloudpickle"),
    *("ctypes", "cffi", "_ctypes", "socket", "_socket", "mmap", "multiprocessing", "subprocess"),
    *("signal", "faulthandler", "gc", "builtins.exec", "builtins.eval", "builtins.compile"),
    *("sys._getframe", "sys.settrace", "sys.setprofile", "sys.modules", "sys.meta_path"),
    *("inspect.currentframe", "inspect.stack", "inspect.getouterframes", "inspect.trace"),
    *("os.fork", "os.forkpty", "os._exit", "os.abort", "os.kill", "os.killpg", "os.system"),
    *("os.exec", "os.posix_spawn", "os.spawn", "os.popen", "os.ptrace", "os.pidfd_open"),
    *("os.environ", "os.open", "os.dup", "os.dup2", "os.listdir", "os.scandir", "os.walk"),
    *("torch.ops.c10d", "torch.ops._c10d_functional", "torch._C._distributed_c10d"),
    *("torch.library", "torch.distributed.distributed_c10d", "torch.distributed.rpc"),
    *("torch.distributed._functional_collectives", "torch.distributed.TCPStore"),
    *("torch.utils.cpp_extension", "torch.multiprocessing", "IPython", "ipykernel"),
    *("threading", "concurrent.futures", "torch.utils._python_dispatch"),  # not recorded
)
# Only unambiguous text: ordinary words occur in prose.
SUSPICIOUS_TEXT = re.compile(
    r"/proc/(self|\d+|\{)|/dev/(shm|mem)|process_vm_|pidfd_|ptrace|c10d::|libc\.so|shardlab\.trace"
    r"|shardlab\.ranks|autograder\.(?!check)"
)
FRAMES = {"f_back", "f_globals", "f_locals", "gi_frame", "tb_frame", "__subclasses__"}
IMPORTERS = {"builtins.__import__", "importlib.import_module", "importlib.__import__"}
PROTECTED = ("torch", "shardlab", "autograder", "builtins")  # packages that may not be patched
_DEFINES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Found:
    """One place in the source. ``kind`` is CALL, of torch.distributed, or SUSPICIOUS."""

    kind: str
    name: str  # "all_reduce", "ctypes.CDLL"
    line: int  # of the source, from 1
    says: str


def find_forbidden(
    source: str, allows: Set[str] | None, answer: str = "", closed: Sequence[str] = ()
) -> list[Found]:
    """Findings in the order of their lines; none if the source is not Python.

    ``allows``: torch.distributed's names, as in Exercise.allows; None allows all of them.
    ``closed``: modules that contain the answer, as in Exercise.closed.
    ``answer``: search only what the definition of that name can reach; "": everything.
    """
    try:
        tree, full_names, binds = _analyzed(source)
        reader = _Reader(allows, full_names, closed)
        for statement in _reachable(binds, answer) if answer else tree.body:
            reader.visit(statement)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return sorted(set(reader.found), key=lambda found: (found.line, found.name))


@functools.lru_cache(maxsize=1)  # the same source for every answer of a notebook
def _analyzed(source: str) -> tuple[ast.Module, dict[str, str], dict[str, list[ast.stmt]]]:
    """(syntax tree, {name: its full name}, {name: the top-level statements that bind it}); raises
    the errors of ast.parse."""
    # IPython's own lines become comments; line numbers stay the same.
    plain = re.sub(r"(?m)^([ \t]*)([%!?].*|\S+\?\??)$", r"\1pass  # a magic", source)
    tree = ast.parse(plain)
    reader = _Reader(None, PREDEFINED)
    reader.collect_names(tree)
    binds: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for name in _bound(statement):
            binds.setdefault(name, []).append(statement)
    return tree, reader.full_names, binds


def _reachable(binds: Mapping[str, list[ast.stmt]], answer: str) -> Iterator[ast.stmt]:
    """Top-level statements that define the answer, or names it reads, and so on."""
    seen: set[ast.stmt] = set()
    names, wanted = {answer}, [answer]
    while wanted:
        for statement in set(binds.get(wanted.pop(), ())) - seen:
            seen.add(statement)
            yield statement
            read = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)} - names
            names |= read
            wanted += read


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, _DEFINES):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, _DEFINES):
            yield node.name
        elif isinstance(getattr(node, "ctx", None), ast.Store):
            base = node
            while isinstance(base, ast.Attribute | ast.Subscript):
                base = base.value  # torch.add = mine: it changes `torch`
            if isinstance(base, ast.Name):
                yield base.id


class _Reader(ast.NodeVisitor):
    def __init__(
        self, allows: Set[str] | None, full_names: Mapping[str, str], closed: Sequence[str] = ()
    ) -> None:
        self.allows, self.closed = allows, tuple(closed)
        self.full_names = dict(full_names)  # {name in the source: ...}
        self.found: list[Found] = []
        self.depth = 0  # of nested source in strings

    # ---- full names ----

    def collect_names(self, tree: ast.AST) -> None:
        """In two passes, to resolve an alias of an alias that is defined further down."""
        for _ in range(2):
            for node in ast.walk(tree):
                if isinstance(node, ast.Import):
                    for alias in node.names:
                        top = alias.name.partition(".")[0]
                        self.full_names[alias.asname or top] = alias.name if alias.asname else top
                elif isinstance(node, ast.ImportFrom) and node.module:
                    for alias in node.names:
                        is_all = alias.name == "*" and node.module == "torch.distributed"
                        names = COMMUNICATION_FUNCTIONS if is_all else (alias.name,)
                        for name in names:
                            self.full_names[alias.asname or name] = f"{node.module}.{name}"
                elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                    target, known = node.targets[0], self._full_name(node.value)
                    if isinstance(target, ast.Name) and known:
                        self.full_names[target.id] = known

    def _full_name(self, node: ast.expr) -> str:
        """ "torch.distributed.send" however it is written; "" if unknown."""
        match node:
            case ast.Name(id=name):
                return self.full_names.get(name, "")
            case ast.Attribute(value=value, attr="__dict__"):
                return self._full_name(value)
            case ast.Attribute(value=value, attr=name):
                return _joined(self._full_name(value), name)
            case ast.Subscript(value=value, slice=key):  # vars(dist)["send"], sys.modules["torch"]
                base = self._full_name(value)
                return _text(key) if base == "sys.modules" else _joined(base, _text(key))
            case ast.Call(func=func, args=[first, *others]):
                called = self._full_name(func)
                if called == "builtins.getattr" and others:
                    return _joined(self._full_name(first), _text(others[0]))
                if called == "builtins.vars":
                    return self._full_name(first)
                if called in IMPORTERS:
                    is_top = called.endswith("__import__") and len(others) < 3
                    return _text(first).partition(".")[0] if is_top else _text(first)
        return ""

    # ---- findings ----

    def _check(self, node: ast.expr) -> None:
        name = self._full_name(node)
        module, _, function = name.rpartition(".")
        if module == "torch.distributed" and function in COMMUNICATION_FUNCTIONS:
            recorded = {function, RECORDED_AS.get(function, function)}
            if self.allows is not None and not recorded & self.allows:
                says = forbidden_call(function, self.allows)
                self.found.append(Found(CALL, function, node.lineno, says))
        elif tool := _suspicious_tool(name, self.closed):
            self._flag(tool if tool.startswith("os.") else name, node.lineno)

    def _check_change(self, of: ast.expr, name: str) -> None:
        base = self._full_name(of)
        if base.partition(".")[0] in PROTECTED:
            self._flag(f"{base}.{name} = …", of.lineno)

    def _flag(self, name: str, line: int) -> None:
        name = name.removeprefix("builtins.")
        self.found.append(Found(SUSPICIOUS, name, line, f"uses {name}, which no answer needs"))

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._check(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Store | ast.Del):
            self._check_change(node.value, node.attr)
        elif node.attr in FRAMES:
            self._flag(node.attr, node.lineno)
        else:
            self._check(node)
        if not self._full_name(node):
            self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._check(node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = self._full_name(node.func)
        if called in ("builtins.exec", "builtins.eval") and node.args:
            self._read_text(_text(node.args[0]))
        if called in ("builtins.setattr", "builtins.delattr") and node.args:
            self._check_change(node.args[0], "…")
        self._check(node)
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for name in (f"{module}{alias.name}" for alias in node.names):
            if _suspicious_tool(name, self.closed) and name != "autograder.check":
                self._flag(name, node.lineno)

    visit_ImportFrom = visit_Import

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring is prose
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        if isinstance(value, str) and (suspicious := SUSPICIOUS_TEXT.search(value)):
            self._flag(repr(suspicious[0]), node.lineno)

    def _read_text(self, text: str) -> None:
        """Search source code in a string literal."""
        if not text or self.depth > 3:
            return
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return
        self.depth += 1
        self.collect_names(tree)
        self.generic_visit(tree)
        self.depth -= 1


def _joined(base: str, name: str) -> str:
    return f"{base}.{name}" if base and name else ""


@functools.lru_cache(maxsize=4096)  # a class's notebooks use the same few names
def _suspicious_tool(name: str, closed: tuple[str, ...]) -> str:
    """The name in TOOLS or ``closed`` that includes this one."""
    definition = _definition(name) if closed and name.startswith("shardlab.") else name
    found = (t for t in (*TOOLS, *closed) if _is_below(name, t) or _is_below(definition, t))
    return next(found, "") if name else ""


def _definition(name: str) -> str:
    """The full name where a function is defined: a package may re-export those of its modules."""
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError):
        return name
    return f"{getattr(found, '__module__', module)}.{attribute}"


def _is_below(name: str, tool: str) -> bool:
    """os.exec also includes os.execv: these names are families."""
    if tool in ("os.exec", "os.spawn", "os.posix_spawn"):
        return name.startswith(tool)
    return name == tool or name.startswith(f"{tool}.")


def _text(node: ast.expr) -> str:
    """The value of a string literal, perhaps concatenated; "" for anything else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = [_text(left), _text(right)]
        case ast.JoinedStr(values=values):
            parts = [_text(value) for value in values]
        case _:
            return ""
    return "".join(parts) if all(parts) else ""
