"""Mistakes in a checkpoint that outputs do not show: for whole inputs and for those in pieces."""

from typing import Any

import torch

from autograder.exercise import Attempt, Finding
from autograder.exercise.signs import Said, on_each_rank
from shardlab.errors import RankError

# What torch says of a Function whose two halves do not fit, in its first sentence; and `several`.
FORMS = {
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
}


def wrong_form(attempt: Attempt) -> Finding | None:
    says = attempt.error.message if isinstance(attempt.error, RankError) else ""
    for words, mistake in FORMS.items():
        if words in says:
            return Finding("your answer", mistake, says.split(". ")[0], anyone="your answer")
    return None


@on_each_rank
def runs_in_vain(output: Any, rank: int, attempt: Attempt) -> Said:
    """Another number of runs than right: never again, or too often."""
    runs, wanted = output["runs"], attempt.expected[rank]["runs"]
    evidence = f"blocks ran {runs} times, expected {wanted}"
    if all(ran == 1 for ran in runs):
        return "never runs the function again: autograd has kept everything that it made", evidence
    if any(ran > right for ran, right in zip(runs, wanted, strict=False)):
        said = (
            "runs functions more often than once in forward and once in backward: does backward "
            "run on into what came before? detach the inputs"
        )
        return said, evidence
    return None


@on_each_rank
def draws_anew(output: Any, rank: int, attempt: Attempt) -> Said:
    """Whether some block ran again with another mask than at first."""
    masks: dict[int, float] = {}
    for run in output["log"]:
        if masks.setdefault(run["block"], run["mask"]) != run["mask"]:
            return (
                "runs the function again with other random numbers: what dropout dropped in "
                "forward is not what it drops then, so keep torch.get_rng_state() and set it "
                "before the second run"
            )
    return None


@on_each_rank
def leaves_the_generator(output: Any, rank: int, attempt: Attempt) -> Said:
    if torch.equal(output["next draw"], attempt.expected[rank]["next draw"]):
        return None
    return (
        "leaves the generator of random numbers where the second run left it: what is drawn after "
        "backward repeats what was drawn before, so put back its state"
    )
