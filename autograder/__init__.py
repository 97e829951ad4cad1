"""Checks of the labs: at once for a student, and by a trusted process for a grade.

The rooms, by whose code runs next to theirs; each imports from those above it only:
    guest        runs in a process next to student code, and nothing else
    exercise     the form of an exercise
    exercises    the labs' exercises: public halves, and hidden/ with what decides
    evaluation   what `check` runs: try an answer on ranks, judge, compare, present
    sandbox      the container that student code runs in, seen from outside
    grading      a class: submissions, their notebooks, records, workers, the gradebook
    pages        what is read afterwards: feedback, reports, formgrader
    build        notebooks from their sources
    release      the students' package: guest, exercise, evaluation, and public halves
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autograder.evaluation.check import check
    from autograder.guest.answer import CheckFailed

__all__ = ["CheckFailed", "check"]


def __getattr__(name: str) -> Any:
    # Only when asked for: it brings torch, and the pages of feedback and formgrader need none.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from autograder.evaluation import check

    return getattr(check, name)
