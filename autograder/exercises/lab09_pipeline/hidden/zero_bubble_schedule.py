from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab09_pipeline.hidden import shared
from autograder.exercises.lab09_pipeline.zero_bubble_schedule import OPTIMUM, puzzle_case

reference = shared.reference_of_plans
CASES = (
    with_random_delays(puzzle_case(OPTIMUM, 3, 4, runs=True)),
    puzzle_case(OPTIMUM, 6, 14, (4, 4)),
)
BOUNDARIES = {
    "divides": "4 devices, 8 micro-batches: less idle than 1F1B",
    "does not divide": "4 devices, 9 micro-batches: the optimum",
    "one rank": "not tested: one device has no bubble",
    "more ranks than elements": "not tested: the optimum needs m ≥ p",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer("[(kind, s, k) for", "[[kind, s, k] for", "lists are accepted for tuples"),
)
