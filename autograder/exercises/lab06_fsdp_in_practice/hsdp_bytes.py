"""What a rank sends in a step of HSDP: within its shard group and across groups."""

from autograder.exercise import Case, Formula, questions


def on_64_ranks(parameters: int, name: str) -> Case:
    """Plain FSDP, two sizes of shard groups, DDP."""
    meshes = ((1, 64), (8, 8), (4, 16), (64, 1))
    return questions(name, *((parameters, *mesh) for mesh in meshes))


EXERCISE = Formula(
    points=2,
    cases=(
        on_64_ranks(7 * 10**9, "7B on 64 ranks"),
        questions(
            "fp32, and parameters that stay whole",
            (1_000_003, 3, 2, 4),
            (1_000_003, 2, 3, 4, False),
            (1_000_003, 1, 4, 2, False),
            (5, 1, 1),
        ),
    ),
)
