"""What goes wrong in a checkpoint, by its name: for whole inputs and for those in pieces.

All read what drives of both tell: each run of a block, gradients, and what rand gives next.
"""

from __future__ import annotations

import torch

from autograder.exercise import Attempt, Finding
from autograder.exercise.compare import equal
from autograder.exercises.checkpointing import NEAR, everyone, finished, stopped_with


def wrong_form(attempt: Attempt) -> Finding | None:
    """What torch says of a Function whose two halves do not fit, in this exercise's words."""
    says = stopped_with(attempt)
    for words, mistake in {
        "save_for_backward can only save": "hands save_for_backward what is no tensor: other "
        "arguments are kept as attributes of ctx",
        "incorrect number of gradients": "returns another number of gradients than its forward has "
        "arguments: one for each, the function itself included",
        "backward through the graph a second time": "runs on, in its backward, into the graph of "
        "what came before: detach the inputs before the second run",
        "does not require grad": "runs backward from an output that has no gradient, such as an "
        "index, or from outputs that were made without a graph",
        "takes 2 positional arguments": "takes one gradient in backward: there is one for each "
        "output, *grads",
        "arguments should reach the function": "does not hand the arguments on as they were given",
    }.items():
        if words in says:
            return everyone(mistake, says.split(". ")[0])  # the rest is advice on other cases
    return None


def runs_in_vain(attempt: Attempt) -> Finding | None:
    """Another number of runs than right: never again, or too often."""
    for output in finished(attempt):
        runs, wanted = output["runs"], attempt.expected[0]["runs"]
        if runs == wanted:
            continue
        evidence = f"blocks ran {runs} times, expected {wanted}"
        if all(ran == 1 for ran in runs):
            return everyone(
                "never runs the function again: autograd has kept everything that it made", evidence
            )
        if any(ran > right for ran, right in zip(runs, wanted, strict=True)):
            return everyone(
                "runs functions more often than once in forward and once in backward: does "
                "backward run on into what came before? detach the inputs",
                evidence,
            )
    return None


def keeps_a_graph(attempt: Attempt) -> Finding | None:
    over = any(spent.ranks_over for spent in attempt.spent)
    for output in finished(attempt):
        first = output["log"][: attempt.case.params["blocks"]]
        if over and any(run["grad"] for run in first):
            return everyone(
                "makes a graph in forward and keeps it: run the function under torch.no_grad(), "
                "and in backward once more with gradients on"
            )
    return None


def lacks_gradients(attempt: Attempt) -> Finding | None:
    for output in finished(attempt):
        wanted = attempt.expected[0]["gradients"]
        of_weights = len(wanted) - 2 * attempt.case.params["blocks"]
        lacks = [
            none and bool(right.any())
            for none, right in zip(output["has none"], wanted, strict=True)
        ]
        if any(lacks[of_weights:]) and not any(lacks[:of_weights]):
            return everyone(
                "leaves the function's own weights without a gradient: torch.autograd.grad gives "
                "those of the inputs alone, torch.autograd.backward fills every .grad"
            )
        if any(lacks):
            return everyone("returns None for an argument that has a gradient")
    return None


def adds_twice(attempt: Attempt) -> Finding | None:
    for output in finished(attempt):
        wanted = attempt.expected[0]["gradients"]
        for got, right in zip(output["gradients"], wanted, strict=True):
            if not equal(right, got, NEAR) and equal(2 * right, got, NEAR):
                return everyone(
                    "adds a gradient twice: backward on inputs that were not detached adds to "
                    "their .grad, and so does autograd with what is returned"
                )
    return None


def leaves_the_generator(attempt: Attempt) -> Finding | None:
    for output in finished(attempt):
        if not torch.equal(output["next draw"], attempt.expected[0]["next draw"]):
            return everyone(
                "leaves the generator of random numbers where the second run left it: what is "
                "drawn after backward repeats what was drawn before, so put back its state"
            )
    return None


def off_by_bits(attempt: Attempt) -> Finding | None:
    for output in finished(attempt):
        if not output["bit for bit"]:
            return everyone("gives gradients that differ from those without checkpointing")
    return None
