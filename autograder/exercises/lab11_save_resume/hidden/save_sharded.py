from typing import Any

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab11_save_resume.shared import INDEX, shard_name

THREE_DTYPES = {"a": ["float64", 7], "b": ["bfloat16", 3, 4, 2], "c": ["float32", 8]}
CASES = (with_random_delays(Case("3 ranks, three dtypes", 3, {"state": THREE_DTYPES})),)
BOUNDARIES = {
    "divides": "2 ranks, 1 MB",
    "does not divide": "4 ranks, two tensors",
    "a slice of only padding": "4 ranks, two tensors",
    "one rank": "not tested: its slice is the whole tensor",
    "more ranks than elements": "not tested: a slice of only padding is the same to save",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer("each.clone()", "each + 0", "any copy has its own storage"),
    EquivalentAnswer(
        "    if rank == 0:", "    dist.barrier()\n    if rank == 0:", "a barrier is free"
    ),
    EquivalentAnswer(
        "    own = {",
        "    if rank == 0:\n        for old in folder.iterdir():\n            old.unlink()\n"
        "    dist.barrier()\n    own = {",
        "all ranks wait between the removal and their writes",
    ),
)


def reference(case: Case, inputs: Any) -> list[Plain]:
    outputs = []
    for rank, given in enumerate(inputs):
        files = {shard_name(rank, case.world_size): given["slices"]}
        if rank == 0:
            files[INDEX] = {"world_size": case.world_size, "shapes": given["shapes"]}
        outputs.append({**files, "names": sorted(files), "lost": [], "changed": []})
    return outputs
