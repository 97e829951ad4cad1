"""Finds submissions that share passages that the course did not give and that are not common."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, groupby

from autograder.pages.similar.tokens import Token, tokens
from autograder.pages.similar.winnowing import K, W, hashes, winnow

# Two short answers written in the obvious way share up to 76 (tests/submissions/honest); an answer
# of ten lines has about 100.
MIN_TOKENS = 80
COMMON_SHARE = 0.2  # a passage in more than this fraction of all submissions does not count,
MIN_COMMON = 4  # but only if more than this many have it


class Text:
    """The code of one cell."""

    def __init__(self, name: str, source: str) -> None:
        self.name, self.source = name, source
        self.tokens: list[Token] = tokens(source)
        self.hashes = hashes(self.tokens)

    def passages(self, shared: Set[int]) -> list[tuple[int, int]]:
        """(first token, one past the last) of each passage of T tokens or more whose k-grams are
        all in ``shared``."""
        found: list[tuple[int, int]] = []
        indices = range(len(self.hashes))
        for is_shared, group in groupby(indices, key=lambda i: self.hashes[i] in shared):
            run = list(group)
            if is_shared and len(run) >= W:
                start, end = run[0], run[-1] + K
                if found and start < found[-1][1]:
                    start = found.pop()[0]
                found.append((start, end))
        return found

    def length(self, shared: Set[int]) -> int:
        """The number of tokens in such passages."""
        return sum(end - start for start, end in self.passages(shared))


@dataclass(frozen=True)
class Work:
    """One submission. ``is_earlier``: from an earlier term."""

    student: str
    texts: tuple[Text, ...]
    is_earlier: bool = False
    group: str = ""  # whose members hand in the same

    @cached_property
    def hashes(self) -> frozenset[int]:
        return frozenset(value for text in self.texts for value in text.hashes)

    def length(self, shared: Set[int]) -> int:
        return sum(text.length(shared) for text in self.texts)


@dataclass(frozen=True)
class Pair:
    """``shared``: hashes of the k-grams that count and that both contain."""

    first: Work
    second: Work
    shared: frozenset[int]
    tokens: int  # in shared passages, in the submission where these are fewer
    share: float  # of the tokens that count in the shorter submission


@dataclass(frozen=True)
class Comparison:
    pairs: list[Pair]  # the most shared tokens first
    common_over: int  # a passage in more submissions than this did not count
    common: int  # k-grams that did not count for this reason


def compare(works: Sequence[Work], given: Iterable[Text]) -> Comparison:
    """All pairs with at least MIN_TOKENS in shared passages, except pairs from earlier terms.

    ``given``: code that the course gave to all students, which does not count.
    """
    given_hashes = {value for text in given for value in text.hashes}
    common_over = max(MIN_COMMON, int(COMMON_SHARE * len(works)))
    counts = Counter(value for work in works for value in work.hashes - given_hashes)
    common = {value for value, count in counts.items() if count > common_over}
    ignored = given_hashes | common
    own = [work.hashes - ignored for work in works]
    pairs = []
    for i, j in sorted(_candidates(works, ignored)):
        shared = own[i] & own[j]
        first, second = works[i], works[j]
        length = min(first.length(shared), second.length(shared))
        if length >= MIN_TOKENS:
            shorter = min(first.length(own[i]), second.length(own[j]))
            pairs.append(Pair(first, second, shared, length, min(length / shorter, 1.0)))
    pairs.sort(key=lambda pair: (-pair.tokens, pair.first.student, pair.second.student))
    return Comparison(pairs, common_over, len(common))


def _candidates(works: Sequence[Work], ignored: Set[int]) -> set[tuple[int, int]]:
    """Indices of pairs with a common fingerprint."""
    holders: dict[int, list[int]] = defaultdict(list)
    for index, work in enumerate(works):
        for value in {one for text in work.texts for one in _fingerprints(text, ignored)}:
            holders[value].append(index)
    return {
        pair
        for indices in holders.values()
        for pair in combinations(indices, 2)
        if not (works[pair[0]].is_earlier and works[pair[1]].is_earlier)
        and not (works[pair[0]].group and works[pair[0]].group == works[pair[1]].group)
    }


def _fingerprints(text: Text, ignored: Set[int]) -> Iterator[int]:
    """Fingerprints of the runs between ignored k-grams: T tokens that count always have one."""
    for is_ignored, run in groupby(text.hashes, key=lambda value: value in ignored):
        if not is_ignored:
            yield from winnow(list(run))
