"""Lab 16: right answers that differ from the solution earn full marks."""

from __future__ import annotations

import pytest

from tests.submissions.deciding import exercise_of, points_of

pytestmark = pytest.mark.ranks

LAB = "16_where_the_time_goes"
RIGHT = {
    ("exposed_communication", "from one edge of an interval to the next"): """
def exposed_communication(compute, calls):
    found = []
    for rank, own in enumerate(calls):
        seconds = {"exposed_s": 0, "overlapped_s": 0, "waiting_s": 0}
        every = [i for by_rank in (compute, calls) for of_rank in by_rank for i in of_rank]
        edges = sorted({edge for interval in every for edge in interval})
        for start, end in zip(edges, edges[1:]):
            computes = any(a <= start and end <= b for a, b in compute[rank])
            entered = [k for k, (a, b) in enumerate(own) if a <= start and end <= b]
            moves = any(max(each[k][0] for each in calls) <= start for k in entered)
            if moves:
                seconds["overlapped_s" if computes else "exposed_s"] += end - start
            elif entered and not computes:
                seconds["waiting_s"] += end - start
        found.append(seconds)
    return tuple(found)
""",
    ("find_the_bottleneck", "step by step, by thresholds of the numbers' ratios"): """
def find_the_bottleneck(step):
    def line_with(key, small=None):
        lines = [
            line for line in step["lines"]
            if small is None or (line["bytes"] < 65536 * line["calls"]) == small
        ]
        if not lines:
            return 0, ""
        best = max(lines, key=lambda line: min(line[key]))
        return min(best[key]), best["line"]
    compute = sorted(step["compute_s"])
    found = [
        (compute[-1] - compute[-2], "straggler", step["compute_s"].index(compute[-1])),
        (max(step["loader_s"]), "slow loader", step["loader_s"].index(max(step["loader_s"]))),
    ]
    for cause, key, small in (
        ("small messages", "exposed_s", True),
        ("no overlap", "exposed_s", False),
        ("synchronization", "waiting_s", None),
    ):
        seconds, line = line_with(key, small)
        found.append((seconds, cause, line))
    found.sort(key=lambda each: each[0])
    return list(found[-1][1:])
""",
    ("repaired_step", "gradients by autograd.grad, a tensor as the loss"): """
def repaired_step(model, optimizer, micro_batches):
    parameters = [p for p in model.parameters() if p.requires_grad]
    sums = None
    for batch in list(micro_batches):
        loss = model(*batch)
        parts = [loss.detach(), *torch.autograd.grad(loss, parameters)]
        flat = torch.nn.utils.parameters_to_vector(parts)
        sums = flat if sums is None else sums + flat
    work = dist.all_reduce(sums, async_op=True)
    work.wait()
    sums = sums / (dist.get_world_size() * len(micro_batches))
    start = 1
    for p in parameters:
        p.grad = sums[start : start + p.numel()].view(p.shape)
        start += p.numel()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return sums[0]
""",
    ("repaired_step", "a buffer that .grad are views of, an average in the call's op's place"): """
def repaired_step(model, optimizer, micro_batches):
    parameters = [p for p in model.parameters() if p.requires_grad]
    buffer = torch.zeros(1 + sum(p.numel() for p in parameters))
    start = 1
    for p in parameters:
        p.grad = buffer[start : start + p.numel()].view_as(p)
        start += p.numel()
    for inputs, targets in micro_batches:
        loss = model(inputs, targets)
        (loss / len(micro_batches) / dist.get_world_size()).backward()
        buffer[0] += loss.detach() / len(micro_batches) / dist.get_world_size()
    dist.all_reduce(buffer)
    optimizer.step()
    return float(buffer[0])
""",
}


@pytest.mark.parametrize(("answer", "how"), RIGHT, ids=lambda each: each)
def test_other_right_answers_earn_full_marks(answer, how):
    exercise = exercise_of(LAB, answer)
    assert points_of(LAB, exercise, RIGHT[answer, how]) == exercise.points
