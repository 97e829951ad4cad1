"""How far the code of a run is trusted."""

from __future__ import annotations

from enum import Enum


class Trust(Enum):
    """OWN: the user's own code, whose errors should show immediately.  Its time limit is wall
    time.

    UNTRUSTED: somebody else's code, run for grading.  Waits for a processor do not count toward
    its time limit; the rank that an error blames must not depend on timing; memory is also measured
    from outside the ranks; logs are bounded.
    """

    OWN = "own"
    UNTRUSTED = "untrusted"
