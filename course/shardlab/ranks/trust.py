"""How far the code of a run is trusted."""

from __future__ import annotations

from enum import Enum


class Trust(Enum):
    """OWN: written by the person at the keyboard, who wants to see what is wrong at once.  Its
    time limit is wall time.

    UNTRUSTED: somebody else's code, run to be graded.  The time it waited for a processor does not
    count; which rank an error blames must not depend on timing; memory is also measured from
    outside the ranks; logs are bounded.
    """

    OWN = "own"
    UNTRUSTED = "untrusted"
