from autograder.exercise.hidden import EqualAnswer, shaken
from autograder.exercises.lab08_pipeline.hidden import shared
from autograder.exercises.lab08_pipeline.plans import plan_case

reference = shared.reference_of_plans
FEW = "4 devices, 2 micro-batches"
CASES = (
    shaken(plan_case(FEW, (4, 2))),
    plan_case("several sizes, simulated", (3, 7), (8, 12), (6, 6), (5, 13), runs=False),
)
BOUNDARIES = {
    "divides": "4 devices, 8 micro-batches",
    "does not divide": "several sizes, simulated",
    "one rank": "not tested: one device has no neighbour to wait for",
    "more ranks than elements": FEW,
}
EQUAL_ANSWERS = (EqualAnswer('("B", s, k)', '["B", s, k]', "lists are accepted for tuples"),)
