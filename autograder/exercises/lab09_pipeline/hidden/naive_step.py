from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab09_pipeline.hidden import shared
from autograder.exercises.lab09_pipeline.naive_step import naive_case

CASES = (with_random_delays(naive_case(3, 5, 3)), naive_case(2, 3, 4, tokens=2))
reference = shared.reference
MISTAKES = shared.WRONG_PASSES
BOUNDARIES = {
    "divides": "not tested: the batch is not divided",
    "does not divide": "not tested, as above",
    "one rank": "1 rank, a batch of 4, width 4",
    "more ranks than elements": "4 ranks, a batch of 2, width 6",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "send(x.grad, rank - 1)", "isend(x.grad, rank - 1).wait()", "a send is a send"
    ),
    EquivalentAnswer("return loss.detach() if", "return loss if", "the caller can detach the loss"),
)
