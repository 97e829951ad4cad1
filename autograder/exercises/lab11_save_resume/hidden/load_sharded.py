import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab11_save_resume.load_sharded import (
    MISSING,
    NEEDED_FILES,
    NOT_NEEDED,
    SECOND,
    loading_case,
    second_state,
)
from autograder.exercises.lab11_save_resume.shared import cut, shard_name

CASES = (
    with_random_delays(loading_case(11, 3, a=["float64", 45], b=["bfloat16", 8, 7])),
    loading_case(2, 3, a=["float32", 3, 3], b=["bfloat16", 7]),
    loading_case(13, 2, ", few files", a=["float32", 27], b=["float32", 18]),
)
BOUNDARIES = {
    "divides": "12 ranks' checkpoint on 4, few files",
    "does not divide": "3 ranks' checkpoint on 4",
    "one rank": "3 ranks' checkpoint on 1",
    "stop beyond the last file": "3 ranks' checkpoint on 4",
    "stop in a file of only padding": "12 ranks' checkpoint on 4, few files",
    "files that are not adjacent": "12 ranks' checkpoint on 4, few files",
    "more ranks than elements": "not tested: the lab guarantees an element of each tensor",
    "a slice in one file": "2 ranks' checkpoint on 3",
    "ten files or more": "12 ranks' checkpoint on 4, few files",
}
CUT = "F.pad with a negative length cuts off the excess"
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(", mmap=True", "", "no budget for the bytes read from a file"),
    EquivalentAnswer("mmap=True", "mmap=False", "as above"),
    EquivalentAnswer("weights_only=True, ", "", "it is the default"),
    EquivalentAnswer("weights_only=True", "weights_only=False", "the files contain only tensors"),
    EquivalentAnswer("if shard not in opened:", "if True:", "a file may be opened again"),
    EquivalentAnswer(": stop - shard * old]", ":]", CUT),
    EquivalentAnswer(": stop - shard * old]", ": stop + shard * old]", CUT),
    EquivalentAnswer(": stop - shard * old]", ": stop]", CUT),
    EquivalentAnswer(": stop - shard * old]", ": stop - shard]", CUT),
)


def facts(case: Case) -> dict[str, Plain]:
    """The numbers of the files that each rank gets."""
    everything = [list(range(case.params["saved on"]))] * case.world_size
    return {"files": needed_files(case) if case.params["few files"] else everything}


def reference(case: Case, inputs: Any) -> list[Plain]:
    slices = cut(whole_state(case, inputs), case.world_size)
    second = cut(second_state(case), case.world_size)
    return [
        {"opens": NEEDED_FILES, "slices": own, SECOND: own_2, "views": []}
        for own, own_2 in zip(slices, second, strict=True)
    ]


def whole_state(case: Case, inputs: Any, as_text: bool = False) -> dict[str, Tensor]:
    """Flat tensors without padding. ``as_text``: files in the order of their names."""
    shards = {int(number): own for given in inputs for number, own in given["shards"].items()}
    padding = {name: torch.zeros_like(each) for name, each in shards[0].items()}
    saved_on = case.params["saved on"]
    order = text_order(saved_on) if as_text else range(saved_on)
    return {
        name: torch.cat([shards.get(number, padding)[name] for number in order])[: math.prod(shape)]
        for name, shape in inputs[0]["shapes"].items()
    }


def needed_files(case: Case) -> list[list[int]]:
    """By rank: the saved files that contain an element of its slices."""
    by_rank: list[set[int]] = [set() for _ in range(case.world_size)]
    for _, *shape in case.params["state"].values():
        elements = math.prod(shape)
        file_of = torch.arange(elements) // -(-elements // case.params["saved on"])
        parts = file_of.split(-(-elements // case.world_size))
        for files, own in zip(by_rank, parts, strict=True):  # every rank has an element
            files.update(own.tolist())
    return [sorted(files) for files in by_rank]


def wrong(**changes: Any) -> Callable[[Case, Any], list[Plain]]:
    """The solution with a mistake, executed for all ranks in one process."""
    return lambda case, inputs: [
        loaded(case, given, rank, **changes) for rank, given in enumerate(inputs)
    ]


def refused(number: int, saved_on: int) -> Plain:
    why = NOT_NEEDED if number < saved_on else MISSING
    return {"opens": f"{shard_name(number, saved_on)}, {why}"}


def loaded(
    case: Case,
    given: Any,
    rank: int,
    cuts_old_padding: bool = True,
    rounds_up: bool = True,  # the length of an old slice
    clamps_start: bool = True,  # in a file
    by_position: bool = False,  # takes tensors in the order of a file, which is not the index's
    padding: float = 0.0,
) -> Plain:
    slices, saved_on = {}, case.params["saved on"]
    for position, (name, shape) in enumerate(given["shapes"].items()):
        elements = math.prod(shape)
        old = -(-elements // saved_on) if rounds_up else elements // saved_on
        if not cuts_old_padding:
            elements = old * saved_on
        new = -(-elements // case.world_size)
        start, stop = rank * new, min((rank + 1) * new, elements)
        pieces = []
        for number in range(start // old, (stop - 1) // old + 1):
            if str(number) not in given["shards"]:
                return refused(number, saved_on)
            shard = given["shards"][str(number)]
            piece = [*reversed(shard.values())][position] if by_position else shard[name]
            begin = start - number * old
            pieces.append(piece[max(begin, 0) if clamps_start else begin : stop - number * old])
        own = torch.cat(pieces)
        slices[name] = functional.pad(own, (0, new - len(own)), value=padding)
    return {"opens": NEEDED_FILES, "slices": slices}


def text_order(saved_on: int) -> list[int]:
    return sorted(range(saved_on), key=lambda number: shard_name(number, saved_on))


def all_files_in_text_order(case: Case, inputs: Any) -> list[Plain]:
    if case.params["few files"]:
        saved_on = case.params["saved on"]
        numbers = text_order(saved_on)
        firsts = [next(n for n in numbers if str(n) not in given["shards"]) for given in inputs]
        return [refused(number, saved_on) for number in firsts]
    slices = cut(whole_state(case, inputs, as_text=True), case.world_size)
    return [{"opens": NEEDED_FILES, "slices": own} for own in slices]


def own_file(case: Case, inputs: Any) -> list[Plain]:
    """File rank % N, with its slices unchanged."""
    saved_on = case.params["saved on"]
    return [
        {"opens": NEEDED_FILES, "slices": given["shards"][str(rank % saved_on)]}
        if str(rank % saved_on) in given["shards"]
        else refused(rank % saved_on, saved_on)
        for rank, given in enumerate(inputs)
    ]


MISTAKES = {
    "reads only the file with its own rank: with another number of ranks the slice boundaries are "
    "different": own_file,
    "sorts the files by name as text, where shard_10 comes before shard_2: count from 0 to the old "
    "world_size instead": all_files_in_text_order,
    "treats the old padding as data: cut each tensor to its shape's length before you pad it for "
    "the new number of ranks": wrong(cuts_old_padding=False),
    "cuts a file after the first in the wrong place: this rank's part begins at position 0 of it, "
    "where start - file * old is negative, which as an index counts from the end": (
        wrong(clamps_start=False)
    ),
    "does not set the padding to zero: torch.empty leaves what was in memory before (NaN, in this "
    "check)": wrong(padding=math.nan),
    "takes tensors by their position in a file: their order can differ, so use their names": (
        wrong(by_position=True)
    ),
    "rounds the length of an old slice down: n elements were cut into slices of ⌈n/N⌉": (
        wrong(rounds_up=False)
    ),
}
