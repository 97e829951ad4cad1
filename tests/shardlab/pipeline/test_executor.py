"""Schedules on real ranks give the gradients of one process in any legal order, and never hang."""

import random

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from shardlab import launch, models
from shardlab.pipeline import cut_gpt, messages, run_schedule
from shardlab.simulate.pipeline import (
    Costs,
    IllegalSchedule,
    gpipe,
    interleaved_one_f_one_b,
    naive,
    one_f_one_b,
    simulate,
    zb_h1,
    zb_v,
)
from shardlab.simulate.pipeline.schedule import check

SCHEDULES = {
    "naive": naive(4, 2),
    "gpipe": gpipe(4, 4),
    "1f1b": one_f_one_b(4, 8),
    "fewer micro-batches than devices": one_f_one_b(4, 2),
    "interleaved": interleaved_one_f_one_b(4, 8, 2),
    "zb-h1": zb_h1(4, 8),
    "zb-v": zb_v(4, 8),
}
WIDTH, TOKENS = 8, 6


def make_gpt():
    torch.manual_seed(3)
    model = models.GPT(models.GPTConfig(layers=8, heads=2, width=WIDTH, context=TOKENS))
    for parameter in model.parameters():  # so that biases are not zero
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def micro_batches(m):
    generator = torch.Generator().manual_seed(m)
    tokens = torch.randint(256, (m, 3, TOKENS + 1), generator=generator)
    return list(tokens[..., :-1]), list(tokens[..., 1:])


def loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def on_a_rank(schedules):
    rank, results = dist.get_rank(), {}
    for name, schedule in schedules.items():
        checked = check(schedule)
        stages = cut_gpt(make_gpt(), checked.stages)
        mine = {s: stages[s] for s in range(checked.stages) if checked.device_of[s] == rank}
        inputs, targets = micro_batches(checked.micro_batches)
        result = run_schedule(
            schedule, mine, inputs, targets, loss, activation_shape=(3, TOKENS, WIDTH)
        )
        grads = {
            (stage, parameter): value.grad
            for stage, module in mine.items()
            for parameter, value in module.named_parameters()
        }
        results[name] = result, grads
    return results


@pytest.fixture(scope="module")
def outputs():
    return launch(on_a_rank, SCHEDULES, world_size=4, device="cpu").outputs


def in_one_process(m, stages):
    """Loss, and gradients by name; head and embedding are separate, as in stages."""
    model = make_gpt()
    model.head.weight = torch.nn.Parameter(model.head.weight.detach().clone())
    total = sum(loss(model(x), y) for x, y in zip(*micro_batches(m), strict=True)) / m
    total.backward()
    return total.item(), {name: value.grad for name, value in model.named_parameters()}


@pytest.mark.ranks
@pytest.mark.parametrize("name", SCHEDULES)
def test_gradients_match_one_process(outputs, name):
    checked = check(SCHEDULES[name])
    expected_loss, expected = in_one_process(checked.micro_batches, checked.stages)
    found = {}
    for results in outputs:
        found |= {parameter: grad for (_, parameter), grad in results[name][1].items()}
    assert found.keys() == expected.keys()
    for parameter, grad in expected.items():
        torch.testing.assert_close(found[parameter], grad, rtol=1e-4, atol=1e-6, msg=parameter)
    losses = [results[name][0].loss for results in outputs if results[name][0].loss is not None]
    assert losses == [pytest.approx(expected_loss, abs=1e-5)]


@pytest.mark.ranks
@pytest.mark.parametrize("name", SCHEDULES)
def test_each_rank_runs_its_list_in_order_with_the_simulated_peak(outputs, name):
    timeline = simulate(SCHEDULES[name])
    for rank, results in enumerate(outputs):
        result = results[name][0]
        assert [slot.action for slot in result.slots] == SCHEDULES[name][rank]
        assert result.peak_in_flight == timeline.peak_in_flight[rank]
        assert all(a.end <= b.start for a, b in zip(result.slots, result.slots[1:], strict=False))


def random_legal_schedule(seed):
    """p devices, v chunks on random devices, and a random order that a run could have taken."""
    draw = random.Random(seed)
    p, m, v = draw.choice([2, 3, 4]), draw.randint(1, 5), draw.choice([1, 2])
    device_of = [stage % p for stage in range(p * v)]
    draw.shuffle(device_of)
    split = draw.random() < 0.5
    chains = [
        [("F", s, mb) for s in range(p * v)]
        + [(k, s, mb) for s in range(p * v - 1, -1, -1) for k in ("IW" if split else "B")]
        for mb in range(m)
    ]
    schedule = [[] for _ in range(p)]
    while chains:
        chain = draw.choice(chains)
        action = chain.pop(0)
        schedule[device_of[action[1]]].append(action)
        chains = [chain for chain in chains if chain]
    return schedule


@pytest.mark.parametrize("seed", range(40))
def test_the_message_order_cannot_deadlock_even_with_blocking_sends(seed):
    """Stricter than gloo: a message passes only if it is next on both of its ranks."""
    schedule = random_legal_schedule(seed)
    checked = check(schedule)
    done, passed, waiting = set(), set(), messages(schedule)
    position = [0] * len(schedule)

    def is_available(need, action):
        is_local = checked.device_of[need.stage] == checked.device_of[action.stage]
        kind = "F" if action.kind == "F" else "B"
        return need in done and (is_local or (kind, *need[1:]) in passed)

    while any(position[d] < len(actions) for d, actions in enumerate(checked.schedule)):
        before = len(done) + len(passed)
        for device, actions in enumerate(checked.schedule):
            for action in actions[position[device] :]:
                if not all(is_available(need, action) for need in checked.needs(action)):
                    break
                done.add(action)
                position[device] += 1
        busy = set()  # ranks that wait for an earlier message
        for message in list(waiting):
            kinds = "F" if message.kind == "F" else "BI"
            is_done = any((kind, message.stage, message.micro_batch) in done for kind in kinds)
            if is_done and not busy & {message.sender, message.receiver}:
                passed.add(message[:3])
                waiting.remove(message)
            else:
                busy |= {message.sender, message.receiver}
        assert len(done) + len(passed) > before, "all ranks wait"
    assert not waiting


@pytest.mark.ranks
def test_unusual_but_legal_orders_run():
    """Stages on any device, micro-batches in any order: if the simulator accepts it, it runs."""
    odd = {seed: s for seed in range(40) if len(s := random_legal_schedule(seed)) == 2}
    assert len(odd) > 5
    outputs = launch(on_a_rank, odd, world_size=2, device="cpu").outputs
    for seed, schedule in odd.items():
        checked = check(schedule)
        _, expected = in_one_process(checked.micro_batches, checked.stages)
        for results in outputs:
            for (_, parameter), grad in results[seed][1].items():
                torch.testing.assert_close(grad, expected[parameter], rtol=1e-4, atol=1e-6)


@pytest.mark.ranks
def test_invalid_arguments_raise_before_anything_is_sent():
    def error_of(schedule, stages, m):
        try:
            run_schedule(schedule, stages, [0] * m, [0] * m, loss, activation_shape=(1,))
        except ValueError as error:
            return type(error).__name__, str(error)

    def fn():
        linear = torch.nn.Linear(1, 1)
        mine = {dist.get_rank(): linear}
        backwards = [[("B", 0, 0), ("F", 0, 0)], [("F", 1, 0), ("B", 1, 0)]]
        return [
            error_of(backwards, mine, 1),
            error_of(gpipe(3, 2), mine, 2),
            error_of(gpipe(2, 2), {5: linear}, 2),
            error_of(gpipe(2, 2), mine, 3),
        ]

    run = launch(fn, world_size=2, device="cpu")
    assert not run.calls
    order, ranks, stages, inputs = run.outputs[1]
    assert order[0] == IllegalSchedule.__name__
    assert "needs its forward first" in order[1]
    assert ranks[1] == "a schedule for 3 devices on 2 ranks"
    assert stages[1] == "rank 1 runs stages [1] but was passed [5]"
    assert inputs[1] == "3 inputs for 2 micro-batches"


@pytest.mark.ranks
def test_ranks_can_emulate_slower_devices():
    def fn():
        stage = {dist.get_rank(): torch.nn.Linear(2, 2)}
        xs = [torch.ones(1, 2)] * 2
        minimum = Costs(0.01, 0.02, 0.03)
        return run_schedule(
            gpipe(2, 2), stage, xs, xs, F.mse_loss, activation_shape=(1, 2), minimum_s=minimum
        ).slots

    for slots in launch(fn, world_size=2, device="cpu").outputs:
        for (kind, *_), start, end in slots:
            assert end - start >= {"F": 0.01, "B": 0.05}[kind]


def test_number_of_messages_between_stages():
    """m micro-batches over p·v−1 boundaries, forward and back; a V's turn sends nothing."""
    assert len(messages(one_f_one_b(4, 8))) == 2 * 3 * 8
    assert len(messages(interleaved_one_f_one_b(4, 8, 2))) == 2 * 7 * 8
    assert len(messages(zb_v(4, 8))) == 2 * 6 * 8
