"""Winnowing: a few fingerprints of a text, including one of every passage that is long enough.

S. Schleimer, D. S. Wilkerson, A. Aiken: Winnowing: local algorithms for document fingerprinting.
SIGMOD 2003, doi.org/10.1145/872757.872770.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from autograder.pages.similar.tokens import Token

K = 16  # tokens in a k-gram (the paper's noise threshold)
W = 8  # k-grams in a window
# Tokens of a passage that is always found (the paper's guarantee threshold). `compare` ignores
# shorter ones, which would be found only by chance.
T = W + K - 1


def hashes(tokens: Sequence[Token]) -> list[int]:
    """A hash of each k-gram. The student's names are numbered in the order in which the k-gram uses
    them, so renaming a variable everywhere changes no hash."""
    return [_hash(tokens[start : start + K]) for start in range(len(tokens) - K + 1)]


def _hash(kgram: Sequence[Token]) -> int:
    numbers: dict[str, int] = {}
    texts = [
        f"\0{numbers.setdefault(token.text, len(numbers))}" if token.is_own_name else token.text
        for token in kgram
    ]
    # Not Python's hash(), which differs between processes.
    return int.from_bytes(hashlib.blake2b("\n".join(texts).encode(), digest_size=8).digest())


def winnow(hashes: Sequence[int]) -> set[int]:
    """The smallest hash of each window; every window of W has at least one."""
    windows = range(max(len(hashes) - W + 1, min(len(hashes), 1)))
    return {min(hashes[start : start + W]) for start in windows}
