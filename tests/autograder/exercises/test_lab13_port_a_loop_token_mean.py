"""Lab 13: references against plain training, other right answers, named mistakes."""

from __future__ import annotations

import cloudpickle
import pytest
import torch
from torch.nn.functional import cross_entropy

from autograder import exercises
from autograder.evaluation.trial import RankPool, Trials
from autograder.exercises.lab13_accelerate import port_a_loop, token_mean
from tests.submissions import planted
from tests.submissions.deciding import inputs_of

LAB = "13_accelerate"
SEED = 11
BY_ANSWER = {exercise.answer: exercise for exercise in exercises.of_lab(LAB)}
PORT, TOKENS = BY_ANSWER["port_a_loop"], BY_ANSWER["token_mean"]


@pytest.mark.parametrize("case", PORT.cases, ids=lambda case: case.name)
def test_the_reference_of_port_a_loop_is_training_on_large_batches(case):
    """A step of ``accumulation`` micro-batches on all ranks is one batch of as many samples."""
    inputs, p = inputs_of(PORT, case), case.params
    model = port_a_loop.make_model(inputs[0]["weights"])
    optimizer = torch.optim.SGD(model.parameters(), lr=port_a_loop.LR)
    size = p["batch_size"] * case.world_size * p["accumulation"]
    losses = []
    for x, y in zip(*(each.split(size) for each in inputs[0]["data"]), strict=True):
        loss = cross_entropy(model(x), y) * len(x) / size  # the last step has fewer samples
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), p["max_norm"])
        optimizer.step()
        losses.append(loss.item())
    for own in PORT.expect(case, inputs):
        assert port_a_loop.losses_of(own) == pytest.approx(losses, rel=1e-5)
        wanted_of = dict(model.named_parameters())
        assert own["parameters"].keys() == wanted_of.keys()
        for name, wanted in wanted_of.items():
            got = own["parameters"][name]
            torch.testing.assert_close(got, wanted.detach(), rtol=5e-6, atol=5e-6)


@pytest.mark.parametrize("case", TOKENS.cases, ids=lambda case: case.name)
def test_the_reference_of_token_mean_is_the_mean_over_one_large_batch(case):
    inputs = inputs_of(TOKENS, case)
    model = token_mean.make_model(inputs[0]["weights"])
    batches = [batch for given in inputs for batch in given["steps"][0]]
    ids, labels = (
        torch.cat([each.flatten() for each in side]) for side in zip(*batches, strict=True)
    )
    loss = cross_entropy(model(ids), labels)
    loss.backward()
    for own in TOKENS.expect(case, inputs):
        assert own["losses"][0].item() == pytest.approx(loss.item(), rel=1e-5)
        for name, parameter in model.named_parameters():
            got = own[f"the gradient of {name}, step 0"]
            torch.testing.assert_close(got, parameter.grad, rtol=5e-6, atol=2e-6)


CLIPS = """            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
"""
# {what the answer does differently: (changes, part of the diagnosis, or "" if it is right)}
VERSIONS = {
    "port_a_loop": {
        "gathers the losses": (
            [
                (
                    'accelerator.reduce(total, "mean").item()',
                    "accelerator.gather(total).mean().item()",
                )
            ],
            "",
        ),
        "steps only when gradients are averaged": (
            [(CLIPS, CLIPS.replace("            optimizer", "                optimizer"))],
            "",
        ),
        "takes the state dict from accelerate": (
            [
                (
                    "accelerator.unwrap_model(model).state_dict()",
                    "accelerator.get_state_dict(model)",
                )
            ],
            "",
        ),
        "turns the exchange off by itself": (
            [
                (
                    "    for x, labels in loader:\n        with accelerator.accumulate(model):",
                    "    for i, (x, labels) in enumerate(loader, 1):\n"
                    "        ends = i % accumulation == 0 or i == len(loader)\n"
                    "        accelerator.gradient_state._set_sync_gradients(ends)\n"
                    "        with nullcontext() if ends else accelerator.no_sync(model):",
                )
            ],
            "",
        ),
        "names the arguments of clip_grad_norm_": (
            [
                (
                    "clip_grad_norm_(model.parameters(), max_norm)",
                    "clip_grad_norm_(parameters=iter([*model.parameters()]), max_norm=max_norm)",
                )
            ],
            "",
        ),
        "prepares one thing at a time": (
            [
                (
                    "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)",
                    "model = accelerator.prepare_model(model)\n"
                    "    optimizer = accelerator.prepare(optimizer)\n"
                    "    (loader, model) = accelerator.prepare(loader, model)",
                )
            ],
            "wraps it again",
        ),
        "prepares in three calls": (
            [
                (
                    "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)",
                    "loader = accelerator.prepare(loader)\n"
                    "    model = accelerator.prepare(model)\n"
                    "    optimizer = accelerator.prepare(optimizer)",
                )
            ],
            "",
        ),
        "trains another copy by hand": (
            [
                (
                    "    losses, total = [], torch.zeros(())",
                    "    toy = accelerator.prepare(nn.Linear(1, 1))\n"
                    "    accelerator_backward = accelerator.backward\n"
                    "    accelerator.backward = lambda loss: (loss / accumulation).backward()\n"
                    "    accelerator_backward(toy(torch.ones(1, 1)).sum())\n"
                    "    losses, total = [], torch.zeros(())",
                )
            ],
            "never calls accelerator.backward",
        ),
        "waits before it saves": (
            [
                (
                    "    if accelerator.is_main_process:",
                    "    accelerator.wait_for_everyone()\n    if accelerator.is_main_process:",
                )
            ],
            "",
        ),
        "saves on every rank": (
            [("if accelerator.is_main_process:", "if True:")],
            "call save once, on the main process only",
        ),
        "never saves": (
            [("if accelerator.is_main_process:", "if False:")],
            "call save once, on the main process only",
        ),
        "returns nothing": ([("    return losses", "")], "is a return missing?"),
        "returns on one rank": (
            [("    return losses", "    return losses if accelerator.is_main_process else None")],
            "returns no losses, only rank 0 does",
        ),
    },
    "token_mean": {
        "gathers the tokens": (
            [("accelerator.reduce(own_tokens)", "accelerator.gather(own_tokens).sum()")],
            "",
        ),
        "returns a tensor": ([(".item()", "")], ""),
        "all-reduces with torch's own function": (
            [
                (
                    "    tokens = accelerator.reduce(own_tokens)\n",
                    "    tokens = own_tokens.clone()\n    dist.all_reduce(tokens)\n",
                )
            ],
            "",
        ),
        "counts in every micro-batch": (
            [("        total += ", "        accelerator.reduce(own_tokens)\n        total += ")],
            "over its budget: 3 messages a step",
        ),
        "returns nothing": ([("    return (", "    (")], "expected one number"),
        "returns its own part": (
            [("accelerator.reduce(total)", "total")],
            "returns its own part of the loss",
        ),
    },
}


@pytest.mark.ranks
@pytest.mark.parametrize("answer", VERSIONS)
def test_other_right_answers_pass_and_mistakes_are_named(answer):
    exercise, solution = BY_ANSWER[answer], planted.solution(LAB)
    case = exercise.cases[0]
    with RankPool() as ranks:
        ranks.expect(exercise, [case])
        for name, (changes, says) in VERSIONS[answer].items():
            source = solution[answer]
            for old, new in changes:
                assert source.count(old) == 1, name
                source = source.replace(old, new)
            answers = solution | {answer: source}
            subject = planted.subjects(LAB, answers)[answer]
            result = Trials(exercise, cloudpickle.dumps(subject), SEED, ranks).run(case)[1].result
            assert result.passed == (not says), f"{name}: {result.diagnosis}"
            assert says in result.diagnosis, name
