"""Lab 07's arithmetic: bytes of one layer, and a rank's place in a mesh of two axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from autograder.exercise import Attempt, Case, Exercise, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercise.kept_back import kept_back, never
from autograder.guest.library import answers_of, borrowed
from shardlab.estimate import traffic


def one_slip_in_all(
    attempt: Attempt,
    *,
    slips: Callable[[Any, Any], Iterator[tuple[Any, str]]],
    call: Callable[[Any], str],
    told: Callable[[Any, Any, Any], str],
) -> Finding | None:
    """The first slip that explains every wrong answer: for a single one, two may give the same."""
    if attempt.error:
        return None
    answers = zip(attempt.inputs[0], attempt.expected[0], attempt.outputs[0], strict=True)
    wrong = [answer for answer in answers if not equal(answer[1], answer[2], 1e-9)]
    outcomes: dict[str, list[Any]] = {}
    for question, right, got in wrong:
        for slip, mistake in slips(question, right):
            if equal(slip, got, 1e-9):
                outcomes.setdefault(mistake, []).append(slip)
    for mistake, explained in outcomes.items():
        if len(explained) == len(wrong):
            for slip, (question, right, got) in zip(explained, wrong, strict=True):
                if not equal(slip, right, 1e-9):
                    who = call(question)
                    name = who.partition("(")[0]
                    return Finding(who, mistake, told(slip, right, got), anyone=name)
    return None


# ---- tp_bytes_per_layer -------------------------------------------------------------------------

Question = list[int]  # [batch, tokens, width, tp_size, element_bytes]


def draw_layers(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Widths that divide by the ranks, so that answers are whole bytes."""
    if "questions" in case.params:
        return [case.params["questions"]]
    return [random_layers(rng)]


@kept_back(never)
def random_layers(rng: np.random.Generator) -> list[Question]:
    questions = []
    for _ in range(24):
        tp_size = int(rng.integers(3, 17))
        batch, tokens = int(rng.integers(3, 30)), int(rng.integers(100, 5000))
        width = tp_size * int(rng.integers(50, 1000))
        questions.append([batch, tokens, width, tp_size, int(rng.choice([2, 4]))])
    return questions


def drive_layer_bytes(subject: Callable[..., Any], questions: Any, case: Case) -> Plain:
    return answers_of(subject, questions)


def expect_layer_bytes(case: Case, inputs: Any) -> list[Plain]:
    """Narayanan et al., arXiv 2104.04473, section 3.2: 8 bsh (t-1)/t elements."""
    return [
        [
            traffic.tensor_parallel_layer(
                batch * tokens, width, tp_size, element_bytes=element_bytes
            ).total_bytes
            for batch, tokens, width, tp_size, element_bytes in inputs[0]
        ]
    ]


def layer_slips(question: Question, right: float) -> Iterator[tuple[float, str]]:
    """Wrong answers that have a name, for one question."""
    batch, tokens, width, n, element_bytes = question
    whole = 8 * batch * tokens * width * element_bytes
    yield right / 4, "counts one all-reduce: a layer has two in forward and two in backward"
    yield (
        right / 2,
        "is half of it: a layer has two all-reduces in forward and two in backward, and a rank "
        "sends 2(N - 1)/N of a tensor in each",
    )
    yield whole, "forgets (N - 1)/N: a ring sends 2(N - 1)/N of a tensor, not twice all of it"
    yield whole / 2, "counts a tensor for each all-reduce: a ring sends 2(N - 1)/N of it"
    yield whole / 4, "counts tensors, two of them: there are four all-reduces"
    yield right * n, "counts what all ranks send together: the answer is for one rank"
    yield right / n, "divides by N: the parts are of the weights, what is summed is whole"
    yield right / element_bytes, "counts elements: the answer is in bytes"
    yield right / batch, "forgets the batch: what is summed is [B, T, D]"
    yield right / tokens, "forgets the tokens: what is summed is [B, T, D]"
    yield right * 4, "counts the MLP's inner width, 4D: what is summed is [B, T, D]"
    yield right * 2.5, "sums the MLP's inner values as well: only its output is a sum"
    yield right * 2, "is twice too much: four all-reduces, 2(N - 1)/N of [B, T, D] sent in each"
    yield right / 1e9, "is in GB: the answer is in bytes"
    yield right / 2**30, "is in GiB: the answer is in bytes"


def wrong_layer_bytes(attempt: Attempt) -> Finding | None:
    return one_slip_in_all(
        attempt,
        slips=layer_slips,
        call=lambda question: f"tp_bytes_per_layer({', '.join(map(str, question))})",
        told=lambda slip, right, got: f"{got:,.0f}, expected {right:,.0f}",
    )


TP_BYTES_PER_LAYER = Exercise(
    name="tensor_parallel.tp_bytes_per_layer",
    points=2,
    cases=(
        Case(
            "GPT-3's width, bf16 and fp32",
            1,
            {"questions": [[3, 2048, 12288, 8, 2], [3, 2048, 12288, 8, 4]]},
        ),
        Case("on 4 ranks and on 16", 1, {"questions": [[5, 100, 64, 4, 4], [5, 100, 64, 16, 2]]}),
        Case("other sizes and ranks", 1, {}, hidden=True, weight=2),
        Case(
            "one rank, two ranks",
            1,
            {"questions": [[3, 9, 8, 1, 2], [7, 5, 8, 2, 4], [7, 5, 8, 2, 2]]},
            True,
        ),
    ),
    draw=draw_layers,
    drive=drive_layer_bytes,
    expect=expect_layer_bytes,
    tolerance=1e-9,
    allows=frozenset(),
    diagnoses=(borrowed, wrong_layer_bytes),
)


# ---- mesh_coords --------------------------------------------------------------------------------

Place = dict[str, Any]
KEYS = ("dp_rank", "tp_rank", "dp_group", "tp_group")


def draw_meshes(case: Case, rng: np.random.Generator) -> list[Plain]:
    """[rank, dp_size, tp_size], those the case names or drawn ones."""
    if "meshes" in case.params:
        return [[[rank, *sizes] for sizes in case.params["meshes"] for rank in every_rank(sizes)]]
    return [random_meshes(rng)]


def every_rank(sizes: list[int]) -> range:
    return range(sizes[0] * sizes[1])


@kept_back(never)
def random_meshes(rng: np.random.Generator) -> list[list[int]]:
    meshes = []
    for _ in range(24):
        dp_size, tp_size = (int(size) for size in rng.choice(range(2, 12), size=2, replace=False))
        meshes.append([int(rng.integers(0, dp_size * tp_size)), dp_size, tp_size])
    return meshes


def drive_mesh(subject: Callable[..., Any], questions: Any, case: Case) -> Plain:
    return [with_lists(answer) for answer in answers_of(subject, questions)]


def with_lists(place: Any) -> Plain:
    """Tuples and ranges will do for lists."""
    if not isinstance(place, dict):
        return place
    return {
        key: list(value) if isinstance(value, tuple | range) else value
        for key, value in place.items()
    }


def expect_mesh(case: Case, inputs: Any) -> list[Plain]:
    places = []
    for rank, dp_size, tp_size in inputs[0]:
        mesh = np.arange(dp_size * tp_size).reshape(dp_size, tp_size)
        dp_rank, tp_rank = (int(index[0]) for index in np.where(mesh == rank))
        groups = mesh[:, tp_rank].tolist(), mesh[dp_rank].tolist()
        places.append(dict(zip(KEYS, (dp_rank, tp_rank, *groups), strict=True)))
    return [places]


@kept_back(lambda case, inputs: inputs[0])
def other_way_round(rank: int, dp_size: int, tp_size: int) -> Place:
    """Ranks side by side share parameters' copies, not a layer."""
    mesh = np.arange(dp_size * tp_size).reshape(tp_size, dp_size)
    tp_rank, dp_rank = (int(index[0]) for index in np.where(mesh == rank))
    groups = mesh[tp_rank].tolist(), mesh[:, dp_rank].tolist()
    return dict(zip(KEYS, (dp_rank, tp_rank, *groups), strict=True))


def mesh_slips(question: list[int], right: Place) -> Iterator[tuple[Place, str]]:
    """Some keys of wrong answers that have a name."""
    rank, dp_size, tp_size = question
    other = other_way_round(*question)
    yield (
        {key: other[key] for key in ("dp_rank", "tp_rank")},
        "puts the ranks of a tensor-parallel group apart: they talk most, so neighbours have the "
        "same dp_rank",
    )
    dp_rank, tp_rank, dp_group, tp_group = (right[key] for key in KEYS)
    yield (
        {"dp_rank": tp_rank, "tp_rank": dp_rank},
        "has its two coordinates the wrong way round",
    )
    yield (
        {"dp_group": tp_group, "tp_group": dp_group},
        "has its two groups the wrong way round: a tp_group shares one copy of the model, and a "
        "dp_group has the same share of each copy",
    )
    yield (
        {"dp_group": list(range(dp_size)), "tp_group": list(range(tp_size))},
        "has coordinates in its groups: name the global ranks",
    )
    yield {"tp_group": list(range(tp_size))}, "has the first rank's tp_group for every rank"
    yield (
        {"dp_group": list(range(tp_rank, dp_size * tp_size, dp_size))},
        "steps through a dp_group by dp_size: between two of its ranks there lies a tp_group",
    )
    yield (
        {"dp_rank": rank // dp_size},
        "divides by dp_size: each dp_rank has tp_size ranks",
    )
    yield (
        {"dp_group": [each for each in dp_group if each != rank]},
        "leaves a rank out of its own group",
    )


def wrong_place(attempt: Attempt) -> Finding | None:
    def told(slip: Place, right: Place, got: Place) -> str:
        key = next(key for key in slip if not equal(right[key], got.get(key)))
        return f"{key}: {got.get(key)}, expected {right[key]}"

    return one_slip_in_all(
        attempt,
        slips=mesh_slips,
        call=lambda q: f"mesh_coords({q[0]}, dp_size={q[1]}, tp_size={q[2]})",
        told=told,
    )


MESH_COORDS = Exercise(
    name="tensor_parallel.mesh_coords",
    points=2,
    cases=(
        Case("2 × 4", 1, {"meshes": [[2, 4]]}),
        Case("3 × 2", 1, {"meshes": [[3, 2]]}),
        Case("an axis of one", 1, {"meshes": [[1, 5], [4, 1]]}, hidden=True),
        Case("other meshes", 1, {}, hidden=True),
    ),
    draw=draw_meshes,
    drive=drive_mesh,
    expect=expect_mesh,
    allows=frozenset(),
    diagnoses=(wrong_place,),
)
