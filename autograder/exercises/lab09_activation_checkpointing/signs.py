"""Mistakes in a checkpoint that outputs do not show, for whole and for partitioned inputs."""

from typing import Any

import torch

from autograder.exercise import Attempt, Finding
from autograder.exercise.signs import MistakeText, is_over, on_each_rank
from autograder.exercises.lab09_activation_checkpointing.shared import (
    AFTER,
    LEFT,
    live_rise,
    results_bytes,
)
from shardlab.errors import RankError

# Words in the error that torch, or `networks.several`, raises for a wrong Function: the mistake.
FORMS = {
    "save_for_backward can only save": "passes save_for_backward something other than tensors: "
    "keep other arguments as attributes of ctx",
    "incorrect number of gradients": "returns the wrong number of gradients: backward returns one "
    "for each argument of forward, including the function",
    "backward through the graph a second time": "continues, in its backward, into the graph before "
    "the checkpoint: detach the inputs before the second run",
    "does not require grad": "runs backward from an output that has no gradient, such as an "
    "index, or from outputs that were computed without a graph",
    "takes 2 positional arguments": "takes one gradient in backward: there is one for each "
    "output, *grads",
    "arguments should reach the function": "does not pass the arguments on unchanged",
}


def wrong_form(attempt: Attempt) -> Finding | None:
    says = attempt.error.message if isinstance(attempt.error, RankError) else ""
    for words, mistake in FORMS.items():
        if words in says:
            return Finding("your answer", mistake, says.split(". ")[0], who_if_hidden="your answer")
    return None


@on_each_rank
def wrong_run_counts(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    """Never runs a block again, or too often."""
    runs, wanted = output["runs"], attempt.expected[rank]["runs"]
    evidence = f"blocks ran {runs} times, expected {wanted}"
    if all(ran == 1 for ran in runs):
        return "never runs the function again: autograd has kept all its activations", evidence
    if any(ran > right for ran, right in zip(runs, wanted, strict=False)):
        mistake = (
            "runs functions more often than once in forward and once in backward: if backward "
            "continues into the graph before the checkpoint, detach the inputs"
        )
        return mistake, evidence
    return None


@on_each_rank
def draws_another_mask(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    """Whether some block ran again with a different dropout mask."""
    masks: dict[int, float] = {}
    for run in output["log"]:
        if masks.setdefault(run["block"], run["mask"]) != run["mask"]:
            return (
                "runs the function again with other random numbers: dropout does not drop the "
                "same elements as in forward, so save torch.get_rng_state() and set it before "
                "the second run"
            )
    return None


@on_each_rank
def draws_in_forward(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    name = "state after forward"
    if output[name] == attempt.expected[rank][name]:
        return None
    return (
        "changes the random state in forward: draw no numbers of your own, and do not seed; save "
        "torch.get_rng_state() before the first run"
    )


@on_each_rank
def leaves_something(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    if attempt.run is None or rank not in is_over(attempt, LEFT):
        return None
    left = live_rise(attempt.run, AFTER)[rank]
    return (
        "keeps tensors after backward, when the outputs' graph is gone: in a global variable, or "
        "in a cycle, such as an output on ctx",
        f"{left:,} bytes, of which at most {results_bytes(attempt.case):,.0f} are results",
    )


@on_each_rank
def does_not_restore_the_generator(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    if torch.equal(output["next draw"], attempt.expected[rank]["next draw"]):
        return None
    return (
        "does not restore the random state after the second run: random numbers drawn after "
        "backward repeat earlier ones, so restore the state"
    )
