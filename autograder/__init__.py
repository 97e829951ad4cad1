"""Checks for the labs: run by a student in the notebook, and by a trusted process for a grade.

The packages in order of trust, the least trusted first; each imports only from those above it:
    guest        runs in the same process as student code
    exercise     the base classes of exercises
    exercises    the labs' exercises: public halves, and hidden/ with the code that decides a grade
    course       the notebooks in order, and the results of a student's own checks so far
    evaluation   what `check` runs: try an answer on ranks, judge, compare, present
    job          the same check in a script, on the processes of torchrun on any number of nodes
    sandbox      the container that student code runs in, seen from outside
    build        notebooks from their sources
    grading      a class: submissions, notebooks, records, workers, the gradebook
    pages        what people read afterwards: feedback, reports, formgrader
    release      the students' package: guest to job, with the exercises' public halves
    mutants      changed solutions, on which the checks are tried
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autograder.course.progress import progress
    from autograder.evaluation.check import check
    from autograder.guest.answer import CheckFailed

__all__ = ["CheckFailed", "check", "progress"]


def __getattr__(name: str) -> Any:
    # Imported lazily: check imports torch, which the feedback and formgrader pages do not need.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "progress":
        from autograder.course import progress

        return progress.progress
    from autograder.evaluation import check

    return getattr(check, name)
