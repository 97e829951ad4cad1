"""Mistakes in a checkpoint that outputs do not show, for whole and for partitioned inputs."""

import re
from typing import Any

import torch

from autograder.exercise import Attempt, Case, Finding
from autograder.exercise.signs import MistakeText, is_over, on_each_rank
from autograder.exercises.lab09_activation_checkpointing.shared import (
    AFTER,
    LEFT,
    live_rise,
    results_bytes,
)
from shardlab.errors import RankError

# In the error that torch, or `networks.several`, raises for a wrong Function: what it has done.
FORMS = {
    "save_for_backward can only save": "passes save_for_backward something other than tensors: "
    "keep other arguments as attributes of ctx",
    "incorrect number of gradients": "returns the wrong number of gradients: backward returns one "
    "for each argument of forward, including the function",
    "backward through the graph a second time": "goes backward through the same graph twice: the "
    "second run starts from detached inputs, and its graph is used once",
    r"\bbackward\(\) takes 2 positional arguments": "takes one gradient in backward: there is one "
    "for each output, *grads",
    "gradient different than None at position": "returns a gradient in the place of an argument "
    "that is no tensor: gradients are in the order of forward's arguments, with None for the "
    "function and for every argument without a gradient",
    "grad can be implicitly created only": "starts backward without a gradient for an output: pass "
    "those that backward receives, and leave out outputs whose gradient is None",
    "arguments should reach the function": "does not pass the arguments on unchanged",
    "should stay a tuple": "returns no tuple where the function returns a tuple of one tensor",
}
NO_GRADIENT = "does not require grad"


def wrong_form(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if not isinstance(error, RankError):
        return None
    found = [mistake for words, mistake in FORMS.items() if re.search(words, error.message)]
    if NO_GRADIENT in error.message and error.source:  # of the answer, not of the loss
        found = [
            "runs backward from a tensor that does not require a gradient: does the second run use "
            "torch.enable_grad(), do its inputs require a gradient, and are outputs that require "
            "none left out, together with their gradients?"
        ]
    elif NO_GRADIENT in error.message:
        found = ["returns an output that does not require a gradient"]
    if not found:
        return None
    evidence = f"{error.message.split('. ')[0]} {error.source and f'[{error.source}]'}".strip()
    return Finding("your answer", found[0], evidence, who_if_hidden="your answer")


@on_each_rank
def runs_again_without_autograd(output: Any) -> MistakeText:
    """The first run of a checkpoint within another has no graph, so some runs may be without."""
    again = output["log"][output["runs in forward"] :]
    if not again or any(run["grad"] for run in again):
        return None
    return (
        "runs the function again without recording a graph: inside backward autograd is off, so "
        "the second run needs torch.enable_grad()"
    )


@on_each_rank
def wrong_run_counts(output: Any, expected: Any) -> MistakeText:
    """Runs no block again, or one too often or too rarely."""
    runs, wanted = output["runs"], expected["runs"]
    evidence = f"blocks ran {runs} times, expected {wanted}"
    if len(output["log"]) == output["runs in forward"]:
        return "never runs the function again", evidence
    if sum(runs) == sum(wanted) and runs != wanted:
        mistake = (
            "runs another call's function in backward: keep each call's function in its ctx, not "
            "in the class or a global variable"
        )
        return mistake, evidence
    if any(ran > right for ran, right in zip(runs, wanted, strict=False)):
        return "runs functions more often than once in forward and once in backward", evidence
    if runs != wanted:
        return "does not run the function again in backward for each call", evidence
    return None


@on_each_rank
def runs_again_differently(output: Any) -> MistakeText:
    """The first run in backward that equals no run of its block in forward."""
    for run in output["log"][output["runs in forward"] :]:
        forward = output["log"][: output["runs in forward"]]
        own = [each for each in forward if each["block"] == run["block"]]
        on_this_x = [each for each in own if each["x"] == run["x"]]
        if not own or any(each["mask"] == run["mask"] for each in on_this_x):
            continue
        if on_this_x:
            return (
                "runs the function again with different random numbers: dropout does not drop the "
                "same elements as in forward, so save torch.get_rng_state() for each call and set "
                "it before the second run"
            )
        shapes = [each["shape"] for each in own]
        reshaped = f", of shape {run['shape']} instead of {shapes[0]}"
        reshaped *= run["shape"] not in shapes
        return "runs the function again on a different x", f"block {run['block']}{reshaped}"
    return None


@on_each_rank
def draws_in_forward(output: Any, expected: Any) -> MistakeText:
    name = "state after forward"
    if output[name] == expected[name]:
        return None
    return (
        "leaves a different random state after forward from the function alone: only save "
        "torch.get_rng_state() before the first run, and neither seed nor restore in forward"
    )


@on_each_rank
def leaves_something(rank: int, case: Case, attempt: Attempt) -> MistakeText:
    if attempt.run is None or rank not in is_over(attempt, LEFT):
        return None
    left = live_rise(attempt.run, AFTER)[rank]
    return (
        "keeps tensors after backward, when the outputs' graph is gone: for example in a global "
        "variable, or in a cycle, such as an output on ctx",
        f"{left:,} bytes, of which at most {results_bytes(case):,.0f} are results",
    )


@on_each_rank
def does_not_restore_the_generator(output: Any, expected: Any) -> MistakeText:
    if torch.equal(output["next draw"], expected["next draw"]):
        return None
    return (
        "leaves a different random state after backward from before it: restore the state after "
        "the second run"
    )
