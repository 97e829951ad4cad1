"""Changes that make a copied answer look different without changing what it does."""

from __future__ import annotations

import ast
import io
import tokenize

from autograder.pages.similar.tokens import KEPT_NAMES

MODULES = {"torch", "dist", "F", "nn", "math", "self"}


def renamed(source: str) -> str:
    """Replaces all of the student's own names, including those of functions and parameters."""
    found, previous, names = [], "", dict[str, str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_own = token.type == tokenize.NAME and previous != "."
        text = previous = token.string
        if is_own and text not in KEPT_NAMES | MODULES:
            text = names.setdefault(text, f"renamed_{len(names)}")
        found.append((token.type, text))
    return tokenize.untokenize(found)


def other_comments(source: str) -> str:
    """Adds a comment at the top, and one after each line outside a docstring."""
    lines = [f"{line}  # so" if line.strip() and '"""' not in line else line
             for line in source.splitlines()]  # fmt: skip
    return "\n".join(["# I wrote this", *lines])


def other_layout(source: str) -> str:
    """Formats with ast.unparse: other line breaks, parentheses, quotes; no comments."""
    return ast.unparse(ast.parse(source))


def reordered(source: str) -> str:
    """Reverses the order of functions and of a class's methods."""
    tree = ast.parse(source)
    tree.body.reverse()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            node.body.reverse()
    return ast.unparse(tree)


def all_disguises(source: str) -> str:
    return other_comments(reordered(renamed(source)))
