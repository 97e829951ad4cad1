"""How an exercise is declared: the classes that a lab's modules use and the evaluation reads."""

from autograder.exercise.attempt import SENT, Attempt, BudgetUsage, Curves, Finding
from autograder.exercise.budget import Budget, Limit, from_outputs, sent_bytes
from autograder.exercise.compare import equal
from autograder.exercise.form import NAMED_MISTAKES, Exercise
from autograder.exercise.formula import Formula, questions
from autograder.exercise.on_ranks import OnRanks
from autograder.guest.case import Case, Plain

__all__ = [
    "NAMED_MISTAKES",
    "SENT",
    "Attempt",
    "Budget",
    "BudgetUsage",
    "Case",
    "Curves",
    "Exercise",
    "Finding",
    "Formula",
    "Limit",
    "OnRanks",
    "Plain",
    "equal",
    "from_outputs",
    "questions",
    "sent_bytes",
]
