"""Shows the pairs on one self-contained page, both texts with the shared passages marked."""

from __future__ import annotations

from collections.abc import Iterator, Set

from markupsafe import Markup, escape

from autograder.pages.html.page import render
from autograder.pages.similar.compare import MIN_TOKENS, Comparison, Pair, Text, Work
from autograder.pages.similar.read import Submissions
from autograder.pages.similar.winnowing import K, T, W

MAX_PAIRS = 50
MAX_SHOWN = 20_000  # characters of one cell


def page_of(submissions: Submissions, comparison: Comparison) -> str:
    """The page as HTML that loads and runs nothing."""
    return render(
        "similar/page.html",
        lab=submissions.lab,
        compared=len(submissions.works),
        earlier=sum(work.is_earlier for work in submissions.works),
        left_out=submissions.left_out,
        comparison=comparison,
        pairs=[_shown(pair) for pair in comparison.pairs[:MAX_PAIRS]],
        parameters={"k": K, "w": W, "t": T, "least": MIN_TOKENS},
    )


def _shown(pair: Pair) -> dict[str, object]:
    return {
        "names": (pair.first.student, pair.second.student),
        "tokens": pair.tokens,
        "percent": round(100 * pair.share),
        "sides": [list(_cells(work, pair.shared)) for work in (pair.first, pair.second)],
    }


def _cells(work: Work, shared: Set[int]) -> Iterator[tuple[str, Markup]]:
    """(name, marked text) of each cell with a shared passage."""
    for text in work.texts:
        if text.passages(shared):
            yield text.name, _marked(text, shared)


def _marked(text: Text, shared: Set[int]) -> Markup:
    parts, at = [], 0
    for first, stop in text.passages(shared):
        start, end = text.tokens[first].start, text.tokens[stop - 1].end
        start, end = min(start, MAX_SHOWN), min(end, MAX_SHOWN)
        parts += [escape(text.source[at:start]), Markup("<mark>{}</mark>").format(
            text.source[start:end]
        )]  # fmt: skip
        at = end
    parts.append(escape(text.source[at:MAX_SHOWN]))
    cut = len(text.source) - MAX_SHOWN
    return Markup("").join(parts) + (f"\n… {cut:,} more characters" if cut > 0 else "")
