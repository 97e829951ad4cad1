from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab09_pipeline.hidden import shared
from autograder.exercises.lab09_pipeline.interleaved_schedule import interleaved_case

reference = shared.reference_of_plans
CASES = (
    with_random_delays(interleaved_case("2 devices of 3 chunks, 6 micro-batches", (2, 6, 3))),
    interleaved_case("several sizes, simulated", (4, 12, 3), (3, 6, 2), (8, 16, 4), runs=False),
)
BOUNDARIES = {
    "divides": "4 devices of 2 chunks, 8 micro-batches",
    "does not divide": "not tested: the task says that p divides m",
    "one rank": "not tested: one device has no neighbor to wait for",
    "more ranks than elements": "not tested, as for a remainder",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "min((chunks - 1) * devices + 2 * (devices - 1 - d), len(forwards))",
        "(chunks - 1) * devices + 2 * (devices - 1 - d)",
        "a slice ends with its list",
    ),
)
