"""What nbgrader runs in place of its own reading, cleaning and executing of submissions.

nbgrader_config.py names these three; collecting, the gradebook, formgrader, feedback and export
stay nbgrader's.  No student code runs in this process: see ``kernel`` for where it does.
"""

from autograder.grading.decide import RunAndDecide
from autograder.grading.reader import SubmissionReader
from autograder.grading.rebuild import RebuildSubmission

__all__ = ["RebuildSubmission", "RunAndDecide", "SubmissionReader"]
