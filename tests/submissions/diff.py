"""Changes of a program's text as hunks of a diff: what `git diff` prints, without line numbers.

    -    gathered = 2
    +    gathered = 1
    @@
         return gathered
    +    # nothing after it

A line starts with a space (unchanged), a minus (removed) or a plus (added); a line of ``@@`` starts
another hunk.  What a hunk replaces, its unchanged and removed lines, is found by its text: it must
occur in the program exactly once.
"""

from __future__ import annotations

from itertools import groupby


def changed(source: str, diff: str) -> str:
    """``source`` with all hunks applied.  Raises ValueError if a hunk does not apply."""
    lines = source.splitlines()
    places: list[tuple[int, int, list[str]]] = []  # (start, stop, new lines), in ``lines``
    for is_separator, group in groupby(diff.splitlines(), lambda line: line.startswith("@@")):
        if not is_separator:
            old, new = _sides([*group])
            start = _only_place(lines, old)
            places.append((start, start + len(old), new))
    done, result = 0, list[str]()
    for start, stop, new in sorted(places):
        if start < done:
            raise ValueError(f"two hunks change line {start + 1}: {lines[start]}")
        result += lines[done:start] + new
        done = stop
    return "\n".join(result + lines[done:])


def _sides(hunk: list[str]) -> tuple[list[str], list[str]]:
    """(the lines that it replaces, the lines that replace them)"""
    wrong = [line for line in hunk if line[:1] not in ("", " ", "-", "+")]
    if wrong:
        raise ValueError(f"a line of a diff starts with ' ', '-' or '+': {wrong[0]!r}")
    old = [line[1:] for line in hunk if line[:1] != "+"]
    return old, [line[1:] for line in hunk if line[:1] != "-"]


def _only_place(lines: list[str], old: list[str]) -> int:
    if not old:
        raise ValueError("a hunk only adds lines: show the line before or after them")
    starts = [i for i in range(len(lines)) if lines[i : i + len(old)] == old]
    if len(starts) != 1:
        times = f"{len(starts)} times" if starts else "nowhere"
        raise ValueError(f"occurs {times}, not once:\n" + "\n".join(old))
    return starts[0]
