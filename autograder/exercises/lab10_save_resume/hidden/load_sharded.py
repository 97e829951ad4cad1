import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab10_save_resume.load_sharded import (
    MISSING,
    NEEDED_FILES,
    NOT_NEEDED,
    loading_case,
    second_state,
)
from autograder.exercises.lab10_save_resume.shared import cut, shard_name

CASES = (
    with_random_delays(loading_case(11, 3, a=["float64", 45], b=["bfloat16", 8, 7])),
    loading_case(3, 2, a=["float32", 3, 3], b=["bfloat16", 7]),
    loading_case(13, 2, ", few files", a=["float32", 27], b=["float32", 18]),
)
BOUNDARIES = {
    "divides": "12 ranks' checkpoint on 4, few files",
    "does not divide": "3 ranks' checkpoint on 4",
    "one rank": "3 ranks' checkpoint on 1",
    "stop beyond the last file": "3 ranks' checkpoint on 2",
    "stop in a file of only padding": "13 ranks' checkpoint on 2, few files",
    "files that are not adjacent": "12 ranks' checkpoint on 4, few files",
    "more ranks than elements": "not tested: the lab guarantees an element of each tensor",
    "ten files or more": "12 ranks' checkpoint on 4, few files",
}
CUT = "functional.pad with a negative length cuts off the excess"
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
        {"opens": NEEDED_FILES, "slices": own, "second load": own_2}
        for own, own_2 in zip(slices, second, strict=True)
    ]


def whole_state(case: Case, inputs: Any) -> dict[str, Tensor]:
    """Flat tensors without padding."""
    shards = {int(number): own for given in inputs for number, own in given["shards"].items()}
    padding = {name: torch.zeros_like(each) for name, each in shards[0].items()}
    in_order = [shards.get(number, padding) for number in range(case.params["saved on"])]
    return {
        name: torch.cat([shard[name] for shard in in_order])[: math.prod(shape)]
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


# ---- mistakes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong:
    """The solution with a mistake in one part, executed for all ranks in one process."""

    rounded_up: bool = True  # the length of an old slice
    cuts_old_padding: bool = True
    cuts_new_slice: bool = True
    begins_at: Callable[[int, int], int] = lambda begin, old: max(begin, 0)  # in a file
    limits_stop: bool = True
    files: Callable[[int, int, int, int, int], Iterable[int]] = (
        lambda rank, start, stop, old, saved_on: range(start // old, (stop - 1) // old + 1)
    )
    number: Callable[[int, Case], int] = lambda number, case: number
    named_after: Callable[[Case], int] = lambda case: case.params["saved on"]
    pads: bool = True
    padding: float = 0.0
    by_position: bool = False  # takes tensors in the order of a file, which is not the index's
    dtype: torch.dtype | None = None

    def __call__(self, case: Case, inputs: Any) -> list[Plain] | None:
        outputs = [self.on_rank(case, given, rank) for rank, given in enumerate(inputs)]
        return None if None in outputs else outputs

    def on_rank(self, case: Case, given: Any, rank: int) -> Plain:
        """None if it would fail with another error."""
        slices, read = {}, set[int]()
        for name, shape in given["shapes"].items():
            key = name
            if self.by_position:
                key = dict(zip(given["shapes"], reversed(given["shapes"]), strict=True))[name]
            elements, saved_on = math.prod(shape), case.params["saved on"]
            old = -(-elements // saved_on) if self.rounded_up else elements // saved_on
            if not self.cuts_old_padding:
                elements = old * saved_on
            new = -(-elements // case.world_size)
            start, stop = rank * new, (rank + 1) * new
            if self.limits_stop:
                stop = min(stop, elements)
            pieces = []
            for index in self.files(rank, start, stop, old, saved_on):
                number, ranks = self.number(index, case), self.named_after(case)
                if ranks != saved_on or str(number) not in given["shards"]:
                    exists = ranks == saved_on and number < saved_on
                    why = NOT_NEEDED if exists else MISSING
                    return {"opens": f"{shard_name(number, ranks)}, {why}"}
                read.add(number)
                piece, before = given["shards"][str(number)][key], index * old
                if self.cuts_new_slice:
                    begin = self.begins_at(start - before, old)
                    piece = piece[begin : max(stop - before, 0)]
                pieces.append(piece)
            if not pieces:
                return None
            own = torch.cat(pieces).to(self.dtype)
            missing = new - len(own) if self.cuts_new_slice else 0
            missing = missing if self.pads or missing < 0 else 0
            slices[name] = functional.pad(own, (0, missing), value=self.padding)
        output = {"opens": NEEDED_FILES, "slices": slices}
        if self.files is first_file:  # else, it may use only a part of each file
            output["reads"] = sorted(read)
        return output


def as_text(index: int, case: Case) -> int:
    """The number in the file name at this index, if names are sorted as text."""
    saved_on = case.params["saved on"]
    if index >= saved_on:
        return index
    return sorted(range(saved_on), key=lambda number: shard_name(number, saved_on))[index]


def read_all(case: Case, inputs: Any, is_text_order: bool) -> list[Plain]:
    """Open every file, concatenate, cut."""
    outputs: list[Plain] = []
    order = range(case.params["saved on"])
    numbers = [as_text(each, case) if is_text_order else each for each in order]
    state = {}
    for given in inputs:
        closed = [each for each in numbers if str(each) not in given["shards"]]
        if closed:
            name = shard_name(closed[0], case.params["saved on"])
            outputs.append({"opens": f"{name}, {NOT_NEEDED}"})
            continue
        for name, shape in given["shapes"].items():
            flat = torch.cat([given["shards"][str(number)][name] for number in numbers])
            state[name] = flat[: math.prod(shape)]
        slices = cut(state, case.world_size)[len(outputs)]
        outputs.append({"opens": NEEDED_FILES, "slices": slices})
    return outputs


def first_file(rank: int, start: int, stop: int, old: int, saved_on: int) -> list[int]:
    return [start // old]


def own_file(rank: int, start: int, stop: int, old: int, saved_on: int) -> list[int]:
    return [rank]


def one_too_many(rank: int, start: int, stop: int, old: int, saved_on: int) -> range:
    return range(start // old, stop // old + 1)


def one_too_early(rank: int, start: int, stop: int, old: int, saved_on: int) -> range:
    return range(max(start // old - 1, 0), (stop - 1) // old + 1)


def one_too_many_if_it_exists(rank: int, start: int, stop: int, old: int, saved_on: int) -> range:
    return range(start // old, min(stop // old + 1, saved_on))


def none_after_the_last(rank: int, start: int, stop: int, old: int, saved_on: int) -> range:
    return range(start // old, min((stop - 1) // old, saved_on - 1) + 1)


def own_file_again(case: Case, inputs: Any) -> list[Plain] | None:
    """File rank % N, with its slices unchanged."""
    saved_on = case.params["saved on"]
    wrong = Wrong(
        files=own_file, number=lambda number, case: number % saved_on, cuts_new_slice=False
    )
    return wrong(case, inputs)


def own_file_from_its_start(case: Case, inputs: Any) -> list[Plain] | None:
    outputs = Wrong(files=own_file, cuts_new_slice=False)(case, inputs)
    for output in outputs or ():
        for name, shape in inputs[0]["shapes"].items():
            if own := output.get("slices"):
                new = -(-math.prod(shape) // case.world_size)
                own[name] = functional.pad(own[name], (0, new - len(own[name])))
    return outputs


MISTAKES = {
    "returns fp32 whatever was saved: keep the dtype (torch.zeros creates fp32 unless you pass "
    "dtype=)": Wrong(dtype=torch.float32),
    "reads only the file with its own rank: with another number of ranks the slice boundaries are "
    "different": (
        Wrong(files=own_file),
        own_file_again,
        own_file_from_its_start,
        Wrong(files=own_file, cuts_new_slice=False),
    ),
    "treats the old padding as data: cut each tensor to its shape's length before you pad it for "
    "the new number of ranks": Wrong(cuts_old_padding=False),
    "sorts the files by name as text, where shard_10 comes before shard_2: count from 0 to the old "
    "world_size instead": (
        partial(read_all, is_text_order=True),
        Wrong(number=as_text),
    ),
    "cuts a file after the first in the wrong place: start - file * old is negative there, and a "
    "negative index counts from the end, so use max(start - file * old, 0)": (
        Wrong(begins_at=lambda begin, old: begin),
        Wrong(begins_at=lambda begin, old: abs(begin)),
        Wrong(begins_at=lambda begin, old: begin % old),
    ),
    "reads only the first of the files that contain its slices: a slice can begin in one file and "
    "end in another": (Wrong(files=first_file), Wrong(files=first_file, pads=False)),
    "does not set the padding to zero: torch.empty leaves what was in memory before (NaN, in this "
    "check)": Wrong(padding=math.nan),
    "returns slices of different lengths: pad for the new number of ranks": Wrong(pads=False),
    "opens every file: if each of N ranks reads the whole checkpoint, it is read N times": partial(
        read_all, is_text_order=False
    ),
    "looks for files named after the current number of ranks: index.json has the number of ranks "
    "that saved them": Wrong(named_after=lambda case: case.world_size),
    "looks for a file after the one with a tensor's last element: the last rank's stop can lie "
    "beyond the tensor's end, so limit it to the number of elements": (
        Wrong(limits_stop=False),
        Wrong(limits_stop=False, files=none_after_the_last),
    ),
    "takes tensors by their position in a file: their order can differ, so use their names": Wrong(
        by_position=True
    ),
    "opens one file too many: element stop is the first of the next rank, so the last file is "
    "(stop - 1) // old": (
        Wrong(files=one_too_many),
        Wrong(files=one_too_many_if_it_exists),
    ),
    "opens one file too many: element start is in file start // old": Wrong(files=one_too_early),
    "rounds the length of an old slice down: n elements were cut into slices of ⌈n/N⌉": (
        Wrong(rounded_up=False)
    ),
}
