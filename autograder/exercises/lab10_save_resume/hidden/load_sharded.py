import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer, shaken
from autograder.exercises.lab10_save_resume.load_sharded import (
    AS_TEXT,
    OWN_RANK,
    loading_case,
    order_as_text,
)
from autograder.exercises.lab10_save_resume.shared import cut

CASES = (
    shaken(loading_case(11, 3, a=["float64", 45], b=["bfloat16", 8, 7])),
    loading_case(3, 1, a=["float32", 4, 5], b=["bfloat16", 7]),
    loading_case(13, 2, ", few files", a=["float32", 131], b=["float32", 262]),
)
BOUNDARIES = {
    "divides": "12 ranks' checkpoint on 4, few files",
    "does not divide": "11 ranks' checkpoint on 3",
    "one rank": "3 ranks' checkpoint on 1",
    "stop beyond the last file": "3 ranks' checkpoint on 2",
    "more ranks than elements": "not tested: the lab guarantees an element of each tensor",
    "ten files or more": "12 ranks' checkpoint on 4, few files",
}
CUT = "functional.pad with a negative length cuts off what is too much"
EQUAL_ANSWERS = (
    EqualAnswer(", mmap=True", "", "no budget for the bytes read from a file"),
    EqualAnswer("mmap=True", "mmap=False", "as above"),
    EqualAnswer("weights_only=True, ", "", "it is the default"),
    EqualAnswer("weights_only=True", "weights_only=False", "the files contain only tensors"),
    EqualAnswer("if shard not in opened:", "if True:", "a file may be opened again"),
    EqualAnswer(": stop - shard * old]", ":]", CUT),
    EqualAnswer(": stop - shard * old]", ": stop + shard * old]", CUT),
    EqualAnswer(": stop - shard * old]", ": stop]", CUT),
    EqualAnswer(": stop - shard * old]", ": stop - shard]", CUT),
)


def facts(case: Case) -> dict[str, Plain]:
    """The numbers of the files that each rank gets."""
    everything = [list(range(case.params["saved on"]))] * case.world_size
    return {"files": needed_files(case) if case.params["few files"] else everything}


def reference(case: Case, inputs: Any) -> list[Plain]:
    return cut_again(case, whole_state(case, inputs))


def cut_again(case: Case, state: dict[str, Tensor]) -> list[Plain]:
    return [{"slices": slices} for slices in cut(state, case.world_size)]


def whole_state(case: Case, inputs: Any) -> dict[str, Tensor]:
    """Flat tensors without padding."""
    padded = in_order(shards_of(case, inputs))
    return {name: padded[name][: math.prod(shape)] for name, shape in inputs[0]["shapes"].items()}


def shards_of(case: Case, inputs: Any) -> list[dict[str, Tensor]]:
    """All files. One that no rank gets contains only padding."""
    shards = {int(number): own for given in inputs for number, own in given["shards"].items()}
    padding = {name: torch.zeros_like(each) for name, each in shards[0].items()}
    return [shards.get(number, padding) for number in range(case.params["saved on"])]


def in_order(shards: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([shard[name] for shard in shards]) for name in shards[0]}


def without_padding(flat: Tensor, case: Case) -> tuple[Tensor, ...]:
    """By rank; every rank has an element, or there would be too few parts."""
    return flat.split(-(-len(flat) // case.world_size))


def needed_files(case: Case) -> list[list[int]]:
    """By rank: which of the saved files contain an element of its slices."""
    elements = [math.prod(shape) for _, *shape in case.params["state"].values()]
    file_of = [torch.arange(n) // -(-n // case.params["saved on"]) for n in elements]
    by_rank = zip(*(without_padding(each, case) for each in file_of), strict=True)
    return [torch.cat(own).unique().tolist() for own in by_rank]


def as_float32(case: Case, inputs: Any) -> list[Plain]:
    state = whole_state(case, inputs)
    return cut_again(case, {name: each.float() for name, each in state.items()})


def of_own_rank(case: Case, inputs: Any) -> list[Plain]:
    shards = shards_of(case, inputs)
    return [{"slices": shards[rank % len(shards)]} for rank in range(case.world_size)]


def names_as_text(case: Case, inputs: Any) -> list[Plain]:
    shards = shards_of(case, inputs)
    padded = in_order([shards[number] for number in order_as_text(len(shards))])
    shapes = inputs[0]["shapes"]
    return cut_again(case, {name: padded[name][: math.prod(shapes[name])] for name in padded})


def old_padding_kept(case: Case, inputs: Any) -> list[Plain]:
    return cut_again(case, in_order(shards_of(case, inputs)))


def new_padding_missing(case: Case, inputs: Any) -> list[Plain]:
    state = {name: without_padding(each, case) for name, each in whole_state(case, inputs).items()}
    ranks = range(case.world_size)
    return [{"slices": {name: parts[rank] for name, parts in state.items()}} for rank in ranks]


def first_file_only(case: Case, inputs: Any, is_padded: bool) -> list[Plain]:
    saved_on, outputs = case.params["saved on"], []
    whole = whole_state(case, inputs)
    for rank in range(case.world_size):
        slices = {}
        for name, each in whole.items():
            old, new = -(-len(each) // saved_on), -(-len(each) // case.world_size)
            start = rank * new
            own = each[start : min(start + new, (start // old + 1) * old)]
            slices[name] = functional.pad(own, (0, (new - len(own)) * is_padded))
        outputs.append({"slices": slices})
    return outputs


MISTAKES = {
    "changes the dtype: a buffer of torch.zeros is fp32, whatever you copy into it": as_float32,
    OWN_RANK: of_own_rank,
    "treats the old padding as data: cut each tensor to its shape's length before you pad it for "
    "the new number of ranks": old_padding_kept,
    AS_TEXT: names_as_text,
    "reads only the first of the files that contain its slices: a slice can begin in one file and "
    "end in another": (
        partial(first_file_only, is_padded=True),
        partial(first_file_only, is_padded=False),
    ),
    "returns slices of different lengths: pad for the new number of ranks": new_padding_missing,
}
