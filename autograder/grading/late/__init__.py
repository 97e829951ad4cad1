"""Late work: penalties, free late days and extensions, set in nbgrader_config.py and
grading/extensions.csv."""

from autograder.grading.late.late_steps import ApplyExtension, LateDays, LatePenalties

__all__ = ["ApplyExtension", "LateDays", "LatePenalties"]
