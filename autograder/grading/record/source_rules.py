"""Finds calls that an exercise forbids, by static analysis; a run's recorded calls are checked too.

Static analysis can be fooled, and an honest program can look odd.  So findings are only reported
to the instructor; points depend only on runs.  The source is not executed.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from importlib import import_module

from autograder.evaluation.wording import forbidden_call
from autograder.grading.record.many_posts import MANY, POSTING, Posts
from autograder.grading.record.source_scopes import (
    DEFINES,
    Function,
    around,
    assigned,
    body_of,
    bound_in,
    declared,
    defaults,
    names_read,
    nodes_of,
)
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
    # what the system keeps outside of the process: cached pages, attributes, links, pipes, limits
    *("os.posix_fadvise", "os.posix_fallocate", "os.preadv", "os.pwritev", "os.utime", "os.lockf"),
    *("os.setxattr", "os.getxattr", "os.listxattr", "os.removexattr", "os.memfd_create"),
    *("os.eventfd", "os.mkfifo", "os.mknod", "os.pipe", "os.openpty", "os.splice", "os.sendfile"),
    *("os.copy_file_range", "os.link", "os.sched_setaffinity", "os.setpriority", "os.nice"),
    *("posix", "fcntl", "resource", "syscall", "pty", "xattr", "numpy.memmap"),
    *("torch.from_file", "torch.UntypedStorage.from_file", "torch.FloatStorage.from_file"),
)
# Only unambiguous text: ordinary words occur in prose.
SUSPICIOUS_TEXT = re.compile(
    r"/proc/(self|\d+|\{)|/dev/(shm|mem)|process_vm_|pidfd_|ptrace|c10d::|libc\.so|shardlab\.trace"
    r"|shardlab\.ranks|autograder\.(?!check)|drop_caches|POSIX_FADV|MADV_|RWF_NOWAIT"
    r"|posix_fadvise|\bmincore\b|\bcachestat\b|\bmadvise\b|setxattr|getxattr|memfd_create"
    r"|preadv2|\bfutex\b|AF_NETLINK"
)
FRAMES = {"f_back", "f_globals", "f_locals", "gi_frame", "tb_frame", "__subclasses__"}
# Functions of C's library or the system, of whatever object: libc.mincore, mapped.madvise
OF_THE_SYSTEM = {
    *("posix_fadvise", "posix_fadvise64", "fadvise64", "readahead", "mincore", "cachestat"),
    *("madvise", "process_madvise", "preadv2", "pwritev2", "syscall", "memfd_create"),
    *("setxattr", "getxattr", "fsetxattr", "fgetxattr", "lsetxattr", "lgetxattr", "listxattr"),
    *("flistxattr", "from_file"),
}
# Modules of which any function could be meant if its name is computed.
NAMED_AT_RUN_TIME = {"os", "sys", "sys.modules", "builtins", "posix", "ctypes", "torch.distributed"}
IMPORTERS = {"builtins.__import__", "importlib.import_module", "importlib.__import__"}
PROTECTED = ("torch", "shardlab", "autograder", "builtins")  # packages that may not be patched


@dataclass(frozen=True)
class Found:
    """One place in the source. ``kind`` is CALL, of torch.distributed, or SUSPICIOUS."""

    kind: str
    name: str  # "all_reduce", "ctypes.CDLL"
    line: int  # of the source, from 1
    says: str


def find_forbidden(
    source: str,
    allows: Set[str] | None,
    answer: str = "",
    closed: Sequence[str] = (),
    lines: Container[int] | None = None,
) -> list[Found]:
    """Findings in the order of their lines; none if the source is not Python.

    ``allows``: torch.distributed's names, as in Exercise.allows; None allows all of them.
    ``closed``: modules that contain the answer, as in Exercise.closed.
    ``answer``: search only what the definition of that name can reach; "": everything.
    ``lines``: those that the student has written; None: all.
    """
    try:
        analyzed = _analyzed(source)
        reader = _Reader(allows, analyzed.full_names, closed)
        found = _reachable(analyzed.binds, answer) if answer else analyzed.tree.body
        statements = [each for each in found if lines is None or _is_in(each, lines)]
        for statement in statements:
            reader.visit(statement)
        for line, most in analyzed.posts.found(statements):
            thousands = "thousands of" if most == math.inf or most >= 2 * MANY else "a thousand"
            says = f"posts {thousands} sends or receives in a loop, which no answer needs"
            reader.found.append(Found(SUSPICIOUS, "sends or receives", line, says))
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return []
    of_student = (each for each in {*reader.found} if lines is None or each.line in lines)
    return sorted(of_student, key=lambda found: (found.line, found.name))


def _is_in(statement: ast.stmt, lines: Container[int]) -> bool:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    end = statement.end_lineno or statement.lineno
    start = decorators[0].lineno if decorators else statement.lineno
    return any(line in lines for line in range(start, end + 1))


@dataclass(frozen=True)
class _Analyzed:
    tree: ast.Module
    full_names: dict[str, str]  # {name: its full name}
    binds: dict[str, list[ast.stmt]]  # {name: the top-level statements that bind it}
    posts: Posts


@functools.lru_cache(maxsize=1)  # the same source for every answer of a notebook
def _analyzed(source: str) -> _Analyzed:
    """Raises the errors of ast.parse."""
    # IPython's own lines become comments; line numbers stay the same.
    plain = re.sub(r"(?m)^([ \t]*)([%!?].*|\S+\?\??)$", r"\1pass  # a magic", source)
    tree = ast.parse(plain)
    reader = _Reader(None, PREDEFINED)
    reader.collect_names(tree.body)
    binds: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for name in _bound(statement):
            binds.setdefault(name, []).append(statement)
    return _Analyzed(tree, reader.full_names, binds, Posts(tree, reader.posts_in(tree, plain)))


def _reachable(binds: Mapping[str, list[ast.stmt]], answer: str) -> Iterator[ast.stmt]:
    """Top-level statements that define the answer, or names it reads, and so on."""
    seen: set[ast.stmt] = set()
    names, wanted = {answer}, [answer]
    while wanted:
        for statement in set(binds.get(wanted.pop(), ())) - seen:
            seen.add(statement)
            yield statement
            read = names_read(statement) - names
            names |= read
            wanted += read


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, DEFINES):
        yield statement.name
        yield from declared(ast.walk(statement), ast.Global)
        return
    for node in ast.walk(statement):
        if isinstance(node, DEFINES):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
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

    def collect_names(self, body: Iterable[ast.AST]) -> None:
        """Of a scope, in two passes, to resolve an alias of an alias that is defined further
        down."""
        nodes = [*nodes_of(body)]
        for _ in range(2):
            for node in nodes:
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
                for name, value in assigned(node):
                    if known := self._full_name(value):
                        self.full_names[name] = known

    def _enter(self, function: Function) -> dict[str, str]:
        """Resolve names as in its body; returns those of the scope around it."""
        outer, local = self.full_names, bound_in(function)
        of_defaults = {name: self._full_name(value) for name, value in defaults(function.args)}
        self.full_names = {k: v for k, v in outer.items() if k not in local}
        self.full_names |= {name: known for name, known in of_defaults.items() if known}
        self.collect_names(body_of(function))
        return outer

    def posts_in(self, tree: ast.AST, source: str) -> Callable[[ast.expr], bool]:
        """Whether an expression of the tree names a function that posts a send or a receive."""
        posting: set[ast.expr] = set()
        if not any(word in source for word in ("isend", "irecv", "P2P", "import *", "getattr")):
            return posting.__contains__  # as in almost all notebooks

        def look(node: ast.AST) -> None:
            if isinstance(node, ast.expr) and self._full_name(node) in POSTING:
                posting.add(node)
            outer = self._enter(node) if isinstance(node, Function) else self.full_names
            for child in ast.iter_child_nodes(node):
                look(child)
            self.full_names = outer

        look(tree)
        return posting.__contains__

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

    def _is_tool(self, node: ast.expr) -> bool:
        return bool(_suspicious_tool(self._full_name(node), self.closed))

    def _check_name(self, module: ast.expr, name: ast.expr) -> None:
        """Of something in a module, by getattr or in its __dict__."""
        base, text = self._full_name(module), _text(name)
        if text in OF_THE_SYSTEM:
            self._flag(text, name.lineno)
        elif not text and base in NAMED_AT_RUN_TIME:
            self._flag(f"{base}.… by a computed name", name.lineno)

    def _flag(self, name: str, line: int) -> None:
        name = name.removeprefix("builtins.")
        self.found.append(Found(SUSPICIOUS, name, line, f"uses {name}, which no answer needs"))

    def visit_FunctionDef(self, node: Function) -> None:
        for part in around(node):
            self.visit(part)
        outer = self._enter(node)
        for part in body_of(node):
            self.visit(part)
        self.full_names = outer

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._check(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Store | ast.Del):
            self._check_change(node.value, node.attr)
        elif node.attr in FRAMES | OF_THE_SYSTEM and not self._is_tool(node):
            self._flag(node.attr, node.lineno)
        else:
            self._check(node)
        if not self._full_name(node):
            self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._check(node)
        if isinstance(node.value, ast.Call) or getattr(node.value, "attr", "") == "__dict__":
            self._check_name(node.value, node.slice)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = self._full_name(node.func)
        if called in ("builtins.exec", "builtins.eval") and node.args:
            self._read_text(_text(node.args[0]))
        if called in ("builtins.setattr", "builtins.delattr") and node.args:
            self._check_change(node.args[0], "…")
        if called == "builtins.getattr" and len(node.args) > 1:
            self._check_name(node.args[0], node.args[1])
        if called in IMPORTERS and node.args and not _text(node.args[0]):
            self._flag("an import by a computed name", node.lineno)
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
        self.collect_names(tree.body)
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
