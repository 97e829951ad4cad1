from autograder.exercise.hidden import EqualAnswer, shaken
from autograder.exercises.lab08_pipeline.hidden import shared
from autograder.exercises.lab08_pipeline.plans import plan_case

reference = shared.reference_of_plans
CASES = (
    shaken(plan_case("2 devices of 3 chunks, 6 micro-batches", (2, 6, 3))),
    plan_case("several sizes, simulated", (4, 12, 3), (3, 6, 2), (8, 16, 4), runs=False),
)
BOUNDARIES = {
    "divides": "4 devices of 2 chunks, 8 micro-batches",
    "does not divide": "not tested: the task says that p divides m",
    "one rank": "not tested: one device has no neighbour to wait for",
    "more ranks than elements": "not tested, as for a remainder",
}
EQUAL_ANSWERS = (
    # Megatron's warm-up leaves time for sends.
    EqualAnswer("2 * (devices - 1 - d)", "(devices - 1 - d)", "here sends take no time"),
)
