"""Mistakes in a checkpoint that outputs do not show, for whole and for partitioned inputs."""

import re
from typing import Any

from autograder.exercise import Attempt, Finding
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.lab10_activation_checkpointing.shared import STATE
from shardlab.errors import RankError

# In errors that torch raises, but explains for other causes: what the Function has done.
FORMS = {
    "backward through the graph a second time": "goes backward through the same graph twice: the "
    "second run starts from detached inputs, and its graph is used once",
    "grad can be implicitly created only": "starts backward without a gradient for an output: pass "
    "those that backward receives, and leave out outputs whose gradient is None",
    "does not require grad": "runs backward from a tensor that does not require a gradient: does "
    "the second run use torch.enable_grad(), do its inputs require a gradient, and are outputs "
    "that require none left out, together with their gradients?",
}


def wrong_form(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if not isinstance(error, RankError):
        return None
    for words, mistake in FORMS.items():
        if re.search(words, error.message):
            if words == "does not require grad" and not error.source:  # of the loss
                mistake = "returns an output that does not require a gradient"
            source = error.source and f"[{error.source}]"
            evidence = f"{error.message.split('. ')[0]} {source}".strip()
            return Finding("your answer", mistake, evidence, who_if_hidden="your answer")
    return None


@on_each_rank
def draws_in_forward(output: Any, expected: Any) -> MistakeText:
    if output[STATE] == expected[STATE]:
        return None
    return (
        "leaves a different random state after forward from the function alone: only save "
        "torch.get_rng_state() before the first run, and neither seed nor restore in forward"
    )


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
def runs_again_differently(output: Any) -> MistakeText:
    """The first run in backward that equals no run of its block in forward."""
    forward = output["log"][: output["runs in forward"]]
    for run in output["log"][len(forward) :]:
        same = [each for each in forward if each["block"] == run["block"] and each["x"] == run["x"]]
        if not same:
            return "runs the function again on a different x", str(output["other x"])
        if all(each["mask"] != run["mask"] for each in same):
            return (
                "runs the function again with different random numbers: dropout does not drop the "
                "same elements as in forward; in each call, save torch.get_rng_state() before the "
                "first run and set it before the second"
            )
    return None
