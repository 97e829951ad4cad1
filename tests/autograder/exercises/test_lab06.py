"""Lab 06's oracles and what is subtle in its diagnoses; the broken configurations are broken."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import jupytext
import numpy as np
import pytest

from autograder.evaluation.wording import steady
from autograder.exercise import Attempt, Case
from autograder.exercises import offload as adam
from autograder.exercises import offload_configs as configs
from shardlab import launch
from shardlab.estimate.memory import model_states

LAB = "06_offload"
lab = importlib.import_module(f"autograder.exercises.{LAB}")
RNG = np.random.default_rng(0)


def attempt(case, output, expected=None, inputs=None, error=None):
    return Attempt(case, [inputs], [expected], [output], None, error)


# ---- offload_bytes_per_step ---------------------------------------------------------------------


def test_bytes_are_those_of_a_hand_count():
    """ZeRO-Offload: 2Ψ down and 2Ψ up (arXiv 2101.06840, section 3), over N; states are 12Ψ."""
    assert lab.bytes_of(["zero-offload", 1000, 1, "bf16", 1]) == (2000, 2000)
    assert lab.bytes_of(["zero-offload", 1000, 4, "fp16", 8]) == (4000, 500)
    assert lab.bytes_of(["zero-offload", 1000, 1, "fp32", 1]) == (4000, 4000)
    assert lab.bytes_of(["swap", 1000, 2, "bf16", 8]) == (6000, 6000)
    assert lab.bytes_of(["swap", 1000, 2, "fp32", 1]) == (4000, 4000)
    assert lab.bytes_of(["parameters", 1000, 2, "bf16", 3]) == (3000, 6000)


@pytest.mark.parametrize("method", lab.METHODS)
@pytest.mark.parametrize("precision", lab.PRECISIONS)
def test_no_two_slips_give_one_answer_under_two_names(method, precision):
    question = [method, 10**6, 4, precision, 3]
    right = lab.bytes_of(question)
    slips = [slip for slip in lab.slips(question, right) if slip[0] != right]
    assert len({slip[0] for slip in slips}) == len(slips) >= 5


def test_hidden_questions_divide_and_differ():
    (questions,) = lab.draw_questions(Case("hidden", 1), RNG)
    assert all(parameters % ranks == 0 for _, parameters, ranks, _, _ in questions)
    assert {question[0] for question in questions} == set(lab.METHODS)


# ---- OffloadedAdam ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", adam.OFFLOADED_ADAM.cases, ids=lambda case: case.name)
def test_stale_or_unmoved_weights_cannot_pass_for_right_ones(case):
    (given,) = adam.draw_training(case, RNG)
    right, stale = adam.train(given, case), adam.train(given, case, is_stale=True)
    assert adam.equal(right, right)
    assert not adam.equal(right, stale)
    start = [weight.float() for weight in given["weights"]]
    assert not adam.equal([master.bfloat16() for master in right], [w.bfloat16() for w in start])
    assert adam.share_of_equals(stale, [master.to(adam.HALF) for master in stale]) == 1


def right_output(case, given):
    (expected,) = adam.expect_adam(case, [given])
    return expected, {**expected, "device peak": {}, "fp32 on the host": 0}


def test_wrong_formulas_are_not_called_stale():
    case = adam.OFFLOADED_ADAM.cases[1]
    (given,) = adam.draw_training(case, RNG)
    expected, output = right_output(case, given)
    rates = case.params["rates"] | {"weight_decay": 0.0}
    masters = adam.train(given, Case(case.name, 1, {**case.params, "rates": rates}))
    output |= {"masters": masters, "parameters": [master.to(adam.HALF) for master in masters]}
    tried = attempt(case, output, expected, given)
    assert adam.stale_weights(tried) is None
    assert "leaves out weight decay" in adam.wrong_update(tried).mistake


def test_what_moves_besides_is_named_by_its_way():
    case = adam.OFFLOADED_ADAM.cases[0]
    (given,) = adam.draw_training(case, RNG)
    expected, output = right_output(case, given)
    assert adam.moves_more(attempt(case, output, expected, given)) is None
    twice = 4 * adam.elements(case)
    output["moved"] = [{"host bfloat16": twice, "device bfloat16": twice // 2}]
    assert "down" in adam.moves_more(attempt(case, output, expected, given)).mistake


# ---- write_config -------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 4, 64])
def test_the_table_of_choices_is_the_formula_of_the_paper(ranks):
    for (stage, optimizer, parameters), bytes_each in configs.CHOICES:
        states = model_states(
            1000,
            stage=stage,
            world_size=ranks,
            offload_optimizer=optimizer == "host",
            offload_parameters=parameters == "host",
        )
        assert 1000 * bytes_each(ranks) == pytest.approx(states.device_bytes)


def test_cases_ask_for_different_rows():
    cases = configs.WRITE_CONFIG.cases
    assert len({configs.choice_for(case) for case in cases}) == len(cases)
    for case in cases:
        budget = configs.budget_of(case)
        assert budget["global_batch"] % (budget["micro_batch"] * case.world_size) == 0
        assert budget["parameters"] % case.world_size == 0


def test_another_row_of_the_table_is_told_by_what_it_costs():
    case = configs.WRITE_CONFIG.cases[0]  # stage 2 fits, with nothing on the host

    def said(stage, optimizer, parameters):
        engine = {
            "stage": stage,
            "optimizer": {"place": optimizer},
            "parameters": {"place": parameters},
        }
        found = configs.other_choice(attempt(case, engine))
        return found.mistake if found else None

    assert said(2, "device", "device") is None
    assert "do not fit" in said(1, "device", "device")
    assert "a lower one fits" in said(3, "device", "device")
    assert "offloads more" in said(2, "host", "device")
    assert "offloads more" in said(3, "host", "host")


# ---- fix_config ---------------------------------------------------------------------------------


def notebook_cells():
    path = Path(__file__).parents[2] / "solutions" / LAB / f"{LAB}.nb.py"
    return [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def broken():
    namespace = {}
    (source,) = [source for source in notebook_cells() if source.startswith("BROKEN = ")]
    exec(source, namespace)
    return namespace["BROKEN"]


def start_each(texts):
    """{letter: the engine, or the words of the error}: on the same ranks, for the sake of speed."""
    found = {}
    for letter, text in texts.items():
        try:
            found[letter] = configs.start_engine(json.loads(text), layers=1)
        except Exception as error:
            found[letter] = f"{type(error).__name__}: {error}"
    return found


@pytest.mark.ranks
def test_each_broken_configuration_fails_as_its_name_says(broken):
    assert set(broken) == set(configs.WANTED)
    with pytest.raises(json.JSONDecodeError):
        json.loads(broken["A"])
    found = launch(
        start_each,
        {letter: broken[letter] for letter in "CDEB"},
        world_size=2,
        device="cpu",
        engine="deepspeed",
        quiet=True,
        timeout_s=100,
    ).outputs[0]
    assert found["B"]["optimizer"]["place"] == "device"  # without a word
    for letter, words in {
        "C": r"pin_memory|Extra inputs are not permitted|DeepSpeedZeroConfig",
        "D": "train_batch_size is not equal to",
        "E": "cannot be simultaneously enabled",
    }.items():
        assert re.search(words, found[letter]), found[letter]


def fixed(text, letter="A"):
    case = Case("configuration", 1, {"letter": letter})
    return case, configs.drive_fix_config(lambda: {letter: ("not_json", text)}, letter, case)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, // b\n}', "still is no JSON"),
        ("[1]", "still is no JSON"),
        (None, "still is no JSON"),
        ('{"a": {"b": 1, "b": 2}}', "still has a key twice"),
    ],
)
def test_a_text_that_is_not_repaired_never_reaches_deepspeed(text, words):
    case, output = fixed(text)
    assert words in configs.not_parsed(attempt(case, output)).mistake


def test_answers_that_are_missing_or_no_pairs_are_named():
    case = Case("configuration", 1, {"letter": "B"})
    for answers, words in [({}, "is not among"), ({"B": "text"}, "a pair"), (None, "is not among")]:
        output = configs.drive_fix_config(lambda answers=answers: answers, "B", case)
        assert words in configs.not_parsed(attempt(case, output)).mistake


@pytest.mark.parametrize(
    ("letter", "key", "value", "words"),
    [
        ("B", "allgather_bucket", 500_000_000, "bucket sizes"),
        ("D", "global_batch", 64, "global batch"),
        ("E", "precision", "float32", "precision"),
    ],
)
def test_a_repair_that_gives_up_a_wish_is_told_which(letter, key, value, words):
    case = Case("configuration", 2, {"letter": letter})
    code, engine = configs.WANTED[letter]
    output = {"code": code, "problem": "", "engine": {**engine, key: value}}
    assert words in configs.wish_given_up(attempt(case, output)).mistake
    output["engine"] = dict(engine)
    assert configs.wish_given_up(attempt(case, output)) is None
    assert "not the name" in configs.misnamed(attempt(case, {**output, "code": "x"})).mistake


def test_a_billion_stays_readable_in_a_message():
    case = Case("one device", 1, {})
    wanted, got = (2_000_000_000, 2_000_000_000), (4_000_000_000, 4_000_000_000)
    asked = ("zero-offload", 1_000_000_000, 1, "bf16", 1)
    found = lab.wrong_formula(Attempt(case, [[asked]], [[wanted]], [[got]], None, None))
    assert "1,000,000,000" in steady(found.who)
    assert steady(found.evidence).startswith("(4,000,000,000, 4,000,000,000), expected (2,000")
