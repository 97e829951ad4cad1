from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab09_pipeline.hidden import shared
from autograder.exercises.lab09_pipeline.plans import UNEVEN, plan_case

reference = shared.reference_of_plans
SEVERAL = "several sizes, simulated"
CASES = (
    with_random_delays(plan_case("2 devices, 4 micro-batches", (2, 4))),
    plan_case(SEVERAL, (3, 7), (8, 12), (6, 6), (5, 13), (6, 5), (1, 3), runs=False),
)
BOUNDARIES = {
    "divides": "4 devices, 8 micro-batches",
    "does not divide": UNEVEN.name,
    "one rank": UNEVEN.name,
    "more ranks than elements": UNEVEN.name,
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer('("B", s, k)', '["B", s, k]', "lists are accepted for tuples"),
)
