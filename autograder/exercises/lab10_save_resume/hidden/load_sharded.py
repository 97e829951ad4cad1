import math
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Limit, Plain
from autograder.exercise.hidden import EqualAnswer, shaken
from autograder.exercises.lab10_save_resume.load_sharded import FEW_FILES, loading_case
from autograder.exercises.lab10_save_resume.shared import cut, shard_name

CASES = (
    shaken(loading_case(11, 3, a=["float64", 45], b=["bfloat16", 8, 7])),
    loading_case(3, 1, a=["float32", 4, 5], b=["bfloat16", 7]),
    loading_case(13, 2, ", few files", a=["float32", 131], b=["float32", 262]),
)
BOUNDARIES = {
    "divides": "12 ranks' checkpoint on 4, few files",
    "does not divide": "11 ranks' checkpoint on 3",
    "one rank": "3 ranks' checkpoint on 1",
    "more ranks than elements": "not tested: the lab guarantees an element of each tensor",
    "ten files or more": "12 ranks' checkpoint on 4, few files",
}
EQUAL_ANSWERS = (EqualAnswer(", mmap=True", "", "no budget for the bytes read from a file"),)


def reference(case: Case, inputs: Any) -> list[Plain]:
    return cut_again(case, whole_state(inputs[0]))


def cut_again(case: Case, state: dict[str, Tensor]) -> list[Plain]:
    return [{"slices": slices} for slices in cut(state, case.world_size)]


def whole_state(given: Any) -> dict[str, Tensor]:
    """Flat tensors without padding."""
    padded = with_padding(given["shards"])
    return {name: padded[name][: math.prod(shape)] for name, shape in given["shapes"].items()}


def with_padding(shards: Any) -> dict[str, Tensor]:
    return {name: torch.cat([shard[name] for shard in shards]) for name in shards[0]}


def without_padding(flat: Tensor, case: Case) -> tuple[Tensor, ...]:
    """By rank; every rank has an element, or there would be too few parts."""
    return flat.split(-(-len(flat) // case.world_size))


def needed_files(case: Case) -> list[int]:
    """By rank: how many of the saved files contain an element of its slices."""
    elements = [math.prod(shape) for _, *shape in case.params["state"].values()]
    file_of = [torch.arange(n) // -(-n // case.params["saved on"]) for n in elements]
    by_rank = zip(*(without_padding(each, case) for each in file_of), strict=True)
    return [len(torch.cat(own).unique()) for own in by_rank]


LIMITS = {
    FEW_FILES.label: lambda case: Limit(needed_files(case)) if case.params["few files"] else None
}


def as_float32(case: Case, inputs: Any) -> list[Plain]:
    return cut_again(case, {name: each.float() for name, each in whole_state(inputs[0]).items()})


def of_own_rank(case: Case, inputs: Any) -> list[Plain]:
    shards = inputs[0]["shards"]
    return [{"slices": shards[rank % len(shards)]} for rank in range(case.world_size)]


def names_as_text(case: Case, inputs: Any) -> list[Plain]:
    shards = {shard_name(rank, 99): shard for rank, shard in enumerate(inputs[0]["shards"])}
    return cut_again(case, whole_state(inputs[0] | {"shards": [shards[n] for n in sorted(shards)]}))


def new_padding_missing(case: Case, inputs: Any) -> list[Plain]:
    state = {name: without_padding(each, case) for name, each in whole_state(inputs[0]).items()}
    ranks = range(case.world_size)
    return [{"slices": {name: parts[rank] for name, parts in state.items()}} for rank in ranks]


MISTAKES = {
    "changes the dtype: a buffer of torch.zeros is fp32, whatever you copy into it": as_float32,
    "returns the slices from the file with its own rank: with another number of ranks the slice "
    "boundaries are different": of_own_rank,
    "treats the old padding as data: cut each tensor to its shape's length before you pad it for "
    "the new number of ranks": (
        lambda case, inputs: cut_again(case, with_padding(inputs[0]["shards"]))
    ),
    "concatenates the files in the order of their names as text, where shard_10 comes before "
    "shard_2: count from 0 to the old world_size": names_as_text,
    "returns slices of different lengths: pad for the new number of ranks": new_padding_missing,
}
