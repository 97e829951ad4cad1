from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab10_activation_checkpointing.hidden import shared
from autograder.exercises.lab10_activation_checkpointing.shared import blocks_case

reference, MISTAKES = shared.reference, shared.MISTAKES
# Random numbers for a mask of 4 MiB would be most of its time.
LARGE = {"keep": 0.9, "wider": 1, "large": True}
CASES = (
    with_random_delays(
        blocks_case(
            "3 ranks, nested", 3, 3, rows=2, width=5, network="nested", keep=0.8, dtype="bfloat16"
        )
    ),
    blocks_case("2 ranks, 14 blocks of 1 MiB", 2, 14, 32_768, 8, weight=2, **LARGE),
)
BOUNDARIES = {
    "divides": "2 ranks, different weights, float64",
    "does not divide": "4 ranks, 4 blocks of 132 KiB",
    "one rank": "not tested: its piece is the whole x",
    "more ranks than elements": "not tested: x has far more elements than there are ranks",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "    @staticmethod\n    def backward(ctx, y_grad):\n",
        "    @staticmethod\n    @torch.autograd.function.once_differentiable\n"
        "    def backward(ctx, y_grad):\n",
        "PyTorch's decorator for a backward that has no derivative of its own",
    ),
    EquivalentAnswer(
        "fork_rng(devices=[])", "fork_rng()", "all devices, of which only the CPU is used"
    ),
    EquivalentAnswer(
        "        flat = piece.new_empty(dist.get_world_size() * len(piece))\n"
        "        dist.all_gather_single(flat, piece)\n",
        "        pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size())]\n"
        "        dist.all_gather(pieces, piece)\n"
        "        flat = torch.cat(pieces)\n",
        "gathering a list and concatenating it sends the same bytes",
    ),
)
