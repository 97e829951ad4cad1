from __future__ import annotations

from autograder.exercise.hidden import EqualAnswer
from autograder.exercises.lab09_activation_checkpointing.checkpoint import network_case
from autograder.exercises.lab09_activation_checkpointing.hidden import shared

reference, MISTAKES = shared.reference, shared.MISTAKES
CASES = (
    network_case(
        "several, dropout, one not used", "several", 2, width=6, keep=0.6, one_unused=True
    ),
    network_case("nested, 1 MiB with dropout", "nested", 4, rows=16_384, width=16, keep=0.9),
)
BOUNDARIES = {
    "divides": "not asked: nothing is divided",
    "does not divide": "not asked, as above",
    "one rank": "a chain of 4, 64 KiB each",
    "more ranks than elements": "not asked: there is one rank",
    "no gradient for an output": "several, dropout, one not used",
    "a checkpoint within another": "nested, with dropout",
}
EQUAL_ANSWERS = (
    EqualAnswer(
        "            torch.set_rng_state(ctx.random_state)\n"
        "            outputs = ctx.function(*args)\n",
        "            now = torch.get_rng_state()\n"
        "            torch.set_rng_state(ctx.random_state)\n"
        "            outputs = ctx.function(*args)\n"
        "            torch.set_rng_state(now)\n",
        "the generator may be put back by hand",
    ),
    EqualAnswer(
        "        return function(*args)\n        ### END",
        "        with torch.no_grad():\n            return function(*args)\n        ### END",
        "in forward of a Function gradients are off already",
    ),
)
