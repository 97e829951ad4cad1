"""Checks of the labs: at once for a student, and by a trusted process for a grade."""

from autograder.kernel import CheckFailed, check

__all__ = ["CheckFailed", "check"]
