"""Lab 07: references, messages for wrong answers, and configurations that really are broken."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest

from autograder import exercises
from autograder.evaluation.judge import judge
from autograder.evaluation.wording import deterministic
from autograder.exercise import Attempt
from autograder.exercises.lab07_offload import fix_config, offloaded_adam, write_config
from autograder.exercises.lab07_offload.hidden import fix_config as fix_answers
from autograder.exercises.lab07_offload.hidden import offload_bytes_per_step as formula
from autograder.exercises.lab07_offload.hidden import offloaded_adam as adam
from autograder.exercises.lab07_offload.offload_bytes_per_step import as_pair
from autograder.exercises.lab07_offload.shared import start_engine
from shardlab import launch
from shardlab.errors import RankError
from shardlab.estimate.memory import model_states
from tests.submissions import planted

LAB = "07_offload"
BYTES, ADAM, WRITE, FIX = exercises.of_lab(LAB)
RNG = np.random.default_rng(0)


def diagnosis_of(exercise, case, output, inputs=None):
    """The check's message if every rank returns ``output``; empty if that is right."""
    inputs = inputs or exercise.draw(case, RNG)
    expected = exercise.expect(case, inputs)
    attempt = Attempt(case, inputs, expected, [output] * case.world_size, None, None)
    return judge(exercise, attempt).result.diagnosis


# ---- offload_bytes_per_step ---------------------------------------------------------------------


def test_bytes_match_a_hand_count():
    """ZeRO-Offload: 2Ψ down and 2Ψ up (arXiv 2101.06840, section 3), over N; states are 12Ψ."""
    assert formula.right("zero-offload", 1000, 1, "bf16", 1) == (2000, 2000)
    assert formula.right("zero-offload", 1000, 4, "fp16", 8) == (4000, 500)
    assert formula.right("zero-offload", 1000, 1, "fp32", 1) == (4000, 4000)
    assert formula.right("swap", 1000, 2, "bf16", 8) == (6000, 6000)
    assert formula.right("swap", 1000, 2, "fp32", 1) == (4000, 4000)
    assert formula.right("parameters", 1000, 2, "bf16", 3) == (3000, 6000)


@pytest.mark.parametrize("method", formula.METHODS)
def test_no_two_mistakes_give_the_same_answers(method):
    questions = [[method, 10**6, 4, precision, 3] for precision in formula.PRECISIONS]
    right = [formula.right(*question) for question in questions]
    mistakes = BYTES.required_half.mistakes(BYTES.cases[0], [questions])
    wrong = [tuple(answers) for _, (answers,) in mistakes if answers != right]
    assert len(set(wrong)) == len(wrong) >= 2


def test_hidden_questions_divide_evenly_and_cover_all_methods():
    ((*questions,),) = BYTES.draw(BYTES.cases[-1], RNG)
    assert all(parameters % ranks == 0 for _, parameters, ranks, _, _ in questions)
    assert {question[0] for question in questions} == set(formula.METHODS)


@pytest.mark.parametrize("mistake", formula.MISTAKES)
def test_each_wrong_formula_is_named_if_nothing_else_is_wrong(mistake):
    case = BYTES.cases[-1]
    inputs = BYTES.draw(case, RNG)
    output = [formula.MISTAKES[mistake](*question) for question in inputs[0]]
    assert diagnosis_of(BYTES, case, output, inputs) == f"offload_bytes_per_step {mistake}"


def test_large_numbers_are_readable_in_a_message():
    text = deterministic(diagnosis_of(BYTES, BYTES.cases[0], [(4 * 10**9,) * 2, (4000, 4000)]))
    assert text == (
        "offload_bytes_per_step('zero-offload', 1_000_000_000, 1, 'bf16', 1) counts fp32, 4Ψ: "
        "elements move in 16 bits, 2 bytes each (4,000,000,000 and 4,000,000,000, expected "
        "2,000,000,000 and 2,000,000,000)"
    )


def test_a_pair_may_be_a_named_tuple_or_have_fractions():
    pair = NamedTuple("Moved", [("down", Fraction), ("up", int)])(Fraction(3, 2), 4)
    accepted = as_pair(pair)
    assert (type(accepted), accepted) == (tuple, (1.5, 4))


# ---- OffloadedAdam ------------------------------------------------------------------------------


def trained(case, inputs, **changes):
    """What the drive returns for an optimizer that trains with these changes."""
    masters = adam.trained(case, inputs, **changes)
    halves = [master.to(offloaded_adam.HALF) for master in masters]
    weights = {"parameters": halves, "views": halves, "as fp32": [half.float() for half in halves]}
    reference = adam.reference(case, inputs)
    return {**reference, "fp32 on the device": 0, "masters": masters, **weights}


@pytest.mark.parametrize("case", ADAM.cases, ids=lambda case: case.name)
def test_stale_or_unmoved_weights_are_named_in_every_case(case):
    inputs = ADAM.draw(case, RNG)
    assert diagnosis_of(ADAM, case, trained(case, inputs), inputs) == ""
    stale = trained(case, inputs, rounds_masters=True)
    assert "updates weights that were rounded to 16 bits" in diagnosis_of(ADAM, case, stale, inputs)
    weights = inputs[0]["weights"]
    unmoved = trained(case, inputs) | {"as fp32": [weight.float() for weight in weights]}
    unmoved |= {"parameters": weights, "views": weights}
    assert "does not update the device's weights" in diagnosis_of(ADAM, case, unmoved, inputs)
    if case.params["rates"] != offloaded_adam.DEFAULTS:
        output = trained(case, inputs, weight_decay=offloaded_adam.DEFAULTS["weight_decay"])
        assert "drops options" in diagnosis_of(ADAM, case, output, inputs)
    other = trained(case, inputs, eps=0.01)  # an unknown mistake is not named
    assert "wrong values in" in diagnosis_of(ADAM, case, other, inputs)


def test_unnecessary_transfers_are_named():
    case = ADAM.cases[0]
    inputs = ADAM.draw(case, RNG)
    output = trained(case, inputs)
    output["moved"] = [*output["moved"][:-1], [("float32 to the host", 4096 * 4)]]
    found = diagnosis_of(ADAM, case, output, inputs)
    assert found.startswith("your answer should move the gradients to the host")
    assert found.endswith("(it moves 4Ψ bytes of float32 to the host in a step)")


# ---- write_config -------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 4, 64])
def test_the_table_of_choices_matches_the_papers_formula(ranks):
    for (stage, optimizer, parameters), bytes_each in write_config.ROWS.items():
        states = model_states(
            1000,
            stage=stage,
            world_size=ranks,
            offload_optimizer=optimizer == "host",
            offload_parameters=parameters == "host",
        )
        assert 1000 * bytes_each(ranks) == pytest.approx(states.device_bytes)


def test_cases_ask_for_different_rows():
    wanted = {json.dumps(WRITE.expect(case, WRITE.draw(case, RNG))[0]) for case in WRITE.cases}
    assert len(wanted) == len(WRITE.cases)
    for case in WRITE.cases:
        budget = WRITE.draw(case, RNG)[0]
        assert budget["global_batch"] % (budget["micro_batch"] * case.world_size) == 0
        assert budget["parameters"] % case.world_size == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"rows": [(1, "device", "device")]},
            "fit on the device (stage 1, optimizer on the device, parameters on the device: 81,920",
        ),
        (
            {"rows": [(3, "device", "device")]},
            "not the first row of the table",
        ),
        ({"precision": "float32"}, "the wrong value in 'precision' ('float32', expected"),
        ({"stage": 1, "outside": ["offload_optimizer"]}, "has keys at the wrong level"),
        ({"stage": 0, "config": {"zero": {}}}, "has no zero_optimization section (it has zero)"),
        (
            {"wrong keys": ["pin_memory: no key of DeepSpeed"]},
            "top-level key that DeepSpeed ignores",
        ),
        ({"rows": [(1, "device", "host")]}, "DeepSpeed ignores, without a warning, offload_opt"),
        ({"rows": [(3, "device", "host")]}, "offload_param comes with offload_optimizer"),
        ({"rows": [("2", "device", "device")]}, "has a stage that is not an int (it is '2')"),
    ],
)
def test_an_engine_that_differs_from_the_request_is_named(change, words):
    case = WRITE.cases[0]  # stage 2 fits, with nothing on the host
    inputs = WRITE.draw(case, RNG)
    right = WRITE.expect(case, inputs)[0]
    right |= {"config": {"zero_optimization": {"stage": 2}}, "outside": []}
    assert diagnosis_of(WRITE, case, right, inputs) == ""
    assert words in diagnosis_of(WRITE, case, right | change, inputs)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (None, "write_config returned a NoneType, not a dict"),
        ({"zero_optimization": {"offload_param": {"device": "nvme"}}}, "offload_param is on"),
    ],
)
def test_no_other_type_and_no_nvme_reach_deepspeed(returned, says):
    case = WRITE.cases[0]
    with pytest.raises((TypeError, ValueError), match=says):
        WRITE.drive(lambda **budget: returned, WRITE.draw(case, RNG)[0], case)


@pytest.mark.parametrize("exercise", [WRITE, FIX], ids=lambda exercise: exercise.answer)
def test_an_error_in_the_answer_is_not_attributed_to_deepspeed(exercise):
    case = exercise.cases[0]
    inputs = exercise.draw(case, RNG)
    message = "name 'train_batch_size' is not equal to a name"
    for source, expected in (("cell 3, line 2", False), ("", True)):
        error = RankError("rank 0 failed", rank=0, kind="NameError", message=message, source=source)
        outputs = [None] * case.world_size
        attempt = Attempt(case, inputs, exercise.expect(case, inputs), outputs, None, error)
        assert ("the configuration" in judge(exercise, attempt).result.diagnosis) == expected


# ---- fix_config ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broken():
    namespace = {}
    (cell,) = [cell for cell in planted.code_cells(LAB) if cell.source.startswith("BROKEN = ")]
    exec(cell.source, namespace)
    return namespace["BROKEN"]


def start_each(texts):
    """{letter: the engine, or the error message}; all on the same ranks, which is faster."""
    found = {}
    for letter, text in texts.items():
        try:
            found[letter] = start_engine(json.loads(text), layers=1)
        except Exception as error:
            found[letter] = f"{type(error).__name__}: {error}"
    return found


@pytest.mark.ranks
def test_each_broken_configuration_fails_as_its_name_says(broken):
    assert set(broken) == set(fix_answers.ANSWERS)
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
    assert found["B"]["optimizer"]["place"] == "device"  # without a warning
    for letter, words in {
        "C": r"pin_memory|Extra inputs are not permitted|DeepSpeedZeroConfig",
        "D": "train_batch_size is not equal to",
        "E": "cannot be simultaneously enabled",
    }.items():
        assert re.search(words, found[letter]), found[letter]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"A": ("not_json", '{"a": 1, // b\n}')}, "Expecting property name"),
        ({"A": ("not_json", None)}, "JSON object must be str"),
        ({"A": ("not_json", '{"a": {"b": 1, "b": 2}}')}, "duplicate key 'b'"),
        ({"B": ("", "{}"), "a": ("", "{}")}, "no entry 'A', only 'B', 'a'"),
        ({"A": ('{"a": 1}', "not_json")}, r"should be \(name, text\)"),
        ({"A": "text"}, "should return a dict"),
        (None, "should return a dict"),
    ],
)
def test_only_repaired_json_reaches_deepspeed(answers, words):
    with pytest.raises((TypeError, ValueError), match=words):
        fix_config.drive(lambda: answers, "A", FIX.cases[0])


@pytest.mark.parametrize(
    ("letter", "key", "value", "words"),
    [
        ("B", "bucket_size", 500_000_000, "reports bucket_size 500,000,000, not 200,000,000"),
        ("B", "optimizer", {"place": "device", "elements": 2048}, "optimizer device, not host)"),
        ("C", "pinned", True, "pinned True, not False"),
        ("D", "global_batch", 64, "global_batch 64, not 32"),
        ("D", "micro_batch", 2, "micro_batch 2, not 4"),
        ("E", "precision", "float32", "precision float32, not bfloat16"),
        ("E", "code", "unknown_key", "that is not the name of its mistake (unknown_key)"),
    ],
)
def test_a_fix_that_changes_what_the_author_wanted_is_named(letter, key, value, words):
    case = FIX.cases["ABCDE".index(letter)]
    right = FIX.expect(case, FIX.draw(case, RNG))[0]
    assert diagnosis_of(FIX, case, right) == ""
    assert words in diagnosis_of(FIX, case, right | {key: value})


@pytest.mark.parametrize(
    ("letter", "change", "words"),
    [
        ("A", {"wall_clock_breakdown": False, "bfloat16": {"enabled": True}}, ""),
        ("A", {"fp16": {"enabled": False, "loss_scale": 0}}, ""),
        ("E", {"fp16": {"loss_scale": 0}}, ""),
        ("A", {"prescale_gradients": False}, ""),
        ("E", {"zero_optimization": {"stage": 2, "contiguous_gradients": True}}, ""),
        ("E", {"loss_scale": 0}, "loss_scale is 0, not missing"),
        ("A", {"wall_clock_breakdown": True}, "wall_clock_breakdown is true, not false"),
        (
            "A",
            {"gradient_clipping": 0.5},  # 1.0 is the default
            "gradient_clipping is 0.5, not missing",
        ),
        ("B", {"zero_optimization": {"stage": 2}}, "allgather_bucket_size is missing, not 200"),
        ("D", {"zero_optimization": {"stage": 2}}, "zero_optimization.stage is 2, not 3"),
        (
            "B",
            {
                "zero_optimization": {
                    "stage": 2,
                    "offload_optimizer": {"device": "cpu"},
                    "allgather_bucket_size": 200_000_000,
                    "reduce_bucket_size": 2_000_000_000,
                }
            },
            "reduce_bucket_size is 2,000,000,000, not 200,000,000",
        ),
        (
            "C",
            {
                "zero_optimization": {
                    "stage": 2,
                    "offload_optimizer": {"device": "cpu", "pin_memory": 0},
                }
            },
            "zero_optimization.offload_optimizer.pin_memory is 0, not false",
        ),
        (
            "E",
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
            'zero_optimization.offload_optimizer.device is "cpu", not missing',
        ),
    ],
)
def test_an_unnecessary_change_of_a_setting_is_named(letter, change, words):
    case = FIX.cases["ABCDE".index(letter)]
    right = FIX.expect(case, FIX.draw(case, RNG))[0]
    config = {}
    for path, value in right["settings"]:
        *sections, key = path.split(".")
        inside = config
        for section in sections:
            inside = inside.setdefault(section, {})
        inside[key] = json.loads(value)
    assert fix_config.settings_of(config) == right["settings"]
    if "bfloat16" in change:
        del config["bf16"]
    output = right | {"settings": fix_config.settings_of(config | change)}
    output["is off"] = {"wall_clock_breakdown": "false"} if "wall_clock_breakdown" in change else {}
    diagnosis = diagnosis_of(FIX, case, output)
    assert words in diagnosis if words else diagnosis == ""
