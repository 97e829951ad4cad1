"""Lab 16: mfu, roofline_time and threshold against published numbers, torch's counts and the
library; their named mistakes; right answers of another form."""

from __future__ import annotations

from functools import partial

import cloudpickle
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from autograder import exercises
from autograder.evaluation.decide import decide
from autograder.evaluation.judge import judge
from autograder.exercise import Attempt
from autograder.exercises.lab16_where_the_time_goes.hidden import mfu, roofline_time, threshold
from shardlab.estimate import flops, roofline
from shardlab.models.paper_layer import PaperLayer
from shardlab.recorded_runs.published import MACHINES, PUBLISHED, machine_name
from tests.submissions import planted
from tests.submissions.deciding import inputs_of

LAB = "16_where_the_time_goes"
SEED = 16
H100, A100 = MACHINES["H100"], MACHINES["A100"]
HALVES = {"mfu": mfu, "roofline_time": roofline_time, "threshold": threshold}
FORMULAS = {each.answer: each for each in exercises.of_lab(LAB) if each.answer in HALVES}


# ---- what the references compute


def test_published_utilizations_come_out():
    palm, llama = (mfu.right(**PUBLISHED[name].question) for name in ("PaLM 540B", "Llama 3.1 8B"))
    assert palm["mfu"] == palm["hfu"] == pytest.approx(0.462, abs=5e-4)
    assert llama["mfu"] == pytest.approx(0.337, abs=5e-4)
    palm_without = mfu.right(**PUBLISHED["PaLM 540B"].question, attention=0)["mfu"]
    assert palm_without == pytest.approx(0.457, abs=5e-4)
    bloom = mfu.right(**PUBLISHED["BLOOM 176B"].question)
    # Megatron-LM does not count the logits as recomputed: 149.77 of 312 TFLOP/s, 48.0%.
    assert bloom["hfu"] == pytest.approx(149.77 / 312, rel=6e-3)
    assert bloom["mfu"] == pytest.approx(0.36, abs=3e-3)


def test_a_22b_model_with_selective_recomputation_has_the_papers_mfu():
    """Korthikanti et al., arXiv 2205.05198, table 5: 1.10 s, 41.5%."""
    layers, width = 48, 6144
    model = {
        "layers": layers,
        "width": width,
        "heads": 64,
        "head_width": width // 64,
        "sequence": 2048,
        "parameters": 12 * layers * width**2 + 51_200 * width,
        "lookup_parameters": 0,
    }
    cluster = {"devices": 8, "peak_flops_per_s": 312e12, "with_sparsity": False}
    shares = mfu.right({"sequences": 4, "step_s": 1.10}, model, cluster)
    assert shares["mfu"] == pytest.approx(0.415, abs=2e-3)


def test_mixtral_has_the_published_number_of_active_parameters():
    """Jiang et al., arXiv 2401.04088: 12.9 of 46.7 billion."""
    assert mfu.active_parameters(PUBLISHED["Mixtral 8x7B"].model) == pytest.approx(12.9e9, rel=5e-3)


@pytest.mark.parametrize("recomputed", [False, True])
def test_mfu_agrees_with_the_library(recomputed):
    run = PUBLISHED["PaLM 540B"]
    devices, peak_flops_per_s = run.cluster["devices"], run.cluster["peak_flops_per_s"]
    for key, again in (("mfu", False), ("hfu", recomputed)):
        needed = flops.training_flops(
            run.model["parameters"],
            run.log["tokens_per_s"],
            layers=118,
            width=48 * 256,
            sequence=2048,
            recomputed=again,
        )
        share = flops.utilization(needed, 1, devices, peak_flops_per_s)
        shares = mfu.right(run.log, run.model, run.cluster, recomputed)
        assert shares[key] == pytest.approx(share)


@pytest.mark.parametrize(("heads", "sequence"), [(4, 64), (8, 512)])
def test_torch_counts_the_same_operations_in_a_layer(heads, sequence):
    width = 128
    with torch.device("meta"):
        layer, x = PaperLayer(width, heads), torch.empty(1, sequence, width, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        layer(x).sum().backward()
    model = {
        "layers": 1,
        "width": width,
        "heads": heads,
        "head_width": width // heads,
        "sequence": sequence,
        "parameters": 12 * width**2,
        "lookup_parameters": 0,
    }
    log = {"sequences": 1, "step_s": 1}
    cluster = {"devices": 1, "peak_flops_per_s": 1, "with_sparsity": False}
    assert mfu.right(log, model, cluster)["mfu"] == counter.get_total_flops()


@pytest.mark.parametrize("rows", [16, 8192])
def test_the_time_of_a_product_is_the_librarys_roofline(rows):
    device = roofline.Roofline(H100["flops_per_s"], H100["memory_bytes_per_s"])
    of_a_rank = (rows, 28672 // 4, 8192)
    seconds = device.seconds(roofline.product_flops(*of_a_rank), roofline.product_bytes(*of_a_rank))
    times = roofline_time.right(rows, 28672, 8192, 2, H100, 4)
    assert times["product_s"] == pytest.approx(seconds)


def test_the_time_of_a_ring_is_that_of_its_messages_one_after_another():
    n, latency_s, chunk_bytes = 4, H100["latency_s"], 16 * 8192 * 2 / 4
    seconds = 0.0
    for _half in ("reduce-scatter", "all-gather"):
        for _message in range(n - 1):
            seconds += latency_s + chunk_bytes / (H100["link_bits_per_s"] / 8)
    assert roofline_time.right(16, 28672, 8192, 2, H100, n)["all_reduce_s"] == pytest.approx(
        seconds
    )


def test_thresholds_agree_with_the_library_and_the_scaling_book():
    node_bytes_per_s = 8 * 400e9 / 8
    c_over_w = roofline.data_parallel_tokens(H100["flops_per_s"], node_bytes_per_s)
    assert c_over_w == pytest.approx(2475, rel=2e-3)  # with 990 TFLOP/s
    for parallelism in ("data", "zero3"):
        assert threshold.right(parallelism, H100, 10**6) == pytest.approx(c_over_w, rel=1e-5)
    of_two = roofline.data_parallel_tokens(H100["flops_per_s"], node_bytes_per_s, ranks=2)
    assert threshold.right("data", H100, 2) == pytest.approx(of_two)
    ranks = threshold.right("tensor", H100, hidden_width=28672)
    assert ranks - 1 == pytest.approx(
        roofline.tensor_parallel_ranks(28672, H100["flops_per_s"], 450e9)
    )


@pytest.mark.parametrize("gradient_bytes", [1, 2, 4])
@pytest.mark.parametrize("parallelism", ["data", "zero3"])
def test_at_the_threshold_traffic_takes_as_long_as_what_hides_it(parallelism, gradient_bytes):
    nodes, parameters = 4, 1e9
    tokens = threshold.right(parallelism, A100, nodes, gradient_bytes)
    node_bytes_per_s = 4 * 200e9 / 8
    one_pass_s = (nodes - 1) / nodes * parameters / node_bytes_per_s  # of one byte each
    forward_s = 2 * parameters * tokens / A100["flops_per_s"]
    if parallelism == "data":
        assert 2 * forward_s == pytest.approx(2 * gradient_bytes * one_pass_s)
    else:
        late_s = [2 * one_pass_s - forward_s, (2 + gradient_bytes) * one_pass_s - 2 * forward_s]
        assert max(late_s) == pytest.approx(0, abs=1e-9 * forward_s)


def test_at_the_threshold_the_mlps_products_take_as_long_as_its_all_reduce():
    width, hidden_width, tokens = 8192, 28672, 1000
    t = threshold.right("tensor", H100, hidden_width=hidden_width)
    products_s = 2 * 2 * tokens * width * hidden_width / t / H100["flops_per_s"]
    all_reduce_s = 2 * (t - 1) / t * tokens * width * 2 / 450e9
    assert products_s == pytest.approx(all_reduce_s)


def test_the_numbers_in_the_answer_to_the_question_about_reports():
    dense_flops_per_s = 1979e12 / 2
    shares = [420e12 / dense_flops_per_s, 189 * 2 / 312, 189 / 312, 149.77 / 312 * 72 / 96]
    assert shares == pytest.approx([0.424, 1.21, 0.606, 0.36], abs=5e-3)


# ---- messages


def diagnosis_of(exercise, case, answers):
    inputs = inputs_of(exercise, case)
    attempt = Attempt(case, inputs, exercise.expect(case, inputs), [answers(inputs[0])], None, None)
    return judge(exercise, attempt).result.diagnosis


def answers_of(formula):
    return lambda asked: [formula(**q) if isinstance(q, dict) else formula(*q) for q in asked]


SINGLE = [(answer, message) for answer, half in HALVES.items() for message in half.CHANGES]


# True of several mistakes that cannot be told apart by the numbers of a case.
TRUE_OF_SEVERAL = (
    "gives the threshold of forward",
    "reduces on one rank",
    "leaves memory out, or nearly",
)


@pytest.mark.parametrize(("answer", "message"), SINGLE)
def test_each_mistake_is_named_by_its_own_message_only(answer, message):
    exercise, half = FORMULAS[answer], HALVES[answer]
    for change in half.CHANGES[message]:
        wrong = answers_of(partial(half.right, **change))
        visible = [case for case in exercise.cases if not case.hidden]  # few questions each
        found = [diagnosis_of(exercise, case, wrong) for case in visible]
        shown = [diagnosis for diagnosis in found if diagnosis]
        assert shown
        for diagnosis in shown:
            assert any(words in diagnosis for words in (message, *TRUE_OF_SEVERAL)), diagnosis


def test_published_runs_and_machines_are_shown_by_name():
    palm = PUBLISHED["PaLM 540B"].question
    assert FORMULAS["mfu"].shown("mfu", palm) == "mfu(**RUNS['PaLM 540B'])"
    other = palm | {"recomputed": True}
    assert FORMULAS["mfu"].shown("mfu", other) == (
        "mfu(tokens_per_s in the log, 6144 devices, full recomputation)"
    )
    assert machine_name(dict(H100)) == "MACHINES['H100']"
    assert machine_name({"flops_per_s": 1.0}) == "{'flops_per_s': 1.0}"
    question = [16, 64, 32, 2, A100, 4]
    assert FORMULAS["roofline_time"].shown("roofline_time", question) == (
        "roofline_time(16, 64, 32, 2, MACHINES['A100'], ranks=4)"
    )


def test_an_answer_of_the_wrong_form_is_described():
    case = FORMULAS["mfu"].cases[0]
    assert "should give a dict" in diagnosis_of(FORMULAS["mfu"], case, lambda asked: [0.46])
    only = diagnosis_of(FORMULAS["mfu"], case, lambda asked: [{"mfu": 0.4622894202513181}])
    assert "lacks 'hfu'" in only
    one = FORMULAS["roofline_time"].cases[0]
    total = diagnosis_of(FORMULAS["roofline_time"], one, lambda asked: [1e-3] * 3)
    assert "should give a dict" in total


# ---- right answers of another form

HELPERS = """
import numpy as np

def training_flops_per_token(model, passes):
    per_head = 2 * 2 * model["sequence"] * model["head_width"]
    attention = model["layers"] * model["heads"] * per_head
    dense = model["parameters"] - model["lookup_parameters"] - model.get("expert_parameters", 0)
    share = model.get("experts_per_token", 1) / model.get("experts", 1)
    return passes * (2 * (dense + share * model.get("expert_parameters", 0)) + attention)

def mfu(log, model, cluster, recomputed=False):
    tokens = {
        "tokens_per_s": lambda: log["tokens_per_s"] / cluster["devices"],
        "tokens_per_s_per_device": lambda: log["tokens_per_s_per_device"],
        "step_s": lambda: log["sequences"] * model["sequence"] / log["step_s"] / cluster["devices"],
    }
    (per_device,) = [tokens[key]() for key in log if key in tokens]
    peak = np.float64(cluster["peak_flops_per_s"])
    if cluster["with_sparsity"]:
        peak = 0.5 * peak
    result = [training_flops_per_token(model, n) * per_device / peak for n in (3, 3 + recomputed)]
    return dict(zip(("mfu", "hfu"), result))
"""
RIGHT = {
    ("mfu", "helpers, numpy, for each device"): HELPERS,
    ("roofline_time", "a loop over messages, numpy"): """
def roofline_time(rows, inner, columns, element_bytes, machine, ranks=1):
    import numpy as np
    shapes = np.array([[rows, inner / ranks], [inner / ranks, columns], [rows, columns]])
    memory_s = shapes.prod(axis=1).sum() * element_bytes / machine["memory_bytes_per_s"]
    compute_s = 2 * rows * columns * (inner / ranks) / machine["flops_per_s"]
    seconds = 0
    for _ in range(2 * (ranks - 1)):
        seconds += machine["latency_s"]
        seconds += rows * columns / ranks * element_bytes / (machine["link_bits_per_s"] / 8)
    return {"product_s": np.maximum(compute_s, memory_s), "all_reduce_s": seconds, "ranks": ranks}
""",
    ("roofline_time", "integer division of inner"): """
def roofline_time(rows, inner, columns, element_bytes, machine, ranks=1):
    inner //= ranks
    product_s = max(2 * rows * inner * columns / machine["flops_per_s"],
        element_bytes * (rows * inner + inner * columns + rows * columns)
        / machine["memory_bytes_per_s"])
    if ranks == 1:
        return dict(product_s=product_s, all_reduce_s=0)
    sent_bits = 8 * 2 * (ranks - 1) / ranks * rows * columns * element_bytes
    ring_s = 2 * (ranks - 1) * machine["latency_s"] + sent_bits / machine["link_bits_per_s"]
    return dict(product_s=product_s, all_reduce_s=ring_s)
""",
    ("threshold", "bisection until both times are equal"): """
import math

def threshold(parallelism, machine, nodes=1, gradient_bytes=2, hidden_width=None):
    C = machine["flops_per_s"]
    W = machine["devices_per_node"] * machine["link_bits_per_s"] / 8
    ring = (nodes - 1) / nodes / W
    def is_hidden(x):
        if parallelism == "tensor":
            sent = 2 * (x - 1) / x * 2 / (machine["nvlink_bytes_per_s"] / 2)
            return 4 * hidden_width / x / C < sent
        if parallelism == "data":
            return 4 * x / C > 2 * gradient_bytes * ring
        return 2 * x / C > 2 * ring and 4 * x / C > (2 + gradient_bytes) * ring
    low, high = 0.0 if parallelism != "tensor" else 1.0, 1e9
    while not math.isclose(low, high, rel_tol=1e-13, abs_tol=1e-9):
        middle = (low + high) / 2
        low, high = (low, middle) if is_hidden(middle) else (middle, high)
    return 0 if high < 1e-6 else high
""",
}


@pytest.mark.ranks
@pytest.mark.parametrize(("answer", "how"), RIGHT, ids=lambda each: each.replace(" ", "_"))
def test_a_right_answer_of_another_form_earns_full_marks(answer, how):
    subject = planted.subjects(LAB, planted.solution(LAB) | {answer: RIGHT[answer, how]})[answer]
    verdict = decide(FORMULAS[answer], cloudpickle.dumps(subject), SEED)
    assert verdict.points == verdict.max_points, [case.diagnosis for case in verdict.cases]


@pytest.mark.ranks
@pytest.mark.parametrize("answer", HALVES)
def test_the_library_is_closed_to_an_answer(answer):
    calls = f"""
from shardlab.estimate import flops, roofline

def {answer}(*args, **kwargs):
    return {{"mfu": flops.utilization(1, 1, 1, 1), "hfu": roofline.product_flops(1, 1, 1)}}
"""
    subject = planted.subjects(LAB, planted.solution(LAB) | {answer: calls})[answer]
    verdict = decide(FORMULAS[answer], cloudpickle.dumps(subject), SEED)
    assert verdict.points == 0
    assert "write this answer yourself" in verdict.cases[0].diagnosis
