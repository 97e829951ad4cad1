from typing import Any

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer

CASES = (Case("3 ranks, then 2", 1, {"ranks": 3, "ranks after the kill": 2}),)
BOUNDARIES = {
    "divides": "not tested: each rank writes its own files",
    "does not divide": "not tested, as above",
    "more ranks than elements": "not tested, as above",
    "one rank": "1 rank",
    "fewer ranks after the kill": "2 ranks, then 1",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        'root / "unfinished"', 'root / f"tmp-{step}"', "a separate name for each step"
    ),
    EquivalentAnswer(
        "if dist.get_rank() == 0:\n        folder.rename(root / name_of(step))",
        "if dist.get_rank() == dist.get_world_size() - 1:\n"
        "        os.replace(folder, root / name_of(step))",
        "any one rank may rename",
    ),
)


def reference(case: Case, inputs: Any) -> Plain:
    return {
        "left": [],
        "in the current folder": [],
        "names like a step": [],
        "returned too early": [],
        "broken": None,
        "taken away": [],
        "failures": [],
        "was killed": True,
    }
