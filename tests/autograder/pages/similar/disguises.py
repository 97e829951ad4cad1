"""How a copied answer may be changed so that it looks different and still does the same."""

from __future__ import annotations

import ast
import io
import tokenize

from autograder.pages.similar.tokens import KEPT_NAMES

MODULES = {"torch", "dist", "F", "nn", "math", "self"}


def renamed(source: str) -> str:
    """Every name of the student's own replaced, also those of functions and parameters."""
    found, previous, names = [], "", dict[str, str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_own = token.type == tokenize.NAME and previous != "."
        text = previous = token.string
        if is_own and text not in KEPT_NAMES | MODULES:
            text = names.setdefault(text, f"renamed_{len(names)}")
        found.append((token.type, text))
    return tokenize.untokenize(found)


def other_comments(source: str) -> str:
    """A comment above and after each line outside of a docstring."""
    lines = [f"{line}  # so" if line.strip() and '"""' not in line else line
             for line in source.splitlines()]  # fmt: skip
    return "\n".join(["# I wrote this", *lines])


def other_layout(source: str) -> str:
    """Python's own layout: other line breaks, parentheses, quotes; no comments."""
    return ast.unparse(ast.parse(source))


def reordered(source: str) -> str:
    """Functions, and a class's methods, in the opposite order."""
    tree = ast.parse(source)
    tree.body.reverse()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            node.body.reverse()
    return ast.unparse(tree)


def all_of_them(source: str) -> str:
    return other_comments(reordered(renamed(source)))
