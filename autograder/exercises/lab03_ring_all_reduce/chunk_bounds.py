"""Which part of a tensor is each rank's chunk."""

from autograder.exercise import Formula, questions
from autograder.exercise.signs import MistakeText
from autograder.exercises.common import as_pairs, is_pairs
from autograder.exercises.lab03_ring_all_reduce.shared import Bounds


def wrong_form(question: list[int], right: Bounds, bounds: Bounds) -> MistakeText:
    length, world_size = question
    if not is_pairs(bounds):
        return None
    if len(bounds) != world_size:
        return "should return one pair for each rank, world_size in all"
    for item, ((start, stop), expected) in enumerate(zip(bounds, right, strict=True)):
        if not 0 <= start <= stop <= length:
            evidence = f"{start:,} and {stop:,}, expected {expected[0]:,} and {expected[1]:,}"
            return "should satisfy 0 ≤ start ≤ stop ≤ length", f"at index {item}: {evidence}"
    if bounds[-1][1] == length - length % world_size != length:
        return "skips the remainder: some elements are in no chunk"
    lengths = [stop - start for start, stop in bounds]
    if sum(lengths) == length and max(lengths) - min(lengths) > 1:
        return "makes unequal chunks: lengths may differ by 1 at most"
    return None


EXERCISE = Formula(
    points=2,
    cases=(
        questions("12 elements for 4 ranks", (12, 4)),
        questions("10 elements for 4 ranks", (10, 4)),
        questions("3 elements for 8 ranks", (3, 8)),
        # Beyond 2^53, where a float no longer holds every whole number.
        questions("far more elements than fit in memory", (10**18 - 1, 1000), (10**18 + 7, 10)),
    ),
    tolerance=0.0,  # whole numbers
    read=as_pairs,
    forms=(wrong_form,),
)
