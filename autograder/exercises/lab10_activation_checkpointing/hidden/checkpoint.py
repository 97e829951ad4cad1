from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab10_activation_checkpointing.checkpoint import network_case
from autograder.exercises.lab10_activation_checkpointing.hidden import shared

reference, MISTAKES = shared.reference, shared.MISTAKES
ONE_UNUSED, LARGE = "several, dropout, one not used", "nested, 1 MiB with dropout"
CASES = (
    network_case(ONE_UNUSED, "several", 2, width=6, keep=0.6, unused=2),
    network_case(LARGE, "nested", 3, rows=32_768, width=8, keep=0.9, wider=2, large=True),
)
BOUNDARIES = {
    "divides": "not tested: nothing is divided",
    "does not divide": "not tested, as above",
    "one rank": "a chain of 4, 64 KiB each",
    "more ranks than elements": "not tested: there is one rank",
    "an output without a gradient": ONE_UNUSED,
    "a checkpoint within another": "nested, with dropout",
    "several backward passes": "dropout, two losses",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "    @staticmethod\n    def backward(ctx, *grads):\n",
        "    @staticmethod\n    @torch.autograd.function.once_differentiable\n"
        "    def backward(ctx, *grads):\n",
        "PyTorch's decorator for a backward that has no derivative of its own",
    ),
    EquivalentAnswer(
        "fork_rng(devices=[])", "fork_rng()", "all devices, of which only the CPU is used"
    ),
    EquivalentAnswer("isinstance(output, torch.Tensor) and ", "", "outputs are tensors"),
    EquivalentAnswer(
        "with torch.random.fork_rng(devices=[]), torch.enable_grad():\n"
        "            torch.set_rng_state(ctx.random_state)\n"
        "            outputs = ctx.function(*args)\n",
        "now = torch.get_rng_state()\n"
        "        torch.set_rng_state(ctx.random_state)\n"
        "        with torch.enable_grad():\n"
        "            outputs = ctx.function(*args)\n"
        "        torch.set_rng_state(now)\n",
        "the random state may be restored by hand",
    ),
)
