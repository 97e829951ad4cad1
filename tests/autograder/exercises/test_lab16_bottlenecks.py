"""Lab 16: recorded steps against their recipes, references against counted moments, sizes."""

from __future__ import annotations

import json
import random
from statistics import mean, median

import numpy as np
import pytest

from autograder.exercises.lab16_where_the_time_goes import find_the_bottleneck as visible
from autograder.exercises.lab16_where_the_time_goes import repaired_step
from autograder.exercises.lab16_where_the_time_goes.find_the_bottleneck import (
    NO_OVERLAP,
    SLOW_LOADER,
    SMALL,
    STRAGGLER,
    SYNC,
)
from autograder.exercises.lab16_where_the_time_goes.hidden import (
    exposed_communication as hidden_exposed,
)
from autograder.exercises.lab16_where_the_time_goes.hidden import find_the_bottleneck as hidden
from autograder.exercises.lab16_where_the_time_goes.hidden import record_bottlenecks
from shardlab.estimate import ring_sent_bytes
from shardlab.recorded_runs import bottlenecks
from shardlab.recorded_runs.bottlenecks import CAUSES

RECIPES = record_bottlenecks.VISIBLE | record_bottlenecks.HIDDEN_RECIPES
STEPS = visible.VISIBLE | hidden.RECORDED

# ---- recorded steps ----


def test_every_recipe_is_recorded_and_no_two_steps_are_equal():
    assert list(STEPS) == list(RECIPES)
    assert len({json.dumps(step["summary"]) for step in STEPS.values()}) == len(STEPS)


def test_each_case_has_every_cause_in_an_order_of_its_own():
    orders = [
        tuple(hidden.right(step)[0] for (step,) in case.params["questions"])
        for case in hidden.CASES
    ]
    assert all(sorted(order) == sorted(CAUSES) for order in orders)
    assert len(set(orders)) == len(orders)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_recorded_with_its_recipe(name):
    step, recipe = STEPS[name], RECIPES[name]
    assert step["cause"] == recipe.cause
    assert step["place"] == record_bottlenecks.place_of(recipe, step)
    summary = step["summary"]
    assert {len(summary[key]) for key in ("compute_s", "loader_s")} == {recipe.world_size}
    gradients = max(summary["lines"], key=lambda line: line["bytes"])
    assert gradients["calls"] == recipe.layers * recipe.buckets
    size = recipe.layers * recipe.layer_bytes
    assert 0 <= size - gradients["bytes"] <= 4 * recipe.layers * recipe.buckets
    others = sum(line["calls"] for line in summary["lines"]) - gradients["calls"]
    logs = recipe.micro_batches if recipe.logs else 0
    assert others == logs + recipe.metrics + recipe.ends_with_barrier


@pytest.mark.parametrize("name", STEPS)
def test_the_cause_stands_out_and_its_repair_shortened_the_step(name):
    step = STEPS[name]
    answer, times = record_bottlenecks.clearest(step)
    assert answer == (step["cause"], step["place"])
    assert times >= record_bottlenecks.CLEAR


@pytest.mark.parametrize("name", visible.VISIBLE)
def test_a_summary_is_that_of_the_recorded_intervals(name):
    step = visible.VISIBLE[name]
    assert record_bottlenecks.summary_of(step) == step["summary"]
    run = bottlenecks.as_run(step)
    lines = [line["calls"] for line in step["summary"]["lines"]]
    assert len(run.calls) == run.world_size * sum(lines)


@pytest.mark.parametrize("name", visible.VISIBLE)
def test_the_timeline_shows_what_the_exercise_computes(name):
    """`Run.step_time` is another implementation of the same definitions."""
    step = visible.VISIBLE[name]
    states = bottlenecks.as_run(step).step_time(by="profiler")
    seconds = hidden_exposed.right(*bottlenecks.intervals(step))
    for state, own, loader_s in zip(states, seconds, step["summary"]["loader_s"], strict=True):
        assert own == pytest.approx({key: getattr(state, key) for key in own}, abs=1e-9)
        assert state.loader_s == pytest.approx(loader_s, abs=1e-4)


@pytest.mark.parametrize("name", STEPS)
def test_what_the_messages_say_of_a_cause_is_true_of_its_steps(name):
    step = STEPS[name]
    cause, place, summary = step["cause"], step["place"], step["summary"]
    waiting_s = [sum(own) for own in zip(*(e["waiting_s"] for e in summary["lines"]), strict=True)]
    exposed_s = max(min(line["exposed_s"]) for line in summary["lines"])
    *_, next_s, longest_s = sorted(summary["compute_s"])
    if cause in visible.BY_RANK:
        assert waiting_s[place] < 0.005  # it hardly ever waits
    if cause == STRAGGLER:
        assert longest_s - next_s > max(summary["loader_s"])
    else:
        assert longest_s - next_s < 0.2 * longest_s  # hardly longer
    by_line = {line["line"]: line for line in summary["lines"]}
    if cause == SYNC:
        assert min(by_line[place]["waiting_s"]) > exposed_s
    elif cause in (SMALL, NO_OVERLAP):
        assert min(by_line[place]["waiting_s"]) < 0.2 * min(by_line[place]["exposed_s"])


ESTIMATES = {
    "a straggler compared with the median": (lambda own: max(own) - median(own), min, min),
    "exposed: the mean of the ranks": (lambda own: max(own) - sorted(own)[-2], mean, min),
    "exposed: the rank with the most": (lambda own: max(own) - sorted(own)[-2], max, min),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("how", ESTIMATES)
def test_other_sensible_estimates_find_the_same_cause(name, how):
    straggler, exposed, waiting = ESTIMATES[how]
    step = STEPS[name]["summary"]
    if how.startswith("a straggler") and len(step["compute_s"]) == 2:
        pytest.skip("the median of two ranks is their mean")
    compute_s, loader_s = step["compute_s"], step["loader_s"]
    gains = {
        (STRAGGLER, int(np.argmax(compute_s))): straggler(compute_s),
        (SLOW_LOADER, int(np.argmax(loader_s))): max(loader_s),
    }
    for line in step["lines"]:
        cause = SMALL if line["bytes"] / line["calls"] < visible.SMALL_BYTES else NO_OVERLAP
        gains[cause, line["line"]] = exposed(line["exposed_s"])
        gains[SYNC, line["line"]] = waiting(line["waiting_s"])
    assert max(gains, key=gains.__getitem__) == hidden.right(step)


@pytest.mark.ranks
@pytest.mark.exhaustive
def test_a_fresh_step_has_the_recorded_calls():
    """Its seconds are those of another machine, or of a busier moment."""
    recipe, recorded = record_bottlenecks.VISIBLE["F"], visible.VISIBLE["F"]
    found = record_bottlenecks.recorded_of(record_bottlenecks.run_of(recipe), random.Random("F"))

    def without_times(step):
        return [call[:3] for call in step["calls"]]

    assert without_times(found) == without_times(recorded)
    assert [*map(len, found["compute"])] == [*map(len, recorded["compute"])]


# ---- exposed_communication ----


def counted(compute, calls):
    """Moments of one millisecond in each state."""
    found = []
    for computing, own in zip(compute, calls, strict=True):
        seconds = dict.fromkeys(("exposed_s", "overlapped_s", "waiting_s"), 0)
        for t in range(200):
            computes = any(start <= t < end for start, end in computing)
            entered = [k for k, (start, end) in enumerate(own) if start <= t < end]
            if any(all(of_rank[k][0] <= t for of_rank in calls) for k in entered):
                seconds["overlapped_s" if computes else "exposed_s"] += 1
            elif entered and not computes:
                seconds["waiting_s"] += 1
        found.append(seconds)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_the_reference_agrees_with_counted_moments(seed):
    drawn = hidden_exposed.draw(None, np.random.default_rng(seed))
    for compute, calls in drawn:
        in_ms = [
            [[(round(1000 * a), round(1000 * b)) for a, b in own] for own in by_rank]
            for by_rank in (compute, calls)
        ]
        for got, wanted in zip(hidden_exposed.right(compute, calls), counted(*in_ms), strict=True):
            assert {key: 1000 * value for key, value in got.items()} == pytest.approx(wanted)


def test_all_states_of_the_hidden_definition_occur_in_recorded_steps():
    for step in visible.VISIBLE.values():
        seconds = hidden_exposed.right(*bottlenecks.intervals(step))
        assert all(value >= -1e-9 for each in seconds for value in each.values())
        assert any(each["exposed_s"] > 0.001 for each in seconds)


# ---- repaired_step ----


@pytest.mark.parametrize("case", repaired_step.EXERCISE.cases, ids=lambda case: case.name)
def test_the_budget_is_the_bytes_that_the_text_says(case):
    psi = repaired_step.parameter_bytes(case, trained=True)
    ideal = repaired_step.STEPS * ring_sent_bytes(psi + 4, case.world_size)
    limit = repaired_step.sent_limit(case)
    if limit is not None:
        assert limit.most == pytest.approx(1.05 * ideal)
    else:
        assert ideal < repaired_step.BUDGET_FROM_BYTES
